"""Plan: what `/_apply` of the same objects would do to every proxy, and nothing is written.

`POST /_plan` takes what `/_apply` takes, and under `delete` objects to be deleted:
`{"objects": [...], "delete": [{"type": "MeshTimeout", "name": "t", "mesh": "default"}]}`. The right to read
each of these objects is enough. The answer is about the proxies and objects that the user may read, and no
number or sentence depends on others; `isPartial` says by his rights alone that there may be other proxies.
On Global the zones are asked (`proxy_plans`); those that did not answer are in `unknownZones`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from aiohttp import web

from koguma.api import plain, reasons
from koguma.api.apply import Apply, ApplyRequest, named_at
from koguma.api.call import Call, answer_json
from koguma.api.proxy_plans import ProxyPlans
from koguma.application import advice, transactions
from koguma.application.context import Context
from koguma.application.visible_objects import VisibleObjects
from koguma.application.webhooks import WebhookDenied, WebhookFailed
from koguma.application.write_access import WriteAccess
from koguma.core.admission import Admitted
from koguma.core.plan.model import ObjectChange, Plan
from koguma.model.errors import Invalid, KogumaError, NotAllowed
from koguma.model.resource import Key, Resource
from koguma.model.violation import Violation
from koguma.store.contract import Change, Operation, Transaction

_READ = ("get",)


class _PlannedDeletion(NamedTuple):
    """An object that is to be deleted, and the field of the request that names it."""

    field: str
    resource: Resource


class _Prepared(msgspec.Struct, frozen=True):
    """The change of a request: its objects, and what would be stored."""

    admitted: Sequence[Admitted]
    deleted: Sequence[Resource]
    changes: Sequence[Change]

    @property
    def keys(self) -> frozenset[Key]:
        """The objects that the request names."""
        return frozenset(
            (*(each.resource.key for each in self.admitted), *(each.key for each in self.deleted))
        )


class Plans:
    """Handler of `/_plan`."""

    def __init__(self, context: Context, apply: Apply, plans: ProxyPlans) -> None:
        self._context = context
        self.apply = apply
        self._plans = plans

    async def plan(self, call: Call) -> web.StreamResponse:
        """Say what would happen."""
        context = self._context
        context.access.check_any(call.user, _READ)
        envoy_fields = call.flag("envoy")
        call.is_trial = True
        unknown_fields = plain.field_validation(call)
        request = self.apply.request(await call.documents(), may_delete=True)
        access = WriteAccess(call.user, verb="get")
        admitted, operations, pruned = await self.apply.prepared(call, request, unknown_fields, access)
        named = self._deleted(call, request, admitted)
        texts = {each.resource.key: await self._asked(call, each) for each in named}
        deleted = [*pruned, *(each.resource for each in named)]
        prepared = self._previewed(call, admitted, operations, deleted, len(pruned))
        visible = VisibleObjects(context, call.user, prepared.keys)
        plan = await self._plans.of(prepared.changes, visible, prepared.keys, envoy_fields=envoy_fields)
        plan = await self._with_warnings(plan, prepared, visible, texts)
        call.is_compressible = True
        return answer_json(plan)

    async def _asked(self, call: Call, deletion: _PlannedDeletion) -> tuple[str, ...]:
        """What webhooks say to a deletion."""
        try:
            return await self.apply.ask_about_deletion(call, deletion.resource)
        except (WebhookDenied, WebhookFailed) as error:
            raise named_at(deletion.field, error) from None

    def _deleted(
        self, call: Call, request: ApplyRequest, admitted: Sequence[Admitted]
    ) -> list[_PlannedDeletion]:
        """The objects that a request wants to delete by name, each once."""
        written = {each.resource.key for each in admitted}
        found: dict[Key, _PlannedDeletion] = {}
        violations: list[Violation] = []
        for index, name in enumerate(request.delete):
            try:
                kind = self._context.kinds.word(name.type)
                mesh = name.mesh if kind.is_mesh_scoped else ""
                self._context.check(call.user, "get", kind, mesh, name.name)
                if kind.read_only_at(self._context.control_plane):
                    raise NotAllowed(reasons.read_only(kind, self._context))
                resource = self._context.find(call.user, kind, mesh, name.name)
            except KogumaError as error:
                found_wrong = error.violations or (Violation("", error.detail),)
                violations += (Violation(f"delete[{index}]", each.message, each.rule) for each in found_wrong)
                continue
            if resource.key in written:
                text = f"{resource.key} is among the objects to be written, too"
                violations.append(Violation(f"delete[{index}]", text, "duplicate"))
            found.setdefault(resource.key, _PlannedDeletion(f"delete[{index}]", resource))
        if violations:
            raise Invalid(violations)
        return [found[key] for key in sorted(found, key=lambda key: (key.kind == "Mesh", key))]

    def _previewed(
        self,
        call: Call,
        admitted: Sequence[Admitted],
        operations: Sequence[Operation],
        deleted: Sequence[Resource],
        n_pruned: int,
    ) -> _Prepared:
        written = list(operations)
        for resource in deleted[n_pruned:]:  # the operations of those before are there
            written += transactions.delete(self._context, resource, resource.revision)
        changes = self._context.store.preview(Transaction(tuple(written), call.user.name, ""))
        return _Prepared(admitted, deleted, changes)

    async def _with_warnings(
        self,
        plan: Plan,
        prepared: _Prepared,
        visible: VisibleObjects,
        of_webhooks: Mapping[Key, tuple[str, ...]],
    ) -> Plan:
        """The plan with the warnings that a write would be answered with."""
        context = self._context
        before = await advice.before_deletion(context, prepared.deleted)
        texts = await advice.write_warnings(context, prepared.admitted, prepared.changes, visible)
        texts += await advice.deletion_warnings(context, before, prepared.changes, visible)
        resources = (*(each.resource for each in prepared.admitted), *prepared.deleted)
        by_name = {
            (resource.kind, resource.mesh, resource.core_name): (
                *of_webhooks.get(resource.key, ()),
                *warnings,
            )
            for resource, warnings in zip(resources, texts, strict=True)
        }

        def with_own(each: ObjectChange) -> ObjectChange:
            warnings = by_name.get((each.type, each.mesh, each.name), ())
            return msgspec.structs.replace(each, warnings=warnings) if warnings else each

        return msgspec.structs.replace(plan, objects=tuple(map(with_own, plan.objects)))
