"""Defaults: the objects that come with a new mesh, and with a new control plane, as Kuma 2.13 makes them."""

from collections.abc import Iterator, Mapping
from typing import Final

from koguma.model.place import Place
from koguma.model.schema import Json

_MESH_REF: Final[Json] = {"kind": "Mesh"}
_HTTP_RETRY: Final[Json] = {
    "numRetries": 5,
    "perTryTimeout": "16s",
    "backOff": {"baseInterval": "25ms", "maxInterval": "250ms"},
}

# Name prefix, kind, spec: stored as `<prefix>-<mesh>`.
_POLICIES: Final[tuple[tuple[str, str, Json], ...]] = (
    (
        "mesh-timeout-all",
        "MeshTimeout",
        {
            "targetRef": {"kind": "Mesh", "proxyTypes": ["Sidecar"]},
            "from": [
                {
                    "targetRef": _MESH_REF,
                    "default": {
                        "connectionTimeout": "10s",
                        "idleTimeout": "2h0m0s",
                        "http": {
                            "requestTimeout": "0s",
                            "streamIdleTimeout": "1h0m0s",
                            "maxStreamDuration": "0s",
                        },
                    },
                }
            ],
            "to": [
                {
                    "targetRef": _MESH_REF,
                    "default": {
                        "connectionTimeout": "5s",
                        "idleTimeout": "1h0m0s",
                        "http": {"requestTimeout": "15s", "streamIdleTimeout": "30m0s"},
                    },
                }
            ],
        },
    ),
    (
        "mesh-gateways-timeout-all",
        "MeshTimeout",
        {
            "targetRef": {"kind": "Mesh", "proxyTypes": ["Gateway"]},
            "from": [
                {
                    "targetRef": _MESH_REF,
                    "default": {
                        "idleTimeout": "5m0s",
                        "http": {"streamIdleTimeout": "5s", "requestHeadersTimeout": "500ms"},
                    },
                }
            ],
            "to": [
                {
                    "targetRef": _MESH_REF,
                    "default": {"idleTimeout": "1h0m0s", "http": {"streamIdleTimeout": "5s"}},
                }
            ],
        },
    ),
    (
        "mesh-circuit-breaker-all",
        "MeshCircuitBreaker",
        {
            "targetRef": _MESH_REF,
            "to": [
                {
                    "targetRef": _MESH_REF,
                    "default": {
                        "connectionLimits": {
                            "maxConnections": 1024,
                            "maxPendingRequests": 1024,
                            "maxRequests": 1024,
                            "maxRetries": 3,
                        }
                    },
                }
            ],
        },
    ),
    (
        "mesh-retry-all",
        "MeshRetry",
        {
            "targetRef": _MESH_REF,
            "to": [
                {
                    "targetRef": _MESH_REF,
                    "default": {
                        "tcp": {"maxConnectAttempt": 5},
                        "http": _HTTP_RETRY,
                        "grpc": _HTTP_RETRY,
                    },
                }
            ],
        },
    ),
)


def is_untouched(kind: str, mesh: str, name: str, spec: Json) -> bool:
    """Whether a policy is one that came with its mesh and that nobody changed."""
    return any(
        kind == own and name == f"{prefix}-{mesh}" and spec == policy for prefix, own, policy in _POLICIES
    )


def mesh_policies(mesh: str, spec: Json) -> Iterator[Mapping[str, Json]]:
    """The policies of a new mesh, as plain documents, less those that it asks to skip."""
    skipped = set(spec.get("skipCreatingInitialPolicies") or ())
    if "*" in skipped:
        return
    for prefix, kind, policy in _POLICIES:
        if kind not in skipped:
            yield {"type": kind, "mesh": mesh, "name": f"{prefix}-{mesh}", "spec": policy}


def _generator(name: str, selects: str, wanted: Mapping[str, str], template: str) -> Mapping[str, Json]:
    spec = {"selector": {selects: {"matchLabels": dict(wanted)}}, "template": template}
    return {"type": "HostnameGenerator", "name": name, "spec": spec}


def hostname_generators(place: Place) -> Iterator[Mapping[str, Json]]:
    """Host names for services: the local ones in a zone, the synced ones from Global."""
    if not place.is_global:
        origin = {"kuma.io/origin": "zone"}
        local = {**origin, "kuma.io/env": "universal"}
        yield _generator(
            "local-universal-mesh-service", "meshService", local, "{{ .DisplayName }}.svc.mesh.local"
        )
        yield _generator(
            "local-mesh-external-service",
            "meshExternalService",
            origin,
            "{{ .DisplayName }}.extsvc.mesh.local",
        )
        return
    synced = {"kuma.io/origin": "global"}
    kube = {**synced, "kuma.io/env": "kubernetes"}
    headless = "k8s.kuma.io/is-headless-service"
    in_zone = "{{ .Namespace }}.svc.{{ .Zone }}.mesh.local"
    yield _generator(
        "synced-kube-mesh-service",
        "meshService",
        {**kube, headless: "false"},
        "{{ .DisplayName }}." + in_zone,
    )
    yield _generator(
        "synced-headless-kube-mesh-service",
        "meshService",
        {**kube, headless: "true"},
        '{{ label "statefulset.kubernetes.io/pod-name" }}.{{ label "k8s.kuma.io/service-name" }}.' + in_zone,
    )
    yield _generator(
        "synced-universal-mesh-service",
        "meshService",
        {**synced, "kuma.io/env": "universal"},
        "{{ .DisplayName }}.svc.{{ .Zone }}.mesh.local",
    )
    yield _generator(
        "synced-mesh-multi-zone-service",
        "meshMultiZoneService",
        synced,
        "{{ .DisplayName }}.mzsvc.mesh.local",
    )
    yield _generator(
        "synced-mesh-external-service",
        "meshExternalService",
        synced,
        "{{ .DisplayName }}.extsvc.mesh.local",
    )
