"""`make demo ZONES=2`: a Global and zones on this machine, and a service that lives in all of them.

Each zone has a control plane, an ingress and a `backend`, with a real Envoy each; `web` in the first zone
calls the MeshMultiZoneService `backend`. Which zone answers is shown all the time. Whatever is killed is
started again a few seconds later, so that both ways can be watched.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from examples.processes import (
    KOGUMA,
    PORTS,
    Processes,
    free_port,
    port_flags,
    ports,
    proxy_flags,
    ready_line,
    run,
    save_token,
)
from examples.traffic import Traffic, serve, show

NAMES = ("east", "west", "north", "south")
FILES = Path(__file__).with_name("zones")
RESTART_SECONDS = 10.0
_PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.2


class _Failed(Exception):
    """A process ended before it was ready; it has said why."""


class Part:
    """A process of the demo that is started again some seconds after it was stopped."""

    def __init__(self, name: str, start: Callable[[], "subprocess.Popen[str]"]) -> None:
        self.name = name
        self._start = start
        self._ended_at: float | None = None
        self.process = start()

    def wait(self) -> str:
        """Wait until it is ready; returns the line in which it says so."""
        if not (line := ready_line(self.process)):
            raise _Failed(self.name)
        print(line, flush=True)
        return line

    def keep(self) -> None:
        """Start it again if it has ended a while ago."""
        if self.process.poll() is None:
            return
        if self._ended_at is None:
            self._ended_at = time.monotonic()
            print(f"\n{self.name} has ended; it is started again in {RESTART_SECONDS:g} seconds", flush=True)
        elif time.monotonic() - self._ended_at > RESTART_SECONDS:
            self._ended_at = None
            self.process = self._start()
            threading.Thread(target=self._wait_again, args=(self.process,), daemon=True).start()

    def _wait_again(self, process: "subprocess.Popen[str]") -> None:
        if ready_line(process):
            print(f"\n{self.name} runs again: process {process.pid}", flush=True)


class ControlPlanePart:
    """A control plane: Global, or that of a zone."""

    def __init__(self, processes: Processes, folder: Path, name: str, *flags: str) -> None:
        self.folder = folder / name
        data = str(self.folder)
        words = ["cp", "run", *flags, "--log-level", "error"]
        self.part = Part(f"the control plane {name}", lambda: processes.start(words, KOGUMA_DATA_DIR=data))
        line = self.part.wait()
        self.address = next(word for word in line.split() if word.startswith("http://"))
        self.door = line.rpartition("proxies: ")[2].strip()

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which `koguma` commands are for this control plane."""
        return {**os.environ, "KOGUMA_ADDRESS": self.address, "KOGUMA_DATA_DIR": str(self.folder)}

    @property
    def export(self) -> str:
        """The line that sets them in a shell."""
        return f"export KOGUMA_ADDRESS={self.address} KOGUMA_DATA_DIR={self.folder}"

    def apply(self, name: str) -> None:
        """Apply a file of the demo."""
        subprocess.run([KOGUMA, "apply", "-f", str(FILES / name)], env=self.environment, check=True)

    def wait_for(self, *words: str) -> None:
        """Wait until a command succeeds."""
        give_up_at = time.monotonic() + _PATIENCE_SECONDS
        while True:
            done = subprocess.run(
                [KOGUMA, *words], env=self.environment, capture_output=True, text=True, check=False
            )
            if done.returncode == 0:
                return
            if time.monotonic() > give_up_at:
                print(done.stderr, file=sys.stderr)
                raise _Failed(" ".join(words))
            time.sleep(_LOOK_SECONDS)


