"""Writes of the Kubernetes form: create, replace, patch and apply, with dry runs and warnings.

A write that loses to a concurrent one is planned again on what is stored then.
"""

import secrets
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final, NamedTuple

import msgspec
from aiohttp import web

from koguma.api import change_reason, tracing
from koguma.api.call import Call
from koguma.api.kube import bodies, options
from koguma.api.kube.answers import Answers
from koguma.api.kube.finding import Finder
from koguma.api.kube.request import WriteRequest
from koguma.api.kube.status import TargetedError
from koguma.api.kube.target import RequestTarget, check, check_writable
from koguma.api.kube.write_planner import WritePlanner
from koguma.application import advice, compare_and_swap, namespaces, quota, transactions
from koguma.application.context import Context
from koguma.application.kube_admission import PlannedWrite
from koguma.application.webhooks import AdmissionWebhooks
from koguma.core.admission import Admitted
from koguma.kube import codec, namespaced_names, native, strategic
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
_SUFFIX_LENGTH: Final = 5
_GENERATE_NAME_MAX: Final = 58

Stored = Resource | Unreadable | None
Patch = Callable[[Json, Json], Json]


class CommittedWrite(NamedTuple):
    """A write that was committed, or would be in a dry run; what was stored before it, and its changes."""

    planned: PlannedWrite
    before: Stored
    changes: tuple[Change, ...]


