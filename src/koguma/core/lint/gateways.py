"""Gateways: routes that no listener takes, gateways that no proxy serves, proxies without a gateway."""

from collections.abc import Iterator
from typing import Final

from koguma.core import gateway_attachment, gateways, match, selectors, world
from koguma.core.build import cross_mesh, hooks
from koguma.core.gateways import GATEWAY
from koguma.core.incremental import Db
from koguma.core.lint import selection
from koguma.core.lint.problem import (
    GATEWAY_TIE,
    GATEWAY_UNSERVED,
    NO_GATEWAY,
    NO_LISTENER,
    NOT_ON_GATEWAYS,
    Problem,
)
from koguma.core.selectors import Selector
from koguma.core.world import Pairs, Proxy
from koguma.model import derived
from koguma.model.nearest import nearest
from koguma.model.resource import Key
from koguma.model.violation import child, item

_ROUTE_OF_GATEWAYS: Final = f"a route acts on a gateway only where its targetRef has kind {GATEWAY}"


def of_policy(db: Db, policy: Key) -> Iterator[Problem]:
    """A policy that names a gateway and none of its listeners, and routes that no listener takes.

    Routes of the Gateway API are derived for each listener that takes them, and their statuses say the rest.
    """
    selector = selectors.selector(db, policy)
    if selector is None or selector.problem or derived.source_name(policy) is not None:
        return
    if selector.by != GATEWAY:
        yield from _route_of_the_mesh(db, policy)
        return
    named = gateway_attachment.named(db, policy.mesh, selector.name)
    if not named:
        return  # a dangling reference, which is reported instead
    chosen = [each for gateway in named for each in gateway_attachment.chosen(db, selector, gateway)]
    if chosen and hooks.of(db, policy.kind).permits and not any(each.is_cross_mesh for each in chosen):
        yield _without_callers(policy, named[0])
    elif chosen:
        yield from _not_taken(db, policy, named[0])
    else:
        yield from _no_listener(db, policy, selector, named[0])


def _without_callers(policy: Key, gateway: Key) -> Problem:
    """A policy about who may call, at listeners whose clients are nobody in a mesh."""
    message = (
        f"{policy} acts on no listener: clients of those that it selects have no identity in a mesh; only"
        f" callers of a listener of {gateway} with crossMesh: true have one"
    )
    return Problem(NO_LISTENER, message, (policy, gateway), path="spec.targetRef")


def _no_listener(db: Db, policy: Key, selector: Selector, gateway: Key) -> Iterator[Problem]:
    """No listener has the section or the tags; who may not reach the gateway's proxies is another problem."""
    every = gateways.listeners(db, gateway)
    if not every or not (selector.section or selector.tags):
        return
    wanted = [f'sectionName "{selector.section}"'] if selector.section else []
    wanted += [f"the tags {_listed(selector.tags)}"] if selector.tags else []
    names = [word for each in every for word in (each.name, str(each.port)) if word]
    near = nearest(selector.section, names) if selector.section else None
    hint = f'; did you mean "{near}"?' if near else "; correct targetRef, or add such a listener"
    message = (
        f"{policy} acts on no listener: none of {gateway} has {' and '.join(wanted)}; it has"
        f" {', '.join(map(gateway_attachment.shown, every))}{hint}"
    )
    yield Problem(NO_LISTENER, message, (policy, gateway), path="spec.targetRef")


def _listed(pairs: Pairs) -> str:
    return ", ".join(f"{name}={value}" for name, value in pairs)


def _not_taken(db: Db, policy: Key, gateway: Key) -> Iterator[Problem]:
    """Entries of a route that no listener takes, and hostnames that none serves."""
    attachments = list(gateway_attachment.of_policy(db, policy))
    for path in dict.fromkeys(each.path for each in attachments):
        of_entry = [each for each in attachments if each.path == path]
        if any(each.hostnames for each in of_entry):
            continue
        reasons = list(dict.fromkeys(each.refusal for each in of_entry))
        message = (
            f"{policy} serves no request: {'; '.join(reasons)}; change the route, its targetRef, or the"
            " listeners"
        )
        yield Problem(NO_LISTENER, message, (policy, gateway), path=path)
    for path, hostnames in gateway_attachment.unserved(db, policy):
        message = (
            f"no request to {', '.join(hostnames)} reaches {policy}: no listener that it selects serves"
            " these hosts; take them away, or add a listener for them"
        )
        yield Problem(NO_LISTENER, message, (policy, gateway), path=path)


def _route_of_the_mesh(db: Db, policy: Key) -> Iterator[Problem]:
    """A route that selects built-in gateways and nobody else, but not as a route of a gateway."""
    if policy.kind not in match.ROUTE_KINDS:
        return
    every = selection.distinct_traits(db, policy.mesh)
    selected = [every[index] for index in sorted(selection.selected(db, policy))]
    if not selected or not all(each.is_builtin for each in selected):
        return
    names = sorted({each.gateway.name for each in selected if each.gateway is not None})
    message = (
        f"{policy} selects only built-in gateways, and acts on none of them: {_ROUTE_OF_GATEWAYS}; write"
        f" {{kind: {GATEWAY}, name: {' or '.join(names) or 'NAME'}}} there, and kind Mesh in spec.to"
    )
    yield Problem(NOT_ON_GATEWAYS, message, (policy,), path="spec.targetRef")


