"""Hostname: how names of hosts with wildcards contain each other, and which of them serves a request.

A hostname is `*` (every host), `*.example.com` (every host below example.com: one label more or several, and
not example.com itself), or a whole name. Listeners of gateways and the routes on them have hostnames. This
is the one place that says what they mean together, by the rules of the Gateway API:

- Listeners that share a port are isolated: the one whose hostname is most exact owns a request, and routes of
  the others do not see it (`owner`).
- A listener serves a route for the hosts that both name (`common`, `intersection`).
- Inside a listener, a request sees the virtual host that is most exact, and in it every route whose hostname
  contains it, those with the most exact hostname first (`virtual_hosts`).

All functions but `normal` and `of_authority` take normal hostnames: in lower case, without a trailing dot,
`*` instead of nothing. A request's host is brought into this form by Envoy, with `strip_trailing_host_dot` of
the connection manager and `ignore_port_in_host_matching` of the route configuration; case it ignores anyway.

The hostnames that contain one are few, one for each of its labels (`containing`). Everything is looked up by
them, so that a listener with thousands of hosts costs no comparison of all with all.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

ANY: Final = "*"
_BELOW: Final = "*."


class ServedRoute(msgspec.Struct, frozen=True):
    """A route inside a virtual host."""

    index: int  # among the routes of the listener
    hostname: str  # the most exact one of the route's that contains the virtual host


class VirtualHost(msgspec.Struct, frozen=True):
    """The routes that requests to a host see; without routes, they are answered with 404."""

    hostname: str
    routes: tuple[ServedRoute, ...]  # most exact hostname first, then as given


def normal(written: str | None) -> str:
    """A hostname as users write it in the form that is compared: nothing is every host."""
    return (written or "").lower().removesuffix(".") or ANY


def of_authority(authority: str) -> str:
    """The host of a `Host` header or of an absolute request target: without its port, in the normal form.

    An IPv6 address keeps its brackets.
    """
    host, colon, port = authority.rpartition(":")
    has_port = colon and "]" not in port
    return normal(host if has_port else authority)


def is_wildcard(hostname: str) -> bool:
    """Whether a hostname stands for many hosts."""
    return hostname == ANY or hostname.startswith(_BELOW)


Precedence = tuple[bool, int, str]


def precedence(hostname: str) -> Precedence:
    """Sorts hostnames: whole names, wildcards with more labels, those with fewer, `*`; ties by name."""
    if not is_wildcard(hostname):
        return False, 0, hostname
    return True, -hostname.count("."), hostname


def containing(hostname: str) -> tuple[str, ...]:
    """The hostname itself and all that contain it, most exact first."""
    labels = hostname.split(".")
    parents = (_BELOW + ".".join(labels[index:]) for index in range(1, len(labels)))
    return tuple(dict.fromkeys((hostname, *parents, ANY)))


def contains(outer: str, inner: str) -> bool:
    """Whether every host of `inner` is one of `outer`."""
    if outer in (ANY, inner):
        return True
    return outer.startswith(_BELOW) and len(inner) >= len(outer) and inner.endswith(outer[1:])


def matches(one: str, other: str) -> bool:
    """Whether two hostnames have hosts in common. They are nested or disjoint, so one contains the other."""
    return contains(one, other) or contains(other, one)


def common(one: str, other: str) -> str | None:
    """The hosts that two hostnames have in common: the narrower one of them, or None."""
    if contains(one, other):
        return other
    return one if contains(other, one) else None


def intersection(listener: str, route: Iterable[str]) -> tuple[str, ...]:
    """The hostnames under which a listener serves a route, most exact first.

    A route without hostnames is served wherever the listener is. With hostnames, and none in common with the
    listener's, the result is empty: the route does not attach (`NoMatchingListenerHostname`).
    """
    shared = {common(listener, hostname) for hostname in (tuple(route) or (ANY,))}
    return tuple(sorted(shared - {None}, key=precedence))  # type: ignore[arg-type]


def owner(listeners: Collection[str], hostname: str) -> str | None:
    """The listener of a port that owns the requests to a hostname: the most exact one that contains it."""
    return next((outer for outer in containing(hostname) if outer in listeners), None)


def served(listener: str, routes: Iterable[Iterable[str]], port: Collection[str]) -> tuple[str, ...]:
    """The hostnames of a listener's virtual hosts, most exact first.

    `routes` are the hostnames of each route, `port` those of all listeners of its port. The listener's own is
    always there, also without a route for all of it: a request to one of its hosts must find nothing rather
    than the routes of a less exact listener. What a more exact listener owns is not there.
    """
    written = {hostname for route in routes for hostname in (tuple(route) or (ANY,))}
    shared = {found for hostname in written if (found := common(listener, hostname)) is not None}
    listeners = {*port, listener}
    if len(listeners) > 1:
        shared = {hostname for hostname in shared if owner(listeners, hostname) == listener}
    return tuple(sorted(shared | {listener}, key=precedence))


RouteIndex = Mapping[str, tuple[int, ...]]


def by_hostname(routes: Iterable[Iterable[str]]) -> RouteIndex:
    """The positions of routes by their hostnames; a route without hostnames is one for every host."""
    index: dict[str, dict[int, None]] = {}
    for position, route in enumerate(routes):
        for hostname in tuple(route) or (ANY,):
            index.setdefault(hostname, {})[position] = None
    return {hostname: tuple(positions) for hostname, positions in index.items()}


def routes_of(hostname: str, index: RouteIndex) -> tuple[ServedRoute, ...]:
    """The routes inside a virtual host: of each route its most exact hostname counts."""
    best: dict[int, str] = {}
    for outer in containing(hostname):
        for position in index.get(outer, ()):
            best.setdefault(position, outer)
    return tuple(ServedRoute(position, outer) for position, outer in best.items())


def virtual_hosts(
    listener: str, routes: Sequence[Collection[str]], port: Collection[str]
) -> tuple[VirtualHost, ...]:
    """The virtual hosts of a listener (see `served`), each with its routes."""
    index = by_hostname(routes)
    return tuple(
        VirtualHost(hostname, routes_of(hostname, index)) for hostname in served(listener, routes, port)
    )


def misdirected(listener: str, port: Collection[str]) -> tuple[str, ...]:
    """The hostnames of a port's other listeners, most exact first.

    A client that came to this listener by its server name (SNI) and asks for such a host is answered 421, so
    that it opens another connection. Beside the virtual hosts of the listener, the most exact one decides.
    """
    return tuple(sorted({*port} - {listener}, key=precedence))
