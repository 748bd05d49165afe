"""Writes of the Kubernetes form: create, replace, patch and apply, with dry runs and warnings.

A write that loses to a concurrent one is planned again on what is stored then.
"""

import secrets
from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec
from aiohttp import web

from koguma.api import plain, tracing
from koguma.api.call import Call
from koguma.api.kube import bodies, options
from koguma.api.kube.answers import Answers
from koguma.api.kube.finding import Finder
from koguma.api.kube.request import WriteRequest
from koguma.api.kube.status import TargetedError
from koguma.api.kube.target import RequestTarget, check, check_writable
from koguma.api.kube.write_planner import WritePlanner
from koguma.application import advice, compare_and_swap, transactions
from koguma.application.context import Context
from koguma.application.kube_admission import PlannedWrite
from koguma.core.admission import Admitted
from koguma.kube import codec, namespaced_names, native, strategic
from koguma.kube.catalog import Catalog
from koguma.kube.codec import DecodedObject
from koguma.kube.registry import KubeEndpoint
from koguma.model import json_patch
from koguma.model.errors import AlreadyExists, BadRequest, Conflict, Invalid, KogumaError, NotFound
from koguma.model.resource import Resource
from koguma.model.schema import Json, json_type
from koguma.model.violation import Violation
from koguma.store.contract import Change, Op, Transaction, Unreadable

_NAME_TRIES: Final = 8
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_GENERATED: Final = 5
_BASE_MAX: Final = 58

Stored = Resource | Unreadable | None
Patch = Callable[[Json, Json], Json]


class KubeWrites:
    """Handlers of everything that writes objects, one at a time."""

    def __init__(
        self,
        context: Context,
        finder: Finder,
        answers: Answers,
        known: Catalog,
        clock: Callable[[], datetime],
    ) -> None:
        self._context = context
        self._finder = finder
        self._answers = answers
        self._making = WritePlanner(context, answers.shown, known, clock)

    async def create(self, call: Call, target: RequestTarget) -> web.StreamResponse:
        """A new object."""
        self._check(call, target, "create")
        request = WriteRequest(call, target, options.of_write(call), await bodies.document(call))
        written = _read(request)
        if written.draft.revision:
            raise BadRequest("resourceVersion should not be set on objects to be created")
        for attempt in range(_NAME_TRIES):
            named = _named(written)
            at = request.named(named.draft.name)
            try:
                return await self._created(at, named)
            except AlreadyExists as error:
                if written.draft.name or attempt == _NAME_TRIES - 1:
                    raise TargetedError(error, at.target) from None
            except KogumaError as error:
                raise TargetedError(error, at.target) from None
        raise AssertionError("the last attempt returns or raises")

    async def _created(self, request: WriteRequest, written: DecodedObject) -> web.StreamResponse:
        def make(before: Stored) -> PlannedWrite:
            if isinstance(before, Resource):
                raise AlreadyExists(f'{request.endpoint.qualified} "{before.name}" already exists')
            return self._making.new(request, written)

        return await self._written(request, make)

    async def replace(self, call: Call, target: RequestTarget) -> web.StreamResponse:
        """The whole object, or its status, as the body says; a few kinds come into being by it."""
        self._check(call, target, "update")
        request = WriteRequest(call, target, options.of_write(call), await bodies.document(call))

        def make(before: Stored) -> PlannedWrite:
            if before is None and not target.subresource and native.made_by_update(target.endpoint.kind):
                check(self._context, call.user, target, "create")
                given = codec.read(request.given.value, target.endpoint, target.where, target.name)
                return self._making.new(request, given)
            return self._making.changed(request, _found(before), request.given.value)

        return await self._written(request, make)

    async def patch(self, call: Call, target: RequestTarget) -> web.StreamResponse:
        """Parts of an object, in one of four ways."""
        self._check(call, target, "patch")
        applies = call.media_type == bodies.APPLY
        asked = options.of_write(call, applies=applies)
        change = None if applies else _patch_of(call.media_type, target.endpoint)
        request = WriteRequest(call, target, asked, await bodies.patch(call))

        def make(before: Stored) -> PlannedWrite:
            if change is None:
                return self._making.applied(request, self._applied_to(request, before))
            found = _found(before)
            live = self._answers.shown.seen(found, target.endpoint, call.user)
            return self._making.changed(request, found, change(live, request.given.value))

        return await self._written(request, make)

    def _applied_to(self, request: WriteRequest, before: Stored) -> Resource | None:
        """What an apply goes to; where nothing is, it creates, if its user may do that too."""
        given = request.given.value
        if not isinstance(given, dict):
            raise BadRequest(f"an object is needed, not a value of type {json_type(given)}")
        if isinstance(before, Resource):
            return before
        if request.target.subresource:
            raise NotFound
        check(self._context, request.call.user, request.target, "create")
        return None

    def _check(self, call: Call, target: RequestTarget, verb: str) -> None:
        check_writable(self._context, target, verb)
        check(self._context, call.user, target, verb)

    async def _written(
        self, request: WriteRequest, make: Callable[[Stored], PlannedWrite]
    ) -> web.StreamResponse:
        """Write what is made of what is stored, and make it again where somebody was faster."""
        told = request.repeated()
        before: Stored = None

        async def attempt() -> web.StreamResponse:
            nonlocal before
            before = self._stored(request.target)
            made = make(before)
            made = msgspec.structs.replace(made, warnings=(*told, *made.warnings))
            return await self._answered(request, made, before)

        def may_retry() -> bool:
            return _revision(self._stored(request.target)) != _revision(before)

        what = f'{request.endpoint.qualified} "{request.target.name}"'
        return await compare_and_swap.retried(attempt, what, may_retry)

    def _stored(self, target: RequestTarget) -> Stored:
        return self._finder.find(target.endpoint, target.where, target.name)

    async def _answered(
        self, request: WriteRequest, made: PlannedWrite, before: Stored
    ) -> web.StreamResponse:
        context, call, is_dry = self._context, request.call, request.options.is_dry
        operations = list(made.operations(context))
        if not made.is_gone:
            operations += await transactions.mesh_side_effects(context, [made.resource])
        transaction = Transaction(tuple(operations), call.user.name, plain.reason(call))
        changes = (
            context.store.preview(transaction)
            if is_dry
            else await tracing.timed("store write", context.store.write(transaction))
        )
        change = next(c for c in changes if c.resource.key == made.resource.key)
        status = 200 if isinstance(before, Resource) else 201
        warnings = await self._warnings(request, made, change, changes if is_dry else None)
        if is_dry:
            document = self._tried(request, change, before)
            return self._answers.document(call, request.endpoint, document, status, warnings)
        return self._answers.one(call, request.target, change.resource, status, warnings)

    def _tried(self, request: WriteRequest, change: Change, before: Stored) -> Json:
        """What a dry run would store, with no revision that nobody could have seen."""
        document = self._answers.shown.seen(change.resource, request.endpoint, request.call.user)
        if before is None:
            del document["metadata"]["resourceVersion"]
        else:
            document["metadata"]["resourceVersion"] = str(before.revision)
        return document

    async def _warnings(
        self, request: WriteRequest, made: PlannedWrite, change: Change, tried: advice.DryRunChanges
    ) -> tuple[str, ...]:
        if change.op is Op.DELETE or namespaced_names.is_native(request.endpoint.kind):
            return made.warnings
        told = await advice.write_warnings(self._context, [Admitted(made.resource, made.warnings)], tried)
        return tuple(told[0])


