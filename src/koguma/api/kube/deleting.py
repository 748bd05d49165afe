"""Deletes of the Kubernetes form: one object or many; one with finalizers goes with the last of them."""

from collections.abc import Sequence
from typing import Final

import msgspec
from aiohttp import web

from koguma.api import change_reason, tracing
from koguma.api.call import Call
from koguma.api.kube import bodies, options, status
from koguma.api.kube.answers import Answers, encoded_response
from koguma.api.kube.finding import Finder
from koguma.api.kube.options import DeleteOptions
from koguma.api.kube.reading import KubeReads
from koguma.api.kube.target import RequestTarget, check, check_writable
from koguma.application import admission_review, advice, compare_and_swap, kube_admission, namespaces
from koguma.application.admission_review import AdmissionRequest
from koguma.application.context import Context
from koguma.application.webhooks import AdmissionWebhooks
from koguma.kube import owner_graph
from koguma.model.errors import Conflict, NotFound
from koguma.model.resource import Resource
from koguma.store.contract import Change, Delete, Op, Operation, Transaction, Unreadable

_FINALIZERS: Final = {"Foreground": owner_graph.FOREGROUND, "Orphan": owner_graph.ORPHAN}


class KubeDeletes:
    """Handlers of delete and deletecollection."""

    def __init__(self, context: Context, finder: Finder, reading: KubeReads, answers: Answers) -> None:
        self._context = context
        self._finder = finder
        self._reading = reading
        self._answers = answers
        self._webhooks = AdmissionWebhooks(context)

    async def delete(self, call: Call, target: RequestTarget) -> web.StreamResponse:
        """Delete one object: a Status when it is gone, the object itself while it has finalizers."""
        check_writable(self._context, target, "delete")
        check(self._context, call.user, target, "delete")
        delete_options = options.of_delete(call, await bodies.options(call))
        change, warnings = await self._deleted(call, target, delete_options)
        if change.op is Op.DELETE:
            return encoded_response(
                msgspec.json.encode(status.deleted(target, change.resource)), warnings=warnings
            )
        shown = (await self._context.conversions.shown([change.resource], target.endpoint))[0]
        if delete_options.is_dry:  # it was never stored like this, so its bytes must not be cached
            document = self._answers.encoder.visible_document(shown, target.endpoint, call.user)
            return self._answers.document(call, target.endpoint, document, warnings=warnings)
        return self._answers.one(call, target, shown, warnings=warnings)

    async def delete_many(self, call: Call, target: RequestTarget) -> web.StreamResponse:
        """Delete all objects that the selectors match, one by one; answers with the deleted objects."""
        check_writable(self._context, target, "deletecollection")
        matches = self._reading.filter(call, target)
        check(self._context, call.user, target, "deletecollection")
        delete_options = options.of_delete(call, await bodies.options(call))
        chunk = self._finder.chunk(target, matches, options.limit(call), "", None)
        deleted: list[Resource] = []
        warnings: list[str] = []
        for namespaced, resource in chunk.objects:
            object_target = msgspec.structs.replace(target, name=namespaced.name)
            for_this_object = msgspec.structs.replace(delete_options, uid=delete_options.uid or resource.uid)
            try:
                _, texts = await self._deleted(call, object_target, for_this_object)
            except (Conflict, NotFound):
                continue  # deleted or replaced by somebody else in between
            deleted.append(resource)
            warnings += texts
        meta = {"resourceVersion": str(self._context.state.revision)}
        deleted = await self._context.conversions.shown(deleted, target.endpoint)
        return self._answers.many(call, target, deleted, meta, warnings)

    async def _deleted(
        self, call: Call, target: RequestTarget, delete_options: DeleteOptions
    ) -> tuple[Change, tuple[str, ...]]:
        """Delete the object of a target, also where it is written in between; also gives warnings."""
        found: Resource | Unreadable | None = None

        def stored() -> Resource | Unreadable | None:
            return self._finder.find(target.endpoint, target.where, target.name)

        async def attempt() -> tuple[Change, tuple[str, ...]]:
            nonlocal found
            found = stored()
            if found is None:
                raise NotFound
            if isinstance(found, Resource):
                _check_preconditions(found, delete_options)
            admitted = await self._admitted(call, target, found, delete_options)
            change, warnings = await self._delete(call, found, delete_options)
            return change, (*admitted, *warnings)

        what = f'{target.endpoint.qualified} "{target.name}"'
        async with self._context.writes.turn(*target.object_name):
            return await compare_and_swap.retried(attempt, what, lambda: stored() != found)

    async def _admitted(
        self,
        call: Call,
        target: RequestTarget,
        found: Resource | Unreadable,
        delete_options: DeleteOptions,
    ) -> tuple[str, ...]:
        """Ask the webhooks, unless there is nothing that they could read; warnings for the writer."""
        if not isinstance(found, Resource):
            return ()
        return await self._webhooks.delete(
            AdmissionRequest(
                admission_review.DELETE,
                target.endpoint,
                target.where,
                target.name,
                call.user,
                found,
                is_dry=delete_options.is_dry,
                options={"propagationPolicy": delete_options.policy} if delete_options.policy else {},
            )
        )

    async def _delete(
        self, call: Call, found: Resource | Unreadable, delete_options: DeleteOptions
    ) -> tuple[Change, tuple[str, ...]]:
        operations: Sequence[Operation] = (Delete(found.key, found.revision),)
        if isinstance(found, Resource):
            if found.kind == namespaces.NAMESPACE:
                namespaces.check_deletable(self._context, found.name)
            operations = kube_admission.deletion(
                self._context, _with_propagation_finalizer(found, delete_options.policy), found.revision
            )
        before = await advice.before_deletion(self._context, [found] if isinstance(found, Resource) else [])
        changes = await self._commit(call, operations, delete_options)
        warnings = await advice.deletion_warnings(
            self._context, before, changes if delete_options.is_dry else None
        )
        change = next(change for change in changes if change.resource.key == found.key)
        return change, tuple(text for texts in warnings for text in texts)

    async def _commit(
        self, call: Call, operations: Sequence[Operation], delete_options: DeleteOptions
    ) -> tuple[Change, ...]:
        transaction = Transaction(tuple(operations), call.user.name, change_reason.in_header(call))
        store = self._context.store
        return (
            store.preview(transaction)
            if delete_options.is_dry
            else await tracing.timed("store write", store.write(transaction))
        )


def _with_propagation_finalizer(resource: Resource, policy: str) -> Resource:
    """The object with the finalizer of its propagation policy (foreground or orphan)."""
    finalizer = _FINALIZERS.get(policy)
    meta = resource.meta
    if finalizer is None or finalizer in meta.finalizers or meta.deletion_timestamp:
        return resource
    meta = msgspec.structs.replace(meta, finalizers=(*meta.finalizers, finalizer))
    return msgspec.structs.replace(resource, meta=meta)


def _check_preconditions(found: Resource, delete_options: DeleteOptions) -> None:
    if delete_options.uid and delete_options.uid != found.uid:
        raise Conflict(
            f"Precondition failed: UID in precondition: {delete_options.uid}, UID in object meta: {found.uid}"
        )
    if delete_options.revision is not None and delete_options.revision != found.revision:
        raise Conflict(
            f"Precondition failed: ResourceVersion in precondition: {delete_options.revision},"
            f" ResourceVersion in object meta: {found.revision}"
        )