class KubeWrites:
    """Handlers of create, update, patch and apply."""

    def __init__(
        self,
        context: Context,
        finder: Finder,
        answers: Answers,
        clock: Callable[[], datetime],
    ) -> None:
        self._context = context
        self._finder = finder
        self._answers = answers
        self._clock = clock
        self._webhooks = AdmissionWebhooks(context)
        self._planner = WritePlanner(context, answers.encoder, clock)

    async def create(self, call: Call, target: RequestTarget) -> web.StreamResponse:
        """Create an object."""
        self._check(call, target, "create")
        request = WriteRequest(call, target, options.of_write(call), await bodies.document(call))
        decoded = _read(request)
        if decoded.draft.revision:
            raise BadRequest("resourceVersion should not be set on objects to be created")
        for attempt in range(_NAME_TRIES):
            named = _named(decoded)
            named_request = request.named(named.draft.name)
            try:
                return await self._created(named_request, named)
            except AlreadyExists as error:
                if decoded.draft.name or attempt == _NAME_TRIES - 1:
                    raise TargetedError(error, named_request.target) from None
            except KogumaError as error:
                raise TargetedError(error, named_request.target) from None
        raise AssertionError("the last attempt returns or raises")

    async def _created(self, request: WriteRequest, written: DecodedObject) -> web.StreamResponse:
        async def plan(before: Stored) -> PlannedWrite:
            if isinstance(before, Resource):
                raise AlreadyExists(f'{request.endpoint.qualified} "{before.name}" already exists')
            return await self._planner.new(request, written)

        return await self._write(request, plan)

    async def replace(self, call: Call, target: RequestTarget) -> web.StreamResponse:
        """Update the whole object or its status; a few native kinds are created by an update."""
        self._check(call, target, "update")
        request = WriteRequest(call, target, options.of_write(call), await bodies.document(call))

        async def plan(before: Stored) -> PlannedWrite:
            if before is None and not target.subresource and native.made_by_update(target.endpoint.kind):
                check(self._context, call.user, target, "create")
                decoded = codec.read(request.body.value, target.endpoint, target.where, target.name)
                return await self._planner.new(request, decoded)
            return await self._planner.changed(request, _readable(before), request.body.value)

        return await self._write(request, plan)

    async def patch(self, call: Call, target: RequestTarget) -> web.StreamResponse:
        """Patch an object: JSON patch, merge patch, strategic merge patch or server-side apply."""
        self._check(call, target, "patch")
        is_apply = call.media_type == bodies.APPLY
        write_options = options.of_write(call, applies=is_apply)
        apply_patch = None if is_apply else _patch_of(call.media_type, target.endpoint)
        request = WriteRequest(call, target, write_options, await bodies.patch(call))

        async def plan(before: Stored) -> PlannedWrite:
            if apply_patch is None:
                return await self._planner.applied(request, self._applied_to(request, before))
            stored = _readable(before)
            live = self._answers.shown(stored, target, call.user)
            return await self._planner.changed(request, stored, apply_patch(live, request.body.value))

        return await self._write(request, plan)

    def _applied_to(self, request: WriteRequest, before: Stored) -> Resource | None:
        """The object that an apply changes; None where it creates one, which needs that right too."""
        config = request.body.value
        if not isinstance(config, dict):
            raise BadRequest(f"an object is needed, not a value of type {json_type(config)}")
        if isinstance(before, Resource):
            return before
        if request.target.subresource:
            raise NotFound
        self._check(request.call, request.target, "create")
        return None

    def _check(self, call: Call, target: RequestTarget, verb: str) -> None:
        check_writable(self._context, target, verb)
        check(self._context, call.user, target, verb)

    async def _write(
        self, request: WriteRequest, plan: Callable[[Stored], Awaitable[PlannedWrite]]
    ) -> web.StreamResponse:
        """Commit what `plan` makes of the stored object; plan again where a concurrent write was first."""
        before: Stored = None

        async def attempt() -> CommittedWrite:
            nonlocal before
            before = self._stored(request.target)
            planned = await plan(await self._shown(before, request.endpoint))
            if before is None and request.endpoint.namespaced:
                await namespaces.check_not_deleted(self._context, request.target.where, self._clock())
            stored = await self._context.in_storage_version(planned.resource)
            planned = msgspec.structs.replace(planned, resource=stored)
            return await self._commit(request, planned, before)

        def may_retry() -> bool:
            return _revision(self._stored(request.target)) != _revision(before)

        what = f'{request.endpoint.qualified} "{request.target.name}"'
        async with self._context.writes.turn(*request.target.object_name):
            committed = await compare_and_swap.retried(attempt, what, may_retry)
        return await self._answered(request, committed)

    async def _shown(self, stored: Stored, endpoint: KubeEndpoint) -> Stored:
        """What is stored, in the version that is written through."""
        if not isinstance(stored, Resource):
            return stored
        return (await self._context.conversions.shown([stored], endpoint))[0]

    def _stored(self, target: RequestTarget) -> Stored:
        return self._finder.find(target.endpoint, target.where, target.name)

    async def _commit(self, request: WriteRequest, planned: PlannedWrite, before: Stored) -> CommittedWrite:
        context, call = self._context, request.call
        request.check_decoded()
        stored = before if isinstance(before, Resource) else None
        warnings = await self._webhooks.validate(request.admission(stored), planned.resource)
        planned = msgspec.structs.replace(planned, warnings=(*planned.warnings, *warnings))
        operations = list(planned.operations(context))
        if not planned.is_gone:
            operations += await transactions.mesh_side_effects(context, [planned.resource])
        operations.append(quota.requirement(context))
        reason = change_reason.of_object(call, planned.resource, stored)
        transaction = Transaction(tuple(operations), call.user.name, reason)
        changes = (
            context.store.preview(transaction)
            if request.options.is_dry
            else await tracing.timed("store write", context.store.write(transaction))
        )
        return CommittedWrite(planned, before, changes)

    async def _answered(self, request: WriteRequest, committed: CommittedWrite) -> web.StreamResponse:
        call, planned, before = request.call, committed.planned, committed.before
        is_dry, changes = request.options.is_dry, committed.changes
        change = next(c for c in changes if c.resource.key == planned.resource.key)
        shown = await self._context.conversions.shown([change.resource], request.endpoint)
        change = msgspec.structs.replace(change, resource=shown[0])
        status = 200 if isinstance(before, Resource) else 201
        texts = await self._warnings(request, planned, change, changes if is_dry else None)
        warnings = (*request.duplicate_field_warnings(), *texts)
        if is_dry:
            document = self._dry_run_document(request, change, before)
            return self._answers.document(call, request.endpoint, document, status, warnings)
        return self._answers.one(call, request.target, change.resource, status, warnings)

    def _dry_run_document(self, request: WriteRequest, change: Change, before: Stored) -> Json:
        """What a dry run would store; with the current revision, since it writes none."""
        document = self._answers.shown(change.resource, request.target, request.call.user)
        if before is None:
            del document["metadata"]["resourceVersion"]
        else:
            document["metadata"]["resourceVersion"] = str(before.revision)
        return document

    async def _warnings(
        self, request: WriteRequest, planned: PlannedWrite, change: Change, dry_run: advice.DryRunChanges
    ) -> tuple[str, ...]:
        if change.op is Op.DELETE or namespaced_names.is_native(request.endpoint.kind):
            return planned.warnings
        warnings = await advice.write_warnings(
            self._context, [Admitted(planned.resource, planned.warnings)], dry_run
        )
        return tuple(warnings[0])


def _revision(stored: Stored) -> int:
    return stored.revision if stored is not None else 0


def _readable(stored: Stored) -> Resource:
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
    """Decode the document of a new object; errors name the object."""
    document, target = request.body.value, request.target
    try:
        return codec.read(document, target.endpoint, target.where, "")
    except Invalid as error:
        metadata = document.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        raise TargetedError(error, request.named(name if isinstance(name, str) else "").target) from None


def _named(decoded: DecodedObject) -> DecodedObject:
    draft = decoded.draft
    if draft.name:
        return decoded
    if not decoded.generate_name:
        raise Invalid([Violation("metadata.name", "name or generateName is required", "required")])
    ending = "".join(secrets.choice(_LETTERS) for _ in range(_SUFFIX_LENGTH))
    name = f"{decoded.generate_name[:_GENERATE_NAME_MAX]}{ending}"
    return msgspec.structs.replace(decoded, draft=msgspec.structs.replace(draft, name=name))
