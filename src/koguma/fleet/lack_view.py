"""Lack view: why a proxy has not got a revision, as the API says it."""

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Final

import msgspec

from koguma.envoy import names
from koguma.envoy.snapshot import Failure
from koguma.fleet.proxy_progress import STUCK, ChangeSpan, missing_spans, refused_spans
from koguma.fleet.proxy_state import ProxyState
from koguma.fleet.quarantine import HeldResource
from koguma.model import kri
from koguma.model.resource import Key
from koguma.model.schema import Json

REASONS: Final = (  # the most urgent first
    "refused",
    "unbuildable",
    "control-plane-gone",
    "not-connected",
    "behind",
    "control-plane-behind",
)


class Lack(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a proxy has not got a revision, since when, and whose word that is."""

    reason: str
    text: str
    since: datetime | None = None
    objects: tuple[
        str, ...
    ] = ()  # KRIs of the patches that changed what it refused, else of what that is for
    is_lasting: bool = False  # nothing but another change will mend it


def urgency(lack: Mapping[str, Json]) -> tuple[int, str, str, str]:
    """What people should see first: what does not pass by itself, then who lacks it for longest."""
    order = REASONS.index(lack["reason"]) if lack["reason"] in REASONS else len(REASONS)
    return order, lack["since"], lack["mesh"], lack["name"]


def time_text(moment: datetime | None) -> str:
    """Since when it is so; empty where that is not known."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ") if moment is not None else ""


def lack_json(key: Key, state: ProxyState | None, lack: Lack) -> Mapping[str, Json]:
    """A proxy that lacks a revision."""
    return {
        "name": state.core_name if state is not None else key.name,
        "mesh": key.mesh,
        "kind": key.kind,
        "kri": state.identifier if state is not None else "",
        "instance": state.instance if state is not None else "",
        "reason": lack.reason,
        "since": time_text(lack.since),
        "text": lack.text,
        "objects": list(lack.objects),
        "isLasting": lack.is_lasting,
    }


def lack_of(
    state: ProxyState | None, change: ChangeSpan, objects: Collection[str] = (), *, was_lost: bool
) -> Lack:
    """Why a proxy lacks a change; `was_lost`: its control plane is gone, and it is at no other."""
    if state is None:
        return Lack("not-connected", "no control plane has seen it yet")
    if not state.is_connected:
        if was_lost:
            text = f"its control plane {state.instance} is gone, and it has connected to no other one"
            return Lack("control-plane-gone", text, state.disconnected_at)
        return Lack("not-connected", "it is not connected to any control plane", state.disconnected_at)
    return next(_lacks_of_connected(state, change, objects))


def _lacks_of_connected(state: ProxyState, change: ChangeSpan, objects: Collection[str]) -> Iterator[Lack]:
    for held, span in zip(state.held, refused_spans(state.held), strict=True):
        if span.is_about(change, objects):
            yield _refused(held)
    for rejection in state.rejections:
        names = ", ".join(rejection.names)
        yield Lack("refused", f"{rejection.type} {names}: {rejection.text}", state.behind_since)
    missing = missing_spans(state.missing_parts)
    for failure in state.failures:
        part = missing.get(failure)
        is_in_change = state.offered > change.after if part is None else part.is_about(change)
        if failure.type == STUCK or is_in_change:
            yield _unbuildable(failure)
    if state.behind_since is not None:
        yield Lack("behind", "it has not acknowledged all that it was sent", state.behind_since)
    text = f"its control plane {state.instance} has only compiled revision {state.revision}"
    yield Lack("control-plane-behind", text)


def _refused(held: HeldResource) -> Lack:
    text = f"{held.type} {held.name} of revision {held.revision}: {held.text}"
    named = names.resource(held.name)
    objects = held.policies or ((named,) if kri.is_kri(named) else ())
    return Lack("refused", text, objects=objects, is_lasting=not held.is_passing)


def _unbuildable(failure: Failure) -> Lack:
    objects = (failure.origin,) if failure.origin else ()
    text = f"{failure.type} {failure.name}: {failure.text}"
    return Lack("unbuildable", text, objects=objects, is_lasting=True)
