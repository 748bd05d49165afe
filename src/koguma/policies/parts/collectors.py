"""Collectors: where logs, spans and metrics are sent, and how Envoy reaches such a place.

An OpenTelemetry collector is named in the policy (`endpoint`), or by a reference to an object that says where
it is; then what that object says stands beside the reference.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from koguma.envoy import external, proto_json
from koguma.envoy.external import ExternalEndpoint, Tls
from koguma.envoy.proto_json import Data
from koguma.model.schema import Json

KIND: Final = "MeshOpenTelemetryBackend"

_OPTIONS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_PORTS: Final[Mapping[str, int]] = {"grpc": 4317, "http": 4318, "https": 4318}
_TIMEOUT: Final = "10s"

# What Envoy's OpenTelemetry extensions say about who sends: OTEL_RESOURCE_ATTRIBUTES, which the agent beside
# Envoy writes into its environment.
DETECTORS: Final = [
    proto_json.extension(
        "envoy.tracers.opentelemetry.resource_detectors.environment",
        "envoy.extensions.tracers.opentelemetry.resource_detectors.v3.EnvironmentResourceDetectorConfig",
    )
]


class UnknownCollector(ValueError):
    """A reference to a collector that leads nowhere."""


class Collector(msgspec.Struct, frozen=True):
    """Where something is sent: over gRPC, or over HTTP to a path."""

    host: str
    port: int
    protocol: str = "grpc"  # or http, or https
    path: str = ""  # what the path begins with, without a slash at its end
    is_whole: bool = False  # whether that is all of the path

    @property
    def authority(self) -> str:
        """Host and port, as they stand in URLs."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def slug(self) -> str:
        """The same as a part of a name: without dots, at which Envoy would cut the names of its metrics."""
        told_apart = self.host.lower().replace("-", "--").replace(".", "-").replace(":", "_")
        return f"{told_apart}_{self.port}"

    def url(self, path: str) -> str:
        """The URL of a path below its own, unless its own is whole."""
        return f"{self.protocol}://{self.authority}{self.path}{'' if self.is_whole else path}"


def of_url(url: str) -> Collector:
    """The collector at a URL of HTTP."""
    parts = urlsplit(url)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    path = parts.path.rstrip("/")
    return Collector(parts.hostname or "", port, parts.scheme, path, is_whole=bool(path))


def of_otel(conf: Json) -> Collector:
    """The collector that a section `openTelemetry` means; Unknown where it means none."""
    endpoint = conf.get("endpoint") or ""
    if "://" in endpoint:
        collector = of_url(endpoint)
        has_port = urlsplit(endpoint).port is not None
        return collector if has_port else msgspec.structs.replace(collector, port=_PORTS[collector.protocol])
    if endpoint:
        parts = urlsplit(f"//{endpoint}")
        return Collector(parts.hostname or "", parts.port or _PORTS["grpc"])
    return _of_object(conf.get("backendRef") or {})


def _of_object(ref: Json) -> Collector:
    spec = ref.get("spec")
    labels = ", ".join(f"{name}: {value}" for name, value in sorted((ref.get("labels") or {}).items()))
    if spec is None:
        raise UnknownCollector(f"no {KIND} has the labels {labels}; write one, or correct the reference")
    at, protocol = spec.get("endpoint") or {}, spec.get("protocol") or "grpc"
    if not at.get("address"):
        raise UnknownCollector(
            f"the {KIND} with the labels {labels} does not say where it is; write its endpoint.address"
        )
    path = (at.get("path") or "").rstrip("/")
    return Collector(at["address"], at.get("port") or _PORTS[protocol], protocol, path)


def cluster(name: str, collector: Collector) -> Data:
    """The cluster by which Envoy reaches a collector."""
    is_tls = collector.protocol == "https"
    options = external.http_options("grpc" if collector.protocol == "grpc" else "http")
    data = external.cluster(
        name, [ExternalEndpoint(collector.host, collector.port, 0)], Tls() if is_tls else None
    )
    return {
        **data,
        "typed_extension_protocol_options": {_OPTIONS: proto_json.typed(_OPTIONS, **(options or {}))},
    }


def service(name: str, collector: Collector, path: str) -> Data:
    """How an OpenTelemetry extension of Envoy speaks to a collector behind a cluster; over HTTP at a path."""
    if collector.protocol == "grpc":
        return {"grpc_service": {"envoy_grpc": {"cluster_name": name}, "timeout": _TIMEOUT}}
    uri = {"uri": collector.url(path), "cluster": name, "timeout": _TIMEOUT}
    return {"http_service": {"http_uri": uri}}
