"""Gateway: what a change of one of many routes of a gateway costs, from the stored object to the ACK.

Each route has a host name of its own. Ours is the engine, the xDS server and a client that acknowledges; the
bare side writes the same bytes through a stream of the same gRPC library, and waits for the same answer.
"""

import asyncio
import logging
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import structlog

from bench.compile import CONTROL_PLANE, admitted
from bench.figures import Figure, Goal, compared
from koguma.core import pipeline
from koguma.core.build import encoding, network, snapshot
from koguma.core.build.network import NodeMetadata
from koguma.core.build.snapshot_watcher import SnapshotWatcher
from koguma.core.incremental import Db
from koguma.envoy import schema as envoy_schema
from koguma.envoy import virtual_hosts
from koguma.envoy.encode import Encoder
from koguma.envoy.schema import Schema
from koguma.envoy.snapshot import TYPE_URLS, Snapshot
from koguma.main import all_kinds
from koguma.model.kind import Kinds
from koguma.model.resource import Key, Resource
from koguma.xds.contract import ConnectRequest, Offer, ProxyStatus
from koguma.xds.server import SERVICE, XdsServer

ABOUT = "one of 5,000 routes of a gateway changes"
_ROUTES, _ROUTES_QUICK = 5_000, 100
_ROUNDS, _ROUNDS_QUICK = 9, 2
_CHANGES = 20  # in a round
_SERVICES = 50
_METHOD = "DeltaAggregatedResources"


def route(kinds: Kinds, number: int, path: str = "/") -> Resource:
    """A route of the gateway for one host name."""
    backend = {"kind": "MeshService", "name": f"service-{number % _SERVICES}", "port": 80}
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": path}}],
        "default": {"backendRefs": [backend]},
    }
    entry = {"targetRef": {"kind": "Mesh"}, "hostnames": [f"host-{number}.example.com"], "rules": [rule]}
    spec = {"targetRef": {"kind": "MeshGateway", "name": "edge"}, "to": [entry]}
    return admitted(
        kinds, {"type": "MeshHTTPRoute", "mesh": "default", "name": f"route-{number}", "spec": spec}
    )


def _mesh(kinds: Kinds, n_routes: int) -> list[Resource]:
    gateway = {"type": "BUILTIN", "tags": {"kuma.io/service": "edge"}}
    ports = [{"port": 80, "targetPort": 8080, "appProtocol": "http"}]
    documents: list[dict[str, Any]] = [
        {"type": "Mesh", "name": "default"},
        {
            "type": "Dataplane",
            "mesh": "default",
            "name": "edge-1",
            "networking": {"address": "127.0.0.1", "gateway": gateway},
        },
        {
            "type": "MeshGateway",
            "mesh": "default",
            "name": "edge",
            "selectors": [{"match": {"kuma.io/service": "edge"}}],
            "conf": {"listeners": [{"port": 8080, "protocol": "HTTP"}]},
        },
        *(
            {
                "type": "MeshService",
                "mesh": "default",
                "name": f"service-{number}",
                "spec": {"selector": {"dataplaneTags": {"kuma.io/service": f"s-{number}"}}, "ports": ports},
            }
            for number in range(_SERVICES)
        ),
    ]
    return [*(admitted(kinds, each) for each in documents), *(route(kinds, n) for n in range(n_routes))]


class _Engine:
    """The mesh, with its one proxy connected."""

    def __init__(self, n_routes: int) -> None:
        self._kinds = all_kinds()
        self.schema: Schema = envoy_schema.load(envoy_schema.find_envoy())
        resources = _mesh(self._kinds, n_routes)
        self._db: Db = pipeline.load(self._kinds, CONTROL_PLANE, resources)
        self._db.set(encoding.ENCODER, "envoy", Encoder(self.schema))
        (self._proxy,) = [each.key for each in resources if each.kind == "Dataplane"]
        self._connect(self._proxy)

    def _connect(self, key: Key) -> None:
        self._db.set(network.NODE_METADATA, key, NodeMetadata(workdir="/run/koguma/edge-1", admin_port=9901))
        self._watcher = SnapshotWatcher(self._db)
        self._watcher.add(key)
        self._watcher.changed()

    def snapshot(self) -> Snapshot:
        found = snapshot.of(self._db, self._proxy)
        assert found is not None
        assert not found.failures
        return found

    def changed(self, number: int, path: str) -> Snapshot:
        """The snapshot after a change of one route."""
        pipeline.take(self._db, [route(self._kinds, number, path)])
        self._watcher.changed()
        return self.snapshot()


class _Connection:
    """The proxy as the xDS server sees it."""

    def __init__(self) -> None:
        self._on_offer: Callable[[Offer], None] = lambda _offer: None
        self._pending: Offer | None = None
        self._reported = asyncio.Event()
        self._status = ProxyStatus("connecting", 0, 0)

    def watch_offers(self, on_offer: Callable[[Offer], None]) -> None:
        self._on_offer = on_offer
        if self._pending is not None:
            on_offer(self._pending)

    def offer(self, offer: Offer) -> None:
        self._pending = offer
        self._on_offer(offer)

    def report(self, status: ProxyStatus) -> None:
        self._status = status
        self._reported.set()

    async def until_acked(self, revision: int) -> None:
        while self._status.acked < revision:
            self._reported.clear()
            await self._reported.wait()

    def check_access(self) -> None:
        """It may stay."""

    async def close(self) -> None:
        """The stream has ended."""


