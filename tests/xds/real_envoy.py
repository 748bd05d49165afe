"""A real Envoy that is told what to do by our server, and what such an Envoy can be told."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from koguma.envoy.encode import Encoder
from koguma.envoy.schema import find_envoy
from koguma.envoy.snapshot import Snapshot, XdsResource, bundle, version_of
from tests.xds.fake_gate import TOKEN, authority, schema

ADS = {"ads": {}, "resource_api_version": "V3"}
_HCM = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
_HTTP = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"


def encoder() -> Encoder:
    return Encoder(schema())


def cluster(name: str, **more: Any) -> XdsResource:
    data = {
        "name": name,
        "type": "EDS",
        "connect_timeout": "1s",
        "eds_cluster_config": {"eds_config": ADS},
        **more,
    }
    return encoder().resource("cluster", name, data, [("endpoints", name)])


def bad_cluster(name: str) -> XdsResource:
    """One that fits the schema and that no Envoy takes: it does not say where its endpoints come from."""
    return encoder().resource("cluster", name, {"name": name, "type": "EDS", "connect_timeout": "1s"})


def broken_cluster(name: str) -> XdsResource:
    """One for which an Envoy refuses all that came with it, and does not say whose fault it was."""
    made: Any = schema().message_class("envoy.config.cluster.v3.Cluster")(name=name)
    made.connect_timeout.seconds = -1
    body: bytes = made.SerializeToString()
    return XdsResource("cluster", name, version_of(body), body)


def endpoints(name: str, port: int) -> XdsResource:
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    data = {"cluster_name": name, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}]}
    return encoder().resource("endpoints", name, data)


def listener(name: str, port: int, route_name: str) -> XdsResource:
    manager = {
        "@type": _HCM,
        "stat_prefix": name,
        "rds": {"route_config_name": route_name, "config_source": ADS},
        "http_filters": [{"name": "router", "typed_config": {"@type": _ROUTER}}],
    }
    data = {
        "name": name,
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [{"filters": [{"name": "hcm", "typed_config": manager}]}],
    }
    return encoder().resource("listener", name, data, [("routes", route_name)])


def routes(name: str, to: str) -> XdsResource:
    route = {"match": {"prefix": "/"}, "route": {"cluster": to}}
    data = {"name": name, "virtual_hosts": [{"name": name, "domains": ["*"], "routes": [route]}]}
    return encoder().resource("routes", name, data, [("cluster", to)])


def whole(pieces: Iterable[XdsResource]) -> Snapshot:
    return Snapshot((bundle(pieces),))


@asynccontextmanager
async def backend(answer: str) -> AsyncIterator[int]:
    """A service that answers everything with one word; its port."""

    async def handle(_request: web.BaseRequest) -> web.Response:
        return web.Response(text=answer)

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield int(runner.addresses[0][1])
    await runner.cleanup()


class RunningEnvoy:
    """What can be asked of a running Envoy."""

    def __init__(self, admin: Path) -> None:
        self._admin = admin

    async def ask(self, path: str) -> str:
        connector = aiohttp.UnixConnector(str(self._admin))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(f"http://admin{path}") as answer,
        ):
            return await answer.text()

    async def until_live(self) -> None:
        for _ in range(3000):
            with suppress(aiohttp.ClientError):  # it does not listen yet
                if "LIVE" in await self.ask("/ready"):
                    return
            await asyncio.sleep(0.02)
        raise AssertionError("it does not get ready")

    async def counts(self, *names: str) -> dict[str, int]:
        """Some of its counters."""
        lines = (await self.ask("/stats?filter=" + "%7C".join(names))).splitlines()
        found = dict(line.split(": ") for line in lines)
        return {name: int(found[name]) for name in names}

    async def clusters(self) -> set[str]:
        """The clusters that are in use and came from us."""
        dump = json.loads(await self.ask("/config_dump?resource=dynamic_active_clusters"))
        return {each["cluster"]["name"] for each in dump.get("configs", ())}


async def call(port: int, until: str) -> str:
    """Call until the answer is as expected, for a while; the last answer."""
    answer = ""
    async with aiohttp.ClientSession() as session:
        for _ in range(3000):
            try:
                async with session.get(f"http://127.0.0.1:{port}/") as response:
                    answer = await response.text()
            except aiohttp.ClientError as error:
                answer = str(error)
            if answer == until:
                break
            await asyncio.sleep(0.02)
    return answer


@asynccontextmanager
async def envoy(
    folder: Path, ads_port: int, api_type: str, name: str = "web-1"
) -> AsyncIterator[RunningEnvoy]:
    """An Envoy that gets all it has from us; `api_type` is DELTA_GRPC or GRPC."""
    config = folder / "envoy.json"
    config.write_text(json.dumps(_bootstrap(folder, ads_port, api_type, name)))
    arguments = ("-c", str(config), "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning")
    with (folder / "envoy.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(str(find_envoy()), *arguments, stdout=log, stderr=log)
        try:
            yield RunningEnvoy(folder / "admin.sock")
        finally:
            process.kill()
            await process.wait()


def _bootstrap(folder: Path, ads_port: int, api_type: str, name: str) -> dict[str, Any]:
    ads = {
        "api_type": api_type,
        "transport_api_version": "V3",
        "set_node_on_first_message_only": True,
        "grpc_services": [
            {
                "envoy_grpc": {"cluster_name": "ads"},
                "initial_metadata": [{"key": "authorization", "value": TOKEN}],
            }
        ],
    }
    return {
        "node": {"id": f"default.{name}", "cluster": "web"},
        "admin": {"address": {"pipe": {"path": str(folder / "admin.sock")}}},
        "dynamic_resources": {"ads_config": ads, "cds_config": ADS, "lds_config": ADS},
        "static_resources": {"clusters": [_ads_cluster(ads_port)]},
    }


def _ads_cluster(port: int) -> dict[str, Any]:
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    return {
        "name": "ads",
        "type": "STATIC",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": _HTTP,
                "explicit_http_config": {
                    "http2_protocol_options": {"connection_keepalive": {"interval": "1s", "timeout": "5s"}}
                },
            }
        },
        "load_assignment": {
            "cluster_name": "ads",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
        "transport_socket": {
            "name": "tls",
            "typed_config": {
                "@type": _TLS,
                "sni": "localhost",
                "common_tls_context": {
                    "validation_context": {"trusted_ca": {"inline_string": authority().certificate}}
                },
            },
        },
    }
