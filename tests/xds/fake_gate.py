"""A fake gate that admits proxies with one token, and an xDS client that behaves as a proxy does."""

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
from koguma.xds.limits import XdsLimits
from koguma.xds.server import SERVICE, XdsServer

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


class FakeConnection:
    """One admitted proxy."""

    def __init__(self, request: ConnectRequest) -> None:
        self.request = request
        self.statuses: list[ProxyStatus] = []
        self.closed = asyncio.Event()
        self.refusal: KogumaError | None = None  # why it may not stay
        self._newest: Offer | None = None
        self._on_offer: Callable[[Offer], None] = lambda _offer: None
        self._reported = asyncio.Event()

    def offer(self, revision: int, snapshot: Snapshot) -> None:
        self._newest = Offer(revision, snapshot)
        self._on_offer(self._newest)

    def watch_offers(self, on_offer: Callable[[Offer], None]) -> None:
        self._on_offer = on_offer
        if self._newest is not None:
            on_offer(self._newest)

    def report(self, status: ProxyStatus) -> None:
        self.statuses.append(status)
        self._reported.set()

    def check_access(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def close(self) -> None:
        self.closed.set()

    async def until(self, state: str, acked: int = 0) -> ProxyStatus:
        """Wait until the proxy has that status."""
        return await self._wait(lambda status: status.state == state and status.acked >= acked)

    async def until_rejected(self, type_: str, *names: str) -> ProxyStatus:
        """Wait until the proxy has rejected these, and nothing else."""
        refused = [(type_, names)]
        return await self._wait(lambda status: [(r.type, r.names) for r in status.rejections] == refused)

    async def _wait(self, is_so: Callable[[ProxyStatus], bool]) -> ProxyStatus:
        async with asyncio.timeout(60):
            while not self.statuses or not is_so(self.statuses[-1]):
                self._reported.clear()
                await self._reported.wait()
        return self.statuses[-1]


class FakeGate:
    """Admits proxies with one token. Each is offered `snapshot`."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.snapshot = snapshot
        self.connections: list[FakeConnection] = []
        self._connected = asyncio.Event()

    def authenticate(self, token: str) -> None:
        if token != TOKEN:
            raise Unauthenticated("token is not valid")

    async def connect(self, request: ConnectRequest) -> FakeConnection:
        if request.name in REFUSED:
            raise REFUSED[request.name]
        if request.token != TOKEN:
            raise Unauthenticated("token is not valid")
        connection = FakeConnection(request)
        if self.snapshot is not None:
            connection.offer(1, self.snapshot)
        self.connections.append(connection)
        self._connected.set()
        return connection

    async def connection(self, number: int = 0) -> FakeConnection:
        """Wait for the connection of that number."""
        async with asyncio.timeout(60):
            while len(self.connections) <= number:
                self._connected.clear()
                await self._connected.wait()
        return self.connections[number]


@asynccontextmanager
async def serving(
    gate: FakeGate, limits: XdsLimits | None = None, port: int = 0, health: HdsGate | None = None
) -> AsyncIterator[tuple[XdsServer, int]]:
    """A server with TLS on a free port."""
    server = XdsServer(gate, schema(), monotonic, limits, health)
    pair = server_pair()
    bound = await server.listen("127.0.0.1", port, pair.certificate, pair.key)
    await server.start()
    try:
        yield server, bound
    finally:
        await server.stop(0)


class Client:
    """A delta xDS stream, as a proxy would open it."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._request = schema().message_class("envoy.service.discovery.v3.DeltaDiscoveryRequest")

    async def send(self, type_: str, node: str = "", **fields: Any) -> None:
        """Send a request; the type is our short name or any URL."""
        message: Any = self._request(type_url=TYPE_URLS.get(type_, type_), **fields)
        if node:
            message.node.id = node
            message.node.metadata.update({"workdir": "somewhere"})
        await self.write_bytes(message.SerializeToString())

    async def receive(self) -> Any:
        """The next response."""
        async with asyncio.timeout(60):
            data = await self._call.read()
        assert data is not grpc.aio.EOF, await self.end()
        return schema().message_class("envoy.service.discovery.v3.DeltaDiscoveryResponse").FromString(data)

    async def receive_and_ack(self) -> str:
        """The next response as text: its names, removed ones with a minus; it is ACKed."""
        message = await self.receive()
        await self.send(message.type_url, response_nonce=message.nonce)
        return " ".join(
            [*(each.name for each in message.resources), *(f"-{n}" for n in message.removed_resources)]
        )

    async def open(self) -> None:
        """Wait until the stream is open, and send nothing."""
        await self._call.wait_for_connection()

    async def write_bytes(self, data: bytes) -> None:
        # A stream that is not admitted may end before it has sent anything; `end` has its status.
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.write(data)

    async def end(self) -> tuple[str, str]:
        """The status with which the stream ended."""
        async with asyncio.timeout(60):
            return (await self._call.code()).name, await self._call.details()

    def cancel(self) -> None:
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
