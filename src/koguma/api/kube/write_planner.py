"""WritePlanner: what a write stores, with its fields owned by who wrote them.

A writer owns what it changes; an apply owns what it says. What is stored is shown to it in the version of its
endpoint, and what comes back is stored in the version that is stored.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

import msgspec

from koguma.api.kube import escalation
from koguma.api.kube.encoder import KubeEncoder
from koguma.api.kube.request import WriteRequest
from koguma.application import inline_secrets
from koguma.application.context import Context
from koguma.application.kube_admission import KubeAdmission, PlannedWrite
from koguma.application.write_access import WriteAccess
from koguma.kube import codec, server_side_apply
from koguma.kube.catalog import Catalog
from koguma.kube.codec import DecodedObject
from koguma.kube.server_side_apply import FieldManager
from koguma.model.errors import Conflict, Invalid
from koguma.model.resource import Meta, Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation
from koguma.store.contract import rfc3339

STATUS: Final = "status"
FINALIZE: Final = "finalize"
_WHOLE: Final = ("apiVersion", "kind", "metadata")
_MODIFIED: Final = (
    "the object has been modified; please apply your changes to the latest version and try again"
)

_encode = msgspec.json.Encoder(order="sorted").encode


class WritePlanner:
    """Makes what writes store, for one request after another."""

    def __init__(
        self, context: Context, encoder: KubeEncoder, known: Catalog, clock: Callable[[], datetime]
    ) -> None:
        self._context = context
        self._shown = encoder
        self._catalog = known
        self._clock = clock

    def new(self, request: WriteRequest, written: DecodedObject) -> PlannedWrite:
        """A new object."""
        return self._owned(request, written, None, None)

    def changed(self, request: WriteRequest, before: Resource, given: Json) -> PlannedWrite:
        """An object, or a part of it, written over what is stored, if the writer saw that."""
        target, live = request.target, self._shown.document(before, request.endpoint)
        given = codec.typed(given, request.endpoint)
        if target.subresource:  # nothing else of what is sent counts
            part = "spec" if target.subresource == FINALIZE else target.subresource
            given = {**live, **{name: given.get(name) for name in (*_WHOLE, part)}}
        written = codec.read(given, request.endpoint, target.where, target.name)
        _check_seen(before, written)
        if target.subresource == STATUS:
            return self._status(request, before, live, given)
        if target.subresource == FINALIZE:
            return _finalized(before, given)
        said = (given.get("metadata") or {}).get("managedFields")
        return self._owned(request, written, before, said)

    def applied(self, request: WriteRequest, before: Resource | None) -> PlannedWrite:
        """What a server-side apply gives: what the writer wants, merged with what others own."""
        target, endpoint = request.target, request.endpoint
        config = _config(request)
        asked_for = codec.read({name: config[name] for name in _WHOLE}, endpoint, target.where, target.name)
        if before is not None:
            _check_seen(before, asked_for)
        elif asked_for.draft.revision or asked_for.uid:
            raise Conflict(_MODIFIED)  # it was there once
        live = self._shown.document(before, endpoint) if before else None
        if before is not None:
            spec = inline_secrets.restored_spec(self._context, endpoint.kind, config.get("spec"), before)
            config = {**config, **({"spec": spec} if "spec" in config else {})}
        shape = self._catalog.merge_schema(endpoint)
        merged = server_side_apply.applied(live, config, self._writer(request), shape, request.options.force)
        written = codec.read(merged, endpoint, target.where, target.name)
        if target.subresource == STATUS and before is not None:
            status = _checked_status(request, merged.get("status"))
            return _with_status(before, status, written.meta.managed_fields)
        return self._with_meta(self._admitted(request, written, before), written.meta, before)

    def _owned(
        self, request: WriteRequest, written: DecodedObject, before: Resource | None, said: Json
    ) -> PlannedWrite:
        """What a write that is no apply stores; `said` is what it says itself about owners."""
        made = self._with_meta(self._admitted(request, written, before), written.meta, before)
        live = self._shown.document(before, request.endpoint) if before else None
        without = msgspec.structs.replace(made.resource.meta, managed_fields=())
        new = self._shown.document(msgspec.structs.replace(made.resource, meta=without), request.endpoint)
        if said is not None:
            new["metadata"]["managedFields"] = said
        shape = self._catalog.merge_schema(request.endpoint)
        fields = server_side_apply.updated(live, new, self._writer(request), shape)
        meta = msgspec.structs.replace(written.meta, managed_fields=tuple(fields))
        return self._with_meta(made, meta, before)

    def _with_meta(self, made: PlannedWrite, meta: Meta, before: Resource | None) -> PlannedWrite:
        """The same with other metadata; that it is on its way out is not for writers to say."""
        ends = before.meta.deletion_timestamp if before else ""
        kept = msgspec.structs.replace(meta, deletion_timestamp=ends)
        return msgspec.structs.replace(made, resource=msgspec.structs.replace(made.resource, meta=kept))

    def _admitted(
        self, request: WriteRequest, written: DecodedObject, before: Resource | None
    ) -> PlannedWrite:
        draft = msgspec.structs.replace(written.draft, revision=None)
        draft = inline_secrets.restored(self._context, draft, before)
        if before is not None and _is_same(request, before, draft.spec):
            draft = msgspec.structs.replace(draft, spec=before.spec)
        written = msgspec.structs.replace(written, draft=draft)
        self._check_rights(request, written, before)
        endpoint, validation = request.endpoint, request.options.validation
        access = WriteAccess.through(endpoint, request.call.user, request.verb if before else "create")
        try:
            return KubeAdmission(self._context, access, endpoint, before, validation).planned(written)
        except Invalid as error:
            raise request.refusal(error) from None

    def _check_rights(self, request: WriteRequest, written: DecodedObject, before: Resource | None) -> None:
        """Nobody may give rights that he does not have; roles also gather others by labels."""
        draft, old = written.draft, before.spec if before else None
        is_new = before is None or draft.spec != old or draft.labels != before.labels
        if request.endpoint.group == escalation.GROUP and is_new:
            kind, access = request.endpoint.kind_name, self._context.access
            user, where = request.call.user, request.target.where
            escalation.check(access, user, kind, where, draft.spec, name=draft.name, before=old)

    def _status(self, request: WriteRequest, before: Resource, live: Json, given: Json) -> PlannedWrite:
        status = _checked_status(request, given.get("status"))
        new = {**live, "status": status}
        shape = self._catalog.merge_schema(request.endpoint)
        return _with_status(
            before, status, server_side_apply.updated(live, new, self._writer(request), shape)
        )

    def _writer(self, request: WriteRequest) -> FieldManager:
        now, version = rfc3339(self._clock()), request.endpoint.api_version
        return FieldManager(request.options.manager, version, now, request.target.subresource)


def _config(request: WriteRequest) -> dict[str, Json]:
    """What an applier says, with the names that the path says for it."""
    given, target = request.body.value, request.target
    codec.check_type(given, request.endpoint)
    metadata = given.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise Invalid([Violation("metadata", "must be an object", "type")])
    named = {"name": target.name, **(metadata or {})}
    if request.endpoint.namespaced:
        named.setdefault("namespace", target.where)
    return {**given, "metadata": named}


def _check_seen(before: Resource, written: DecodedObject) -> None:
    """Whether the writer saw what is stored now, where it says what it saw."""
    if written.uid and written.uid != before.uid:
        raise Conflict(
            f"Precondition failed: UID in precondition: {written.uid}, UID in object meta: {before.uid}"
        )
    if written.draft.revision and written.draft.revision != before.revision:
        raise Conflict(_MODIFIED)


def _is_same(request: WriteRequest, before: Resource, spec: Json) -> bool:
    """Whether a writer of another version than the stored one gives back what it was shown."""
    between = request.endpoint.converter
    if between is None:
        return False
    try:
        return _encode(between.to_storage(between.from_storage(before.spec))) == _encode(spec)
    except Invalid:  # of a plugin that cannot read it any more
        return False


def _checked_status(request: WriteRequest, status: Json) -> Json:
    kind = request.endpoint.kind
    if kind.status is not None:
        wrong = list(kind.status_checker(status if status is not None else {}, STATUS))
        if wrong:
            raise Invalid(wrong)
    return status


def _finalized(before: Resource, given: Json) -> PlannedWrite:
    """A namespace that waits for those who are named now, and for nobody else."""
    spec = given.get("spec") or {}
    held = (spec.get("finalizers") if isinstance(spec, dict) else spec) or []
    if not isinstance(held, list) or not all(isinstance(each, str) for each in held):
        raise Invalid([Violation("spec.finalizers", "must be a list of names", "type")])
    resource = msgspec.structs.replace(before, spec={**(before.spec or {}), "finalizers": held})
    return PlannedWrite(resource, before.revision)


def _with_status(before: Resource, status: Json, fields: Iterable[Json]) -> PlannedWrite:
    meta = msgspec.structs.replace(before.meta, managed_fields=tuple(fields))
    return PlannedWrite(msgspec.structs.replace(before, status=status, meta=meta), before.revision)
