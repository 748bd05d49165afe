"""Gateway overlays: what policies change for a listener of a gateway, and for single routes of it."""

from collections.abc import Mapping

import msgspec

from koguma.core import gateways, items, order, rules
from koguma.core.build import hooks, overlays
from koguma.core.build.gateway_spec import ServedListener
from koguma.core.build.overlays import PolicyOverlays
from koguma.core.incremental import Db, question
from koguma.core.items import ByKind, Entries
from koguma.core.rules import EntriesByTarget
from koguma.model.overlay import OverlayContext
from koguma.model.resource import Key


class ListenerOverlays(msgspec.Struct, frozen=True):
    """What policies change for a listener and its routes, and for those routes that some policy names."""

    listener: PolicyOverlays
    routes: tuple[tuple[Key, PolicyOverlays], ...] = ()


@question
def of(db: Db, served: ServedListener, where: OverlayContext) -> ListenerOverlays:
    """What policies change for a listener."""
    acting = [each for each in served.policies if each[0] not in gateways.ROUTE_KINDS]
    targeted = {kind: rules.entries_by_target(db, policies) for kind, policies in acting}
    whole = tuple(
        (kind, entries)
        for kind, policies in acting
        if hooks.of(db, kind).outbound and (entries := rules.default_entries(db, policies))
    )
    named = sorted({key for each in targeted.values() for key in each.by_route})
    return ListenerOverlays(
        _overlays(db, (*_entries(db, targeted), *whole), where),
        tuple((key, _overlays(db, (*_entries(db, targeted, key), *whole), where)) for key in named),
    )


def _overlays(db: Db, entries: ByKind, where: OverlayContext) -> PolicyOverlays:
    return overlays.outbound(db, overlays.merged_confs(db, entries, where.mesh), where).listener


def _entries(db: Db, targeted: Mapping[str, EntriesByTarget], route: Key | None = None) -> ByKind:
    by_kind = ((kind, _relevant(db, each, route)) for kind, each in targeted.items())
    return tuple((kind, entries) for kind, entries in by_kind if entries)


def _relevant(db: Db, targeted: EntriesByTarget, route: Key | None) -> Entries:
    on_route = targeted.by_route.get(route, ()) if route else ()
    entries = (*targeted.mesh_wide, *(entry for entry, only in on_route if only is None))
    return tuple(sorted(entries, key=lambda entry: order.key(items.rank(db, entry))))
