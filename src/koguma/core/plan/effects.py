"""Effects: why an object of a change gives no proxy another value.

A policy may select nobody, lose against others, or set what holds already; lint knows more reasons.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final

from koguma.core import match, meta, problems, world
from koguma.core.build import snapshot
from koguma.core.incremental import Db
from koguma.core.lint import visibility
from koguma.core.lint.problem import (
    DISJOINT,
    GATEWAY_UNSERVED,
    NO_LISTENER,
    NO_OBJECT,
    NO_PORT,
    NOBODY_SELECTED,
    NOT_BUILT,
    NOT_ON_GATEWAYS,
    WRONG_PROTOCOL,
)
from koguma.core.lint.visibility import Visibility
from koguma.core.plan.scopes import ChangeSide, Part, Setters
from koguma.core.provenance import Viewer
from koguma.model.resource import Key
from koguma.model.schema import Json

REASONS: Final = (
    *(NOBODY_SELECTED, NOT_BUILT, DISJOINT, NO_OBJECT, NO_PORT, WRONG_PROTOCOL, NO_LISTENER),
    *(NOT_ON_GATEWAYS, GATEWAY_UNSERVED),
)
_LOOKED_AT_MAX: Final = 50  # proxies; those of one class are alike


class EffectReasons:
    """Says why objects are without effect, for a database that has the change.

    What several of them share is looked at once: many policies may lose to the same one.
    """

    def __init__(self, db: Db, visible: Visibility) -> None:
        self._db = db
        self._visible = visible
        self._side = ChangeSide(db)
        self._viewer = Viewer(db, fields=True)
        self._origins: dict[Setters, tuple[tuple[str, Json], ...]] = {}

    def of(self, policy: Key) -> str:
        """Why a policy gives no visible proxy another value."""
        db, visible = self._db, self._visible
        sees_all = visible.sees_all("Dataplane", policy.mesh)
        if world.RESOURCES.get(db, policy) is None:
            return (
                f"nothing that it set was in effect{'' if sees_all else ' for the proxies that you may read'}"
            )
        found = {
            problem.code: problem.text
            for problem in problems.of_policy(db, policy)
            if visibility.may_tell(problem, visible)
        }
        for code in REASONS:
            if code in found:
                return found[code]
        selected = list(islice(filter(visible.may_see, match.selected_by(db, policy)), _LOOKED_AT_MAX))
        if not selected:
            return "it selects no proxy" if sees_all else "it selects none of the proxies that you may read"
        setters = tuple(dict.fromkeys(self._setters(policy, selected)))
        if not setters:
            return "the proxies that it selects call and serve nothing that it is about"
        reasons = chain(self._losses(policy, setters), self._failures(policy, selected))
        return next(reasons, "what it sets holds already without it")

    def _failures(self, policy: Key, proxies: Iterable[Key]) -> Iterator[str]:
        """What these proxies cannot do of what policies of the kind ask for."""
        for proxy in proxies:
            built = snapshot.of(self._db, proxy)
            for failure in built.failures if built is not None else ():
                if failure.origin == policy.kind:
                    yield f"{failure.name} cannot be built: {failure.text}"

    def _losses(self, policy: Key, all_setters: Iterable[Setters]) -> Iterator[str]:
        """What a policy loses to."""
        kri = meta.kri(self._db, policy)
        for setters in all_setters:
            for field, origin in self._origins_of(setters):
                for loser in origin["losers"]:
                    if loser["kri"] == kri:
                        yield f"{field} loses to {origin['kri']}, {origin['path']}: {loser['reason']}"

    def _setters(self, policy: Key, proxies: list[Key]) -> Iterator[Setters]:
        parts: dict[int, Part] = {}
        for proxy in proxies:
            found = self._side.of(proxy)
            parts |= {id(part): part for part in (found.parts if found is not None else ())}
        for part in parts.values():
            for setters in part.setters.values():
                if any(entry.policy == policy for entry in setters.entries):
                    yield setters

    def _origins_of(self, setters: Setters) -> tuple[tuple[str, Json], ...]:
        if setters not in self._origins:
            self._origins[setters] = tuple(_origins(self._viewer, setters))
        return self._origins[setters]


def _origins(viewer: Viewer, setters: Setters) -> Iterator[tuple[str, Json]]:
    if not setters.makes_rules:
        yield from (viewer.conf(setters.entries).origins or {}).items()
        return
    for rule in viewer.route_rules(setters.entries):
        yield from (rule.shown.origins or {}).items()
