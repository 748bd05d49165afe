"""Writing: create, replace, patch and apply, with field ownership, dry runs and warnings."""

import secrets
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

import msgspec
from aiohttp import web

from koguma.api import advice, plain, tracing, transactions
from koguma.api.call import Call
from koguma.api.context import Context
from koguma.api.kube import admitting, bodies, escalation, options
from koguma.api.kube.admitting import Made
from koguma.api.kube.answers import Answers
from koguma.api.kube.finding import Finder
from koguma.api.kube.options import WriteOptions
from koguma.api.kube.status import RefusedAt
from koguma.api.kube.target import Target, check
from koguma.core.admission import Admitted
from koguma.kube import apply, codec, json_patches, places, shape, strategic
from koguma.kube.apply import Writer
from koguma.kube.codec import Written
from koguma.kube.registry import Endpoint
from koguma.kube.schemas import Schemas
from koguma.kube.shape import Shape
from koguma.model.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    Invalid,
    KogumaError,
    NotAllowed,
    NotFound,
    UnsupportedMedia,
)
from koguma.model.resource import Meta, Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation
from koguma.store.contract import Change, Op, Put, Transaction, Unreadable
from koguma.store.decide import rfc3339

_TRIES: Final = 50
_NAME_TRIES: Final = 8
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_GENERATED: Final = 5
_BASE_MAX: Final = 58
_STATUS: Final = "status"
_FINALIZE: Final = "finalize"

Patch = Callable[[Json], Json]