class ZonesDemo:
    """The demo with so many zones."""

    def __init__(self, folder: Path, processes: Processes, zones: tuple[str, ...]) -> None:
        self._folder = folder
        self._processes = processes
        self._calls = free_port()
        chosen = _fixed(ports({**PORTS, "SYNC": "5685"}))
        self._sync_port = chosen["SYNC"]
        self._global = ControlPlanePart(processes, folder, "global", "--mode=global", *port_flags(chosen))
        self._global.apply("global.yaml")
        self._zones = {zone: self._zone(zone) for zone in zones}
        self._proxies = [
            self._proxy(zone, *described) for zone in zones for described in self._described(zone)
        ]
        for proxy in self._proxies:
            proxy.wait()

    def _zone(self, name: str) -> ControlPlanePart:
        token = save_token(
            self._folder / f"{name}.token",
            self._global.environment,
            *("zone", "--zone", name, "--scope", "cp"),
        )
        zone = ControlPlanePart(
            self._processes,
            self._folder,
            name,
            *("--mode=zone", "--zone-name", name, "--zone-token-file", str(token)),
            *("--global-address", f"grpcs://127.0.0.1:{self._sync_port}"),
            *("--global-ca", str(self._global.folder / "ca.pem")),
            *port_flags({port: free_port() for port in PORTS}),
        )
        zone.wait_for("get", "mesh", "shop")  # it comes from Global
        zone.apply("zone.yaml")
        return zone

    def _described(self, zone: str) -> list[tuple[str, tuple[str, ...]]]:
        """The proxies of a zone, and the flags of each."""
        ingress = ("--proxy-type", "ingress", "--port", str(free_port()))
        described = [("ingress-1", ingress), ("backend-1", self._service(zone, "backend"))]
        if zone == NAMES[0]:
            outbound = ("--outbound", f"mzsvc/backend:80:{self._calls}")
            described.append(("web-1", self._service(zone, "web") + outbound))
        return described

    def _service(self, zone: str, service: str) -> tuple[str, ...]:
        port = str(serve(service, zone))
        return (
            *("--mesh", "shop", "--service", service, "--label", f"app={service}", "--port-name", "http"),
            *("--port", str(free_port()), "--service-port", port, "--protocol", "http"),
        )

    def _proxy(self, zone: str, name: str, own: tuple[str, ...]) -> Part:
        plane, service = self._zones[zone], name.rpartition("-")[0]
        file = self._folder / f"{zone}-{name}.token"
        if service == "ingress":
            token = save_token(
                file, self._global.environment, *("zone", "--zone", zone, "--scope", "ingress")
            )
        else:
            bound = ("dataplane", "-m", "shop", "--name", name, "--service", service)
            token = save_token(file, plane.environment, *bound)
        words = ["dp", "run", "--name", name, *own, *proxy_flags(plane.door, token)]
        folder = str(plane.folder)
        start = lambda: self._processes.start(words, KOGUMA_DATA_DIR=folder)  # noqa: E731 - what Part calls again
        return Part(f"{name} of {zone}", start)

    def show(self) -> None:
        """Say what to try, and show who answers."""
        print(self._words(), flush=True)
        show(Traffic(self._calls), self._keep)

    def _keep(self) -> bool:
        for part in self._parts():
            part.keep()
        return True

    def _parts(self) -> list[Part]:
        planes = [self._global, *self._zones.values()]
        return [*(plane.part for plane in planes), *self._proxies]

    def _words(self) -> str:
        koguma = ".venv/bin/koguma"
        exports = "\n".join(f"  {zone.export}   # {name}" for name, zone in self._zones.items())
        pids = {part.name: part.process.pid for part in self._parts()}
        first, second, *_ = self._zones
        return f"""
A Global and {len(self._zones)} zones run. web in {first} calls backend, which is a service of all zones;
mTLS all the way, between zones through their ingresses. In another terminal, take one of these lines:
the commands after it are for that control plane.

  {self._global.export}   # Global
{exports}

  {koguma} get zones                # on Global: who is connected
  {koguma} get meshservices -m shop # on Global, or in a zone: those of all zones
  {koguma} get proxies -m shop      # on Global, or in a zone: those of that zone

  # stop the backend of {first}, and watch {second} take over; after {RESTART_SECONDS:g} seconds it runs again
  kill {pids[f"backend-1 of {first}"]}

  # stop Global: the zones work on, and find it again when it is back
  kill {pids["the control plane global"]}

Ctrl-C ends it; nothing is left behind. Which zone answers, second by second:
"""


def _fixed(chosen: Mapping[str, str]) -> dict[str, str | int]:
    """The ports, chosen once: a control plane that is started again has the same."""
    return {name: port if int(port) else free_port() for name, port in chosen.items()}


def main() -> int:
    """Run the demo until Ctrl-C."""
    number = int(sys.argv[1]) if sys.argv[1:] and sys.argv[1].isdecimal() else 0
    if not 2 <= number <= len(NAMES):  # noqa: PLR2004 - one zone has nobody to take over
        print(f"ZONES is the number of zones, from 2 to {len(NAMES)}: make demo ZONES=2", file=sys.stderr)
        return 2

    def demo(folder: Path, processes: Processes) -> int:
        try:
            ZonesDemo(folder, processes, NAMES[:number]).show()
        except _Failed:
            return 1
        return 0

    return run(demo)


if __name__ == "__main__":
    sys.exit(main())
