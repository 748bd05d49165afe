"""Clusters: how a destination's port is called, and where its endpoints are.

A cluster is named by its destination's KRI. A subset of its endpoints is no cluster of its own: metadata
selects it, so that a service has one name in all metrics.
"""

from typing import Final, NamedTuple

import msgspec

from koguma.core import cross_mesh_services, items, world
from koguma.core.build import (
    encoding,
    endpoints,
    external,
    gateway_endpoints,
    hooks,
    locality,
    overlay_merge,
    overlays,
    tls,
    zone_egress,
    zone_ingress,
)
from koguma.core.build.addresses import Endpoint
from koguma.core.build.overlays import MergedConfs, PolicyOverlays
from koguma.core.gateway_api import backend_tls
from koguma.core.gateway_api.backend_tls import BackendTls
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.core.items import ByKind
from koguma.core.world import Pairs
from koguma.envoy import external as envoy_external
from koguma.envoy import proto_json
from koguma.envoy.external import HTTP_OPTIONS
from koguma.envoy.proto_json import Data
from koguma.envoy.snapshot import CLUSTER, ENDPOINTS, Bundle, Failure, XdsResource
from koguma.model.overlay import MachineAccess, Overlay, OverlayContext
from koguma.model.resource import Key

NO_SERVER_NAME: Final = (
    "a zone proxy finds it by its name as a part of a server name, so that must be one DNS label: at most 63"
    " lower-case letters, digits and hyphens, without a dot; rename it"
)


class ClientContext(msgspec.Struct, frozen=True, cache_hash=True):
    """What of a calling proxy, beside policies, decides its listeners, routes and clusters."""

    mesh: str
    zone: str
    affinity: Pairs = ()  # its values of the tags by which load balancing prefers near endpoints
    both_ends: ByKind = ()  # entries on which both ends of a connection agree
    log_pipe: str = ""
    service: str = ""  # empty where no policy of its class reads it, so that proxies of all services share
    machine: MachineAccess = MachineAccess()
    is_egress: bool = False  # it is a zone egress, from which calls leave the mesh
    uris: tuple[str, ...] = ()  # its identities, where its mesh asks who calls external services

    def where(
        self, protocol: str, name: str, *, is_gateway: bool = False, admits_meshes: bool = False
    ) -> OverlayContext:
        """What the hooks of policies get to know about a port that is called, or a gateway's own."""
        return OverlayContext(
            protocol,
            self.mesh,
            self.zone,
            name,
            service=self.service,
            log_pipe=self.log_pipe,
            machine=self.machine,
            is_gateway=is_gateway,
            admits_meshes=admits_meshes,
        )


class ClusterSpec(msgspec.Struct, frozen=True):
    """All that decides the cluster of a destination's port; equal for all proxies that share it."""

    destination: Key
    section: str
    overlays: PolicyOverlays
    client: ClientContext
    subsets: tuple[tuple[str, ...], ...] = ()  # the sets of tag keys by which routes select endpoints


@question
def cluster(db: Db, spec: ClusterSpec) -> tuple[XdsResource | Failure, ...]:
    """The cluster of a port with its secrets, or why there is none."""
    name = encoding.kri(db, spec.destination, spec.section)
    port = world.port(db, spec.destination, spec.section)
    if port is None or not name:
        return ()
    gateway = cross_mesh_services.gateway(db, spec.destination)
    if gateway is not None:
        return _to_gateway(db, spec, name, gateway)
    if spec.destination.kind == "MeshExternalService":
        through_egress = not spec.client.is_egress and zone_egress.carries(db, spec.destination)
        return _through_egress(db, spec, name) if through_egress else _external(db, spec, name)
    backend = backend_tls.of(db, spec.destination, port.section)
    if backend is not None:
        return _with_own_tls(db, spec, name, backend)
    # Of a zone that is silent nobody knows whether its ingress lives: who calls it finds out.
    is_elsewhere = spec.destination.kind == "MeshMultiZoneService" or zone_ingress.is_remote(
        db, spec.destination
    )
    failing = _THAT_FAILS if is_elsewhere else {}
    skeleton = {"cluster": {**_skeleton(name, spec.subsets), **failing}, "http_options": _HTTP2}
    parts = overlay_merge.with_overlays(skeleton, spec.overlays.overlays)
    if spec.overlays.locality is not None and spec.overlays.locality.affinity_tags:
        parts = _with_localities(parts)
    transport = _transport(db, spec)
    data = _cluster_data(parts, is_http=port.protocol in world.HTTP_PROTOCOLS, transport=transport)
    needs = ((ENDPOINTS, name), *(tls.secrets(spec.client.mesh) if transport else ()))
    resource = encoding.encoded(db, CLUSTER, name, data, needs, str(spec.destination))
    return resource, *spec.overlays.failures


