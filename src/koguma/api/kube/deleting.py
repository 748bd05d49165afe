"""Deletes of the Kubernetes form: one object or many; one with finalizers goes with the last of them."""

from collections.abc import Sequence
from typing import Final

import msgspec
from aiohttp import web

from koguma.api import plain, tracing
from koguma.api.call import Call
from koguma.api.kube import bodies, options, status
from koguma.api.kube.answers import Answers, sent
from koguma.api.kube.finding import Finder
from koguma.api.kube.options import DeleteOptions
from koguma.api.kube.reading import KubeReads
from koguma.api.kube.target import RequestTarget, check, check_writable
from koguma.application import advice, compare_and_swap, kube_admission, namespaces
from koguma.application.context import Context
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

    async def delete(self, call: Call, target: RequestTarget) -> web.StreamResponse:
        """One object: a Status when it is gone, the object itself while something holds it."""
        check_writable(self._context, target, "delete")
        check(self._context, call.user, target, "delete")
        asked = options.of_delete(call, await bodies.options(call))
        change, warnings = await self._deleted(call, target, asked)
        if change.op is Op.DELETE:
            return sent(msgspec.json.encode(status.deleted(target, change.resource)), warnings=warnings)
        if asked.is_dry:  # it was never stored like this, so its bytes are not kept
            document = self._answers.shown.seen(change.resource, target.endpoint, call.user)
            return self._answers.document(call, target.endpoint, document, warnings=warnings)
        return self._answers.one(call, target, change.resource, warnings=warnings)

    async def delete_many(self, call: Call, target: RequestTarget) -> web.StreamResponse:
        """All objects that the selectors fit, each for itself; answers with what they were."""
        check_writable(self._context, target, "deletecollection")
        fits = self._reading.filter(call, target)
        check(self._context, call.user, target, "deletecollection")
        asked = options.of_delete(call, await bodies.options(call))
        page = self._finder.page(target, fits, options.limit(call), "", None)
        done: list[Resource] = []
        warnings: list[str] = []
        for spot, resource in page.objects:
            at = msgspec.structs.replace(target, name=spot.name)
            just_this = msgspec.structs.replace(asked, uid=asked.uid or resource.uid)
            try:
                _, told = await self._deleted(call, at, just_this)
            except (Conflict, NotFound):
                continue  # somebody else deleted it in between, or it is not the one that was meant
            done.append(resource)
            warnings += told
        meta = {"resourceVersion": str(self._context.state.revision)}
        return self._answers.many(call, target, done, meta, warnings)

    async def _deleted(
        self, call: Call, target: RequestTarget, asked: DeleteOptions
    ) -> tuple[Change, tuple[str, ...]]:
        """Delete what a target names, whatever is written to it in between, if it is what was meant.

        Also what the caller should hear about it.
        """
        found: Resource | Unreadable | None = None

        def stored() -> Resource | Unreadable | None:
            return self._finder.find(target.endpoint, target.where, target.name)

        async def attempt() -> tuple[Change, tuple[str, ...]]:
            nonlocal found
            found = stored()
            if found is None:
                raise NotFound
            if isinstance(found, Resource):
                _check_preconditions(found, asked)
            return await self._delete(call, found, asked)

        what = f'{target.endpoint.qualified} "{target.name}"'
        return await compare_and_swap.retried(attempt, what, lambda: stored() != found)

    async def _delete(
        self, call: Call, found: Resource | Unreadable, asked: DeleteOptions
    ) -> tuple[Change, tuple[str, ...]]:
        operations: Sequence[Operation] = (Delete(found.key, found.revision),)
        if isinstance(found, Resource):
            if found.kind == namespaces.NAMESPACE:
                namespaces.check_deletable(self._context, found.name)
            operations = kube_admission.deletion(self._context, _held(found, asked.policy), found.revision)
        left = await advice.before_deletion(self._context, [found] if isinstance(found, Resource) else [])
        changes = await self._commit(call, operations, asked)
        told = await advice.deletion_warnings(self._context, left, changes if asked.is_dry else None)
        change = next(change for change in changes if change.resource.key == found.key)
        return change, tuple(text for each in told for text in each)

    async def _commit(
        self, call: Call, operations: Sequence[Operation], asked: DeleteOptions
    ) -> tuple[Change, ...]:
        transaction = Transaction(tuple(operations), call.user.name, plain.reason(call))
        store = self._context.store
        return (
            store.preview(transaction)
            if asked.is_dry
            else await tracing.timed("store write", store.write(transaction))
        )


def _held(resource: Resource, policy: str) -> Resource:
    """The object with the finalizer of how its dependents are to be treated."""
    finalizer = _FINALIZERS.get(policy)
    meta = resource.meta
    if finalizer is None or finalizer in meta.finalizers or meta.deletion_timestamp:
        return resource
    meta = msgspec.structs.replace(meta, finalizers=(*meta.finalizers, finalizer))
    return msgspec.structs.replace(resource, meta=meta)


def _check_preconditions(found: Resource, asked: DeleteOptions) -> None:
    if asked.uid and asked.uid != found.uid:
        raise Conflict(
            f"Precondition failed: UID in precondition: {asked.uid}, UID in object meta: {found.uid}"
        )
    if asked.revision is not None and asked.revision != found.revision:
        raise Conflict(
            f"Precondition failed: ResourceVersion in precondition: {asked.revision},"
            f" ResourceVersion in object meta: {found.revision}"
        )
