"""`make demo`: a live mesh on this machine, and what to try with it.

A control plane; `web`, and two versions of `backend`, each with a real Envoy beside it; mTLS between them; a
route that sends nine of ten requests to version 1; a gateway that lets HTTPS in. Requests go through the mesh
all the time, and who answers is shown. Needs no root, and leaves nothing behind.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from examples import edge
from examples.processes import (
    KOGUMA,
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

SHOP = Path(__file__).with_name("shop")


def main() -> int:
    """Run the demo until Ctrl-C."""
    return run(_run)


def _run(data: Path, processes: Processes) -> int:
    plane = processes.start(["cp", "run", *port_flags(ports()), "--log-level", "warning"])
    line = ready_line(plane)
    if not line:
        return plane.wait()
    print(line, flush=True)
    address = next(word for word in line.split() if word.startswith("http://"))
    environment = {**os.environ, "KOGUMA_ADDRESS": address, "KOGUMA_DATA_DIR": str(data)}
    _apply(environment, "mesh.yaml", "permissions.yaml")
    calls = free_port()
    more = {
        "backend-1": ("--service", "backend", "--label", "app=backend", "--tag", "version=v1"),
        "backend-2": ("--service", "backend", "--label", "app=backend", "--tag", "version=v2"),
        "web-1": ("--service", "web", "--label", "app=web", "--outbound", f"backend:80:{calls}"),
    }
    for name, own in more.items():
        target = serve(name, "v2" if name == "backend-2" else "v1")
        said = ready_line(processes.start(_sidecar(data, environment, _door(line), name, target) + list(own)))
        if not said:
            return 1
        print(said, flush=True)
    _apply(environment, "policies.yaml")  # now that there is whom they are about
    edge_port = free_port()
    text = edge.documents(edge_port, edge.certificate(data / "localhost.pem"))
    said = ready_line(processes.start(_gateway(data, environment, _door(line))))
    if not said:
        return 1
    print(said, flush=True)
    subprocess.run([KOGUMA, "apply", "-f", "-"], env=environment, check=True, input=text, text=True)
    traffic = Traffic(calls)
    print(_words(data, address, calls, edge_port), flush=True)
    show(traffic, lambda: plane.poll() is None)
    return plane.returncode or 0


def _apply(environment: Mapping[str, str], *names: str) -> None:
    files = [word for name in names for word in ("-f", str(SHOP / name))]
    subprocess.run([KOGUMA, "apply", *files], env=environment, check=True)


def _door(line: str) -> str:
    """Where proxies connect, as the control plane says; it may have taken a free port."""
    return line.rpartition("proxies: ")[2].strip()


def _sidecar(data: Path, environment: Mapping[str, str], door: str, name: str, target: int) -> list[str]:
    """The words that run a proxy beside the service on a port."""
    return [
        *_proxy(data, environment, door, name),
        *("--port", str(free_port()), "--service-port", str(target), "--protocol", "http"),
        *("--port-name", "http"),
    ]


def _gateway(data: Path, environment: Mapping[str, str], door: str) -> list[str]:
    """The words that run the gateway."""
    return [*_proxy(data, environment, door, "edge-1"), "--gateway", "--tag", "kuma.io/service=edge"]


def _proxy(data: Path, environment: Mapping[str, str], door: str, name: str) -> list[str]:
    """The words that run a proxy, with a token for it and its service alone."""
    bound = ("--name", name, "--service", name.rpartition("-")[0])
    token = save_token(data / f"{name}.token", environment, "dataplane", "-m", "shop", *bound)
    return ["dp", "run", "--mesh", "shop", "--name", name, *proxy_flags(door, token)]


def _words(data: Path, address: str, calls: int, edge_port: int) -> str:
    koguma = ".venv/bin/koguma"
    return f"""
A mesh runs: web -> backend v1 and v2, an Envoy beside each, mTLS between them. In another terminal, try:

  export KOGUMA_ADDRESS={address} KOGUMA_DATA_DIR={data}   # where it is, and that it is yours

  {koguma} get proxies -m shop
  curl -s localhost:{calls}/
  curl -s --cacert {data}/localhost.pem https://localhost:{edge_port}/   # from outside, through the gateway

  # change the split, and watch it below
  sed 's/weight: 90/weight: 50/; s/weight: 10/weight: 50/' examples/shop/policies.yaml | {koguma} apply -f -

  # take the permission away, and see who denies; give it back
  {koguma} delete meshtrafficpermission web-may-call-backend -m shop
  {koguma} apply -f examples/shop/permissions.yaml

  # make a mistake, and read what it says
  sed 's/requestTimeout/requestTimout/' examples/shop/policies.yaml | {koguma} apply -f -

  # why is the timeout what it is?
  {koguma} explain dataplane web-1 -m shop --to backend --field http.requestTimeout

Ctrl-C ends it; nothing is left behind. Who answers, second by second:
"""


if __name__ == "__main__":
    sys.exit(main())