_ALPN: Final = {"http": ("http/1.1",), "http2": ("h2",), "grpc": ("h2",)}


def _with_own_tls(
    db: Db, spec: ClusterSpec, name: str, backend: BackendTls
) -> tuple[XdsResource | Failure, ...]:
    """The cluster of a service that has certificates of its own, and no proxies of the mesh."""
    port = world.port(db, spec.destination, spec.section)
    protocol = port.protocol if port else "tcp"
    options = envoy_external.http_options(protocol)
    is_closed = bool(backend.problem)  # calls fail: they would reach nobody knows whom
    skeleton: dict[str, Data] = {"cluster": _closed(name) if is_closed else _skeleton(name, spec.subsets)}
    if options is not None:
        skeleton["http_options"] = options
    parts = overlay_merge.with_overlays(skeleton, spec.overlays.overlays)
    names = tuple(envoy_external.San(each) for each in backend.names)
    tls_spec = envoy_external.Tls(
        version_min="TLSv1_2", server_name=backend.hostname, sans=names, ca=backend.ca
    )
    transport = None if is_closed else envoy_external.socket(tls_spec, _ALPN.get(protocol, ()))
    data = _cluster_data(parts, is_http=options is not None, transport=transport)
    needs = () if is_closed else ((ENDPOINTS, name),)
    resource = encoding.encoded(db, CLUSTER, name, data, needs, str(spec.destination))
    return resource, *spec.overlays.failures


def _closed(name: str) -> Data:
    return {"name": name, "type": "STATIC", "connect_timeout": "5s"}  # no endpoints: calls fail


def cluster_overlays(
    db: Db, destination: Key, section: str, confs: MergedConfs, client: ClientContext
) -> PolicyOverlays:
    """What policies change in the cluster of a port."""
    port, name = world.port(db, destination, section), encoding.kri(db, destination, section)
    if port is None or not name:
        return overlays.NOTHING
    return overlays.outbound(db, confs, client.where(port.protocol, name)).cluster


class LoadAssignmentSpec(NamedTuple):
    """A port whose endpoints a cluster needs, and the entries that say which are preferred."""

    destination: Key
    section: str
    entries: ByKind = ()


def load_assignments(
    db: Db, destination: Key, section: str, entries: ByKind
) -> tuple[LoadAssignmentSpec, ...]:
    """The port itself if its endpoints are sent apart from its cluster (EDS), or nothing."""
    if not encoding.kri(db, destination, section):
        return ()
    if destination.kind == "MeshExternalService" and cross_mesh_services.gateway(db, destination) is None:
        return (LoadAssignmentSpec(destination, section),) if zone_egress.carries(db, destination) else ()
    return (LoadAssignmentSpec(destination, section, hooks.on_endpoints(db, entries)),)


@question
def assignments(db: Db, specs: Group[Group[LoadAssignmentSpec]], zone: str, affinity: Pairs) -> Bundle:
    """The endpoints of some ports; apart, so that a proxy with a new address changes nothing else."""
    return encoding.bundled(assignment(db, spec, zone, affinity) for shard in specs for spec in shard)


@question
def assignment(db: Db, spec: LoadAssignmentSpec, zone: str, affinity: Pairs) -> XdsResource | Failure:
    """The endpoints of a port as clients of one zone see them."""
    name = encoding.kri(db, spec.destination, spec.section)
    # A failure of the hook is reported with the cluster.
    preference, _ = hooks.locality(db, ((kind, items.conf(db, entries)) for kind, entries in spec.entries))
    data = locality.assignment(name, _endpoints(db, spec, zone), zone, affinity, preference)
    return encoding.encoded(db, ENDPOINTS, name, data, origin=str(spec.destination))


