"""A control plane that records when it offered, sent and was acknowledged what: for `bench.live`.

    python -m bench.live_plane RECORDS FLAG=VALUE ...

It is the one that users run, in a process of its own. Between its parts stand two observers: one where
offers are taken and acknowledgements are reported, one where a response becomes bytes. Times are of the
clock that all processes of a machine share.
"""

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from koguma.control_plane.control_plane import ControlPlane
from koguma.runtime import logs, settings
from koguma.xds.contract import ConnectRequest, Offer, ProxyConnection, ProxyStatus, XdsGate

Note = Callable[..., None]


class ObservedConnection:
    """A connection whose offers and acknowledgements are noted."""

    def __init__(self, connection: ProxyConnection, name: str, note: Note) -> None:
        self._connection = connection
        self._name = name
        self._note = note
        self._acked = 0

    def watch_offers(self, on_offer: Callable[[Offer], None]) -> None:
        def noted(offer: Offer) -> None:
            self._note("offer", proxy=self._name, revision=offer.revision)
            on_offer(offer)

        self._connection.watch_offers(noted)

    def report(self, status: ProxyStatus) -> None:
        if status.acked > self._acked:
            self._acked = status.acked
            self._note("acked", proxy=self._name, revision=status.acked)
        self._connection.report(status)

    def check_access(self) -> None:
        self._connection.check_access()

    async def close(self) -> None:
        await self._connection.close()


class ObservedGate:
    """A gate whose connections are observed."""

    def __init__(self, gate: XdsGate, note: Note) -> None:
        self._gate = gate
        self._note = note

    def authenticate(self, token: str) -> None:
        self._gate.authenticate(token)

    async def connect(self, request: ConnectRequest) -> ProxyConnection:
        return ObservedConnection(await self._gate.connect(request), request.name, self._note)


def observe(plane: ControlPlane, note: Note) -> None:
    """Install the observers, before any proxy connects."""
    side: Any = plane._proxies  # noqa: SLF001 - there is no public interface between these parts
    server = side._xds  # noqa: SLF001
    server._gate = ObservedGate(server._gate, note)  # noqa: SLF001
    encode = server._delta.encode  # noqa: SLF001

    def noted(response: Any) -> bytes:
        note("bytes", type=response.type, names=[resource.name for resource in response.resources])
        return bytes(encode(response))

    # The variant is bound to the gRPC handlers already, so its own field has to be replaced.
    msgspec.structs.force_setattr(server._delta, "encode", noted)  # noqa: SLF001


async def serve(flags: dict[str, str]) -> list[dict[str, Any]]:
    """Run until a signal says stop; the recorded events."""
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    noted: list[dict[str, Any]] = []

    def note(what: str, **more: Any) -> None:
        noted.append({"at": time.monotonic(), "what": what, **more})

    ports = {name: int(flags.pop(name)) for name in ("api_port", "api_tls_port", "dp_port", "xds_port")}
    plane = ControlPlane(settings.load(None, {}, {**flags, **ports, "localhost_is_admin": True}))
    await plane.start()
    observe(plane, note)
    print("koguma is ready: ", flush=True)
    await stopping.wait()
    await plane.stop()
    return noted


def main() -> None:
    records, *flags = sys.argv[1:]
    logs.configure("error", "json")
    with contextlib.suppress(ImportError):  # as the control plane does
        import uvloop  # noqa: PLC0415 - only where it is installed

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    noted = asyncio.run(serve(dict(flag.split("=", 1) for flag in flags)))
    Path(records).write_text(json.dumps(noted))


if __name__ == "__main__":
    main()
