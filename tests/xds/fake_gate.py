"""A house for proxies to come to: a small door, and a client that speaks as a proxy does."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from time import monotonic
from typing import Any

import grpc

from koguma.envoy import schema as envoy_schema
from koguma.envoy.schema import Schema
from koguma.envoy.snapshot import TYPE_URLS, Snapshot
from koguma.identity import certificates
from koguma.identity.certificates import KeyPair
from koguma.model.errors import Forbidden, Invalid, KogumaError, NotFound, Unauthenticated
from koguma.model.violation import Violation
from koguma.xds.contract import ConnectRequest, HdsGate, Offer, ProxyStatus
from koguma.xds.server import SERVICE, Limits, XdsServer

TOKEN = "let-me-in"
REFUSED: dict[str, KogumaError] = {
    "stranger": Forbidden("this token is for another proxy"),
    "nobody": NotFound("there is no such Dataplane"),
    "odd": Invalid([Violation("networking", "cannot be empty")]),
    "twice": Unauthenticated("authentication failed: the token has expired"),
}


def schema() -> Schema:
    return envoy_schema.load(envoy_schema.find_envoy())


@cache
def authority() -> KeyPair:
    return certificates.make_authority(certificates.make_key(), datetime.now(UTC))


@cache
def server_pair() -> KeyPair:
    return certificates.make_server(authority(), ["localhost", "127.0.0.1"], datetime.now(UTC))


class Room:
    """One connected proxy, from the house's side."""

    def __init__(self, hello: ConnectRequest) -> None:
        self.hello = hello
        self.statuses: list[ProxyStatus] = []
        self.closed = asyncio.Event()
        self.refusal: KogumaError | None = None  # why it may not stay
        self._newest: Offer | None = None
        self._tell: Callable[[Offer], None] = lambda _offer: None
        self._told = asyncio.Event()

    def offer(self, revision: int, snapshot: Snapshot) -> None:
        self._newest = Offer(revision, snapshot)
        self._tell(self._newest)

    def watch_offers(self, on_offer: Callable[[Offer], None]) -> None:
        self._tell = on_offer
        if self._newest is not None:
            on_offer(self._newest)

    def report(self, status: ProxyStatus) -> None:
        self.statuses.append(status)
        self._told.set()

    def check_access(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def close(self) -> None:
        self.closed.set()

    async def until(self, state: str, acked: int = 0) -> ProxyStatus:
        """Wait until the proxy is that far."""
        return await self._wait(lambda status: status.state == state and status.acked >= acked)

    async def until_rejected(self, type_: str, *names: str) -> ProxyStatus:
        """Wait until the proxy has refused these, and nothing else."""
        refused = [(type_, names)]
        return await self._wait(lambda status: [(r.type, r.names) for r in status.rejections] == refused)

    async def _wait(self, is_so: Callable[[ProxyStatus], bool]) -> ProxyStatus:
        async with asyncio.timeout(20):
            while not self.statuses or not is_so(self.statuses[-1]):
                self._told.clear()
                await self._told.wait()
        return self.statuses[-1]


class House:
    """A door that knows one token. `snapshot` is what everybody gets who comes in."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.snapshot = snapshot
        self.rooms: list[Room] = []
        self._came = asyncio.Event()

    def authenticate(self, token: str) -> None:
        if token != TOKEN:
            raise Unauthenticated("token is not valid")

    async def connect(self, hello: ConnectRequest) -> Room:
        if hello.name in REFUSED:
            raise REFUSED[hello.name]
        if hello.token != TOKEN:
            raise Unauthenticated("token is not valid")
        room = Room(hello)
        if self.snapshot is not None:
            room.offer(1, self.snapshot)
        self.rooms.append(room)
        self._came.set()
        return room

    async def room(self, number: int = 0) -> Room:
        """The one who came in as that one; wait for it."""
        async with asyncio.timeout(20):
            while len(self.rooms) <= number:
                self._came.clear()
                await self._came.wait()
        return self.rooms[number]


@asynccontextmanager
async def serving(
    house: House, limits: Limits | None = None, port: int = 0, health: HdsGate | None = None
) -> AsyncIterator[tuple[XdsServer, int]]:
    """A server with TLS on a free port."""
    server = XdsServer(house, schema(), monotonic, limits, health)
    pair = server_pair()
    bound = await server.listen("127.0.0.1", port, pair.certificate, pair.key)
    await server.start()
    try:
        yield server, bound
    finally:
        await server.stop(0)


class Client:
    """A stream of the incremental form, as a proxy would open it."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._request = schema().message_class("envoy.service.discovery.v3.DeltaDiscoveryRequest")

    async def say(self, type_: str, node: str = "", **fields: Any) -> None:
        """Send a request; the type is our word or any URL."""
        message: Any = self._request(type_url=TYPE_URLS.get(type_, type_), **fields)
        if node:
            message.node.id = node
            message.node.metadata.update({"workdir": "somewhere"})
        await self.write_bytes(message.SerializeToString())

    async def hear(self) -> Any:
        """The next response."""
        async with asyncio.timeout(10):
            data = await self._call.read()
        assert data is not grpc.aio.EOF, await self.end()
        return schema().message_class("envoy.service.discovery.v3.DeltaDiscoveryResponse").FromString(data)

    async def heard(self) -> str:
        """The next response in short."""
        message = await self.hear()
        await self.say(message.type_url, response_nonce=message.nonce)
        return " ".join(
            [*(each.name for each in message.resources), *(f"-{n}" for n in message.removed_resources)]
        )

    async def open(self) -> None:
        """Wait until the stream is there, and say nothing."""
        await self._call.wait_for_connection()

    async def write_bytes(self, data: bytes) -> None:
        # Who may not come in may be told so before it has said anything; `end` says what it was told.
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.write(data)

    async def end(self) -> tuple[str, str]:
        """How the stream ended."""
        async with asyncio.timeout(10):
            return (await self._call.code()).name, await self._call.details()

    def leave(self) -> None:
        self._call.cancel()


@asynccontextmanager
async def client(
    port: int, *metadata: tuple[str, str], method: str = "DeltaAggregatedResources"
) -> AsyncIterator[Client]:
    """A proxy's end of a stream; with a good token unless other metadata is given."""
    credentials = grpc.ssl_channel_credentials(authority().certificate.encode())
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
        call = channel.stream_stream(f"/{SERVICE}/{method}")(metadata=metadata or (("authorization", TOKEN),))
        yield Client(call)
