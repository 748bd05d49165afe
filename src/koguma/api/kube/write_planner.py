"""Write planner: from a create, update, patch or apply to the object to store, with its managed fields.

An update owns the fields that it changes, an apply the fields that it sets. Writers see the object in the
version of their endpoint; it is converted to the storage version.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

import msgspec

from koguma.api.kube import escalation
from koguma.api.kube.encoder import KubeEncoder
from koguma.api.kube.request import WriteRequest
from koguma.application import admission_candidate, custom_admission, inline_secrets
from koguma.application.context import Context
from koguma.application.kube_admission import KubeAdmission, PlannedWrite
from koguma.application.webhooks import AdmissionWebhooks
from koguma.application.write_access import WriteAccess
from koguma.kube import codec, field_errors, namespaced_names, pruning, server_side_apply
from koguma.kube.codec import DecodedObject
from koguma.kube.custom import scale
from koguma.kube.custom.endpoints import SCALE, STATUS
from koguma.kube.server_side_apply import FieldManager
from koguma.model.errors import Conflict, Invalid
from koguma.model.resource import Meta, Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation
from koguma.store.contract import rfc3339

FINALIZE: Final = "finalize"
_WHOLE: Final = ("apiVersion", "kind", "metadata")
_MODIFIED: Final = (
    "the object has been modified; please apply your changes to the latest version and try again"
)

_NO_REVISION: Final = field_errors.invalid(
    "metadata.resourceVersion", 0, "must be specified for an update", "required"
)

_encode = msgspec.json.Encoder(order="sorted").encode


class WritePlanner:
    """Plans the writes of the Kubernetes form."""

    def __init__(self, context: Context, encoder: KubeEncoder, clock: Callable[[], datetime]) -> None:
        self._context = context
        self._shown = encoder
        self._clock = clock
        self._webhooks = AdmissionWebhooks(context)

    async def new(self, request: WriteRequest, written: DecodedObject) -> PlannedWrite:
        """A new object."""
        written, warnings = await self._mutated(request, written, None)
        return _with_warnings(self._owned(request, written, None, None), warnings)

    async def changed(self, request: WriteRequest, before: Resource, document: Json) -> PlannedWrite:
        """An update of an object or of a subresource, if the writer's revision is the stored one."""
        target, live = request.target, self._shown.document(before, request.endpoint)
        custom = request.endpoint.custom
        if target.subresource == SCALE and custom is not None and custom.scale is not None:
            document = scale.scaled(live, document, custom.scale)
        document = codec.typed(document, request.endpoint)
        if target.subresource not in ("", SCALE):  # the rest of the document is ignored
            part = "spec" if target.subresource == FINALIZE else target.subresource
            document = {**live, **{name: document.get(name) for name in (*_WHOLE, part)}}
        decoded = codec.read(document, request.endpoint, target.where, target.name)
        _check_seen(before, decoded)
        decoded, warnings = await self._mutated(request, decoded, before)
        return _with_warnings(self._change(request, before, decoded, document), warnings)

    def _change(
        self, request: WriteRequest, before: Resource, decoded: DecodedObject, document: Json
    ) -> PlannedWrite:
        target, live = request.target, self._shown.document(before, request.endpoint)
        custom = request.endpoint.custom
        is_native = custom is None and namespaced_names.is_native(request.endpoint.kind)
        if target.subresource == STATUS and is_native:
            return self._status_with_metadata(request, before, decoded)
        if custom is not None and not target.subresource and not decoded.draft.revision:
            raise Invalid([_NO_REVISION])
        if target.subresource == STATUS:
            return self._status(request, before, live, decoded)
        if target.subresource == FINALIZE:
            return _finalized(before, document)
        managed_fields = (document.get("metadata") or {}).get("managedFields")
        return self._owned(request, decoded, before, managed_fields)

    async def applied(self, request: WriteRequest, before: Resource | None) -> PlannedWrite:
        """A server-side apply: the applied configuration merged with the fields of other managers."""
        target, endpoint = request.target, request.endpoint
        config, unknown = pruning.pruned(_config(request), endpoint)
        identity = codec.read({name: config[name] for name in _WHOLE}, endpoint, target.where, target.name)
        if before is not None:
            _check_seen(before, identity)
        elif identity.draft.revision or identity.uid:
            raise Conflict(_MODIFIED)  # it existed once
        live = self._shown.document(before, endpoint) if before else None
        if before is not None:
            spec = inline_secrets.restored_spec(self._context, endpoint.kind, config.get("spec"), before)
            config = {**config, **({"spec": spec} if "spec" in config else {})}
        shape = self._context.catalog.merge_schema(endpoint)
        merged = server_side_apply.applied(live, config, self._writer(request), shape, request.options.force)
        written = codec.read(merged, endpoint, target.where, target.name)
        written = msgspec.structs.replace(written, unknown=(*unknown, *written.unknown))
        written, warnings = await self._mutated(request, written, before)
        return _with_warnings(self._apply(request, before, written), warnings)

    def _apply(self, request: WriteRequest, before: Resource | None, written: DecodedObject) -> PlannedWrite:
        if request.target.subresource == STATUS and before is not None:
            return self._with_status(request, before, written, written.meta.managed_fields)
        return self._with_meta(self._admitted(request, written, before), written.meta, before)

    async def _mutated(
        self, request: WriteRequest, written: DecodedObject, before: Resource | None
    ) -> tuple[DecodedObject, tuple[str, ...]]:
        """What the mutating webhooks make of a document before it is validated, and their warnings."""
        asked = request.admission(before)
        if not self._webhooks.has_mutating(asked):
            return written, ()
        draft = inline_secrets.restored(self._context, written.draft, before)
        status = written.status if request.target.subresource else None
        candidate = admission_candidate.candidate_of(
            self._context, draft, request.endpoint, before, written.meta, status
        )
        mutated = await self._webhooks.mutated(asked, candidate)
        if mutated.candidate is candidate:
            return written, mutated.warnings
        draft = admission_candidate.with_candidate(draft, candidate, mutated.candidate)
        meta, status = mutated.candidate.meta, mutated.candidate.status
        return msgspec.structs.replace(written, draft=draft, meta=meta, status=status), mutated.warnings

    def _owned(
        self, request: WriteRequest, decoded: DecodedObject, before: Resource | None, managed_fields: Json
    ) -> PlannedWrite:
        """A write that is no apply; `managed_fields` are those that the document has."""
        planned = self._with_meta(self._admitted(request, decoded, before), decoded.meta, before)
        live = self._shown.document(before, request.endpoint) if before else None
        without = msgspec.structs.replace(planned.resource.meta, managed_fields=())
        new = self._shown.document(msgspec.structs.replace(planned.resource, meta=without), request.endpoint)
        if managed_fields is not None:
            new["metadata"]["managedFields"] = managed_fields
        shape = self._context.catalog.merge_schema(request.endpoint)
        fields = server_side_apply.updated(live, new, self._writer(request), shape)
        meta = msgspec.structs.replace(decoded.meta, managed_fields=tuple(fields))
        return self._with_meta(planned, meta, before)

    def _with_meta(self, planned: PlannedWrite, meta: Meta, before: Resource | None) -> PlannedWrite:
        """The same with other metadata; writers cannot change the deletion timestamp."""
        deletion_timestamp = before.meta.deletion_timestamp if before else ""
        new_meta = msgspec.structs.replace(meta, deletion_timestamp=deletion_timestamp)
        return msgspec.structs.replace(
            planned, resource=msgspec.structs.replace(planned.resource, meta=new_meta)
        )

    def _admitted(
        self, request: WriteRequest, written: DecodedObject, before: Resource | None
    ) -> PlannedWrite:
        draft = msgspec.structs.replace(written.draft, revision=None)
        draft = inline_secrets.restored(self._context, draft, before)
        if before is not None and _is_same(request, before, draft.spec):
            draft = msgspec.structs.replace(draft, spec=before.spec)
        written = msgspec.structs.replace(written, draft=draft)
        self._check_rights(request, written, before)
        warnings = request.unknown_field_warnings(written.unknown)
        endpoint, verb = request.endpoint, request.verb if before else "create"
        access = WriteAccess.through(endpoint, request.call.user, verb)
        planned = KubeAdmission(self._context, access, endpoint, before).planned(written)
        return msgspec.structs.replace(planned, warnings=(*warnings, *planned.warnings))

    def _check_rights(self, request: WriteRequest, written: DecodedObject, before: Resource | None) -> None:
        """Nobody may grant rights that he does not have; ClusterRoles aggregate by labels, so these count."""
        draft, old = written.draft, before.spec if before else None
        is_new = before is None or draft.spec != old or draft.labels != before.labels
        if request.endpoint.group == escalation.GROUP and is_new:
            kind, access = request.endpoint.kind_name, self._context.access
            user, where = request.call.user, request.target.where
            escalation.check(access, user, kind, where, draft.spec, name=draft.name, before=old)

    def _status_with_metadata(
        self, request: WriteRequest, before: Resource, written: DecodedObject
    ) -> PlannedWrite:
        """A status of one of Kubernetes' own kinds: the labels and annotations beside it are written, too."""
        whole = msgspec.structs.replace(request.target, subresource="")
        known = msgspec.structs.replace(written, unknown=())
        planned = self._owned(msgspec.structs.replace(request, target=whole), known, before, None)
        live = self._shown.document(planned.resource, request.endpoint)
        with_status = self._status(request, planned.resource, live, written)
        warnings = (*with_status.warnings, *planned.warnings)
        return msgspec.structs.replace(with_status, expect=before.revision, warnings=warnings)

    def _status(
        self, request: WriteRequest, before: Resource, live: Json, written: DecodedObject
    ) -> PlannedWrite:
        new = {**live, "status": written.status}
        shape = self._context.catalog.merge_schema(request.endpoint)
        fields = server_side_apply.updated(live, new, self._writer(request), shape)
        return self._with_status(request, before, written, fields)

    def _with_status(
        self, request: WriteRequest, before: Resource, written: DecodedObject, fields: Iterable[Json]
    ) -> PlannedWrite:
        warnings = request.unknown_field_warnings(written.unknown)
        meta = msgspec.structs.replace(before.meta, managed_fields=tuple(fields))
        if request.endpoint.custom is not None:
            resource = custom_admission.with_status(request.endpoint, before, written.status)
        else:
            _check_status(request, written.status)
            resource = msgspec.structs.replace(before, status=written.status)
        resource = msgspec.structs.replace(resource, meta=meta)
        return PlannedWrite(resource, before.revision, warnings=warnings)

    def _writer(self, request: WriteRequest) -> FieldManager:
        now, version = rfc3339(self._clock()), request.endpoint.api_version
        return FieldManager(request.options.manager, version, now, request.target.subresource)


