"""Joining: what happens to the objects of a zone that was alone when it takes part in a Global.

What the zone wrote stays its own and goes to Global. Kinds that only Global writes (a Mesh) must be there as
well, and be the same. They are handed over: stored as Global's, so that Global's later changes act on them.
Nothing else of the zone's is touched.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal

import msgspec

from koguma.application.context import Context
from koguma.model import json_diff, names
from koguma.model.kind import Kind
from koguma.model.resource import Resource
from koguma.store.contract import Delete, Operation, Put
from koguma.sync import mapping

FIELDS_MAX: Final = 20  # that a difference names
# What each control plane has for itself, whatever others have under the same name.
_OWN_KINDS: Final = frozenset({"Config", "Zone", "GlobalSecret"})

Verdict = Literal["missing", "differs", "kept", "beside", "same"]


class JoinFinding(msgspec.Struct, frozen=True):
    """An object of the zone that needs a word: what becomes of it."""

    kind: str
    mesh: str
    name: str  # by which it is known here
    kri: str
    verdict: Verdict
    fields: tuple[str, ...] = ()  # that differ from Global's object of the name


class JoinPlan(msgspec.Struct, frozen=True, rename="camel"):
    """What would travel each way, and what is in the way."""

    zone: str
    global_id: str
    global_version: str
    to_global: Mapping[str, int]  # numbers of objects, by kind
    from_global: Mapping[str, int]
    stays: Mapping[str, int]
    blocking: tuple[JoinFinding, ...]
    handed_over: tuple[JoinFinding, ...]
    beside: tuple[JoinFinding, ...]  # own objects with the name of one of Global's: both are there


class Joining:
    """One zone and what Global would send it."""

    def __init__(
        self, context: Context, global_id: str, global_version: str, sent: Iterable[Resource]
    ) -> None:
        self._context = context
        self._zone = context.control_plane.zone
        self._global_id, self._global_version = global_id, global_version
        self._sent = list(sent)
        self._by_key = {each.key: each for each in self._sent}
        self._by_name = {(each.kind, each.mesh, each.core_name): each for each in self._sent if not each.zone}

    def plan(self, *, takes_global: bool) -> tuple[JoinPlan, list[Operation]]:
        """What would happen, and the operations that hand objects over."""
        up, stays = Counter[str](), Counter[str]()
        findings: list[tuple[JoinFinding, Resource, Resource | None]] = []
        for resource, kind in self._own():
            theirs = self._theirs(resource, kind)
            verdict = self._verdict(resource, kind, theirs, takes_global=takes_global)
            if verdict is not None:
                findings.append((_finding(resource, kind, theirs, verdict), resource, theirs))
            if verdict in ("missing", "differs", "same"):
                continue
            is_sent = mapping.upward(resource, kind, self._zone) is not None
            (up if is_sent else stays)[resource.kind] += 1
        plan = JoinPlan(
            zone=self._zone,
            global_id=self._global_id,
            global_version=self._global_version,
            to_global=dict(sorted(up.items())),
            from_global=dict(sorted(Counter(each.kind for each in self._sent).items())),
            stays=dict(sorted(stays.items())),
            blocking=_with(findings, "missing", "differs"),
            handed_over=_with(findings, "same"),
            beside=_with(findings, "kept", "beside"),
        )
        return plan, [
            operation
            for finding, own, theirs in findings
            if finding.verdict == "same" and theirs is not None
            for operation in handed_over(own, theirs)
        ]

    def _own(self) -> Iterator[tuple[Resource, Kind]]:
        for resource in self._context.state.all():
            kind = self._context.kinds.get(resource.kind)
            is_own = resource.zone in ("", self._zone) and resource.origin in ("", mapping.ZONE)
            if kind is not None and kind.computed is None and is_own:
                yield resource, kind

    def _theirs(self, resource: Resource, kind: Kind) -> Resource | None:
        if resource.key in self._by_key:
            return self._by_key[resource.key]
        core_name = resource.core_name
        if not kind.sync.keeps_name:
            core_name = names.hashed(resource.mesh, resource.name, "", resource.namespace)
        return self._by_name.get((resource.kind, resource.mesh, core_name))

    def _verdict(
        self, resource: Resource, kind: Kind, theirs: Resource | None, *, takes_global: bool
    ) -> Verdict | None:
        """What becomes of an object of the zone; None where nothing has to be said."""
        if resource.kind in _OWN_KINDS:
            return None
        is_same = theirs is not None and (takes_global or theirs.spec == resource.spec)
        if not kind.sync.provided_by_zone:
            return "missing" if theirs is None else "same" if is_same else "differs"
        if theirs is None:
            return None
        if kind.sync.keeps_name:  # two of one name cannot stand side by side
            return "same" if is_same else "kept"
        return "beside"


def handed_over(own: Resource, theirs: Resource) -> Iterator[Operation]:
    """The operations that store Global's object instead of the zone's own."""
    if own.key != theirs.key:
        yield Delete(own.key, own.revision)
        yield Put(theirs, is_received=True)
        return
    kept = msgspec.structs.replace(theirs, status=own.status, annotations=own.annotations, meta=own.meta)
    yield Put(kept, own.revision, is_received=True)


def _finding(own: Resource, kind: Kind, theirs: Resource | None, verdict: Verdict) -> JoinFinding:
    differences = json_diff.patch(own.spec, theirs.spec) if theirs is not None and not kind.admin_only else []
    fields = tuple(str(each["path"]) for each in differences[:FIELDS_MAX])
    return JoinFinding(own.kind, own.mesh, own.core_name, str(own.kri(kind.short) or ""), verdict, fields)


def _with(
    findings: Iterable[tuple[JoinFinding, Resource, Resource | None]], *verdicts: Verdict
) -> tuple[JoinFinding, ...]:
    found = (finding for finding, *_ in findings if finding.verdict in verdicts)
    return tuple(sorted(found, key=lambda each: (each.kind, each.mesh, each.name)))


def own_that_differs(stored: Resource | None, received: Resource, zone: str) -> str:
    """Why Global's object is not stored over one that the zone itself wrote under the same key."""
    if stored is None or stored.kind in _OWN_KINDS or stored.origin == mapping.GLOBAL:
        return ""
    if stored.zone not in ("", zone) or stored.spec == received.spec:
        return ""
    return "this zone has one of its own that differs; `koguma zone join --dry-run` says what to do"
