"""Passthrough: the listeners to which the kernel redirects all traffic, and traffic to unknown destinations.

The kernel redirects to one port for each direction. Envoy hands a connection to the listener of its original
destination. Where there is none, it goes to its original destination, or is closed where the mesh or a policy
about the whole proxy forbids that. Inbound traffic must not get around mTLS: where that is strict, only ports
of the Dataplane are served.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from koguma.core import match, world
from koguma.core.build import encoding, network, overlays, passthrough_matches, skeletons, tls
from koguma.core.build.network import Networking, NodeMetadata
from koguma.core.build.passthrough_matches import PassthroughMatch
from koguma.core.incremental import Db, question
from koguma.envoy import names, proto_json, snapshot
from koguma.envoy.proto_json import Data
from koguma.envoy.snapshot import Failure, XdsResource
from koguma.model.overlay import OverlayContext
from koguma.model.resource import Key
from koguma.model.schema import Json

_IDLE_TIMEOUT: Final = "3600s"
_INSPECTION_TIMEOUT: Final = "5s"
_EVERYWHERE: Final = {4: "0.0.0.0", 6: "::"}  # noqa: S104 - the kernel redirects from every address
_PASSTHROUGH_SOURCE: Final = {4: "127.0.0.6", 6: "::6"}
_ORIGINAL_DST: Final = proto_json.extension(
    "envoy.filters.listener.original_dst", "envoy.extensions.filters.listener.original_dst.v3.OriginalDst"
)


def resources(
    db: Db, proxy: Key, networking: Networking, node: NodeMetadata, policy: Mapping[str, Json] | None
) -> Iterator[XdsResource | Failure]:
    """The listeners that the kernel redirects to, with their clusters.

    `policy` is the part `passthrough` of the policies' overlays; without it the Mesh decides.
    """
    families = (4, 6) if node.has_ipv6 and networking.ip_family != "IPv4" else (4,)
    inbound, outbound = networking.redirect_inbound, networking.redirect_outbound
    if not inbound and not outbound:
        return
    # A connection to the port of the redirection itself would loop until no file descriptor is left.
    closed_in = {inbound, outbound, *strict_ports(db, proxy)} if passes_in(db, proxy.mesh) else None
    mode = policy["mode"] if policy else ("All" if passes_out(db, proxy.mesh) else "None")
    for family in families if inbound else ():
        yield from _listener(db, "inbound", family, inbound, closed_in)
    for family in families if outbound else ():
        if policy and mode == "Matched":
            yield from _matched_listener(db, family, outbound, _matches(policy))
        else:
            yield from _listener(db, "outbound", family, outbound, {outbound} if mode == "All" else None)


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


def _listener(
    db: Db, direction: str, family: int, port: int, closed: set[int] | None
) -> Iterator[XdsResource | Failure]:
    """A listener with its cluster; connections to the ports in `closed` are closed, to all ports if None."""
    name = names.passthrough(direction, family)
    if closed is not None:
        yield encoding.encoded(db, snapshot.CLUSTER, name, _cluster(name, direction, family))
    chains = [_chain(name, skeletons.NOWHERE, each) for each in sorted(closed or ()) if each]
    chains.append(_chain(name, skeletons.NOWHERE if closed is None else name))
    data = {**_skeleton(name, direction, family, port), "filter_chains": chains}
    needs = () if closed is None else ((snapshot.CLUSTER, name),)
    yield encoding.encoded(db, snapshot.LISTENER, name, data, needs)


def _matches(policy: Mapping[str, Json]) -> list[PassthroughMatch]:
    return [msgspec.convert(match, PassthroughMatch) for match in policy.get("matches") or ()]


def _matched_listener(
    db: Db, family: int, port: int, policy_matches: Sequence[PassthroughMatch]
) -> Iterator[XdsResource | Failure]:
    """The outbound listener that lets only matched destinations through; all others are closed."""
    name = names.passthrough("outbound", family)
    matches = passthrough_matches.of_family(policy_matches, family)
    clusters = list(passthrough_matches.original_dst_clusters(matches))
    for cluster in clusters:
        yield encoding.encoded(db, snapshot.CLUSTER, cluster["name"], cluster)
    data = {
        **_skeleton(name, "outbound", family, port),
        "listener_filters": [_ORIGINAL_DST, *passthrough_matches.listener_filters(matches)],
        # An application that waits for the server to speak is served as TCP after this.
        "listener_filters_timeout": _INSPECTION_TIMEOUT,
        "continue_on_listener_filters_timeout": True,
        "filter_chains": [
            _chain(name, skeletons.NOWHERE, port),
            *passthrough_matches.filter_chains(name, matches, (port,)),
        ],
        "default_filter_chain": _chain(name, skeletons.NOWHERE),
    }
    needs = tuple((snapshot.CLUSTER, cluster["name"]) for cluster in clusters)
    yield encoding.encoded(db, snapshot.LISTENER, name, data, needs)


def _skeleton(name: str, direction: str, family: int, port: int) -> Data:
    return {
        "name": name,
        "stat_prefix": name,
        "address": proto_json.address(_EVERYWHERE[family], port),
        **skeletons.EXCLUSIVE,
        "use_original_dst": True,
        "listener_filters": [_ORIGINAL_DST],
        "traffic_direction": direction.upper(),
    }


def _cluster(name: str, direction: str, family: int) -> Data:
    cluster: Data = {
        "name": name,
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "5s",
    }
    if direction == "inbound":  # by this source address the kernel's rules tell these calls from others
        source = {"address": _PASSTHROUGH_SOURCE[family], "port_value": 0}
        cluster["upstream_bind_config"] = {"source_address": source}
    return cluster


def _chain(name: str, cluster: str, port: int = 0) -> Data:
    filters = skeletons.chain({"tcp": skeletons.tcp_proxy(name, {"cluster": cluster}, _IDLE_TIMEOUT)})
    return (
        {"filter_chain_match": {"destination_port": port}, "filters": filters}
        if port
        else {"filters": filters}
    )
