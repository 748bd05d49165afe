"""Control planes of one store as processes, and sidecars that know all of them."""

import base64
import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tests.live_mesh import LiveMesh, Sidecar
from tests.waiting import until

LAYERS = r"(cds|lds|rds|sds|eds|cluster\.kri_.*)\..*update_(success|rejected)$|\.update_(success|rejected)$"


class PairedPlanes:
    """Two control planes on one PostgreSQL; each has ports and a data directory of its own."""

    def __init__(self, directory: Path, store: str, **settings: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        key = directory / "store.key"
        key.touch(0o600)
        key.write_text(base64.b64encode(b"a key of thirty-two bytes, known").decode())
        shared = {"store": store, "store_key_file": str(key), **settings}
        self.planes = [LiveMesh(directory / name, **shared) for name in ("a", "b")]
        self.sidecars: list[Sidecar] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for plane in reversed(self.planes):  # the first one has the sidecars, and so ends first
            self._stack.enter_context(plane)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def sidecar(self, name: str, service: str, *, flags: Sequence[str] = (), **more: Any) -> Sidecar:
        """Start a service with a sidecar that knows both control planes."""
        first, second = self.planes
        other = ("--cp-address", f"https://127.0.0.1:{second.dp}")
        sidecar = first.sidecar(name, service, flags=(*other, *flags), **more)
        self.sidecars.append(sidecar)
        return sidecar

    def connected(self, plane: LiveMesh, asked: LiveMesh | None = None) -> set[str]:
        """The proxies with a stream to one control plane, by what that one says, or another."""
        own = plane.request("GET", "/").json["instanceId"]
        shown = (asked or plane).proxies()
        return {name for name, proxy in shown.items() if proxy["instance"] == own}

    def wait_until_at(self, plane: LiveMesh) -> None:
        """Wait until every sidecar is connected to one control plane, and has everything."""
        names = {sidecar.name for sidecar in self.sidecars}
        until(lambda: self.connected(plane) == names, f"all of {names} are at {plane.api}")
        plane.wait_until_synced()

    def end(self, plane: LiveMesh, how: signal.Signals) -> None:
        """Kill, stop or freeze a control plane."""
        if how is signal.SIGKILL:
            plane.control_plane.kill()
        elif how is signal.SIGTERM:
            assert plane.control_plane.stop() == 0
        else:
            os.kill(plane.control_plane.pid, how)

    def begin(self, plane: LiveMesh, how: signal.Signals) -> None:
        """Undo `end`."""
        if how is signal.SIGSTOP:
            os.kill(plane.control_plane.pid, signal.SIGCONT)
            until(lambda: plane.request("GET", "/ready").status == 200, "it goes on")
        else:
            plane.start_control_plane()

    def updates(self) -> dict[str, int]:
        """How often each Envoy has taken or refused something from a control plane, by the stat's name."""
        return {
            f"{sidecar.name} {name}": value
            for sidecar in self.sidecars
            for name, value in sidecar.stats(LAYERS).items()
        }
