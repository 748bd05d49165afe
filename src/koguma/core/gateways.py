"""Gateways: the listeners of a MeshGateway as its proxies serve them, and the routes that attach to each.

Only routes whose top-level targetRef is a MeshGateway attach: one that selects the mesh is about calls
between services, and would send requests from outside where nobody meant them to go.
"""

from collections.abc import Iterator
from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from koguma.core import items, match, order, selectors, world
from koguma.core.group import Group
from koguma.core.incremental import Db, question
from koguma.core.items import ItemId
from koguma.core.policy_set import Policies, PolicyPart
from koguma.model import hostname, target_ref
from koguma.model.resource import Key
from koguma.model.schema import Json

GATEWAY: Final = "MeshGateway"
HTTP_ROUTES: Final = (target_ref.HTTP_ROUTE, target_ref.GATEWAY_ROUTE)
_SHARDS: Final = 64  # of the routes of a listener
ROUTE_KINDS: Final = (*HTTP_ROUTES, target_ref.TCP_ROUTE)


class Listener(msgspec.Struct, frozen=True):
    """A listener of a MeshGateway: one host name on a port."""

    section: str
    name: str
    port: int
    hostname: str  # in the normal form of `model.hostname`
    protocol: str  # HTTP, HTTPS, TCP, TLS
    ends_tls: bool  # with a certificate of its own; otherwise TLS, if any, is passed through
    is_cross_mesh: bool
    connection_limit: int  # 0: none

    @property
    def is_http(self) -> bool:
        """Whether requests are routed, and not connections."""
        return self.protocol in ("HTTP", "HTTPS")

    @property
    def has_tls(self) -> bool:
        """Whether its clients speak TLS, so that they are told apart by server name."""
        return self.protocol in ("HTTPS", "TLS") or self.is_cross_mesh


def called_name(gateway: Key, listener: Listener) -> str:
    """The host name by which proxies of other meshes call a listener."""
    is_whole = not hostname.is_wildcard(listener.hostname)
    return listener.hostname if is_whole else f"internal.{gateway.name}.{gateway.mesh}.mesh"


@question
def listeners(db: Db, gateway: Key) -> tuple[Listener, ...]:
    """The listeners of a MeshGateway, as written; of two with one section the first."""
    resource = world.RESOURCES.get(db, gateway)
    written = ((resource.spec.get("conf") or {}).get("listeners") or ()) if resource else ()
    by_section: dict[str, Listener] = {}
    for each in written:
        listener = _listener(each)
        by_section.setdefault(listener.section, listener)
    return tuple(by_section.values())


def _listener(written: Json) -> Listener:
    protocol, tls = written.get("protocol") or "", written.get("tls") or {}
    return Listener(
        section=match.listener_section(written),
        name=written.get("name") or "",
        port=written.get("port") or 0,
        hostname=hostname.normal(written.get("hostname")),
        protocol=protocol,
        ends_tls=protocol == "HTTPS" or (protocol == "TLS" and tls.get("mode") == "TERMINATE"),
        is_cross_mesh=bool(written.get("crossMesh")),
        connection_limit=(written.get("resources") or {}).get("connectionLimit") or 0,
    )


class AttachedRoute(NamedTuple):
    """An entry of a route that attaches to a listener, and its host names; none: all hosts."""

    entry: ItemId
    hostnames: tuple[str, ...] = ()


@question
def attached(db: Db, policies: Policies) -> Group[AttachedRoute]:
    """The entries of the routes among some policies, the most important first."""
    shards: dict[int, list[Key]] = {}  # so that a new route reads few others again
    for policy in policies:
        shards.setdefault(crc32(policy.name.encode()) % _SHARDS, []).append(policy)
    ranked = chain.from_iterable(_ranked(db, Group(shard)) for shard in shards.values())
    return Group(route for _, route in sorted(ranked, key=itemgetter(0), reverse=True))


@question
def _ranked(db: Db, policies: PolicyPart) -> tuple[tuple[order.Precedence, AttachedRoute], ...]:
    """The entries of the routes among some policies, each with what sorts it."""
    routes = (route for policy in policies if is_attached(db, policy) for route in entries(db, policy))
    return tuple((order.key(items.rank(db, route.entry)), route) for route in routes)


def is_attached(db: Db, policy: Key) -> bool:
    """Whether a policy is a route of gateways."""
    selector = selectors.selector(db, policy)
    return policy.kind in ROUTE_KINDS and selector is not None and selector.top_kind == GATEWAY


@question
def entries(db: Db, policy: Key) -> tuple[AttachedRoute, ...]:
    """The entries of one route; a question, so that editing a rule attaches nothing again."""
    return tuple(_entries(policy, items.clean_spec(db, policy)))


def _entries(policy: Key, spec: Json) -> Iterator[AttachedRoute]:
    if policy.kind == target_ref.GATEWAY_ROUTE:
        yield AttachedRoute(ItemId(policy, "default", 0), _hostnames(spec))
        return
    for number, entry in enumerate(spec.get("to") or ()):
        if (entry.get("targetRef") or {}).get("kind") == "Mesh" and entry.get("rules"):
            yield AttachedRoute(ItemId(policy, "to", number), _hostnames(entry))


def _hostnames(written: Json) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(hostname.normal, written.get("hostnames") or ())))