def _endpoints(db: Db, spec: LoadAssignmentSpec, zone: str) -> tuple[Endpoint, ...]:
    gateway = cross_mesh_services.gateway(db, spec.destination)
    if gateway is not None:
        host = spec.destination.name if cross_mesh_services.has_own_host(db, spec.destination) else ""
        return gateway_endpoints.of_port(db, gateway, int(spec.section), host)
    if spec.destination.kind == "MeshExternalService":
        return zone_egress.endpoints_in(db, zone)
    return endpoints.of(db, spec.destination, spec.section)


def _skeleton(name: str, subsets: tuple[tuple[str, ...], ...]) -> Data:
    cluster = {
        "name": name,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": proto_json.ADS},
        "connect_timeout": "5s",
    }
    if subsets:
        # Without fallback: requests for version 2 fail where it has no endpoints, and never reach version 1.
        selectors = [{"keys": list(keys), "fallback_policy": "NO_FALLBACK"} for keys in subsets]
        fallback = {"fallback_policy": "ANY_ENDPOINT", "subset_selectors": selectors}
        return {**cluster, "lb_subset_config": fallback}
    return cluster


_HTTP2 = {
    "common_http_protocol_options": {"idle_timeout": "3600s"},
    "explicit_http_config": {"http2_protocol_options": {"allow_connect": True}},
}


def _with_localities(parts: overlay_merge.Parts) -> overlay_merge.Parts:
    """The cluster with locality-weighted balancing, without which Envoy ignores weights of localities."""
    weighted: Data = {"common_lb_config": {"locality_weighted_lb_config": {}}}
    if "lb_subset_config" in parts["cluster"]:
        weighted["lb_subset_config"] = {"locality_weight_aware": True}
    cluster: Data = overlay_merge.merged(parts["cluster"], weighted)
    balancing = dict(cluster["common_lb_config"])
    # Envoy has either weighted localities or `fail_traffic_on_panic`. A panic threshold of zero is nearly the
    # same as the latter: only healthy hosts are used.
    if (balancing.pop("zone_aware_lb_config", None) or {}).get("fail_traffic_on_panic"):
        balancing["healthy_panic_threshold"] = {"value": 0.0}
    return {**parts, "cluster": {**cluster, "common_lb_config": balancing}}


def _transport(db: Db, spec: ClusterSpec) -> Data | None:
    if not endpoints.is_secured(db, spec.destination):
        return None
    return _mtls(db, spec, endpoints.identities(db, spec.destination))


def _mtls(db: Db, spec: ClusterSpec, identities: tuple[str, ...]) -> Data:
    """The transport socket with which a proxy calls proxies of these identities."""
    sni = tls.server_name(db, spec.destination, spec.section)
    return _socket(db, spec, tls.upstream(spec.client.mesh, identities, sni))


def _socket(db: Db, spec: ClusterSpec, context: Data) -> Data:
    where = OverlayContext("tcp", spec.client.mesh, spec.client.zone)
    for part in overlays.of_both_ends(db, spec.client.both_ends, where).part("upstream_tls"):
        context = overlay_merge.merged(context, part)
    return tls.socket(context)


def _cluster_data(parts: overlay_merge.Parts, *, is_http: bool, transport: Data | None) -> Data:
    cluster: Data = dict(parts["cluster"])
    if is_http and "http_options" in parts:
        options = proto_json.typed(HTTP_OPTIONS, **parts["http_options"])
        cluster["typed_extension_protocol_options"] = {HTTP_OPTIONS: options}
    if transport is not None:
        cluster["transport_socket"] = transport
    return cluster


def _to_gateway(db: Db, spec: ClusterSpec, name: str, gateway: Key) -> tuple[XdsResource | Failure, ...]:
    """The cluster of a gateway of another mesh: never without mTLS, nor through an egress."""
    mesh, identities = spec.client.mesh, gateway_endpoints.identities(db, gateway)
    skeleton = {"cluster": _skeleton(name, spec.subsets), "http_options": _HTTP2}
    parts = overlay_merge.with_overlays(skeleton, spec.overlays.overlays)
    if spec.overlays.locality is not None and spec.overlays.locality.affinity_tags:
        parts = _with_localities(parts)
    context = tls.upstream(mesh, identities, spec.destination.name, trusted=gateway.mesh)
    data = _cluster_data(parts, is_http=True, transport=_socket(db, spec, context))
    needs = ((ENDPOINTS, name), *tls.secrets(mesh, gateway.mesh))
    resource = encoding.encoded(db, CLUSTER, name, data, needs, str(gateway))
    return resource, *spec.overlays.failures


