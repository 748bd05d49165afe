"""Swarm: many proxies in one process, told what to do by lines of JSON, and answering in such lines.

    python -m bench.swarm PROXIES.json FIRST STEP NICE

Each line of the file is a proxy: its node id, token and metadata; this process plays every STEP-th of them
from the FIRST on, and lets others go first by so much (NICE). There are two groups of the same proxies:
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

from bench.swarm_proxy import Proxy, Reader, Window
from koguma.envoy import schema

_AT_ONCE: Final = 64  # connections that are being opened
_LOOK_SECONDS: Final = 0.01


class Group:
    """The same proxies, connected to one server."""

    def __init__(self, described: list[dict[str, Any]], reader: Reader) -> None:
        self.window = Window()
        self._door = (0, False)
        self.proxies = [Proxy(reader, self.window, each["token"], _node(reader, each)) for each in described]

    def prepare(self) -> dict[str, Any]:
        """Let whoever is not connected write down what it will say."""
        for proxy in self._absent():
            proxy.prepare()
        return {}

    def _absent(self) -> list[Proxy]:
        return [proxy for proxy in self.proxies if proxy.call is None]

    async def open(self, port: int, tls: bool) -> dict[str, Any]:  # noqa: FBT001 - said by its name, in JSON
        """Connect whoever is not; answers when everybody has introduced itself."""
        context = _tls() if tls else None
        self._door = port, tls
        self.prepare()
        absent = self._absent()
        turn = asyncio.Semaphore(_AT_ONCE)
        began_at = time.monotonic()

        async def one(proxy: Proxy) -> int:
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
                proxy.greet()
                return 0

        failed = await asyncio.gather(*map(one, absent))
        return {"began_at": began_at, "greeted_at": time.monotonic(), "failed": sum(failed)}

    def mark(self, record: str = "") -> dict[str, Any]:
        """Count from now on, and keep what the proxy with this id hears."""
        self.window.clear()
        for proxy in self.proxies:
            proxy.recorded = [] if proxy.id == record else None
        return {}

    async def wait(self, at_least: int, quiet: float, patience: float) -> dict[str, Any]:
        """Wait until so many were answered and nobody hears anything more; then what was counted."""
        end = time.monotonic() + patience
        n_back = 0
        while (now := time.monotonic()) < end:
            if self._n_touched() >= at_least and now - self.window.heard_at > quiet:
                break
            if self.window.n_ended > n_back:  # who was sent away comes back, as Envoy does
                n_back = self.window.n_ended
                await self.open(*self._door)
            await asyncio.sleep(_LOOK_SECONDS if quiet < 1 else 0.1)
        return self.counted()

    def _n_touched(self) -> int:
        return sum(1 for _ in self._touched())

    def _touched(self) -> Iterator[Proxy]:
        return (proxy for proxy in self.proxies if proxy.mark == self.window.number)

    def counted(self) -> dict[str, Any]:
        """What was heard since the mark."""
        window = self.window
        return {
            "acked_at": [proxy.acked_at for proxy in self._touched()],
            "messages": window.n_messages,
            "resources": window.n_resources,
            "unchanged": window.n_unchanged,
            "ended": window.n_ended,
            "connected": sum(1 for proxy in self.proxies if proxy.call is not None),
        }

    def recorded(self) -> dict[str, Any]:
        """What the one proxy heard that was to be recorded."""
        found = [proxy.recorded for proxy in self.proxies if proxy.recorded is not None]
        return {"messages": [base64.b64encode(message).decode() for heard in found for message in heard]}

    async def close(self) -> dict[str, Any]:
        """Go without a word."""
        for proxy in self.proxies:
            if proxy.call is not None:
                proxy.call.close()
                proxy.call = None
        return {}


def _node(reader: Reader, described: dict[str, Any]) -> Any:
    node = reader.request().node
    node.id = described["id"]
    node.metadata.update(described["metadata"])
    version = node.user_agent_build_version.version
    version.major_number, version.minor_number = 1, 40
    return node


def _tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Whose certificate it is, is checked by real proxies too, on machines of their own; here it would be paid
    # for with the server's processor.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


async def obey(groups: dict[str, Group]) -> None:
    """Do what each line says and answer it, until there are no more lines."""
    lines = asyncio.StreamReader(limit=1 << 20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        told = json.loads(line)
        group, deed = groups[told.pop("group", "ours")], told.pop("do")
        answer = getattr(group, deed)(**told)
        if asyncio.iscoroutine(answer):
            answer = await answer
        print(json.dumps(answer), flush=True)


def main(path: str, first: str, step: str, nice: str) -> None:
    """Play some of the proxies in a file."""
    with suppress(ImportError):
        import uvloop  # noqa: PLC0415 - only where it is installed

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    os.nice(int(nice))
    reader = Reader(schema.load(schema.find_envoy()))
    described = [json.loads(line) for line in Path(path).read_text().splitlines()[int(first) :: int(step)]]
    groups = {name: Group(described, reader) for name in ("ours", "bare")}
    gc.collect()
    gc.freeze()
    gc.disable()  # a pause of ours would look like one of the server's
    print(json.dumps({"proxies": len(described)}), flush=True)
    asyncio.run(obey(groups))


if __name__ == "__main__":
    main(*sys.argv[1:])
