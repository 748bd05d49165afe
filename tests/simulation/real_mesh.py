"""A mesh of real Envoys: each gets what the simulation walks, and services tell what reached them."""

import asyncio
import http.client
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from koguma.core import spiffe
from koguma.core.build import snapshot as build
from koguma.core.incremental import Db
from koguma.core.simulation.calls import CallSimulator
from koguma.envoy.simulation.traffic import SimulatedRequest
from koguma.envoy.snapshot import SECRET, Bundle, Snapshot, bundle
from koguma.identity import sds
from koguma.identity.sds import SdsSecret
from koguma.model.redacted import Redacted
from koguma.model.resource import Key
from koguma.xds.limits import XdsLimits
from tests.core import building
from tests.envoy import real_envoy
from tests.envoy.real_envoy import Service
from tests.envoy.some_certificates import certificate, pem
from tests.ports import free_port
from tests.simulation.random_calls import CALLERS, DESTINATIONS, GATEWAY, SERVING
from tests.xds.fake_gate import FakeConnection, FakeGate, serving
from tests.xds.real_envoy import RunningEnvoy, envoy

_CA = certificate(())
_NOW = XdsLimits(drain_seconds=0.0)
# An address of this process alone, so that no other test has these ports.
HERE = f"127.{os.getpid() // 250 % 250 + 1}.{os.getpid() % 250 + 1}.1"
_N_PORTS = 24  # sets of ports, which meshes use in turn: connections of the one before are not met again


@lru_cache(maxsize=64)
def _secrets(uris: tuple[str, ...]) -> Bundle:
    own, key = pem(certificate(uris, _CA))
    made = (
        SdsSecret(sds.identity_name("default"), "1", own, Redacted(key)),
        SdsSecret(sds.trust_name("default"), "1", pem(_CA)[0]),
    )
    return bundle(building.encoder().resource(SECRET, each.name, each.data()) for each in made)


class Ports(msgspec.Struct, frozen=True):
    """Where the proxies of one mesh listen."""

    inbounds: dict[str, int]
    outbounds: dict[tuple[str, str], int]
    gateway: int


def _ports() -> Ports:
    outbounds = {(caller, to): free_port() for caller in CALLERS for to in DESTINATIONS}
    return Ports({name: free_port() for name in (*CALLERS, *SERVING)}, outbounds, free_port())


class Observed(msgspec.Struct, frozen=True):
    """What a caller sees of one request, and what the service saw; status 0 where it was closed."""

    status: int
    service: str = ""
    path: str = ""
    host: str = ""
    headers: tuple[tuple[str, str | None], ...] = ()
    denied_by: str = ""
    location: str = ""


def whole(db: Db, simulator: CallSimulator, key: Key) -> Snapshot:
    """All that a proxy gets; the simulation builds only the part that it needs."""
    own = build.own(db, key)
    assert own is not None
    own = own._replace(shared_spec=simulator.proxies.shared_spec(key))
    return build.whole(own, build.shared_of(db, own))


