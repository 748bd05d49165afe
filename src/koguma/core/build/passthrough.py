"""Passthrough: where the kernel sends all traffic of a service, and what becomes of what nobody described.

The kernel redirects to one port for each direction. What is meant for one of the other listeners is handed to
it; the rest goes where it was going, unless the mesh does not want that: then it is closed. What arrives must
not get around mTLS, so where that is strict only described ports are served, by their one address.
"""

from collections.abc import Iterator
from typing import Final

from koguma.core import match, world
from koguma.core.build import encoding, network, overlays, skeletons, tls
from koguma.core.build.network import Networking, NodeMetadata
from koguma.core.incremental import Db, question
from koguma.envoy import names, proto_json, snapshot
from koguma.envoy.proto_json import Data
from koguma.envoy.snapshot import Failure, XdsResource
from koguma.model.overlay import Where
from koguma.model.resource import Key

_IDLE: Final = "3600s"
_EVERYWHERE: Final = {4: "0.0.0.0", 6: "::"}  # noqa: S104 - the kernel redirects from every address
_OWN_CALLS: Final = {4: "127.0.0.6", 6: "::6"}
_ORIGINAL_DST: Final = proto_json.extension(
    "envoy.filters.listener.original_dst", "envoy.extensions.filters.listener.original_dst.v3.OriginalDst"
)


def resources(db: Db, proxy: Key, net: Networking, node: NodeMetadata) -> Iterator[XdsResource | Failure]:
    """The listeners that the kernel redirects to, with their clusters."""
    families = (4, 6) if node.has_ipv6 and net.ip_family != "IPv4" else (4,)
    inbound, outbound = net.redirect_inbound, net.redirect_outbound
    if not inbound and not outbound:
        return
    # A connection to the redirection's own port would go in circles until no file is left to open.
    closed = {
        "inbound": {inbound, outbound, *guarded(db, proxy)} if passes_in(db, proxy.mesh) else None,
        "outbound": {outbound} if passes_out(db, proxy.mesh) else None,
    }
    for direction, port in (("inbound", inbound), ("outbound", outbound)):
        for family in families if port else ():
            yield from _one(db, direction, family, port, closed[direction])


@question
def passes_out(db: Db, mesh: str) -> bool:
    """Whether proxies may call what the mesh does not know."""
    found = world.RESOURCES.get(db, Key("Mesh", "", "", "", mesh))
    networking = (found.spec.get("networking") or {}) if found else {}
    return (networking.get("outbound") or {}).get("passthrough") is not False


@question
def passes_in(db: Db, mesh: str) -> bool:
    """Whether ports that no Dataplane describes can be called."""
    how = tls.mtls(db, mesh)
    return how is None or how.is_permissive


@question
def guarded(db: Db, proxy: Key) -> tuple[int, ...]:
    """Ports that only proxies of the mesh may call although the mesh is permissive, by whatever address."""
    net, seen = network.networking(db, proxy), match.traits(db, proxy)
    if net is None or seen is None or tls.mtls(db, proxy.mesh) is None:
        return ()
    found = set()
    for inbound in net.inbounds:
        said = overlays.inbound_of(db, seen, inbound.section, Where("tcp", proxy.mesh, proxy.zone))
        modes = [part["mode"] for part in said.part("inbound") if part.get("mode")]
        if modes and modes[-1] == "Strict":
            found |= {inbound.port, inbound.service_port}
    return tuple(sorted(found))


def _one(
    db: Db, direction: str, family: int, port: int, closed: set[int] | None
) -> Iterator[XdsResource | Failure]:
    """A listener, and its cluster; `closed` are ports that lead nowhere, None if all do."""
    name = names.passthrough(direction, family)
    if closed is not None:
        yield encoding.encoded(db, snapshot.CLUSTER, name, _cluster(name, direction, family))
    chains = [_chain(name, skeletons.NOWHERE, each) for each in sorted(closed or ()) if each]
    chains.append(_chain(name, skeletons.NOWHERE if closed is None else name))
    data = {
        "name": name,
        "stat_prefix": name,
        "address": proto_json.address(_EVERYWHERE[family], port),
        **skeletons.EXCLUSIVE,
        "use_original_dst": True,
        "listener_filters": [_ORIGINAL_DST],
        "traffic_direction": direction.upper(),
        "filter_chains": chains,
    }
    needs = () if closed is None else ((snapshot.CLUSTER, name),)
    yield encoding.encoded(db, snapshot.LISTENER, name, data, needs)


def _cluster(name: str, direction: str, family: int) -> Data:
    cluster: Data = {
        "name": name,
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "5s",
    }
    if direction == "inbound":  # how the kernel tells these calls from those of everybody else
        source = {"address": _OWN_CALLS[family], "port_value": 0}
        cluster["upstream_bind_config"] = {"source_address": source}
    return cluster


def _chain(name: str, cluster: str, port: int = 0) -> Data:
    filters = skeletons.chain({"tcp": skeletons.tcp_proxy(name, {"cluster": cluster}, _IDLE)})
    return (
        {"filter_chain_match": {"destination_port": port}, "filters": filters}
        if port
        else {"filters": filters}
    )