class Writing:
    """Handlers of everything that writes objects, one at a time."""

    def __init__(
        self,
        context: Context,
        finder: Finder,
        answers: Answers,
        schemas: Schemas,
        clock: Callable[[], datetime],
    ) -> None:
        self._context = context
        self._finder = finder
        self._answers = answers
        self._schemas = schemas
        self._clock = clock
        self._shapes: dict[tuple[str, str], Shape] = {}

    async def create(self, call: Call, target: Target) -> web.StreamResponse:
        """A new object."""
        self._check_writable(target)
        check(self._context, call.user, target, "create")
        asked = options.of_write(call)
        given = await bodies.document(call)
        written = codec.read(given, target.endpoint, target.where, "")
        if written.draft.revision:
            raise BadRequest("resourceVersion should not be set on objects to be created")
        for attempt in range(_NAME_TRIES):
            named = _named(written)
            at = msgspec.structs.replace(target, name=named.draft.name)
            try:
                return await self._created(call, at, named, given, asked)
            except AlreadyExists as error:
                if written.draft.name or attempt == _NAME_TRIES - 1:
                    raise RefusedAt(error, at) from None
            except KogumaError as error:
                raise RefusedAt(error, at) from None
        raise AssertionError("the last attempt returns or raises")

    async def _created(
        self, call: Call, target: Target, written: Written, given: Json, asked: WriteOptions
    ) -> web.StreamResponse:
        if isinstance(self._finder.find(target.endpoint, target.where, target.name), Resource):
            raise AlreadyExists(f'{target.endpoint.qualified} "{target.name}" already exists')
        made = self._made(call, target, written, given, None, asked)
        return await self._answered(call, target, made, None, asked)

    async def replace(self, call: Call, target: Target) -> web.StreamResponse:
        """The whole object, or its status, as the body says."""
        self._check_writable(target)
        check(self._context, call.user, target, "update")
        asked = options.of_write(call)
        given = await bodies.document(call)
        codec.check_type(given, target.endpoint)
        says = bool((given.get("metadata") or {}).get("resourceVersion"))
        return await self._over(call, target, lambda _live: given, asked, is_conditional=says)

    async def patch(self, call: Call, target: Target) -> web.StreamResponse:
        """Parts of an object, in one of four ways."""
        self._check_writable(target)
        check(self._context, call.user, target, "patch")
        media = call.media_type
        if media == bodies.APPLY:
            return await self._apply(call, target)
        asked = options.of_write(call)
        patch = self._patch_of(media, target.endpoint)
        change = await bodies.document(call)
        says = isinstance(change, dict) and bool((change.get("metadata") or {}).get("resourceVersion"))
        return await self._over(call, target, lambda live: patch(live, change), asked, is_conditional=says)

    def _patch_of(self, media: str, endpoint: Endpoint) -> Callable[[Json, Json], Json]:
        if media == bodies.MERGE:
            return json_patches.merged
        if media == bodies.JSON_PATCH:
            return json_patches.json_patched
        if media == bodies.STRATEGIC and endpoint.strategic:
            return lambda live, change: strategic.merged(live, change, strategic.hints_of(endpoint.kind_name))
        taken = [bodies.JSON_PATCH, bodies.MERGE, bodies.APPLY]
        taken += [bodies.STRATEGIC] if endpoint.strategic else []
        raise UnsupportedMedia(
            "the body of the request was in an unknown format - accepted media types include: "
            + ", ".join(taken)
        )

    async def _over(
        self,
        call: Call,
        target: Target,
        change: Patch,
        asked: WriteOptions,
        *,
        is_conditional: bool,
    ) -> web.StreamResponse:
        """Write over what is stored; without a condition of the writer's own, whatever came between."""
        for _ in range(_TRIES):
            before = self._stored(target)
            live = self._answers.shown.document(before, target.endpoint)
            given = change(live)
            try:
                made = self._changed(call, target, before, given, asked, is_conditional=is_conditional)
                return await self._answered(call, target, made, before, asked)
            except (AlreadyExists, Conflict):
                if is_conditional or self._finder.get(target).revision == before.revision:
                    raise
        raise Conflict(f'{target.endpoint.qualified} "{target.name}" is being written by others all the time')

    def _stored(self, target: Target) -> Resource:
        found = self._finder.find(target.endpoint, target.where, target.name)
        if found is None:
            raise NotFound
        if isinstance(found, Unreadable):
            raise Conflict(f"it is stored and cannot be read ({found.error}); delete it, then create it")
        return found

    def _changed(
        self,
        call: Call,
        target: Target,
        before: Resource,
        given: Json,
        asked: WriteOptions,
        *,
        is_conditional: bool,
    ) -> Made:
        if not isinstance(given, dict):
            raise BadRequest("the patch must give an object")
        written = codec.read(given, target.endpoint, target.where, target.name)
        _check_seen(before, written, is_conditional=is_conditional)
        if target.subresource == _STATUS:
            return self._status(target, before, given, asked)
        if target.subresource == _FINALIZE:
            return _finalized(before, given)
        draft = msgspec.structs.replace(written.draft, revision=before.revision)
        return self._made(call, target, msgspec.structs.replace(written, draft=draft), given, before, asked)

    async def _apply(self, call: Call, target: Target) -> web.StreamResponse:
        """Server-side apply: what the writer wants, merged with what others own."""
        asked = options.of_write(call, applies=True)
        given = await bodies.document(call)
        if not isinstance(given, dict):
            raise BadRequest("an object is needed")
        codec.check_type(given, target.endpoint)
        says = bool((given.get("metadata") or {}).get("resourceVersion"))
        for _ in range(_TRIES):
            before = self._finder.find(target.endpoint, target.where, target.name)
            if not isinstance(before, Resource):
                before = None
                check(self._context, call.user, target, "create")
                if target.subresource:
                    raise NotFound
            live = self._answers.shown.document(before, target.endpoint) if before else None
            try:
                made = self._applied(call, target, before, live, given, asked)
                return await self._answered(call, target, made, before, asked)
            except (AlreadyExists, Conflict) as error:
                again = self._finder.find(target.endpoint, target.where, target.name)
                if says or isinstance(error, apply.FieldConflicts) or again == before:
                    raise
        raise Conflict(f'{target.endpoint.qualified} "{target.name}" is being written by others all the time')

    def _applied(
        self,
        call: Call,
        target: Target,
        before: Resource | None,
        live: Json | None,
        given: Json,
        asked: WriteOptions,
    ) -> Made:
        metadata = {"name": target.name, **(given.get("metadata") or {})}
        if target.endpoint.namespaced:
            metadata.setdefault("namespace", target.where)
        config = {**given, "metadata": metadata}
        merged = apply.applied(live, config, self._writer(target, asked), self._shape(target), asked.force)
        written = codec.read(merged, target.endpoint, target.where, target.name)
        if before is not None:
            asked_for = codec.read(config, target.endpoint, target.where, target.name)
            is_conditional = asked_for.draft.revision is not None
            _check_seen(before, asked_for, is_conditional=is_conditional)
        if target.subresource == _STATUS and before is not None:
            return _with_status(before, merged.get("status"), written.meta.managed_fields)
        draft = msgspec.structs.replace(written.draft, revision=before.revision if before else None)
        written = msgspec.structs.replace(written, draft=draft)
        self._check_rights(call, target, written, before)
        made = admitting.admitted(
            self._context, call.user, target.endpoint, written, before, asked.validation
        )
        return made.with_meta(_kept(written.meta, before))

    def _made(
        self,
        call: Call,
        target: Target,
        written: Written,
        given: Json,
        before: Resource | None,
        asked: WriteOptions,
    ) -> Made:
        """What a normal write stores, with the writer as the owner of what it changes."""
        self._check_rights(call, target, written, before)
        endpoint = target.endpoint
        made = admitting.admitted(self._context, call.user, endpoint, written, before, asked.validation)
        meta = _kept(written.meta, before)
        live = self._answers.shown.document(before, endpoint) if before else None
        resource = msgspec.structs.replace(
            made.resource, meta=msgspec.structs.replace(meta, managed_fields=())
        )
        new = self._answers.shown.document(resource, endpoint)
        said = (given.get("metadata") or {}).get("managedFields")
        if said is not None:
            new["metadata"]["managedFields"] = said
        fields = apply.updated(live, new, self._writer(target, asked), self._shape(target))
        return made.with_meta(msgspec.structs.replace(meta, managed_fields=tuple(fields)))

    def _status(self, target: Target, before: Resource, given: Json, asked: WriteOptions) -> Made:
        kind = target.endpoint.kind
        status = given.get("status")
        if kind.status is not None:
            wrong = list(kind.status_checker(status if status is not None else {}, "status"))
            if wrong:
                raise Invalid(wrong)
        live = self._answers.shown.document(before, target.endpoint)
        new = {**live, "status": status}
        fields = apply.updated(live, new, self._writer(target, asked), self._shape(target))
        return _with_status(before, status, tuple(fields))

    def _check_rights(self, call: Call, target: Target, written: Written, before: Resource | None) -> None:
        draft, old = written.draft, before.spec if before else None
        is_new = (
            before is None or draft.spec != old or draft.labels != before.labels
        )  # roles gather by labels
        if target.endpoint.group == escalation.GROUP and is_new:
            kind, access = target.endpoint.kind_name, self._context.access
            escalation.check(access, call.user, kind, target.where, draft.spec, name=draft.name, before=old)

    def _writer(self, target: Target, asked: WriteOptions) -> Writer:
        now = rfc3339(self._clock())
        return Writer(asked.manager, target.endpoint.api_version, now, target.subresource)

    def _shape(self, target: Target) -> Shape:
        endpoint = target.endpoint
        key = (endpoint.api_version, endpoint.kind_name)
        found = self._shapes.get(key)
        if found is None:
            schema = self._schemas.of(endpoint)
            found = self._shapes[key] = shape.shape_of(schema, self._schemas.resolve)
        return found

    def _check_writable(self, target: Target) -> None:
        kind = target.endpoint.kind
        if not places.is_native(kind) and kind.read_only_at(self._context.place):
            raise NotAllowed(plain.read_only_reason(kind, self._context))

    async def _answered(
        self, call: Call, target: Target, made: Made, before: Resource | None, asked: WriteOptions
    ) -> web.StreamResponse:
        context = self._context
        operations = [*made.operations, *await transactions.new_meshes(context, [made.resource])]
        transaction = Transaction(tuple(operations), call.user.name, plain.reason(call))
        changes = (
            context.store.preview(transaction)
            if asked.is_dry
            else await tracing.timed("store write", context.store.write(transaction))
        )
        change = next(c for c in changes if c.resource.key == made.resource.key)
        status = 201 if change.op is Op.CREATE else 200
        warnings = await self._warnings(target, made, is_dry=asked.is_dry)
        if not asked.is_dry:
            return self._answers.one(call, target, change.resource, status, warnings)
        return self._tried(call, target, change, before, status, warnings)

    def _tried(
        self,
        call: Call,
        target: Target,
        change: Change,
        before: Resource | None,
        status: int,
        warnings: Iterable[str],
    ) -> web.Response:
        """The answer to a dry run: what would be stored, with no revision that anybody could have seen."""
        document = self._answers.shown.document(change.resource, target.endpoint)
        if before is None:
            del document["metadata"]["resourceVersion"]
        else:
            document["metadata"]["resourceVersion"] = str(before.revision)
        return self._answers.document(call, target.endpoint, document, status, warnings)

    async def _warnings(self, target: Target, made: Made, *, is_dry: bool) -> tuple[str, ...]:
        if is_dry or places.is_native(target.endpoint.kind):
            return made.warnings
        told = await advice.told(self._context, [Admitted(made.resource, made.warnings)])
        return tuple(told[0])


