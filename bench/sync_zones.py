"""Light zones: many zones in one process, controlled by lines of JSON on standard input.

    python -m bench.sync_zones PORT CA TOKEN_FILE FIRST NUMBER

Each has a connection of its own and speaks the sync protocol, but stores nothing: what it is sent it
acknowledges. All hold what the first one got. Times are of the clock that all processes of a machine share.
"""

import asyncio
import gc
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import grpc

from koguma.kinds import KINDS
from koguma.model.resource import Key
from koguma.policies import POLICIES
from koguma.sync import stream_service
from koguma.sync.protocol import messages, sums
from koguma.sync.protocol.messages import Ack, EntriesWanted, HeldEntry, Objects, SyncGreeting
from koguma.sync.protocol.subscriber import Subscriber

_LOOK_SECONDS: Final = 0.01
_QUIET_SECONDS: Final = 2.0
_KINDS: Final = tuple(
    kind.name for kind in (*KINDS, *POLICIES) if kind.sync.global_to_zones or kind.sync.across_zones
)


class LightZone:
    """A zone that acknowledges what it gets."""

    def __init__(self, swarm: "LightZones", name: str) -> None:
        self._swarm = swarm
        self._name = name
        self.greeted_at = self.changed_at = 0.0

    async def run(self) -> None:
        """Connect, and answer until the stream ends."""
        swarm = self._swarm
        options = [*stream_service.OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(swarm.target, swarm.credentials, options=options) as channel:
            method: Any = channel.stream_stream(stream_service.PATH)
            headers = (
                (stream_service.ZONE_HEADER, self._name),
                (stream_service.INSTANCE_HEADER, f"{self._name}-1"),
                (stream_service.AUTHORIZATION, f"Bearer {swarm.token}"),
            )
            call = method(metadata=headers)
            await call.write(self._greeting())
            subscriber = Subscriber(swarm.held)
            while isinstance(data := await call.read(), bytes):
                for answer in self._answers(subscriber, messages.decoded(data)):
                    await call.write(messages.encoded(answer))

    def _greeting(self) -> bytes:
        return messages.encoded(
            SyncGreeting(
                name=self._name,
                version="bench",
                instance=f"{self._name}-1",
                source=self._name,
                revision=1,
                kinds=_KINDS,
                sums=self._swarm.sums,
            )
        )

    def _answers(self, subscriber: Subscriber, message: messages.Message) -> list[messages.Message]:
        match message:
            case SyncGreeting():
                self.greeted_at = time.monotonic()
            case EntriesWanted():
                return list(subscriber.entries(message))
            case Objects():
                self.changed_at = time.monotonic()
                self._swarm.note(message)
                return [Ack(message.number)]
            case _:
                pass
        return []


class LightZones:
    """The zones of one process."""

    def __init__(self, port: str, ca: str, token_file: str, first: str, number: str) -> None:
        self.target = f"127.0.0.1:{port}"
        self.credentials = grpc.ssl_channel_credentials(Path(ca).read_bytes())
        self.token = Path(token_file).read_text().strip()
        self.held: dict[Key, bytes] = {}
        self.sums = sums.packed(())
        self._names = [f"light-{index}" for index in range(int(first), int(first) + int(number))]
        self._zones: list[LightZone] = []
        self._tasks: list[asyncio.Task[None]] = []

    def note(self, batch: Objects) -> None:
        """Hold what was sent; the same for all, since all are sent the same."""
        for key in batch.removed:
            self.held.pop(key, None)
        for each in batch.objects:
            self.held[each.key] = sums.content_hash(each.content)

    async def learn(self) -> dict[str, Any]:
        """Let the first zone get everything."""
        began_at = time.monotonic()
        await self.open(1)
        zone = self._zones[0]
        while (rest := zone.changed_at + _QUIET_SECONDS - time.monotonic()) > 0 or not zone.changed_at:  # noqa: ASYNC110 - silence is no event
            await asyncio.sleep(max(rest, _LOOK_SECONDS))
        await self.close()
        self.sums = sums.packed(HeldEntry(*each) for each in self.held.items())
        gc.collect()
        gc.freeze()
        return {"objects": len(self.held), "seconds": zone.changed_at - began_at}

    async def open(self, number: int = 0) -> dict[str, Any]:
        """Connect the zones, and wait until Global has greeted all."""
        self.sums = sums.packed(HeldEntry(*each) for each in self.held.items())
        began_at = time.monotonic()
        self._zones = [LightZone(self, name) for name in self._names[: number or None]]
        self._tasks = [asyncio.create_task(zone.run()) for zone in self._zones]
        await self._until(lambda zone: zone.greeted_at)
        return {"seconds": [zone.greeted_at - began_at for zone in self._zones]}

    def mark(self) -> dict[str, Any]:
        """Forget when the last change came."""
        for zone in self._zones:
            zone.changed_at = 0.0
        return {}

    async def changed(self) -> dict[str, Any]:
        """Wait until all have got a change; when each did."""
        await self._until(lambda zone: zone.changed_at)
        return {"at": [zone.changed_at for zone in self._zones]}

    async def _until(self, moment: Any) -> None:
        while not all(map(moment, self._zones)):
            for task in self._tasks:
                if task.done():
                    task.result()
                    raise RuntimeError("the stream of a zone has ended")
            await asyncio.sleep(_LOOK_SECONDS)

    async def close(self) -> dict[str, Any]:
        """End all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return {}


async def _run_commands(words: list[str]) -> None:
    zones = LightZones(*words)
    lines = asyncio.StreamReader(limit=1 << 20)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        answer = getattr(zones, json.loads(line))()
        if asyncio.iscoroutine(answer):
            answer = await answer
        print(json.dumps(answer), flush=True)


def main() -> None:
    """Play zones until the input ends; others who are measured come first."""
    os.nice(5)
    with suppress(ImportError):
        import uvloop  # noqa: PLC0415 - only where it is installed

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(_run_commands(sys.argv[1:]))


if __name__ == "__main__":
    main()