class RealMesh:
    """Running Envoys and services."""

    def __init__(
        self, services: Mapping[str, Service], proxies: Mapping[str, tuple[RunningEnvoy, FakeConnection]]
    ) -> None:
        self._services, self._proxies = services, proxies
        self._ports = [_ports() for _ in range(_N_PORTS)]
        self._revision = 0

    def dataplanes(self, number: int, protocols: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """The proxies and services of a mesh; each service speaks a protocol."""
        ports = self._ports[number % _N_PORTS]
        for name in (*CALLERS, *SERVING):
            service = name.partition("-")[0]
            tags = {"kuma.io/service": service}
            inbound: dict[str, Any] = {"name": "main", "tags": tags, "port": ports.inbounds[name]}
            if name in SERVING:
                tags["version"] = f"v{name[-1]}"
                tags["kuma.io/protocol"] = protocols[service]
                inbound["servicePort"] = self._services[name].server_address[1]
                inbound["serviceAddress"] = "127.0.0.1"
            outbounds = [
                {"address": HERE, "port": port, "backendRef": {"kind": _kind(to), "name": to, "port": 80}}
                for (caller, to), port in ports.outbounds.items()
                if caller == name
            ]
            networking = {"address": HERE, "inbound": [inbound], "outbound": outbounds}
            yield {"type": "Dataplane", "mesh": "default", "name": name, "networking": networking}
        networking = {"address": HERE, "gateway": {"type": "BUILTIN", "tags": {"kuma.io/service": "edge"}}}
        yield {"type": "Dataplane", "mesh": "default", "name": GATEWAY, "networking": networking}
        for service in ("a", "b"):
            yield {
                "type": "MeshService",
                "mesh": "default",
                "name": service,
                "spec": {
                    "selector": {"dataplaneTags": {"kuma.io/service": service}},
                    "ports": [{"port": 80, "targetPort": "main", "appProtocol": protocols[service]}],
                    "identities": [{"type": "ServiceTag", "value": service}],
                },
                "status": {"tls": {"status": "Ready"}},
            }
        endpoint = {"address": "127.0.0.1", "port": self._services["ext"].server_address[1]}
        match = {"type": "HostnameGenerator", "port": 80, "protocol": "http"}
        yield {
            "type": "MeshExternalService",
            "mesh": "default",
            "name": "ext",
            "spec": {"match": match, "endpoints": [endpoint]},
        }

    def gateway_port(self, number: int) -> int:
        """Where the gateway of a mesh listens."""
        return self._ports[number % _N_PORTS].gateway

    async def take(self, db: Db, simulator: CallSimulator) -> None:
        """Let every Envoy have what the simulation walks."""
        self._revision += 1
        for name, (_, connection) in self._proxies.items():
            connection.offer(self._revision, self._snapshot(db, simulator, building.proxy(db, name)))
        for name, (running, connection) in self._proxies.items():
            status = await connection.until("synced", acked=self._revision)
            assert status.rejections == (), (name, status.rejections)
            await _settled(running)

    def _snapshot(self, db: Db, simulator: CallSimulator, key: Key) -> Snapshot:
        own = whole(db, simulator, key)
        return Snapshot((*own.bundles, _secrets(spiffe.identity(db, key))))

    async def send(self, number: int, caller: str, to: str, request: SimulatedRequest) -> Observed:
        """One real request, on a connection of its own; by somebody outside where `to` is the gateway."""
        ports = self._ports[number % _N_PORTS]
        port = ports.gateway if to == "edge" else ports.outbounds[caller, to]
        return await asyncio.to_thread(_send, port, request)


def _kind(destination: str) -> str:
    return "MeshExternalService" if destination == "ext" else "MeshService"


def _send(port: int, request: SimulatedRequest) -> Observed:
    connection = http.client.HTTPConnection(HERE, port, timeout=60)
    headers = dict(request.headers)
    try:
        answer = real_envoy.call(port, request.path, request.method, request.host, headers, connection)
    except (http.client.HTTPException, ConnectionError):
        return Observed(0)
    finally:
        connection.close()
    denied_by = (answer.headers.get("x-koguma-denied-by") or [""])[0]
    location = (answer.headers.get("location") or [""])[0]
    if "x-from-service" not in answer.headers:
        return Observed(answer.status, denied_by=denied_by, location=location)
    seen = answer.seen
    kept = tuple((name, _joined(seen["headers"].get(name))) for name in ("x-a", "x-b", "x-c"))
    return Observed(answer.status, seen["service"], seen["path"], seen["headers"]["host"][0], kept)


def _joined(values: list[str] | None) -> str | None:
    return None if values is None else ",".join(values)


async def _settled(running: RunningEnvoy) -> None:
    for _ in range(6000):
        dump = await running.ask("/config_dump?resource=dynamic_listeners")
        if '"warming_state"' not in dump:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("its listeners stay warming")


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[RealMesh]:
    """The Envoys and services, for as many meshes as are wanted."""
    gate = FakeGate()
    async with AsyncExitStack() as stack:
        services = stack.enter_context(real_envoy.services(*SERVING, "ext"))
        _, port = await stack.enter_async_context(serving(gate, _NOW))
        proxies: dict[str, tuple[RunningEnvoy, FakeConnection]] = {}
        for number, name in enumerate((*CALLERS, *SERVING, GATEWAY)):
            (folder / name).mkdir()
            started = await stack.enter_async_context(envoy(folder / name, port, "DELTA_GRPC", name))
            proxies[name] = started, await gate.connection(number)
        yield RealMesh(services, proxies)
