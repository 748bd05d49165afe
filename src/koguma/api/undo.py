"""`POST /_undo`: takes the transaction of a revision back, by a new one.

It goes through all that any write of the user goes through: his rights, admission, webhooks and quotas.
"""

from collections.abc import Sequence

import msgspec
from aiohttp import web

from koguma.access.authorizer import WRITE_VERBS
from koguma.api import change_reason, plain, reasons
from koguma.api.call import Call, answer_json
from koguma.api.history import difference, item, revision_in
from koguma.api.plain import PlainObjects
from koguma.api.proxy_plans import ProxyPlans
from koguma.application import advice, compare_and_swap, history, quota, transactions, undo
from koguma.application.admission_review import DELETE
from koguma.application.context import Context
from koguma.application.transactions import MeshSecretName
from koguma.application.undo import UndoPlan, UndoStep
from koguma.application.visible_objects import VisibleObjects
from koguma.application.write_access import WriteAccess
from koguma.core.admission import Admitted, FieldValidation
from koguma.identity.proxy_types import SIDECAR
from koguma.model.errors import Forbidden, NotAllowed
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.store.contract import Change, Operation, Transaction


class Undo:
    """Handler of `/_undo`."""

    def __init__(self, context: Context, objects: PlainObjects, plans: ProxyPlans) -> None:
        self._context = context
        self._objects = objects
        self._plans = plans

    async def undo(self, call: Call) -> web.StreamResponse:
        """Take the transaction of a revision back, or only say what that would do."""
        context = self._context
        context.access.check_any(call.user, WRITE_VERBS)
        revision = revision_in(call.query.get("revision"), "revision")
        discards = call.flag("discardLater")
        as_of = revision_in(call.query.get("asOf"), "asOf", 0)
        undone = history.shown(await undo.transaction_at(context, revision))
        self._check_readable(call, undone)
        steps: tuple[UndoStep, ...] = ()

        async def attempt() -> web.StreamResponse:
            nonlocal steps
            plan = await undo.planned(context, undone)
            steps = tuple(plan.steps)
            self._check_later(call, plan, as_of, discards=discards)
            return await self._undone(call, plan, revision)

        def may_retry() -> bool:
            return any(context.state.get(_key(step)) != step.current for step in steps)

        return await compare_and_swap.retried(attempt, "one of the objects", may_retry)

    def _check_readable(self, call: Call, undone: Sequence[Change]) -> None:
        """Who may not read all that a transaction wrote learns nothing of it."""
        if not all(history.may_read(self._context, call.user, change.resource) for change in undone):
            raise Forbidden(
                f'user "{call.user}" cannot undo this revision: it wrote objects that this user may not read'
            )

    def _check_later(self, call: Call, plan: UndoPlan, as_of: int, *, discards: bool) -> None:
        if not all(history.may_read(self._context, call.user, change.resource) for change in plan.later):
            raise Forbidden(
                f'user "{call.user}" cannot undo this revision: others have written objects since that would'
                " be lost, and that this user may not read"
            )
        if not discards:
            undo.check_later(plan)
        newer = [change for change in plan.later if as_of and change.revision > as_of]
        if newer:
            undo.check_later(plan._replace(later=newer))

    async def _undone(self, call: Call, plan: UndoPlan, revision: int) -> web.StreamResponse:
        context, is_dry = self._context, plain.dry_run(call)
        admitted, operations, deleted = await self._operations(call, plan)
        changed = [difference(context, call.user, step.current, step.wanted) for step in plan.steps]
        answer: dict[str, Json] = {
            "undone": [item(context, change) for change in plan.undone],
            "discarded": [item(context, change) for change in plan.later],
            "changes": changed,
            "asOf": context.store.state.revision,
        }
        if not plan.steps:
            return answer_json({**answer, "warnings": [*plan.warnings, "nothing is left to take back"]})
        text = change_reason.in_header(call) or f"undo of revision {revision}"
        transaction = Transaction(tuple(operations), call.user.name, text)
        before_deletion = await advice.before_deletion(context, deleted)
        changes = context.store.preview(transaction) if is_dry else await context.store.write(transaction)
        dry_run_changes = changes if is_dry else None
        texts = await advice.write_warnings(context, admitted, dry_run_changes)
        texts += await advice.deletion_warnings(context, before_deletion, dry_run_changes)
        answer["warnings"] = [*plan.warnings, *dict.fromkeys(text for each in texts for text in each)]
        if is_dry:
            return answer_json({**answer, "dryRun": True, **await self._plan(call, plan, changes)})
        newest = max((change.revision for change in changes), default=context.store.state.revision)
        return answer_json({**answer, "revision": newest}, headers={"Koguma-Revision": str(newest)})

    async def _plan(self, call: Call, plan: UndoPlan, changes: Sequence[Change]) -> dict[str, Json]:
        """What it would do to every proxy, where that is asked for."""
        if not call.flag("plan"):
            return {}
        keys = frozenset(map(_key, plan.steps))
        visible = VisibleObjects(self._context, call.user, keys)
        return {"plan": await self._plans.of(changes, visible, keys)}

    async def _operations(
        self, call: Call, plan: UndoPlan
    ) -> tuple[list[Admitted], list[Operation], list[Resource]]:
        """The operations of all steps, each admitted as any write of this user."""
        context, objects = self._context, self._objects
        operations: list[Operation] = []
        admitted: list[Admitted] = []
        deleted: list[Resource] = []
        secrets = frozenset(
            MeshSecretName(step.wanted.mesh, step.wanted.core_name)
            for step in plan.steps
            if step.wanted is not None and step.kind.name == "Secret"
        )
        deleted_meshes = {
            _key(step).name for step in plan.steps if step.kind.name == "Mesh" and not step.wanted
        }
        for step in plan.steps:
            if step.kind.read_only_at(context.control_plane):
                raise NotAllowed(reasons.read_only(step.kind, context))
            if step.wanted is not None:
                access = WriteAccess(call.user)
                draft, texts = await objects.mutated(call, access, undo.draft_of(step), step.current)
                written, ops = transactions.put(
                    context, access, draft, step.current, FieldValidation.STRICT, secrets_in_request=secrets
                )
                texts += await objects.validate(call, written.resource, step.current)
                admitted.append(_with_warnings(written, texts))
                operations += ops
            elif step.current is not None:
                current = step.current
                context.check(call.user, "delete", step.kind, current.mesh, current.core_name)
                if current.mesh in deleted_meshes and step.kind.name != SIDECAR.kind:
                    continue  # it goes with its mesh, which must have no Dataplanes
                await objects.webhooks.delete(objects.admission_request(call, current, current, DELETE))
                operations += transactions.delete(context, current, current.revision)
                deleted.append(current)
        restored = [each.resource for each in admitted]
        operations += await transactions.mesh_side_effects(context, restored, are_restored=True)
        operations.append(quota.requirement(context))
        return admitted, operations, deleted


def _key(step: UndoStep) -> Key:
    resource = step.current or step.wanted
    assert resource is not None
    return resource.key


def _with_warnings(admitted: Admitted, texts: Sequence[str]) -> Admitted:
    return msgspec.structs.replace(admitted, warnings=(*admitted.warnings, *texts))
