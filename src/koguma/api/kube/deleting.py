"""Deleting: one object or many; those with finalizers go when the last of them is gone."""

from collections.abc import Sequence
from typing import Final

import msgspec
from aiohttp import web

from koguma.api import plain, tracing, transactions
from koguma.api.call import Call
from koguma.api.context import Context
from koguma.api.kube import admitting, bodies, options, status
from koguma.api.kube.answers import Answers, sent
from koguma.api.kube.finding import Finder
from koguma.api.kube.options import DeleteOptions
from koguma.api.kube.reading import Reading
from koguma.api.kube.target import Target, check
from koguma.core.identity import DEFAULT_NAMESPACE
from koguma.kube import owners, places
from koguma.model.errors import Conflict, Forbidden, NotAllowed, NotFound
from koguma.model.resource import Resource
from koguma.store.contract import Change, Delete, Op, Operation, Put, Transaction, Unreadable

_TRIES: Final = 50
_FINALIZERS: Final = {"Foreground": owners.FOREGROUND, "Orphan": owners.ORPHAN}


class Deleting:
    """Handlers of delete and deletecollection."""

    def __init__(self, context: Context, finder: Finder, reading: Reading, answers: Answers) -> None:
        self._context = context
        self._finder = finder
        self._reading = reading
        self._answers = answers

    async def delete(self, call: Call, target: Target) -> web.StreamResponse:
        """One object: a Status when it is gone, the object itself while something holds it."""
        self._check_writable(target)
        check(self._context, call.user, target, "delete")
        asked = options.of_delete(call, await bodies.options(call))
        for _ in range(_TRIES):
            found = self._finder.find(target.endpoint, target.where, target.name)
            if found is None:
                raise NotFound
            if isinstance(found, Unreadable):
                return await self._remove_broken(call, target, found, asked)
            _check_preconditions(found, asked)
            try:
                change = await self._delete(call, target, found, asked)
            except Conflict:
                if asked.revision is not None:
                    raise
                continue
            if change.op is Op.DELETE:
                return sent(msgspec.json.encode(status.deleted(target, found)))
            return self._answers.one(call, target, change.resource)
        raise Conflict(f'{target.endpoint.qualified} "{target.name}" is being written by others all the time')

    async def delete_many(self, call: Call, target: Target) -> web.StreamResponse:
        """All objects that the selectors fit, each for itself; answers with what they were."""
        self._check_writable(target)
        fits = self._reading.filter(call, target)
        check(self._context, call.user, target, "deletecollection")
        asked = options.of_delete(call, await bodies.options(call))
        page = self._finder.page(target, fits, options.limit(call), "", None)
        done: list[Resource] = []
        for spot, resource in page.objects:
            at = msgspec.structs.replace(target, name=spot.name)
            try:
                await self._delete(call, at, resource, asked)
            except (Conflict, NotFound):
                continue  # somebody else wrote or deleted it in between
            done.append(resource)
        meta = {"resourceVersion": str(self._context.state.revision)}
        return self._answers.many(call, target, done, meta, ())

    async def _delete(self, call: Call, target: Target, found: Resource, asked: DeleteOptions) -> Change:
        operations = self._operations(target, _held(found, asked.policy))
        changes = await self._commit(call, operations, asked)
        return next(change for change in changes if change.resource.key == found.key)

    def _operations(self, target: Target, resource: Resource) -> Sequence[Operation]:
        if not places.is_native(target.endpoint.kind):
            return transactions.delete(self._context, resource, resource.revision)
        if resource.kind == admitting.NAMESPACE:
            self._check_namespace(resource.name)
            ends = transactions.ending(resource)
            return (Put(msgspec.structs.replace(ends, status={"phase": "Terminating"}), resource.revision),)
        if resource.meta.finalizers:
            return (Put(transactions.ending(resource), resource.revision),)
        return (Delete(resource.key, resource.revision),)

    def _check_namespace(self, name: str) -> None:
        place = self._context.place
        if name in (DEFAULT_NAMESPACE, place.system_namespace):
            raise Forbidden(f'namespaces "{name}" is forbidden: this namespace may not be deleted')
        mesh = places.mesh_of(name)
        if mesh is not None:
            raise Forbidden(f'namespaces "{name}" is forbidden: it goes with the mesh "{mesh}"; delete that')

    async def _remove_broken(
        self, call: Call, target: Target, broken: Unreadable, asked: DeleteOptions
    ) -> web.StreamResponse:
        changes = await self._commit(call, (Delete(broken.key, broken.revision),), asked)
        return sent(msgspec.json.encode(status.deleted(target, changes[0].resource)))

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

    def _check_writable(self, target: Target) -> None:
        kind = target.endpoint.kind
        if not places.is_native(kind) and kind.read_only_at(self._context.place):
            raise NotAllowed(plain.read_only_reason(kind, self._context))


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