# What policies say about the endpoints of an external service acts where these are called: on the egress.
# There it also balances the load; to eject an egress would take everything away that is called through it.
_OF_ENDPOINTS: Final = frozenset(
    {
        "common_lb_config",
        "health_checks",
        "ignore_health_on_host_removal",
        "lb_policy",
        "least_request_lb_config",
        "load_balancing_policy",
        "maglev_lb_config",
        "outlier_detection",
        "ring_hash_lb_config",
        "round_robin_lb_config",
    }
)


# What cannot be reached is left out for a while; a zone proxy that forwards errors of others is not.
_THAT_FAILS: Final[Data] = {
    "outlier_detection": {
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 2,
        "enforcing_consecutive_local_origin_failure": 100,
        "enforcing_local_origin_success_rate": 0,
        "enforcing_consecutive_5xx": 0,
        "enforcing_consecutive_gateway_failure": 0,
        "enforcing_success_rate": 0,
        "interval": "1s",
        "base_ejection_time": "5s",
        "max_ejection_percent": 100,  # where all fail, Envoy tries all the same (panic)
    },
    # Envoy collects changes of health for a second. One that is dead is taken back, and left out again a
    # moment later: for that second all calls, and all of their retries, would go there.
    "common_lb_config": {"update_merge_window": "0s"},
}


def of_ingress(name: str) -> Data:
    """The cluster to which an ingress passes bytes on; what they mean is known to both ends only."""
    return {**_skeleton(name, ()), **_THAT_FAILS}


def _through_egress(db: Db, spec: ClusterSpec, name: str) -> tuple[XdsResource | Failure, ...]:
    """The cluster of an external service whose calls leave through a zone egress."""
    problem = external.problem(db, spec.destination, spec.section)
    if not problem and not tls.server_name(db, spec.destination, spec.section):
        problem = NO_SERVER_NAME
    if problem:
        return (Failure(CLUSTER, name, problem, str(spec.destination)),)
    skeleton = {"cluster": {**_skeleton(name, ()), **_THAT_FAILS}, "http_options": _HTTP2}
    parts = overlay_merge.with_overlays(skeleton, map(_of_client, spec.overlays.overlays))
    port = world.port(db, spec.destination, spec.section)
    is_http = port is not None and port.protocol in world.HTTP_PROTOCOLS
    transport = _mtls(db, spec, (zone_egress.identity(spec.client.mesh),))
    needs = ((ENDPOINTS, name), *tls.secrets(spec.client.mesh))
    data = _cluster_data(parts, is_http=is_http, transport=transport)
    resource = encoding.encoded(db, CLUSTER, name, data, needs, str(spec.destination))
    return resource, *spec.overlays.failures


def _of_client(overlay: Overlay) -> Overlay:
    """What of an overlay acts on the way to an egress, and not behind it."""
    cluster = {
        field: value for field, value in (overlay.get("cluster") or {}).items() if field not in _OF_ENDPOINTS
    }
    return {**overlay, "cluster": cluster} if "cluster" in overlay else overlay


def _external(db: Db, spec: ClusterSpec, name: str) -> tuple[XdsResource | Failure, ...]:
    outside = external.of(db, spec.destination, spec.section)
    client = spec.client
    if zone_egress.is_forbidden(db, spec.destination, spec.section, client.zone, client.uris):
        return (encoding.encoded(db, CLUSTER, name, _closed(name), (), str(spec.destination)),)
    if outside is None or outside.problem:
        text = outside.problem if outside else "it has no such port"
        return (Failure(CLUSTER, name, text, str(spec.destination)),)
    parts = overlay_merge.with_overlays(outside.parts, spec.overlays.overlays)
    if external.is_passthrough(db, spec.destination):
        # There is one endpoint, the original destination. Envoy refuses any other load balancing for it.
        parts = {**parts, "cluster": {**parts["cluster"], "lb_policy": "CLUSTER_PROVIDED"}}
    data = _cluster_data(parts, is_http="http_options" in outside.parts, transport=None)
    needs = [each.id for each in outside.secrets]
    resource = encoding.encoded(db, CLUSTER, name, data, needs, str(spec.destination))
    return resource, *outside.secrets, *spec.overlays.failures
