"""Swarm: many proxies in one process, controlled by lines of JSON on standard input.

    python -m bench.swarm PROXIES.json FIRST STEP NICE

Each line of the file is a proxy: its node id, token and metadata; this process plays every STEP-th of them
from the FIRST on, with this niceness. There are two groups of the same proxies:
`ours` talks to a control plane, `bare` to a server that has nothing behind it. Times are of the clock that
all processes of a machine share.
"""

import asyncio
import base64
import gc
import json
import os
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from bench.swarm_proxy import Proxy, ResourceReader, Window
from koguma.envoy import schema

_AT_ONCE: Final = 64  # connections that are being opened
_LOOK_SECONDS: Final = 0.01


class Group:
    """The same proxies, connected to one server."""

    def __init__(self, descriptions: list[dict[str, Any]], reader: ResourceReader) -> None:
        self.window = Window()
        self._server = (0, False)
        self.proxies = [
            Proxy(reader, self.window, each["token"], _node(reader, each)) for each in descriptions
        ]

    def prepare(self) -> dict[str, Any]:
        """Let proxies without a connection encode their first requests."""
        for proxy in self._absent():
            proxy.prepare()
        return {}

    def _absent(self) -> list[Proxy]:
        return [proxy for proxy in self.proxies if proxy.call is None]

    async def open(self, port: int, tls: bool) -> dict[str, Any]:  # noqa: FBT001 - passed by name, from JSON
        """Connect all proxies without a connection; returns when all have sent their first requests."""
        context = _tls() if tls else None
        self._server = port, tls
        self.prepare()
        absent = self._absent()
        turn = asyncio.Semaphore(_AT_ONCE)
        began_at = time.monotonic()

        async def connect(proxy: Proxy) -> int:
            loop = asyncio.get_running_loop()
            async with turn:
                try:
                    await loop.create_connection(
                        proxy.connection,
                        "127.0.0.1",
                        port,
                        ssl=context,
                        server_hostname="localhost" if tls else None,
                    )
                except OSError:
                    proxy.call = None
                    return 1
                proxy.send_first_requests()
                return 0

        failed = await asyncio.gather(*map(connect, absent))
        return {"began_at": began_at, "greeted_at": time.monotonic(), "failed": sum(failed)}

    def mark(self, record: str = "") -> dict[str, Any]:
        """Reset the counters, and record what the proxy with this id receives."""
        self.window.clear()
        for proxy in self.proxies:
            proxy.recorded = [] if proxy.id == record else None
        return {}

    async def wait(self, at_least: int, quiet: float, patience: float) -> dict[str, Any]:
        """Wait until so many have got a response and nothing more comes; then the counters."""
        end = time.monotonic() + patience
        n_reconnected = 0
        while (now := time.monotonic()) < end:
            if self._n_answered() >= at_least and now - self.window.received_at > quiet:
                break
            if self.window.n_ended > n_reconnected:  # a disconnected proxy reconnects, as Envoy does
                n_reconnected = self.window.n_ended
                await self.open(*self._server)
            await asyncio.sleep(_LOOK_SECONDS if quiet < 1 else 0.1)
        return self.counted()

    def _n_answered(self) -> int:
        return sum(1 for _ in self._answered())

    def _answered(self) -> Iterator[Proxy]:
        return (proxy for proxy in self.proxies if proxy.mark == self.window.number)

    def counted(self) -> dict[str, Any]:
        """The counters since they were reset."""
        window = self.window
        return {
            "acked_at": [proxy.acked_at for proxy in self._answered()],
            "messages": window.n_messages,
            "resources": window.n_resources,
            "unchanged": window.n_unchanged,
            "ended": window.n_ended,
            "connected": sum(1 for proxy in self.proxies if proxy.call is not None),
        }

    def recorded(self) -> dict[str, Any]:
        """The messages of the recorded proxy."""
        recordings = [proxy.recorded for proxy in self.proxies if proxy.recorded is not None]
        messages = [message for recording in recordings for message in recording]
        return {"messages": [base64.b64encode(message).decode() for message in messages]}

    async def close(self) -> dict[str, Any]:
        """Abort all connections."""
        for proxy in self.proxies:
            if proxy.call is not None:
                proxy.call.close()
                proxy.call = None
        return {}


def _node(reader: ResourceReader, description: dict[str, Any]) -> Any:
    node = reader.request().node
    node.id = description["id"]
    node.metadata.update(description["metadata"])
    version = node.user_agent_build_version.version
    version.major_number, version.minor_number = 1, 40
    return node


def _tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Real proxies verify the certificate on machines of their own; here it would use the server's CPU.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


async def run_commands(groups: dict[str, Group]) -> None:
    """Run the command of each line and print its result, until the input ends."""
    lines = asyncio.StreamReader(limit=1 << 20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        command = json.loads(line)
        group, method = groups[command.pop("group", "ours")], command.pop("do")
        answer = getattr(group, method)(**command)
        if asyncio.iscoroutine(answer):
            answer = await answer
        print(json.dumps(answer), flush=True)


def main(path: str, first: str, step: str, nice: str) -> None:
    """Play some of the proxies in a file."""
    with suppress(ImportError):
        import uvloop  # noqa: PLC0415 - only where it is installed

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    os.nice(int(nice))
    reader = ResourceReader(schema.load(schema.find_envoy()))
    descriptions = [json.loads(line) for line in Path(path).read_text().splitlines()[int(first) :: int(step)]]
    groups = {name: Group(descriptions, reader) for name in ("ours", "bare")}
    gc.collect()
    gc.freeze()
    gc.disable()  # a pause of ours would look like one of the server's
    print(json.dumps({"proxies": len(descriptions)}), flush=True)
    asyncio.run(run_commands(groups))


if __name__ == "__main__":
    main(*sys.argv[1:])
