"""What measuring means to a proxy: MeshMetric's ports for Prometheus, and what the agent beside Envoy does.

Envoy has the port, its path and its TLS; behind them it asks the agent, which puts together the metrics of
Envoy and of applications, and sends them to OpenTelemetry collectors by itself.
"""

import contextlib
import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from koguma.envoy import filters, names, proto_json
from koguma.envoy.proto_json import Data
from koguma.model.kri import SecretName
from koguma.model.overlay import Overlay, OverlayContext
from koguma.model.schema import Json
from koguma.policies.parts import collectors
from koguma.policies.parts.collectors import Collector, UnknownCollector

PORT: Final = 5670
PATH: Final = "/metrics"
INTERVAL: Final = "1m"

_HCM: Final = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_ROUTER: Final = proto_json.extension(filters.ROUTER, "envoy.extensions.filters.http.router.v3.Router")
_TLS: Final = "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext"
_TCP: Final = "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
_KUMA_PATH: Final = "/meshmetric"  # what Kuma's agent is asked for
_KUMA_PATH_LENGTH_MAX: Final = 98  # of a socket, without its ending
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9-]")


class _Port(msgspec.Struct, frozen=True):
    """A port that Prometheus scrapes: all backends with the same number."""

    number: int
    client: str
    paths: tuple[str, ...]
    mode: str


def whole(conf: Json, context: OverlayContext) -> Overlay:
    """The listeners that serve metrics, and the settings of the agent that collects them."""
    backends = conf.get("backends") or ()
    if not backends or not context.workdir:
        return {}
    problems: dict[str, str] = {}
    listeners = dict(_listeners(backends, context, problems))
    exports = dict(_exports(backends, context))
    metrics = {
        "applications": [_application(each, context) for each in conf.get("applications") or ()],
        "backends": list(_agent_backends(backends, context, problems)),
        "sidecar": conf.get("sidecar") or {},
        "extraLabels": {
            "mesh": context.mesh,
            "zone": context.zone,
            "service": context.service,
            "dataplane": context.name,
        },
    }
    overlay: Data = {"settings": {"/meshmetric": {"observability": {"metrics": metrics}}}}
    clusters = {names.METRICS: _agent(context)} if listeners else {}
    clusters |= {name: collectors.cluster(name, collector) for name, collector in exports.items()}
    listeners |= {name: _export_listener(name, collector, context) for name, collector in exports.items()}
    if listeners:
        overlay |= {"clusters": clusters, "listeners": listeners}
    return {**overlay, "problems": problems} if problems else overlay


def _application(application: Json, context: OverlayContext) -> Data:
    return {
        **({"name": application["name"]} if application.get("name") else {}),
        "path": application.get("path") or PATH,
        "port": application["port"],
        "address": application.get("address") or context.address,
    }


def _agent_backends(backends: Json, context: OverlayContext, problems: dict[str, str]) -> Iterator[Data]:
    for index, backend in enumerate(backends):
        if backend["type"] == "Prometheus":
            client = backend["prometheus"].get("clientId") or "default"
            yield {"type": "Prometheus", "name": client}
            continue
        otel = backend["openTelemetry"]
        try:
            collector = collectors.of_otel(otel)
        except UnknownCollector as error:
            problems[f"backends[{index}]"] = str(error)
            continue
        is_grpc = collector.protocol == "grpc"
        if context.kuma_dp is not None and not is_grpc:
            problems[f"backends[{index}]"] = "kuma-dp sends metrics over gRPC only; name a collector for that"
            continue
        endpoint = collector.authority if is_grpc else collector.url("/v1/metrics")
        if context.kuma_dp is not None:
            endpoint = _export_socket(collector, context)
        interval = otel.get("refreshInterval") or INTERVAL
        settings = {"endpoint": endpoint, "refreshInterval": proto_json.seconds(interval)}
        yield {"type": "OpenTelemetry", "name": collector.slug, "openTelemetry": settings}


def _exports(backends: Json, context: OverlayContext) -> Iterator[tuple[str, Collector]]:
    """The collectors to which Kuma's agent sends through Envoy, which is all that it can; by name."""
    if context.kuma_dp is None:
        return
    for backend in backends:
        if backend["type"] != "Prometheus":
            with contextlib.suppress(UnknownCollector):  # reported with the backend
                collector = collectors.of_otel(backend["openTelemetry"])
                if collector.protocol == "grpc":
                    yield f"{names.METRICS}_opentelemetry_{collector.slug}", collector


def _export_socket(collector: Collector, context: OverlayContext) -> str:
    """Where Envoy takes what Kuma's agent sends to a collector; named and cut as Kuma does."""
    return f"{context.workdir}/kuma-otel-{collector.slug}"[:_KUMA_PATH_LENGTH_MAX] + ".sock"


def _export_listener(name: str, collector: Collector, context: OverlayContext) -> Data:
    to_collector = proto_json.extension(filters.TCP_PROXY, _TCP, stat_prefix=name, cluster=name)
    return {
        "stat_prefix": name,
        "address": proto_json.pipe(_export_socket(collector, context)),
        "filter_chains": [{"filters": [to_collector]}],
    }