def of_gateway(db: Db, gateway: Key) -> Iterator[Problem]:
    """A MeshGateway that no proxy serves, or one of its listeners; or that another one equals."""
    yield from _unserved(db, gateway)
    yield from _between_meshes(db, gateway)
    for other in world.BY_KIND.keys(db, (GATEWAY, gateway.mesh)):
        if other != gateway:
            yield from _tie(db, *sorted((gateway, other)))


def _unserved(db: Db, gateway: Key) -> Iterator[Problem]:
    # Proxies make a mesh live: in files that are checked before there is a mesh, none is expected.
    if not match.proxies(db, gateway.mesh) or gateway_attachment.serving(db, gateway):
        return
    fitting = [each for each in _built_in(db, gateway.mesh) if _rank(db, gateway, each) is not None]
    others = {served for proxy in fitting if (served := _better(db, gateway, proxy)) is not None}
    if fitting and not others:
        return  # equal gateways, which are reported instead
    if others:
        message = (
            f"no proxy serves {gateway}: those with its tags serve {', '.join(map(str, sorted(others)))},"
            " whose selector has more tags; change one of the selectors, or delete one gateway"
        )
    else:
        required = " or ".join(map(_listed, match.gateway_selectors(db, gateway)))
        message = (
            f"no proxy serves {gateway}: no built-in gateway has the tags {required}; start one with"
            " `koguma dp run --gateway` and these tags, or correct selectors"
        )
    yield Problem(GATEWAY_UNSERVED, message, (gateway,), path="selectors")


def _between_meshes(db: Db, gateway: Key) -> Iterator[Problem]:
    """Ports for calls of other meshes that cannot be served; a mesh without mTLS is another problem."""
    resource = world.RESOURCES.get(db, gateway)
    written = ((resource.spec.get("conf") or {}).get("listeners") or ()) if resource else ()
    if not match.proxies(db, gateway.mesh):  # as above
        return
    every = gateways.listeners(db, gateway)
    for number, listener in enumerate(written):
        if not listener.get("crossMesh"):
            continue
        port = listener.get("port") or 0
        reason = cross_mesh.misfit(each for each in every if each.port == port)
        if reason:
            message = f"no proxy listens on port {port} of {gateway}: {reason}"
            path = child(item("conf.listeners", number), "crossMesh")
            yield Problem(GATEWAY_UNSERVED, message, (gateway,), path=path)


def _built_in(db: Db, mesh: str) -> Iterator[Proxy]:
    proxies = (world.proxy(db, key) for key in match.proxies(db, mesh))
    return (proxy for proxy in proxies if proxy is not None and proxy.is_builtin)


def _rank(db: Db, gateway: Key, proxy: Proxy) -> tuple[int, int] | None:
    return match.gateway_rank(db, gateway, proxy.key.zone, proxy.gateway_tags)


def _better(db: Db, gateway: Key, proxy: Proxy) -> Key | None:
    """The gateway that a proxy serves instead of one, where it fits better and not only equally well."""
    served = _gateway_of(db, proxy)
    is_better = served is not None and _rank(db, served, proxy) != _rank(db, gateway, proxy)
    return served if is_better else None


def _gateway_of(db: Db, proxy: Proxy) -> Key | None:
    return match.gateway_of(db, proxy.key.mesh, proxy.key.zone, proxy.gateway_tags)


def _tie(db: Db, gateway: Key, other: Key) -> Iterator[Problem]:
    """Two gateways that fit a proxy equally well, so that only their names decide which one it serves."""
    for proxy in _built_in(db, gateway.mesh):
        rank, winner = _rank(db, gateway, proxy), _gateway_of(db, proxy)
        if rank is not None and rank == _rank(db, other, proxy) and winner in (gateway, other):
            message = (
                f"{gateway} and {other} select {proxy.key} equally well, and only their names decide: it"
                f' serves "{winner.name}"; give the selector of one of them another tag'
            )
            yield Problem(GATEWAY_TIE, message, (gateway, other), path="selectors")
            return


def of_proxy(db: Db, proxy: Key) -> Iterator[Problem]:
    """A built-in gateway that no MeshGateway selects."""
    traits, known = match.traits(db, proxy), world.proxy(db, proxy)
    if traits is None or known is None or not traits.is_builtin or traits.gateway is not None:
        return
    names = ", ".join(sorted(key.name for key in world.BY_KIND.keys(db, (GATEWAY, proxy.mesh))))
    message = (
        f"{proxy} is a built-in gateway and listens on nothing: no {GATEWAY} selects its tags"
        f" {_listed(known.gateway_tags)}; the mesh has {names or 'none'}; create one whose selectors match"
        " these tags, or correct the tags"
    )
    yield Problem(NO_GATEWAY, message, (proxy,), path=child("networking.gateway", "tags"))