def _named(written: Written) -> Written:
    draft = written.draft
    if draft.name:
        return written
    if not written.generate_name:
        raise Invalid([Violation("metadata.name", "name or generateName is required", "required")])
    ending = "".join(secrets.choice(_LETTERS) for _ in range(_GENERATED))
    name = f"{written.generate_name[:_BASE_MAX]}{ending}"
    return msgspec.structs.replace(written, draft=msgspec.structs.replace(draft, name=name))


def _check_seen(before: Resource, written: Written, *, is_conditional: bool) -> None:
    """Whether the writer saw what is stored now."""
    if written.uid and written.uid != before.uid:
        raise Conflict(
            f"Precondition failed: UID in precondition: {written.uid}, UID in object meta: {before.uid}"
        )
    if is_conditional and written.draft.revision != before.revision:
        raise Conflict(
            "the object has been modified; please apply your changes to the latest version and try again"
        )


def _kept(meta: Meta, before: Resource | None) -> Meta:
    ends = before.meta.deletion_timestamp if before else ""
    return msgspec.structs.replace(meta, deletion_timestamp=ends)


def _finalized(before: Resource, given: Json) -> Made:
    """A namespace that waits for those who are named now, and for nobody else."""
    held = (given.get("spec") or {}).get("finalizers") or []
    if not isinstance(held, list) or not all(isinstance(each, str) for each in held):
        raise Invalid([Violation("spec.finalizers", "must be a list of names", "type")])
    resource = msgspec.structs.replace(before, spec={**(before.spec or {}), "finalizers": held})
    return Made(resource, (Put(resource, before.revision),))


def _with_status(before: Resource, status: Json, fields: Iterable[Json]) -> Made:

    meta = msgspec.structs.replace(before.meta, managed_fields=tuple(fields))
    resource = msgspec.structs.replace(before, status=status, meta=meta)
    return Made(resource, (Put(resource, before.revision),))
