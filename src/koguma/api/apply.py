"""Apply: many objects of both forms in one transaction: all of them are written, or none.

`POST /_apply` takes a YAML stream, or JSON: one object, a list, or
`{"objects": [...], "set": "shop", "prune": true}`. Objects of a set carry the label `koguma.io/set`; pruning
removes those of the set that the request no longer contains. The answer says for each object whether it was
created, configured, unchanged or deleted.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from aiohttp import web

from koguma.access.authorizer import WRITE_VERBS
from koguma.api import plain
from koguma.api.call import Call, answer_json
from koguma.api.plain import PlainObjects
from koguma.application import advice, compare_and_swap, transactions
from koguma.application.context import Context
from koguma.application.transactions import MeshSecretName
from koguma.application.write_access import WriteAccess
from koguma.core import identity
from koguma.core.admission import Admitted, FieldValidation
from koguma.model import forms, names
from koguma.model.errors import BadRequest, Invalid, KogumaError, NotAllowed
from koguma.model.forms import Draft
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation, under
from koguma.store.contract import Change, Op, Operation

SET_LABEL: Final = "koguma.io/set"
OBJECTS_MAX: Final = 10_000
_ACTIONS: Final = {
    Op.CREATE: "created",
    Op.UPDATE: "configured",
    Op.DELETE: "deleted",
    Op.UNCHANGED: "unchanged",
}


class ApplyRequest(msgspec.Struct, frozen=True):
    """What a request asks for."""

    documents: Sequence[Json]
    set: str = ""
    prune: bool = False


class Apply:
    """Handler of `/_apply`."""

    def __init__(self, context: Context, objects: PlainObjects) -> None:
        self._context = context
        self._objects = objects

    async def apply(self, call: Call) -> web.StreamResponse:
        """Write all objects of the request, or none."""
        self._context.access.check_any(call.user, WRITE_VERBS)
        unknown_fields = plain.field_validation(call)
        wanted = _wanted(await call.documents())
        drafts = self._drafts(wanted)
        made: Sequence[Admitted] = ()
        pruned: Sequence[Resource] = ()

        async def attempt() -> web.StreamResponse:
            nonlocal made, pruned
            made, operations, pruned = await self._plan(call, drafts, wanted, unknown_fields)
            left = await advice.departure(self._context, pruned)
            changes = await self._objects.commit(call, operations)
            is_dry = plain.dry_run(call)
            tried = changes if is_dry else None
            warnings = await advice.told(self._context, made, tried)
            warnings += await advice.told_of(self._context, left, tried)
            results = self._results([*(one.resource for one in made), *pruned], warnings, changes)
            return self._answer(results, changes, is_dry=is_dry)

        def may_retry() -> bool:
            has_precondition = any(draft.revision is not None for draft in drafts)
            return not has_precondition and (self._moved(drafts, made) or self._any_moved(pruned))

        return await compare_and_swap.retried(attempt, "one of the objects", may_retry)

    def _moved(self, drafts: Sequence[Draft], made: Sequence[Admitted]) -> bool:
        """Whether somebody wrote one of the objects since we looked: then it is worth another try."""
        now = [transactions.stored(self._context, draft) for draft in drafts]
        return [before.revision for before in now if before] != [one.replaces for one in made if one.replaces]

    def _any_moved(self, resources: Sequence[Resource]) -> bool:
        """Whether somebody wrote one of these since we looked, if only to report how it is."""
        state = self._context.state
        return any(
            (now := state.get(each.key)) is None or now.revision != each.revision for each in resources
        )

    def _drafts(self, wanted: ApplyRequest) -> list[Draft]:
        drafts: list[Draft] = []
        violations: list[Violation] = []
        for index, document in enumerate(wanted.documents):
            try:
                draft = forms.read(document, self._context.kinds)
            except (Invalid, BadRequest) as error:
                violations += _at(index, error)
                continue
            if wanted.set:
                draft = msgspec.structs.replace(draft, labels={**draft.labels, SET_LABEL: wanted.set})
            drafts.append(draft)
        if violations:
            raise Invalid(violations)
        return drafts

    async def _plan(
        self, call: Call, drafts: Sequence[Draft], wanted: ApplyRequest, unknown_fields: FieldValidation
    ) -> tuple[list[Admitted], list[Operation], list[Resource]]:
        made: list[Admitted] = []
        puts: list[tuple[int, Operation]] = []
        violations: list[Violation] = []
        seen: dict[Key, int] = {}
        spots: dict[Key, int] = {}
        secrets = frozenset(self._secret_names(drafts))
        for index, draft in enumerate(drafts):
            mesh_field = f"objects[{index}].mesh"
            try:
                admitted, operations = self._one(call, draft, unknown_fields, mesh_field, secrets)
            except (Invalid, BadRequest, NotAllowed) as error:
                violations += _at(index, error)
                continue
            first = seen.setdefault(admitted.resource.key, index)
            if first != index:
                violations.append(
                    Violation(f"objects[{index}]", f"is the same object as objects[{first}]", "duplicate")
                )
            elif admitted.resource.namespace:
                first = spots.setdefault(admitted.resource.key._replace(mesh=""), index)
                if first != index:
                    text = f"has the same name in the same namespace as objects[{first}], in another mesh"
                    violations.append(Violation(f"objects[{index}]", text, "duplicate"))
            made.append(admitted)
            # Meshes first, so that what lives in them finds them.
            puts += [(draft.kind.is_mesh_scoped, operation) for operation in operations]
        if violations:
            raise Invalid(violations)
        written = [operation for _, operation in sorted(puts, key=lambda pair: pair[0])]
        written += await transactions.new_meshes(self._context, [admitted.resource for admitted in made])
        pruned = self._pruned(call, wanted, seen) if wanted.prune else []
        for resource in pruned:
            written += transactions.delete(self._context, resource, resource.revision)
        return made, written, pruned

    def _one(
        self,
        call: Call,
        draft: Draft,
        unknown_fields: FieldValidation,
        mesh_field: str,
        secrets: frozenset[MeshSecretName],
    ) -> tuple[Admitted, list[Operation]]:
        context = self._context
        if draft.kind.read_only_at(context.control_plane):
            raise NotAllowed(plain.read_only_reason(draft.kind, context))
        before = transactions.stored(context, draft)
        access = WriteAccess(call.user)
        return transactions.put(context, access, draft, before, unknown_fields, mesh_field, secrets)

    def _secret_names(self, drafts: Sequence[Draft]) -> Iterator[MeshSecretName]:
        for draft in drafts:
            if draft.kind.name == "Secret":
                identified = identity.of(draft, self._context.control_plane)
                yield MeshSecretName(identified.key.mesh, identified.core_name)

    def _pruned(self, call: Call, wanted: ApplyRequest, kept: dict[Key, int]) -> list[Resource]:
        found = [
            resource
            for kind in self._context.kinds
            for resource in self._context.state.listed(kind.name, None)
            if resource.labels.get(SET_LABEL) == wanted.set and resource.key not in kept
        ]
        for resource in found:
            kind = self._context.kinds[resource.kind]
            self._context.check(call.user, "delete", kind, resource.mesh, resource.core_name)
        return sorted(found, key=lambda resource: (resource.kind == "Mesh", resource.key))

    def _results(
        self,
        resources: Sequence[Resource],
        warnings: Sequence[Sequence[str]],
        changes: Sequence[Change],
    ) -> list[Json]:
        by_key = {change.resource.key: change for change in changes}
        told = zip(resources, warnings, strict=True)
        return [self._result(resource, by_key, heard) for resource, heard in told]

    def _answer(self, results: list[Json], changes: Sequence[Change], *, is_dry: bool) -> web.Response:
        if is_dry:
            return answer_json({"dryRun": True, "results": results})
        revision = max((change.revision for change in changes), default=self._context.state.revision)
        headers = {"Koguma-Revision": str(revision)}
        return answer_json({"revision": revision, "results": results}, headers=headers)

    def _result(self, resource: Resource, changes: dict[Key, Change], warnings: Sequence[str]) -> Json:
        kind = self._context.kinds[resource.kind]
        change = changes.get(resource.key)
        shown: dict[str, Json] = {"type": kind.name, "path": kind.plural, "name": resource.core_name}
        if resource.mesh:
            shown["mesh"] = resource.mesh
        kri = resource.kri(kind.short)
        if kri is not None:
            shown["kri"] = str(kri)
        shown["action"] = _ACTIONS[change.op] if change else "unchanged"
        if warnings:
            shown["warnings"] = list(warnings)
        return shown


def _at(index: int, error: KogumaError) -> Iterator[Violation]:
    violations = error.violations or (Violation("", error.detail),)
    return under(f"objects[{index}]", violations)


def _wanted(documents: Sequence[Json]) -> ApplyRequest:
    if len(documents) == 1 and isinstance(documents[0], list):
        return _limited(ApplyRequest(documents[0]))
    if len(documents) == 1 and isinstance(documents[0], dict) and "objects" in documents[0]:
        return _limited(_envelope(documents[0]))
    return _limited(ApplyRequest(documents))


def _envelope(body: Json) -> ApplyRequest:
    objects, name, prune = body["objects"], body.get("set", ""), body.get("prune", False)
    unknown = sorted(set(body) - {"objects", "set", "prune"})
    if unknown:
        raise Invalid([Violation(unknown[0], f'unknown field "{unknown[0]}"', "unknown")])
    if not isinstance(objects, list) or not isinstance(prune, bool) or not isinstance(name, str):
        raise BadRequest('the body is {"objects": [...], "set": "name", "prune": true}')
    if "set" in body and not names.is_dns_label(name):
        raise Invalid([Violation("set", "must be at most 63 of a-z, 0-9 and '-'", "name")])
    if prune and not name:
        raise Invalid(
            [Violation("prune", 'needs "set": the name of the set whose leftovers are removed', "set")]
        )
    return ApplyRequest(objects, name, prune)


def _limited(wanted: ApplyRequest) -> ApplyRequest:
    if len(wanted.documents) > OBJECTS_MAX:
        raise BadRequest(
            f"at most {OBJECTS_MAX} objects in one request, this one has {len(wanted.documents)}"
        )
    return wanted
