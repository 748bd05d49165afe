"""Gateway attachment: which listeners of a MeshGateway take which routes, for which hosts, and why not.

For people: lint and inspect ask it. The build attaches routes by the same selectors (`match`) and the same
rules for hostnames (`model/hostname.py`); a property test compares the two.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from koguma.core import gateways, match, selectors, world
from koguma.core.gateways import GATEWAY, AttachedRoute, Listener
from koguma.core.incremental import Db, question
from koguma.core.match import Traits
from koguma.core.selectors import Selector
from koguma.core.world import pairs
from koguma.model import hostname, tags, target_ref
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.model.violation import child

_HTTP: Final = ("HTTP", "HTTPS")
# What a listener has to speak for the routes of a kind.
_PROTOCOLS: Final = dict.fromkeys(gateways.HTTP_ROUTES, _HTTP) | {target_ref.TCP_ROUTE: ("TCP", "TLS")}


class Attachment(NamedTuple):
    """An entry of a route on a listener that it selects: the hosts that it serves there, or why none."""

    policy: Key
    path: str  # of the entry
    listener: Listener
    hostnames: tuple[str, ...]
    refusal: str = ""


def shown(listener: Listener) -> str:
    """A listener in words."""
    named = f'"{listener.name}" ' if listener.name else ""
    return f"{named}({listener.protocol} {listener.port}, {listener.hostname})"


def named(db: Db, mesh: str, name: str) -> tuple[Key, ...]:
    """The MeshGateways of that name, as a targetRef names them."""
    return world.BY_NAME.keys(db, (GATEWAY, mesh, name))


@question
def serving(db: Db, gateway: Key) -> tuple[Key, ...]:
    """The proxies that serve a MeshGateway; asks every proxy of the mesh, so only for people."""
    every = ((key, match.traits(db, key)) for key in match.proxies(db, gateway.mesh))
    return tuple(key for key, traits in every if traits is not None and traits.gateway == gateway)


@question
def traits_of(db: Db, gateway: Key) -> tuple[Traits, ...]:
    """The different traits of the proxies that serve a MeshGateway; without any, those of one that would."""
    found = (match.traits(db, key) for key in serving(db, gateway))
    return tuple(dict.fromkeys(each for each in found if each is not None)) or (_expected(db, gateway),)


def _expected(db: Db, gateway: Key) -> Traits:
    """The traits of a proxy with the tags of the first selector."""
    resource = world.RESOURCES.get(db, gateway)
    selectors = (resource.spec.get("selectors") or ()) if resource else ()
    first: Json = (selectors[0].get("match") if selectors else None) or {}
    own = {name: value for name, value in first.items() if value != tags.ANY}
    control_plane = world.control_plane(db)
    return Traits(
        mesh=gateway.mesh,
        type="Gateway",
        is_builtin=True,
        gateway=gateway,
        zone=gateway.zone or control_plane.zone,
        origin=control_plane.origin,
        namespace=gateway.namespace,
        name="",
        labels=(),
        inbounds=tuple(
            (each.section, pairs({**own, **dict(each.tags)})) for each in match.listeners(db, gateway)
        ),
        gateway_tags=pairs(own),
        listener_names=tuple(
            (each.section, each.name) for each in gateways.listeners(db, gateway) if each.name
        ),
    )


def chosen(db: Db, selector: Selector, gateway: Key) -> tuple[Listener, ...]:
    """The listeners of a gateway that a policy selects, on whichever of its proxies."""
    sections = {
        section for traits in traits_of(db, gateway) for section in match.selected(selector, traits) or ()
    }
    return tuple(each for each in gateways.listeners(db, gateway) if each.section in sections)


def of_policy(db: Db, policy: Key) -> Iterator[Attachment]:
    """The listeners that a route selects, entry by entry; nothing for a route that names no gateway."""
    selector = selectors.selector(db, policy)
    if selector is None or selector.problem or not gateways.is_attached(db, policy):
        return
    for gateway in named(db, policy.mesh, selector.name):
        for listener in chosen(db, selector, gateway):
            for route in gateways.entries(db, policy):
                yield of_entry(db, gateway, listener, route)


def of_entry(db: Db, gateway: Key, listener: Listener, route: AttachedRoute) -> Attachment:
    """What becomes of an entry of a route on a listener that it selects."""
    policy, path = route.entry.policy, route.entry.path
    if listener.protocol not in _PROTOCOLS[policy.kind]:
        return Attachment(policy, path, listener, (), _wrong_protocol(policy, listener))
    if policy.kind == target_ref.TCP_ROUTE:
        return Attachment(policy, path, listener, (listener.hostname,))
    common = hostname.intersection(listener.hostname, route.hostnames)
    if not common:
        hosts = ", ".join(route.hostnames)
        text = f"it is for {hosts}, and listener {shown(listener)} serves none of these hosts"
        return Attachment(policy, path, listener, (), text)
    port = {each.hostname for each in gateways.listeners(db, gateway) if each.port == listener.port}
    own = tuple(each for each in common if hostname.owner(port, each) == listener.hostname)
    if not own:
        text = (
            f"requests to {', '.join(common)} belong to another listener of port {listener.port}, whose"
            " hostname is more exact"
        )
        return Attachment(policy, path, listener, (), text)
    return Attachment(policy, path, listener, own)


def _wrong_protocol(policy: Key, listener: Listener) -> str:
    instead = " or ".join(kind for kind, spoken in _PROTOCOLS.items() if listener.protocol in spoken)
    return (
        f"listener {shown(listener)} speaks {listener.protocol}, which is for a {instead}, and not a"
        f" {policy.kind}"
    )


def unserved(db: Db, policy: Key) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The hostnames of a route that no listener serves, by their path, where others of the entry are."""
    attachments = list(of_policy(db, policy))
    for route in gateways.entries(db, policy):
        path = route.entry.path
        served = [each for found in attachments if found.path == path for each in found.hostnames]
        left = [each for each in route.hostnames if not any(hostname.matches(each, host) for host in served)]
        if served and left:
            yield child(path, "hostnames"), tuple(left)