def _with_warnings(planned: PlannedWrite, warnings: tuple[str, ...]) -> PlannedWrite:
    return msgspec.structs.replace(planned, warnings=(*planned.warnings, *warnings))


def _config(request: WriteRequest) -> dict[str, Json]:
    """The applied configuration, with name and namespace from the path."""
    document, target, custom = request.body.value, request.target, request.endpoint.custom
    if target.subresource == SCALE and custom is not None and custom.scale is not None:
        type_ = {"apiVersion": request.endpoint.api_version, "kind": request.endpoint.kind_name}
        document = scale.scaled(type_, document, custom.scale)
    codec.check_type(document, request.endpoint)
    metadata = document.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise Invalid([Violation("metadata", "must be an object", "type")])
    metadata_with_name = {"name": target.name, **(metadata or {})}
    if request.endpoint.namespaced:
        metadata_with_name.setdefault("namespace", target.where)
    return {**document, "metadata": metadata_with_name}


def _check_seen(before: Resource, written: DecodedObject) -> None:
    """Raise Conflict where the writer's uid or resourceVersion is not the stored one."""
    if written.uid and written.uid != before.uid:
        raise Conflict(
            f"Precondition failed: UID in precondition: {written.uid}, UID in object meta: {before.uid}"
        )
    if written.draft.revision and written.draft.revision != before.revision:
        raise Conflict(_MODIFIED)


def _is_same(request: WriteRequest, before: Resource, spec: Json) -> bool:
    """Whether the spec, in another version than the storage version, is unchanged."""
    converter = request.endpoint.converter
    if converter is None:
        return False
    try:
        return _encode(converter.to_storage(converter.from_storage(before.spec))) == _encode(spec)
    except Invalid:  # of a plugin that cannot read it any more
        return False


def _check_status(request: WriteRequest, status: Json) -> None:
    kind = request.endpoint.kind
    if kind.status is not None:
        violations = list(kind.status_checker(status if status is not None else {}, STATUS))
        if violations:
            raise Invalid(violations)


def _finalized(before: Resource, document: Json) -> PlannedWrite:
    """A namespace with these finalizers and no others."""
    spec = document.get("spec") or {}
    finalizers = (spec.get("finalizers") if isinstance(spec, dict) else spec) or []
    if not isinstance(finalizers, list) or not all(isinstance(name, str) for name in finalizers):
        raise Invalid([Violation("spec.finalizers", "must be a list of names", "type")])
    resource = msgspec.structs.replace(before, spec={**(before.spec or {}), "finalizers": finalizers})
    return PlannedWrite(resource, before.revision)
