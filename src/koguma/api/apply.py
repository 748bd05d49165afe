"""Apply: many objects of both forms in one transaction: all of them are written, or none.

`POST /_apply` takes a YAML stream, or JSON: one object, a list, or
`{"objects": [...], "set": "shop", "prune": true}`. Objects of a set carry the label `koguma.io/set`; pruning
removes those of the set that the request no longer contains, and that were written on this side: Global and
its zones may have sets of one name. The answer says for each object whether it was created, configured,
unchanged or deleted.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from aiohttp import web

from koguma.access.authorizer import WRITE_VERBS
from koguma.api import plain, reasons
from koguma.api.call import Call, answer_json
from koguma.api.plain import PlainObjects
from koguma.application import advice, compare_and_swap, quota, transactions
from koguma.application.admission_review import DELETE
from koguma.application.context import Context
from koguma.application.transactions import MeshSecretName
from koguma.application.webhooks import WebhookDenied, WebhookFailed
from koguma.application.write_access import WriteAccess
from koguma.core import admission, identity
from koguma.core.admission import Admitted, FieldValidation
from koguma.core.plan.model import PlannedObject
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
    """The body of a request to `/_apply`, or to `/_plan`, which alone has `delete`."""

    documents: Sequence[Json]
    set: str = ""
    prune: bool = False
    delete: tuple[PlannedObject, ...] = ()


class Apply:
    """Handler of `/_apply`."""

    def __init__(self, context: Context, objects: PlainObjects) -> None:
        self._context = context
        self._objects = objects

    async def apply(self, call: Call) -> web.StreamResponse:
        """Write all objects of the request, or none."""
        self._context.access.check_any(call.user, WRITE_VERBS)
        unknown_fields = plain.field_validation(call)
        request = self.request(await call.documents())
        drafts = self._drafts(request)
        access = WriteAccess(call.user)
        admitted: Sequence[Admitted] = ()
        pruned: Sequence[Resource] = ()

        async def attempt() -> web.StreamResponse:
            nonlocal admitted, pruned
            admitted, operations, pruned = await self._prepared(call, drafts, request, unknown_fields, access)
            before_deletion = await advice.before_deletion(self._context, pruned)
            changes = await self._objects.commit(call, operations)
            is_dry = plain.dry_run(call)
            dry_run_changes = changes if is_dry else None
            warnings = await advice.write_warnings(self._context, admitted, dry_run_changes)
            warnings += await advice.deletion_warnings(self._context, before_deletion, dry_run_changes)
            resources = [*(write.resource for write in admitted), *pruned]
            results = self._results(resources, warnings, changes, is_dry=is_dry)
            return self._answer(results, changes, is_dry=is_dry)

        def may_retry() -> bool:
            has_precondition = any(draft.revision is not None for draft in drafts)
            return not has_precondition and (
                self._have_changed(drafts, admitted) or self._any_changed(pruned)
            )

        return await compare_and_swap.retried(attempt, "one of the objects", may_retry)

    @staticmethod
    def request(documents: Sequence[Json], *, may_delete: bool = False) -> ApplyRequest:
        """The request in a body; `may_delete` where it may name objects to be deleted."""
        return _apply_request(documents, may_delete=may_delete)

    async def prepared(
        self, call: Call, request: ApplyRequest, unknown_fields: FieldValidation, access: WriteAccess
    ) -> tuple[list[Admitted], list[Operation], list[Resource]]:
        """What a request would write, and prune, after all checks."""
        return await self._prepared(call, self._drafts(request), request, unknown_fields, access)

    def _have_changed(self, drafts: Sequence[Draft], admitted: Sequence[Admitted]) -> bool:
        """Whether one of the objects was written since the plan: then another try may succeed."""
        stored = [transactions.replaced_object(self._context, draft) for draft in drafts]
        return [before.revision for before in stored if before] != [
            write.replaces for write in admitted if write.replaces
        ]

    def _any_changed(self, resources: Sequence[Resource]) -> bool:
        """Whether one of these was written since the plan, be it only its status."""
        state = self._context.state
        return any(
            (stored := state.get(resource.key)) is None or stored.revision != resource.revision
            for resource in resources
        )

    def _drafts(self, request: ApplyRequest) -> list[Draft]:
        drafts: list[Draft] = []
        violations: list[Violation] = []
        for index, document in enumerate(request.documents):
            try:
                draft = forms.read(document, self._context.kinds)
            except (Invalid, BadRequest) as error:
                violations += _at(index, error)
                continue
            if request.set:
                draft = msgspec.structs.replace(draft, labels={**draft.labels, SET_LABEL: request.set})
            drafts.append(draft)
        if violations:
            raise Invalid(violations)
        return drafts

    async def _prepared(
        self,
        call: Call,
        drafts: Sequence[Draft],
        request: ApplyRequest,
        unknown_fields: FieldValidation,
        access: WriteAccess,
    ) -> tuple[list[Admitted], list[Operation], list[Resource]]:
        admitted_objects: list[Admitted] = []
        puts: list[tuple[int, Operation]] = []
        violations: list[Violation] = []
        index_by_key: dict[Key, int] = {}
        index_by_name: dict[Key, int] = {}
        secrets = frozenset(self._secret_names(drafts))
        for index, document in enumerate(drafts):
            mesh_field = f"objects[{index}].mesh"
            try:
                draft, texts = await self._mutated(call, document, access)
                admitted, operations = self._put(access, draft, unknown_fields, mesh_field, secrets)
                admitted = msgspec.structs.replace(admitted, warnings=(*admitted.warnings, *texts))
            except (Invalid, BadRequest, NotAllowed) as error:
                violations += _at(index, error)
                continue
            except (WebhookDenied, WebhookFailed) as error:
                raise named_at(f"objects[{index}]", error) from None
            first = index_by_key.setdefault(admitted.resource.key, index)
            if first != index:
                violations.append(
                    Violation(f"objects[{index}]", f"is the same object as objects[{first}]", "duplicate")
                )
            elif admitted.resource.namespace:
                first = index_by_name.setdefault(admitted.resource.key._replace(mesh=""), index)
                if first != index:
                    text = f"has the same name in the same namespace as objects[{first}], in another mesh"
                    violations.append(Violation(f"objects[{index}]", text, "duplicate"))
            admitted_objects.append(admitted)
            # Meshes first: objects in them require that they exist.
            puts += [(draft.kind.is_mesh_scoped, operation) for operation in operations]
        if violations:
            raise Invalid(violations)
        admitted_objects = [
            await self._validated(call, index, admitted) for index, admitted in enumerate(admitted_objects)
        ]
        written = [operation for _, operation in sorted(puts, key=lambda pair: pair[0])]
        written += await transactions.mesh_side_effects(
            self._context, [admitted.resource for admitted in admitted_objects]
        )
        pruned = self._pruned(access, request, index_by_key) if request.prune else []
        for resource in pruned:
            await self.ask_about_deletion(call, resource)
            written += transactions.delete(self._context, resource, resource.revision)
        written.append(quota.requirement(self._context))
        return admitted_objects, written, pruned

    async def ask_about_deletion(self, call: Call, resource: Resource) -> tuple[str, ...]:
        """What webhooks say to a deletion, as warnings; raises where one of them refuses it."""
        deletion = self._objects.admission_request(call, resource, resource, DELETE)
        return await self._objects.webhooks.delete(deletion)

    async def _mutated(self, call: Call, draft: Draft, access: WriteAccess) -> tuple[Draft, tuple[str, ...]]:
        if draft.kind.read_only_at(self._context.control_plane):
            return draft, ()
        before = transactions.replaced_object(self._context, draft)
        return await self._objects.mutated(call, access, draft, before)

    async def _validated(self, call: Call, index: int, admitted: Admitted) -> Admitted:
        """The same object, once the validating webhooks were asked about it, with their warnings."""
        resource = admitted.resource
        before = self._context.state.get(resource.key) if admitted.replaces else None
        try:
            texts = await self._objects.validate(call, resource, before)
        except (WebhookDenied, WebhookFailed) as error:
            raise named_at(f"objects[{index}]", error) from None
        return msgspec.structs.replace(admitted, warnings=(*admitted.warnings, *texts))

    def _put(
        self,
        access: WriteAccess,
        draft: Draft,
        unknown_fields: FieldValidation,
        mesh_field: str,
        secrets: frozenset[MeshSecretName],
    ) -> tuple[Admitted, list[Operation]]:
        context = self._context
        if draft.kind.read_only_at(context.control_plane):
            raise NotAllowed(reasons.read_only(draft.kind, context))
        before = transactions.replaced_object(context, draft)
        return transactions.put(context, access, draft, before, unknown_fields, mesh_field, secrets)

    def _secret_names(self, drafts: Sequence[Draft]) -> Iterator[MeshSecretName]:
        for draft in drafts:
            if draft.kind.name == "Secret":
                identified = identity.of(draft, self._context.control_plane)
                yield MeshSecretName(identified.key.mesh, identified.core_name)

    def _pruned(self, access: WriteAccess, request: ApplyRequest, kept: dict[Key, int]) -> list[Resource]:
        resources = [
            resource
            for kind in self._context.kinds
            for resource in self._context.state.listed(kind.name, None)
            if resource.labels.get(SET_LABEL) == request.set
            and resource.key not in kept
            and not admission.written_elsewhere(resource, self._context.control_plane)
        ]
        for resource in resources:
            kind = self._context.kinds[resource.kind]
            self._context.check(access.user, access.verb or "delete", kind, resource.mesh, resource.core_name)
        return sorted(resources, key=lambda resource: (resource.kind == "Mesh", resource.key))

    def _results(
        self,
        resources: Sequence[Resource],
        warnings: Sequence[Sequence[str]],
        changes: Sequence[Change],
        *,
        is_dry: bool,
    ) -> list[Json]:
        by_key = {change.resource.key: change for change in changes}
        pairs = zip(resources, warnings, strict=True)
        return [self._result(resource, by_key, texts, is_dry=is_dry) for resource, texts in pairs]

    def _answer(self, results: list[Json], changes: Sequence[Change], *, is_dry: bool) -> web.Response:
        if is_dry:
            return answer_json({"dryRun": True, "results": results})
        revision = max((change.revision for change in changes), default=self._context.state.revision)
        headers = {"Koguma-Revision": str(revision)}
        return answer_json({"revision": revision, "results": results}, headers=headers)

    def _result(
        self, resource: Resource, changes: dict[Key, Change], warnings: Sequence[str], *, is_dry: bool
    ) -> Json:
        kind = self._context.kinds[resource.kind]
        change = changes.get(resource.key)
        result: dict[str, Json] = {"type": kind.name, "path": kind.plural, "name": resource.core_name}
        if resource.mesh:
            result["mesh"] = resource.mesh
        kri = resource.kri(kind.short)
        if kri is not None:
            result["kri"] = str(kri)
        result["action"] = _ACTIONS[change.op] if change else "unchanged"
        if not is_dry and (revision := self._revision(resource, change)):
            result["revision"] = revision
        if warnings:
            result["warnings"] = list(warnings)
        return result

    def _revision(self, resource: Resource, change: Change | None) -> int:
        """The revision of an object as it is now; of one that was deleted, of its deletion."""
        stored = self._context.state.get(resource.key) if change is None else None
        return change.revision if change is not None else stored.revision if stored is not None else 0


def _at(index: int, error: KogumaError) -> Iterator[Violation]:
    violations = error.violations or (Violation("", error.detail),)
    return under(f"objects[{index}]", violations)


def named_at(field: str, error: WebhookDenied | WebhookFailed) -> KogumaError:
    """The refusal of a webhook, with the field of the request whose object it refuses."""
    error.violations = (Violation(field, error.detail, "webhook"),)
    return error


def _apply_request(documents: Sequence[Json], *, may_delete: bool) -> ApplyRequest:
    if len(documents) == 1 and isinstance(documents[0], list):
        return _limited(ApplyRequest(documents[0]))
    if len(documents) == 1 and isinstance(documents[0], dict) and _is_envelope(documents[0]):
        return _limited(_envelope(documents[0], may_delete=may_delete))
    return _limited(ApplyRequest(documents))


def _is_envelope(body: Json) -> bool:
    return "objects" in body or ("delete" in body and "type" not in body)


def _envelope(body: Json, *, may_delete: bool) -> ApplyRequest:
    objects, name, prune = body.get("objects", []), body.get("set", ""), body.get("prune", False)
    unknown = sorted(set(body) - {"objects", "set", "prune", *(("delete",) if may_delete else ())})
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
    return ApplyRequest(objects, name, prune, _deleted_names(body.get("delete", [])))


def _deleted_names(listed: Json) -> tuple[PlannedObject, ...]:
    try:
        return msgspec.convert(listed, tuple[PlannedObject, ...])
    except msgspec.ValidationError as error:
        text = f'is a list of objects with "type", "name" and "mesh": {error}'
        raise Invalid([Violation("delete", text, "type")]) from None


def _limited(request: ApplyRequest) -> ApplyRequest:
    n_objects = len(request.documents) + len(request.delete)
    if n_objects > OBJECTS_MAX:
        raise BadRequest(f"at most {OBJECTS_MAX} objects in one request, this one has {n_objects}")
    return request
