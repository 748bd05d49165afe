"""What comes out for proxies, port by port: confs merged from the entries that the build compiles.

These are questions, so that tests can watch them and count how often they run.
"""

from typing import NamedTuple

from koguma.core import inbound, items, match, rules
from koguma.core.inbound import Client
from koguma.core.incremental import Db, question
from koguma.core.items import ByKind
from koguma.core.routes import RouteRule
from koguma.core.rules import ProxyClass, Route
from koguma.model.resource import Key
from koguma.model.schema import Json

Confs = tuple[tuple[str, Json], ...]  # by kind


class PortConf(NamedTuple):
    """What holds for calls to one port: confs by kind, by route, and the rules of routes."""

    destination: Key
    section: str
    confs: Confs
    routes: tuple[tuple[Route, Confs], ...]
    http: tuple[RouteRule, ...]
    tcp: Json


class ProxyConf(NamedTuple):
    """What holds for one proxy."""

    proxy: Key
    ports: tuple[PortConf, ...]
    inbounds: tuple[tuple[str, tuple[tuple[str, tuple[tuple[Client, Json], ...]], ...]], ...]
    whole: Confs


@question
def of_proxy(db: Db, proxy: Key) -> ProxyConf | None:
    """What holds for a proxy; what it shares with others is asked once for all of them."""
    traits, proxy_class = match.traits(db, proxy), rules.class_of(db, proxy)
    if traits is None or proxy_class is None:
        return None
    inbounds = tuple((section, arriving(db, traits, section)) for section, _ in traits.inbounds)
    return ProxyConf(proxy, outbound(db, proxy_class), inbounds, whole_proxy(db, proxy_class))


@question
def outbound(db: Db, proxy_class: ProxyClass) -> tuple[PortConf, ...]:
    """What holds for calls of a class, port by port."""
    return tuple(
        PortConf(
            port.destination,
            port.section,
            _confs(db, port.entries),
            tuple((route, _confs(db, entries)) for route, entries in port.routes),
            items.route_rules(db, port.http) if port.http else (),
            items.conf(db, port.tcp) if port.tcp else None,
        )
        for port in rules.ports(db, proxy_class)
    )


@question
def arriving(
    db: Db, traits: match.Traits, section: str
) -> tuple[tuple[str, tuple[tuple[Client, Json], ...]], ...]:
    """What holds for calls that arrive at one inbound, by kind and client."""
    return tuple(
        (kind, tuple((rule.client, items.conf(db, (rule.entry,))) for rule in found))
        for kind, found in inbound.of(db, traits, section)
    )


@question
def whole_proxy(db: Db, proxy_class: ProxyClass) -> Confs:
    """What holds for a proxy as a whole."""
    return _confs(db, rules.whole_proxy(db, proxy_class))


def _confs(db: Db, entries: ByKind) -> Confs:
    return tuple((kind, items.conf(db, found)) for kind, found in entries)
