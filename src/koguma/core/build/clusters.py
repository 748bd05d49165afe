"""Clusters: how a destination's port is called, and where its endpoints are.

A cluster is named by its destination's KRI, also where only some of its endpoints are meant: subsets are
chosen by metadata, so that a service stays one name in every metric.
"""

from typing import NamedTuple

import msgspec

from koguma.core import items, world
from koguma.core.build import encoding, endpoints, external, hooks, lay, locality, overlays, tls
from koguma.core.build.overlays import MergedConfs, PolicyOverlays
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.core.items import ByKind
from koguma.core.world import Pairs
from koguma.envoy import proto_json
from koguma.envoy.proto_json import Data
from koguma.envoy.snapshot import CLUSTER, ENDPOINTS, Bundle, Failure, XdsResource
from koguma.model.overlay import MachineAccess, Where
from koguma.model.resource import Key

HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


class ClientContext(msgspec.Struct, frozen=True, cache_hash=True):
    """What decides, beside policies, how a proxy calls others."""

    mesh: str
    zone: str
    affinity: Pairs = ()  # its values of the tags that load balancing looks at
    both_ends: ByKind = ()  # entries on which both ends of a connection agree
    log_pipe: str = ""
    service: str = ""  # empty where policies do not look at who calls
    machine: MachineAccess = MachineAccess()

    def where(self, protocol: str, name: str) -> Where:
        """What is told to policies about a port that is called."""
        return Where(
            protocol,
            self.mesh,
            self.zone,
            name,
            service=self.service,
            log_pipe=self.log_pipe,
            machine=self.machine,
        )


class ClusterSpec(msgspec.Struct, frozen=True):
    """A destination's port as some proxies call it."""

    destination: Key
    section: str
    said: PolicyOverlays
    caller: ClientContext
    subsets: tuple[tuple[str, ...], ...] = ()  # the sets of tags by which routes choose endpoints


@question
def cluster(db: Db, of: ClusterSpec) -> tuple[XdsResource | Failure, ...]:
    """The cluster of a port, and what it needs or lacks."""
    name = encoding.kri(db, of.destination, of.section)
    port = world.port(db, of.destination, of.section)
    if port is None or not name:
        return ()
    if of.destination.kind == "MeshExternalService":
        return _external(db, of, name)
    skeleton = {"cluster": _skeleton(name, of.subsets), "http_options": _HTTP2}
    parts = lay.over_parts(skeleton, of.said.overlays)
    if of.said.locality is not None and of.said.locality.affinity_tags:
        parts = _with_localities(parts)
    transport = _transport(db, of)
    data = _finished(parts, is_http=port.protocol in world.HTTP_PROTOCOLS, transport=transport)
    needs = ((ENDPOINTS, name), *(tls.secrets(of.caller.mesh) if transport else ()))
    piece = encoding.encoded(db, CLUSTER, name, data, needs, str(of.destination))
    return piece, *of.said.failures


def laid(db: Db, destination: Key, section: str, said: MergedConfs, caller: ClientContext) -> PolicyOverlays:
    """What policies mean for the cluster of a port."""
    port, name = world.port(db, destination, section), encoding.kri(db, destination, section)
    if port is None or not name:
        return overlays.NOTHING
    return overlays.outbound(db, said, caller.where(port.protocol, name)).cluster


class LoadAssignmentSpec(NamedTuple):
    """A port whose endpoints somebody needs, and the entries that say which come first."""

    destination: Key
    section: str
    entries: ByKind = ()


def assigned(db: Db, destination: Key, section: str, entries: ByKind) -> tuple[LoadAssignmentSpec, ...]:
    """The port itself, if its endpoints come apart from its cluster."""
    if destination.kind == "MeshExternalService" or not encoding.kri(db, destination, section):
        return ()
    return (LoadAssignmentSpec(destination, section, hooks.on_endpoints(db, entries)),)


@question
def assignments(db: Db, of: Group[Group[LoadAssignmentSpec]], zone: str, affinity: Pairs) -> Bundle:
    """The endpoints of some ports; apart from all else, so that a moved proxy touches nothing but these."""
    return encoding.bundled(assignment(db, one, zone, affinity) for part in of for one in part)


