"""What tracing means to Envoy: MeshTrace's backend as the tracer of every HTTP listener, with its collector.

A span says whose it is. To Zipkin, Envoy gives the name that stands in its node. To OpenTelemetry it gives
what the agent beside it put into its environment, and Datadog wants it written in the configuration, so that
only there each service needs a configuration of its own.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from koguma.envoy import proto_json
from koguma.envoy.proto_json import Data
from koguma.model import kri
from koguma.model.overlay import InboundEntry, Overlay, OverlayContext
from koguma.model.schema import Json
from koguma.policies.parts import collectors, fields
from koguma.policies.parts.collectors import Collector, UnknownCollector

_ALL: Final = 100
_SHARES: Final = ("client", "random", "overall")
_TRACE: Final = "envoy.config.trace.v3"
_ZIPKIN_VERSIONS: Final[Mapping[str, str]] = {"httpJson": "HTTP_JSON", "httpProto": "HTTP_PROTO"}


def outbound(conf: Json, context: OverlayContext) -> Overlay:
    """Spans of calls to others."""
    called = kri.parse(context.name).name if kri.is_kri(context.name) else context.name
    return _overlay(conf, context, f"{context.service}_OUTBOUND_{called}")


def inbound(conf: Json, _ruled: tuple[InboundEntry, ...], context: OverlayContext) -> Overlay:
    """Spans of calls that arrive."""
    return _overlay(conf, context, f"{context.service}_INBOUND")


def per_service(conf: Json) -> bool:
    """Whether the configuration has the name of the service that it is for."""
    return any(backend["type"] == "Datadog" for backend in conf.get("backends") or ())


def _overlay(conf: Json, context: OverlayContext, directed: str) -> Overlay:
    backends = conf.get("backends") or ()
    if not backends or not context.is_http:
        return {}
    backend = backends[0]
    name = f"_kuma_trace_{backend['type'].lower()}"
    try:
        collector = _collector(backend)
    except UnknownCollector as error:
        return {"problems": {"backends[0]": str(error)}}
    tracing = {
        "provider": _provider(backend, name, collector, (context.service, directed)),
        **_sampling_and_tags(conf),
    }
    if context.is_gateway:  # it starts the trace, and what it calls is a step of its own
        tracing["spawn_upstream_span"] = True
    return {"hcm": {"tracing": tracing}, "clusters": {name: collectors.cluster(name, collector)}}


def _collector(backend: Json) -> Collector:
    match backend["type"]:
        case "Zipkin":
            return collectors.of_url(backend["zipkin"]["url"])
        case "Datadog":
            return collectors.of_url(backend["datadog"]["url"])
        case _:
            return collectors.of_otel(backend["openTelemetry"])


def _provider(backend: Json, cluster: str, collector: Collector, names: tuple[str, str]) -> Data:
    match backend["type"]:
        case "Zipkin":
            config = _zipkin(backend["zipkin"], cluster, collector)
            return {"name": "envoy.tracers.zipkin", "typed_config": config}
        case "Datadog":
            config = _datadog(backend["datadog"], cluster, collector, names)
            return {"name": "envoy.tracers.datadog", "typed_config": config}
        case _:
            return proto_json.extension(
                "envoy.tracers.opentelemetry",
                f"{_TRACE}.OpenTelemetryConfig",
                **collectors.service(cluster, collector, "/v1/traces"),
                resource_detectors=collectors.DETECTORS,
            )


def _zipkin(zipkin: Json, cluster: str, collector: Collector) -> Data:
    parts = urlsplit(zipkin["url"])
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    shared = zipkin.get("sharedSpanContext")
    return proto_json.typed(
        f"{_TRACE}.ZipkinConfig",
        collector_cluster=cluster,
        collector_endpoint=path,
        collector_endpoint_version=_ZIPKIN_VERSIONS[zipkin.get("apiVersion") or "httpJson"],
        collector_hostname=collector.authority,
        trace_id_128bit=bool(zipkin.get("traceId128bit")),
        shared_span_context=True if shared is None else shared,
    )


def _datadog(datadog: Json, cluster: str, collector: Collector, names: tuple[str, str]) -> Data:
    own, directed = names
    return proto_json.typed(
        f"{_TRACE}.DatadogConfig",
        collector_cluster=cluster,
        collector_hostname=collector.authority,
        service_name=directed if datadog.get("splitService") else own,
    )


def _sampling_and_tags(conf: Json) -> Data:
    """How many requests are traced, and the tags of every span."""
    sampling = conf.get("sampling") or {}
    tracing: Data = {f"{each}_sampling": {"value": _share(sampling.get(each))} for each in _SHARES}
    tags = [_tag(each) for each in conf.get("tags") or ()]
    return {**tracing, "custom_tags": tags} if tags else tracing


def _share(percentage: Json) -> float:
    number = fields.number(percentage) if percentage is not None else None
    return float(_ALL if number is None else number)


def _tag(tag: Json) -> Data:
    if tag.get("header") is None:
        return {"tag": tag["name"], "literal": {"value": tag.get("literal") or ""}}
    header: Data = {"name": tag["header"]["name"]}
    if tag["header"].get("default") is not None:
        header["default_value"] = tag["header"]["default"]
    return {"tag": tag["name"], "request_header": header}
