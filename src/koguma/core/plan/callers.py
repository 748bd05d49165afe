"""Callers: which services may call an inbound, by the policies that decide about callers.

Services are those of the mesh's Dataplanes that whoever asks may see; one may call if any of its proxies may.
Rules that are equal are asked once for all inbounds that have them.
"""

import contextlib
from collections.abc import Callable, Iterable

from koguma.core import match, spiffe, world
from koguma.core.build import hooks, overlays
from koguma.core.inbound import InboundRule
from koguma.core.incremental import Db
from koguma.core.plan.scopes import Permissions
from koguma.model.overlay import OverlayContext
from koguma.model.resource import Key

Identities = dict[str, tuple[tuple[str, ...], ...]]  # the URIs of its proxies, each set once, by service


def identities(db: Db, mesh: str, may_see: Callable[[Key], bool]) -> Identities:
    """The services of a mesh, by the identities of their proxies."""
    found: dict[str, dict[tuple[str, ...], None]] = {}
    for key in match.proxies(db, mesh):
        proxy = world.proxy(db, key)
        if proxy is not None and may_see(key):
            for service in spiffe.services(proxy):
                found.setdefault(service, {})[spiffe.identity(db, key)] = None
    return {service: tuple(uris) for service, uris in sorted(found.items())}


class Callers:
    """Who may call inbounds of one database."""

    def __init__(self, db: Db, may_see: Callable[[Key], bool]) -> None:
        self._db = db
        self._may_see = may_see
        self._identities: dict[str, Identities] = {}
        self._known: dict[tuple[str, Permissions], frozenset[str]] = {}

    def services(self, mesh: str) -> Identities:
        """The services of a mesh."""
        if mesh not in self._identities:
            self._identities[mesh] = identities(self._db, mesh, self._may_see)
        return self._identities[mesh]

    def of(self, mesh: str, permissions: Permissions, among: Iterable[str]) -> frozenset[str]:
        """The services, of these, that may call an inbound."""
        if permissions.by_kind is None:
            return frozenset(among)
        name = mesh, permissions._replace(at="")
        if name not in self._known:
            self._known[name] = frozenset(self._permitted(mesh, permissions))
        return self._known[name] & frozenset(among)

    def _permitted(self, mesh: str, permissions: Permissions) -> Iterable[str]:
        context = OverlayContext(protocol=permissions.protocol, mesh=mesh)
        services = self.services(mesh)
        allowed = set(services)
        by_kind = dict(permissions.by_kind or ())
        for kind in match.policy_kinds(self._db):
            permits = hooks.of(self._db, kind).permits
            if permits is not None:
                entries = self._entries(kind, by_kind.get(kind, ()))
                allowed = {
                    service
                    for service in allowed
                    if any(_asked(permits, entries, context, uris) for uris in services[service])
                }
        return allowed

    def _entries(self, kind: str, rules: tuple[InboundRule, ...]) -> object:
        return overlays.inbound_arguments(self._db, kind, rules)[1]


def _asked(
    permits: Callable[..., bool], entries: object, context: OverlayContext, uris: tuple[str, ...]
) -> bool:
    with contextlib.suppress(Exception):  # a hook that raises permits nothing
        return permits(entries, context, uris, "")
    return False