@question
def assignment(db: Db, of: LoadAssignmentSpec, zone: str, affinity: Pairs) -> XdsResource | Failure:
    """The endpoints of a port as clients of one zone see them."""
    name = encoding.kri(db, of.destination, of.section)
    # What a hook cannot read is shown with the cluster.
    near, _ = hooks.locality(db, ((kind, items.conf(db, entries)) for kind, entries in of.entries))
    found = endpoints.of(db, of.destination, of.section)
    data = locality.assignment(name, found, zone, affinity, near)
    return encoding.encoded(db, ENDPOINTS, name, data, origin=str(of.destination))


def _skeleton(name: str, subsets: tuple[tuple[str, ...], ...]) -> Data:
    cluster = {
        "name": name,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": proto_json.ADS},
        "connect_timeout": "5s",
    }
    if subsets:
        # A subset without endpoints has none: calls that asked for version 2 must not meet version 1.
        selectors = [{"keys": list(keys), "fallback_policy": "NO_FALLBACK"} for keys in subsets]
        fallback = {"fallback_policy": "ANY_ENDPOINT", "subset_selectors": selectors}
        return {**cluster, "lb_subset_config": fallback}
    return cluster


_HTTP2 = {
    "common_http_protocol_options": {"idle_timeout": "3600s"},
    "explicit_http_config": {"http2_protocol_options": {"allow_connect": True}},
}


def _with_localities(parts: lay.Parts) -> lay.Parts:
    """Groups of near endpoints have weights, which Envoy looks at only when told so."""
    weighted: Data = {"common_lb_config": {"locality_weighted_lb_config": {}}}
    if "lb_subset_config" in parts["cluster"]:
        weighted["lb_subset_config"] = {"locality_weight_aware": True}
    cluster: Data = lay.laid(parts["cluster"], weighted)
    balancing = dict(cluster["common_lb_config"])
    # Envoy weighs groups or fails in panic, not both; without panic only hosts that are well are used.
    if (balancing.pop("zone_aware_lb_config", None) or {}).get("fail_traffic_on_panic"):
        balancing["healthy_panic_threshold"] = {"value": 0.0}
    return {**parts, "cluster": {**cluster, "common_lb_config": balancing}}


def _transport(db: Db, of: ClusterSpec) -> Data | None:
    how = tls.mtls(db, of.caller.mesh)
    if how is None or (how.is_permissive and not _is_ready(db, of.destination)):
        return None
    named = tls.server_name(db, of.destination, of.section)
    context = tls.upstream(of.caller.mesh, endpoints.identities(db, of.destination), named)
    where = Where("tcp", of.caller.mesh, of.caller.zone)
    for part in overlays.of_both_ends(db, of.caller.both_ends, where).part("upstream_tls"):
        context = lay.laid(context, part)
    return tls.socket(context)


def _is_ready(db: Db, destination: Key) -> bool:
    """Whether everybody behind a destination can be called over mTLS."""
    if destination.kind != "MeshMultiZoneService":
        return tls.is_ready(db, destination)
    return all(tls.is_ready(db, service) for service in endpoints.multi_zone_services(db, destination))


def _finished(parts: lay.Parts, *, is_http: bool, transport: Data | None) -> Data:
    cluster: Data = dict(parts["cluster"])
    if is_http and "http_options" in parts:
        options = proto_json.typed(HTTP_OPTIONS, **parts["http_options"])
        cluster["typed_extension_protocol_options"] = {HTTP_OPTIONS: options}
    if transport is not None:
        cluster["transport_socket"] = transport
    return cluster


def _external(db: Db, of: ClusterSpec, name: str) -> tuple[XdsResource | Failure, ...]:
    found = external.of(db, of.destination, of.section)
    if found is None or found.problem:
        text = found.problem if found else "it has no such port"
        return (Failure(CLUSTER, name, text, str(of.destination)),)
    parts = lay.over_parts(found.parts, of.said.overlays)
    data = _finished(parts, is_http="http_options" in found.parts, transport=None)
    needs = [each.id for each in found.secrets]
    piece = encoding.encoded(db, CLUSTER, name, data, needs, str(of.destination))
    return piece, *found.secrets, *of.said.failures