class _Gate:
    """Admits the one proxy."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    def authenticate(self, _token: str) -> None:
        """Anybody is let in."""

    async def connect(self, _request: ConnectRequest) -> _Connection:
        return self._connection


class _Client:
    """A delta stream that subscribes to everything and acknowledges it."""

    def __init__(self, schema: Schema, call: Any) -> None:
        self._request = schema.message_class("envoy.service.discovery.v3.DeltaDiscoveryRequest")
        self._response = schema.message_class("envoy.service.discovery.v3.DeltaDiscoveryResponse")
        self._call = call
        self.last = b""  # message

    async def subscribe(self, type_: str, *names: str) -> None:
        message: Any = self._request(type_url=TYPE_URLS[type_], resource_names_subscribe=names)
        message.node.id = "default.edge-1"
        await self._call.write(message.SerializeToString())

    async def follow(self) -> None:
        async for data in self._call:
            self.last = data
            message: Any = self._response.FromString(data)
            answer: Any = self._request(type_url=message.type_url, response_nonce=message.nonce)
            await self._call.write(answer.SerializeToString())


class _Bare:
    """A stream that gets ready bytes, and says when they are answered."""

    def __init__(self) -> None:
        self._to_send: asyncio.Queue[bytes] = asyncio.Queue()
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()

    async def serve(self, _requests: object, context: Any) -> None:
        await context.read()
        while True:
            await context.write(await self._to_send.get())
            await self._answers.put(await context.read())

    async def push(self, data: bytes) -> None:
        await self._to_send.put(data)
        await self._answers.get()


async def measured(*, quick: bool) -> list[Figure]:
    """All figures."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    engine = _Engine(_ROUTES_QUICK if quick else _ROUTES)
    with tempfile.TemporaryDirectory() as folder:
        ours_path, bare_path = (f"unix:{Path(folder) / name}" for name in ("ours", "bare"))
        connection, bare = _Connection(), _Bare()
        server = XdsServer(_Gate(connection), engine.schema, time.monotonic)
        await server.listen(ours_path, 0)
        await server.start()
        bare_server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(bare.serve)
        bare_server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {_METHOD: handler}),)
        )
        bare_server.add_insecure_port(bare_path)
        await bare_server.start()
        async with grpc.aio.insecure_channel(ours_path) as one, grpc.aio.insecure_channel(bare_path) as other:
            clients = [
                _Client(engine.schema, each.stream_stream(f"/{SERVICE}/{_METHOD}")()) for each in (one, other)
            ]
            following = [asyncio.create_task(client.follow()) for client in clients]
            figures = await _figures(engine, connection, bare, clients, _ROUNDS_QUICK if quick else _ROUNDS)
            for task in following:
                task.cancel()
        await server.stop(0)
        await bare_server.stop(0)
        await asyncio.sleep(0.1)  # gRPC still hands the last events of a stream to this loop
    return figures


async def _figures(
    engine: _Engine, connection: _Connection, bare: _Bare, clients: list[_Client], n_rounds: int
) -> list[Figure]:
    ours_client, bare_client = clients
    first = engine.snapshot()
    connection.offer(Offer(1, first))
    for type_ in ("cluster", "listener", "virtual_host"):
        await ours_client.subscribe(type_)
    await ours_client.subscribe("endpoints", *first.of_type("endpoints"))
    await ours_client.subscribe("routes", *first.of_type("routes"))
    await ours_client.subscribe("runtime", *first.of_type("runtime"))
    await bare_client.subscribe("cluster")
    await connection.until_acked(1)
    ours: list[float] = []
    raw: list[float] = []
    compile_times: list[float] = []
    revision = 1
    for turn in range(n_rounds):
        compiled = spent = 0.0
        for change in range(_CHANGES):
            revision += 1
            started = time.perf_counter()
            changed = engine.changed(change, f"/turn-{turn}")
            compiled += time.perf_counter() - started
            connection.offer(Offer(revision, changed))
            await connection.until_acked(revision)
            spent += time.perf_counter() - started
        message = ours_client.last
        pushed = await _timed(partial(bare.push, message))
        ours.append(spent / _CHANGES * 1e3)
        raw.append(pushed * 1e3)
        compile_times.append(compiled / _CHANGES * 1e3)
    whole = virtual_hosts.inlined(first)
    routes = sum(len(each.body) for each in whole.of_type("routes").values())
    hosts = engine.snapshot().of_type("virtual_host").items()
    (one,) = [host for name, host in hosts if name.endswith(f"/host-{_CHANGES - 1}.example.com")]
    sizes = [float(len(ours_client.last))] * n_rounds
    return [
        compared(
            "the message, by its virtual host", "bytes", sizes, [len(one.body)] * n_rounds, better="less"
        ),
        compared("the message, by all routes", "bytes", sizes, [routes] * n_rounds, better="less"),
        compared("from the stored object to the ACK", "ms", ours, raw, better="less", goal=Goal("ours", 50)),
        compared("of this compiling, by a push", "ms", compile_times, raw, better="less"),
    ]


async def _timed(push: Callable[[], Any]) -> float:
    started = time.perf_counter()
    for _ in range(_CHANGES):
        await push()
    return (time.perf_counter() - started) / _CHANGES
