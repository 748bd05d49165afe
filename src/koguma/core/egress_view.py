"""Egress view: which policies act on a zone egress, for each port of an external service that it serves.

Pure, for people: the same questions as those of the build, so nobody is shown what Envoy does not get. Of the
policies for outbound calls only those are shown that act on the egress; others act on the callers' proxies.
"""

from collections.abc import Iterator

from koguma.core import inspect, rules, world
from koguma.core.build import clusters, encoding, overlays, tls, zone_egress
from koguma.core.incremental import Db
from koguma.core.items import ByKind
from koguma.core.match import Traits
from koguma.core.meta import kri
from koguma.core.world import Port
from koguma.model.resource import Key
from koguma.model.schema import Json


def policies(db: Db, egress: Key, mesh: str, *, fields: bool = False) -> Iterator[Json]:
    """The ports of a mesh's external services that an egress serves, with the policies that act on it."""
    traits = zone_egress.traits(db, egress, mesh)
    if traits is None or mesh not in zone_egress.meshes(db):
        return
    (section, _), *_ = traits.inbounds
    arriving = inspect.policies_on_inbound(db, traits, section, fields=fields)
    for service, port_section in zone_egress.services(db, mesh):
        port = world.port(db, service, port_section)
        if port is not None:
            yield {
                "kri": kri(db, service, port_section),
                "mesh": mesh,
                "sni": tls.server_name(db, service, port_section),
                "inbound": arriving["policies"],
                "outbound": _outgoing(db, traits, service, port, fields=fields),
            }


def _outgoing(db: Db, traits: Traits, service: Key, port: Port, *, fields: bool) -> list[Json]:
    proxy_class = zone_egress.proxy_class(db, traits)
    of_port = rules.outbound(db, proxy_class).of(service, port.section)
    acting = tuple(
        (kind, entries) for kind, entries in of_port.entries if _acts(db, ((kind, entries),), service, port)
    )
    return list(inspect.merged_policies(db, acting, fields=fields))


def _acts(db: Db, entries: ByKind, service: Key, port: Port) -> bool:
    """Whether entries change the cluster of a port, or which of its endpoints is called."""
    client = clusters.ClientContext(service.mesh, "", is_egress=True)
    where = client.where(port.protocol, encoding.kri(db, service, port.section))
    found = overlays.outbound(db, overlays.merged_confs(db, entries, service.mesh), where)
    on_routes = found.listener.part("route_action")
    return any(each for each in found.cluster.part("cluster")) or any("hash_policy" in p for p in on_routes)