def _revision(stored: Stored) -> int:
    return stored.revision if stored is not None else 0


def _found(stored: Stored) -> Resource:
    if stored is None:
        raise NotFound
    if isinstance(stored, Unreadable):
        raise Conflict(f"it is stored and cannot be read ({stored.error}); delete it, then create it")
    return stored


def _patch_of(media: str, endpoint: KubeEndpoint) -> Patch:
    if media == json_patch.MERGE_PATCH_TYPE:
        return json_patch.merge_patched
    if media == json_patch.JSON_PATCH_TYPE:
        return lambda live, change: json_patch.json_patched(live, change, json_patch.KUBERNETES)
    if media == bodies.STRATEGIC and endpoint.strategic:
        return lambda live, change: strategic.merged(live, change, strategic.hints_of(endpoint.kind_name))
    taken = [json_patch.JSON_PATCH_TYPE, json_patch.MERGE_PATCH_TYPE, bodies.APPLY]
    raise bodies.unknown_media([*taken, bodies.STRATEGIC] if endpoint.strategic else taken)


def _read(request: WriteRequest) -> DecodedObject:
    """What the document of a new object asks for; a refusal names the object that it is about."""
    given, target = request.given.value, request.target
    try:
        return codec.read(given, target.endpoint, target.where, "")
    except Invalid as error:
        metadata = given.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        raise TargetedError(error, request.named(name if isinstance(name, str) else "").target) from None


def _named(written: DecodedObject) -> DecodedObject:
    draft = written.draft
    if draft.name:
        return written
    if not written.generate_name:
        raise Invalid([Violation("metadata.name", "name or generateName is required", "required")])
    ending = "".join(secrets.choice(_LETTERS) for _ in range(_GENERATED))
    name = f"{written.generate_name[:_BASE_MAX]}{ending}"
    return msgspec.structs.replace(written, draft=msgspec.structs.replace(draft, name=name))
