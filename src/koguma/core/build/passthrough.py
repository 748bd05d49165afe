"""Passthrough: the listeners to which the kernel redirects all traffic, and traffic to unknown destinations.

The kernel redirects to one port for each direction. Envoy hands a connection to the listener of its original
destination. Where there is none, an outbound connection may be to a domain or address that a
MeshExternalService takes (`redirected_chains`). Any other one goes to its original destination, or is closed
where the mesh or a policy about the whole proxy forbids that. Inbound traffic must not get around mTLS: where
that is strict, only ports of the Dataplane are served.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from koguma.core import match, world
from koguma.core.build import (
    added_resources,
    encoding,
    external_chains,
    network,
    overlays,
    passthrough_matches,
    redirected_chains,
    skeletons,
    tls,
)
from koguma.core.build.network import Networking, NodeMetadata
from koguma.core.build.outbound_listeners import ListenerSpec
from koguma.core.build.passthrough_matches import PassthroughMatch
from koguma.core.build.redirected_chains import ChainMatch
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.envoy import external as envoy_external
from koguma.envoy import names, proto_json, snapshot
from koguma.envoy.proto_json import Data
from koguma.envoy.snapshot import Bundle, Failure, XdsResource
from koguma.model.overlay import OverlayContext
from koguma.model.resource import Key
from koguma.model.schema import Json

_INSPECTION_TIMEOUT: Final = "5s"
_EVERYWHERE: Final = {4: "0.0.0.0", 6: "::"}  # noqa: S104 - the kernel redirects from every address
_PASSTHROUGH_SOURCE: Final = {4: "127.0.0.6", 6: "::6"}
_ORIGINAL_DST: Final = proto_json.extension(
    "envoy.filters.listener.original_dst", "envoy.extensions.filters.listener.original_dst.v3.OriginalDst"
)


class OutboundRedirection(msgspec.Struct, frozen=True):
    """What decides the listener of outbound traffic beside MeshExternalServices; equal for most proxies."""

    port: int
    families: tuple[int, ...]
    mode: str  # what of unknown destinations passes: All, Matched or None
    matches: tuple[PassthroughMatch, ...] = ()  # with Matched


def redirection(
    db: Db, mesh: str, networking: Networking, node: NodeMetadata, policy: Mapping[str, Json] | None
) -> OutboundRedirection | None:
    """The redirection of a proxy's outbound traffic; None where there is none.

    `policy` is the part `passthrough` of the policies' overlays; without it the Mesh decides.
    """
    if not networking.redirect_outbound:
        return None
    families = _families(networking, node)
    if policy is None:
        mode = "All" if passes_out(db, mesh) else "None"
        return OutboundRedirection(networking.redirect_outbound, families, mode)
    matches = () if policy["mode"] != "Matched" else policy.get("matches") or ()
    converted = {msgspec.convert(match, PassthroughMatch): None for match in matches}
    return OutboundRedirection(
        networking.redirect_outbound, families, policy["mode"], tuple(sorted(converted))
    )


def _families(networking: Networking, node: NodeMetadata) -> tuple[int, ...]:
    return (4, 6) if node.has_ipv6 and networking.ip_family != "IPv4" else (4,)


def inbound_resources(
    db: Db, proxy: Key, networking: Networking, node: NodeMetadata
) -> Iterator[XdsResource | Failure]:
    """The listeners that the kernel redirects inbound traffic to, with their clusters."""
    inbound, outbound = networking.redirect_inbound, networking.redirect_outbound
    # A connection to the port of the redirection itself would loop until no file descriptor is left.
    closed = {inbound, outbound, *strict_ports(db, proxy)} if passes_in(db, proxy.mesh) else None
    for family in _families(networking, node) if inbound else ():
        name = names.passthrough("inbound", family)
        if closed is not None:
            yield encoding.encoded(db, snapshot.CLUSTER, name, _inbound_cluster(name, family))
        chains = [_chain(name, skeletons.NOWHERE, each) for each in sorted(closed or ()) if each]
        chains.append(_chain(name, skeletons.NOWHERE if closed is None else name))
        data = {**_skeleton(name, "INBOUND", family, inbound), "filter_chains": chains}
        needs = () if closed is None else ((snapshot.CLUSTER, name),)
        yield encoding.encoded(db, snapshot.LISTENER, name, data, needs)


@question
def outbound(db: Db, redirection: OutboundRedirection, matched: Group[ListenerSpec]) -> Bundle:
    """The listeners that the kernel redirects outbound traffic to, with their routes and clusters.

    `matched` are the ports of MeshExternalServices that take calls to existing domains and addresses.
    """
    clusters = (
        encoding.encoded(db, snapshot.CLUSTER, cluster["name"], cluster)
        for cluster in passthrough_matches.clusters(redirection.matches)
    )
    external = tuple(external_chains.chain_matches(db, matched))
    listeners = (
        resource
        for family in redirection.families
        for resource in _outbound_listener(db, family, redirection, external)
    )
    return encoding.bundled((*clusters, *listeners))


def _outbound_listener(
    db: Db, family: int, redirection: OutboundRedirection, external: Iterable[ChainMatch]
) -> Iterator[XdsResource | Failure]:
    name = names.passthrough("outbound", family)
    matches = redirected_chains.of_family(
        (*external, *passthrough_matches.chain_matches(redirection.matches, name)), family
    )
    passes = redirection.mode == "All"
    otherwise = passthrough_matches.original_destination(name, name) if passes else None
    if passes:
        cluster = envoy_external.unknown_destination(name)
        yield encoding.encoded(db, snapshot.CLUSTER, name, cluster)
    built = redirected_chains.built(name, matches, otherwise, (redirection.port,))
    yield from added_resources.clusters(db, {"clusters": built.clusters})
    for config, needs in built.route_configs:
        yield encoding.encoded(db, snapshot.ROUTES, config["name"], config, needs)
    data = {
        **_skeleton(name, "OUTBOUND", family, redirection.port),
        "listener_filters": [_ORIGINAL_DST, *redirected_chains.listener_filters(matches)],
        # An application that waits for the server to speak is served as TCP after this.
        "listener_filters_timeout": _INSPECTION_TIMEOUT,
        "continue_on_listener_filters_timeout": True,
        # A connection to the port of the redirection itself would loop until no file descriptor is left.
        "filter_chains": [_chain(name, skeletons.NOWHERE, redirection.port), *built.chains],
        "default_filter_chain": _chain(name, name if passes else skeletons.NOWHERE),
    }
    needs = (*built.needs, *(otherwise.needs if otherwise else ()))
    yield encoding.encoded(db, snapshot.LISTENER, name, data, needs)


@question
def passes_out(db: Db, mesh: str) -> bool:
    """Whether proxies may call destinations that the mesh does not know."""
    resource = world.RESOURCES.get(db, Key("Mesh", "", "", "", mesh))
    networking = (resource.spec.get("networking") or {}) if resource else {}
    return (networking.get("outbound") or {}).get("passthrough") is not False


@question
def passes_in(db: Db, mesh: str) -> bool:
    """Whether ports that no Dataplane describes can be called."""
    mtls = tls.mtls(db, mesh)
    return mtls is None or mtls.is_permissive


@question
def strict_ports(db: Db, proxy: Key) -> tuple[int, ...]:
    """Ports whose policies require mTLS although the mesh is permissive; on every address of the proxy."""
    networking, traits = network.networking(db, proxy), match.traits(db, proxy)
    if networking is None or traits is None or tls.mtls(db, proxy.mesh) is None:
        return ()
    ports = set()
    for inbound in networking.inbounds:
        policy_overlays = overlays.inbound_of(
            db, traits, inbound.section, OverlayContext("tcp", proxy.mesh, proxy.zone)
        )
        modes = [part["mode"] for part in policy_overlays.part("inbound") if part.get("mode")]
        if modes and modes[-1] == "Strict":
            ports |= {inbound.port, inbound.service_port}
    return tuple(sorted(ports))


def _skeleton(name: str, direction: str, family: int, port: int) -> Data:
    return {
        "name": name,
        "stat_prefix": name,
        "address": proto_json.address(_EVERYWHERE[family], port),
        **skeletons.EXCLUSIVE,
        "use_original_dst": True,
        "listener_filters": [_ORIGINAL_DST],
        "traffic_direction": direction,
    }


def _inbound_cluster(name: str, family: int) -> Data:
    # By this source address the kernel's rules tell these calls from others.
    source = {"source_address": {"address": _PASSTHROUGH_SOURCE[family], "port_value": 0}}
    return {**envoy_external.original_destination(name), "upstream_bind_config": source}


def _chain(name: str, cluster: str, port: int = 0) -> Data:
    filters = skeletons.chain(
        {"tcp": skeletons.tcp_proxy(name, {"cluster": cluster}, passthrough_matches.IDLE_TIMEOUT)}
    )
    return (
        {"filter_chain_match": {"destination_port": port}, "filters": filters}
        if port
        else {"filters": filters}
    )