def _agent(context: OverlayContext) -> Data:
    """The cluster of the agent, which listens in its own directory."""
    own = f"{context.workdir}/{names.METRICS_SOCKET}"
    endpoint = {
        "endpoint": {"address": proto_json.pipe(context.kuma_dp.metrics_socket if context.kuma_dp else own)}
    }
    return {
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {"cluster_name": names.METRICS, "endpoints": [{"lb_endpoints": [endpoint]}]},
    }


def _listeners(
    backends: Json, context: OverlayContext, problems: dict[str, str]
) -> Iterator[tuple[str, Data]]:
    used: set[str] = set()
    for port in _ports(backends):
        name = f"{names.METRICS}_prometheus_{_NOT_IN_NAMES.sub('-', port.client)}"
        name = f"{name}_{port.number}" if name in used else name
        used.add(name)
        problem = _problem(port, context)
        if problem:
            problems[f"port {port.number}"] = problem
        else:
            yield name, _listener(name, port, context)


def _ports(backends: Json) -> Iterator[_Port]:
    """Backends with one port are one listener, protected as well as any of them asks for."""
    by_port: dict[int, list[Json]] = {}
    for backend in backends:
        if backend["type"] == "Prometheus":
            by_port.setdefault(backend["prometheus"].get("port") or PORT, []).append(backend["prometheus"])
    for number, same in by_port.items():
        modes = [(each.get("tls") or {}).get("mode") or "Disabled" for each in same]
        paths = dict.fromkeys(each.get("path") or PATH for each in same)
        mode = next((each for each in modes if each != "Disabled"), "Disabled")
        yield _Port(number, same[0].get("clientId") or "default", tuple(paths), mode)


def _problem(port: _Port, context: OverlayContext) -> str:
    try:
        ipaddress.ip_address(context.address)
    except ValueError:
        return f'it is scraped on "{context.address}", which is no IP; write an IP as networking.address'
    if port.mode == "ActiveMTLSBackend" and not context.has_mtls:
        return "tls.mode is ActiveMTLSBackend, and the mesh has no mTLS; switch it on, or choose another mode"
    if port.mode == "ProvidedTLS" and context.kuma_dp and not context.kuma_dp.metrics_certificate:
        return (
            "tls.mode is ProvidedTLS, and the proxy was started without a certificate;"
            " give kuma-dp --metrics-cert-path and --metrics-key-path"
        )
    return ""


def _listener(name: str, port: _Port, context: OverlayContext) -> Data:
    asked = _KUMA_PATH if context.kuma_dp else PATH
    routes = [
        {"match": {"path": path}, "route": {"cluster": names.METRICS, "prefix_rewrite": asked}}
        for path in port.paths
    ]
    host = {"name": name, "domains": ["*"], "routes": routes}
    manager = proto_json.extension(
        filters.HCM,
        _HCM,
        stat_prefix=name,
        original_ip_detection_extensions=[proto_json.NO_PROXY_IN_FRONT],
        route_config={"name": name, "virtual_hosts": [host], "validate_clusters": False},
        http_filters=[_ROUTER],
    )
    return {
        "stat_prefix": name,
        "address": proto_json.address(context.address, port.number),
        "traffic_direction": "INBOUND",
        "filter_chains": [{"filters": [manager], **_protected(port.mode, context)}],
    }


def _protected(mode: str, context: OverlayContext) -> Data:
    if mode == "Disabled":
        return {}
    tls_context = proto_json.typed(
        _TLS, **(_own_files(context) if mode == "ProvidedTLS" else _of_mesh(context))
    )
    return {"transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": tls_context}}


def _own_files(context: OverlayContext) -> Mapping[str, Json]:
    """A certificate that the agent was started with; it keeps the files in its directory."""
    certificate = f"{context.workdir}/{names.METRICS_CERTIFICATE}"
    key = f"{context.workdir}/{names.METRICS_KEY}"
    if context.kuma_dp is not None:
        certificate, key = context.kuma_dp.metrics_certificate, context.kuma_dp.metrics_key
    files = {"certificate_chain": {"filename": certificate}, "private_key": {"filename": key}}
    return {"common_tls_context": {"tls_certificates": [files]}}


def _of_mesh(context: OverlayContext) -> Mapping[str, Json]:
    """The proxy's own certificate; who scrapes needs one of the mesh too."""
    any_of_mesh = {"san_type": "URI", "matcher": {"prefix": f"spiffe://{context.mesh}/"}}
    own, ca = (str(SecretName(kind, "secret", context.mesh)) for kind in ("identity_cert", "mesh_ca"))
    return {
        "common_tls_context": {
            "tls_certificate_sds_secret_configs": [proto_json.sds(own)],
            "combined_validation_context": {
                "default_validation_context": {"match_typed_subject_alt_names": [any_of_mesh]},
                "validation_context_sds_secret_config": proto_json.sds(ca),
            },
        },
        "require_client_certificate": True,
    }
