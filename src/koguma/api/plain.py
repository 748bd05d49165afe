"""The plain form's objects: read, write, patch, delete, one at a time."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from aiohttp import web

from koguma.api import at, change_reason, compression, lists, patches, reasons, tracing
from koguma.api.call import Call, answer, answer_json, stale_headers
from koguma.api.plain_encoder import PlainEncoder
from koguma.application import (
    admission_candidate,
    advice,
    compare_and_swap,
    computed_access,
    inline_secrets,
    quota,
    transactions,
)
from koguma.application.admission_review import CREATE, DELETE, UPDATE, AdmissionRequest
from koguma.application.context import Context
from koguma.application.webhooks import AdmissionWebhooks
from koguma.application.write_access import WriteAccess
from koguma.core import admission
from koguma.core.admission import Admitted, FieldValidation
from koguma.kube import namespaced_names
from koguma.model import forms
from koguma.model.documents import BadDocument
from koguma.model.errors import BadRequest, Invalid, NotAllowed, PreconditionFailed
from koguma.model.forms import Draft, Form
from koguma.model.kind import Kind
from koguma.model.resource import NO_META, Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation
from koguma.store.contract import Change, Delete, Op, Operation, Transaction

_FORMATS: Final = {"universal": Form.PLAIN, "k8s": Form.KUBERNETES, "kubernetes": Form.KUBERNETES}
_PLAIN_COMPUTED: Final = ("kri", "snis", "creationTime", "modificationTime", "status")


class PlainObjects:
    """Handlers for the objects of every kind."""

    def __init__(self, context: Context, encoder: PlainEncoder) -> None:
        self._context = context
        self._encoder = encoder
        self.webhooks = AdmissionWebhooks(context)

    async def get(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """One object, as it is or as it was."""
        context = await at.context_of(call, self._context, kind)
        context.check(call.user, "get", kind, mesh, name)
        computed_access.check_get(context, call.user, kind, mesh, name)
        await context.prepare(kind, mesh or name)
        resource = context.state.named(kind.name, mesh, name)
        if resource is None:
            if kind.is_mesh_scoped:
                context.check_mesh(call.user, mesh)
            resource = context.find(call.user, kind, mesh, name)
        return self.show(call, resource)

    def show(self, call: Call, resource: Resource) -> web.Response:
        """An object in the form that the query asks for, with its ETag; a computed one has none."""
        kind = self._context.kinds[resource.kind]
        if kind.computed is not None:
            return answer(
                self._encoding(call)(resource), headers=stale_headers(self._context.problem_of(kind))
            )
        headers = {"ETag": etag(resource.revision)}
        if call.header("If-None-Match") == headers["ETag"]:
            return web.Response(status=304, headers=headers)
        return answer(self._encoding(call)(resource), headers=headers)

    def _encoding(self, call: Call) -> Callable[[Resource], bytes]:
        """How the query asks objects to be encoded.

        In the Kubernetes form, an object without a namespace is shown in the system namespace unless the
        query names another: kumactl's export leaves out objects of any other namespace. One that another
        control plane wrote is shown there under its core name, as everywhere in the Kubernetes form.
        """
        context = self._context
        if not call.has_query or _form(call.query.get("format", "universal")) is Form.PLAIN:
            return lambda resource: self._encoder.bytes(resource, call.user)
        system = context.control_plane.system_namespace
        namespace = call.query.get("namespace") or system

        def encoded(resource: Resource) -> bytes:
            kind, visible = context.kinds[resource.kind], inline_secrets.visible(context, call.user, resource)
            place = namespace
            if namespaced_names.is_foreign(resource, context.control_plane):
                visible = msgspec.structs.replace(visible, name=resource.core_name, namespace="")
                place = system
            return msgspec.json.encode(forms.kubernetes(visible, kind, place))

        return encoded

    async def list(self, call: Call, kind: Kind, mesh: str | None) -> web.StreamResponse:
        """A page of the objects of a kind, in one mesh or (None) everywhere, as they are or as they were."""
        context = await at.context_of(call, self._context, kind, "list")
        context.check(call.user, "list", kind, mesh or "")
        computed_access.check_list(context, call.user, kind, mesh)
        if mesh is not None and kind.is_mesh_scoped:
            context.check_mesh(call.user, mesh)
        if "revision" in call.query:
            raise BadRequest('query parameter "revision" goes with watch=true')
        page, encode = lists.page(call.query), self._encoding(call)
        filters = (
            lists.resource_filter(call.query, call.request.path, mesh),
            computed_access.plain_filter(context, call.user, kind),
        )
        await context.prepare(kind, mesh)
        resources = context.listed(kind, mesh)
        for matches in filters:
            if matches is not None:
                resources = [resource for resource in resources if matches(resource)]
        end = page.offset + page.size
        link = lists.next_link(call.request, end) if end < len(resources) else None
        items = list(map(encode, await context.filled(kind, resources[page.offset : end])))
        headers = {"Koguma-Revision": str(context.state.revision)} | stale_headers(context.problem_of(kind))
        call.is_compressible = not compression.may_hold_secrets(kind)
        return answer(lists.body(items, len(resources), link), headers=headers)

    async def put(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """Create or replace one object."""
        context = self._context
        self._check_writable(kind)
        context.check_any_write(call.user, kind, mesh, name)
        if kind.is_mesh_scoped:
            context.check_mesh(call.user, mesh)
        draft = self._draft(await _document(call, kind), kind, mesh, name)
        before: Resource | None = None

        async def attempt() -> web.StreamResponse:
            nonlocal before
            before = transactions.replaced_object(context, draft)
            return await self._write(call, draft, before)

        def may_retry() -> bool:
            # Without a precondition the last writer wins.
            return draft.revision is None and transactions.replaced_object(context, draft) != before

        async with context.writes.turn(kind.name, mesh, name):
            return await compare_and_swap.retried(attempt, f'{kind.name} "{name}"', may_retry)

    async def patch(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """Change parts of one object: a merge patch or a JSON patch on its plain form."""
        context = self._context
        self._check_writable(kind)
        context.check(call.user, "patch", kind, mesh, name)
        if kind.is_mesh_scoped:
            context.check_mesh(call.user, mesh)
        context.find(call.user, kind, mesh, name)
        change = await _document(call, kind)

        async def attempt() -> web.StreamResponse:
            before = context.find(call.user, kind, mesh, name)
            seen = forms.plain(inline_secrets.visible(context, call.user, before), kind)
            base = {name: part for name, part in seen.items() if name not in _PLAIN_COMPUTED}
            draft = self._draft(patches.patched(call.media_type, base, change), kind, mesh, name)
            return await self._write(call, draft, before, "patch")

        async with context.writes.turn(kind.name, mesh, name):
            return await compare_and_swap.retried(attempt, f'{kind.name} "{name}"')

    async def delete(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """Remove one object."""
        context = self._context
        self._check_writable(kind)
        context.check(call.user, "delete", kind, mesh, name)
        if kind.is_mesh_scoped:
            context.check_mesh(call.user, mesh)
        unreadable = context.unreadable(kind, mesh, name)
        if unreadable is not None:
            removed = await self.commit(call, [Delete(unreadable.key)])
            return answer(b"{}", headers=_revision_header(call, removed))
        revision = 0

        async def attempt() -> web.StreamResponse:
            """Delete the very object that the webhooks were asked about."""
            nonlocal revision
            resource = context.find(call.user, kind, mesh, name)
            revision = resource.revision
            _check_preconditions(call, resource)
            texts = await self.webhooks.delete(self.admission_request(call, resource, resource, DELETE))
            before_deletion = await advice.before_deletion(context, [resource])
            changes = await self.commit(call, transactions.delete(context, resource, revision))
            (deletion_warnings,) = await advice.deletion_warnings(
                context, before_deletion, changes if dry_run(call) else None
            )
            warnings = (*texts, *deletion_warnings)
            headers = _revision_header(call, changes)
            return answer_json({"warnings": list(warnings)} if warnings else {}, headers=headers)

        def may_retry() -> bool:
            stored = context.state.named(kind.name, mesh, name)
            return call.header("If-Match") is None and stored is not None and stored.revision != revision

        return await compare_and_swap.retried(attempt, f'{kind.name} "{name}"', may_retry)

    def _check_writable(self, kind: Kind) -> None:
        if kind.read_only_at(self._context.control_plane):
            raise NotAllowed(reasons.read_only(kind, self._context))

    def _draft(self, document: Json, kind: Kind, mesh: str, name: str) -> Draft:
        is_kubernetes = isinstance(document, dict) and "apiVersion" in document
        draft = (
            forms.read(document, self._context.kinds) if is_kubernetes else forms.read_plain(document, kind)
        )
        if kind.is_mesh_scoped and not draft.mesh:
            draft = msgspec.structs.replace(draft, mesh=mesh)
        if name == draft.name and draft.namespace == self._context.control_plane.system_namespace:
            # As `?format=kubernetes` shows an object without a namespace; the path says that it has none.
            draft = msgspec.structs.replace(draft, namespace=forms.reserved_namespace(mesh))
        type_in_body = draft.kind.name if is_kubernetes else document.get("type")
        violations = list(_url_violations(draft, type_in_body, kind, mesh, name))
        if violations:
            raise Invalid(violations)
        return draft

    async def _write(self, call: Call, draft: Draft, before: Resource | None, verb: str = "") -> web.Response:
        context, access = self._context, WriteAccess(call.user, verb=verb)
        draft, texts = await self.mutated(call, access, draft, before)
        admitted, operations = transactions.put(context, access, draft, before, field_validation(call))
        _check_preconditions(call, before)
        texts += await self.validate(call, admitted.resource, before)
        admitted = msgspec.structs.replace(admitted, warnings=(*admitted.warnings, *texts))
        operations += await transactions.mesh_side_effects(context, [admitted.resource])
        operations.append(quota.requirement(context))
        changes = await self.commit(call, operations)
        is_dry = dry_run(call)
        (warnings,) = await advice.write_warnings(context, [admitted], changes if is_dry else None)
        return _write_response(admitted, warnings, changes, before, is_dry=is_dry)

    async def mutated(
        self, call: Call, access: WriteAccess, draft: Draft, before: Resource | None
    ) -> tuple[Draft, tuple[str, ...]]:
        """What the mutating webhooks make of a draft, after the check of rights; and warnings."""
        context = self._context
        if not self.webhooks.has_mutating_configurations:
            return draft, ()
        identified = admission.identity_of(draft, before, context.control_plane)
        access.check(context, draft.kind, identified, before)
        draft = inline_secrets.restored(context, draft, before)
        endpoint = context.catalog.stored(draft.kind.stored_as)
        meta = before.meta if before else NO_META
        candidate = admission_candidate.candidate_of(context, draft, endpoint, before, meta)
        mutated = await self.webhooks.mutated(self.admission_request(call, candidate, before), candidate)
        if mutated.candidate is candidate:
            return draft, mutated.warnings
        return admission_candidate.with_candidate(draft, candidate, mutated.candidate), mutated.warnings

    async def validate(self, call: Call, resource: Resource, before: Resource | None) -> tuple[str, ...]:
        """Ask the validating webhooks about an object that was admitted; warnings for the writer."""
        return await self.webhooks.validate(self.admission_request(call, resource, before), resource)

    def admission_request(
        self, call: Call, resource: Resource, before: Resource | None, operation: str = ""
    ) -> AdmissionRequest:
        """A write of the plain form as webhooks see it: one to the endpoint of the storage version."""
        endpoint = self._context.catalog.stored(resource.kind)
        shown = namespaced_names.namespaced_name(resource, endpoint.kind, self._context.control_plane)
        return AdmissionRequest(
            operation or (CREATE if before is None else UPDATE),
            endpoint,
            shown.namespace,
            shown.name,
            call.user,
            before,
            is_dry=dry_run(call),
        )

    async def commit(self, call: Call, operations: Sequence[Operation]) -> tuple[Change, ...]:
        """Write, or only see what a write would do where the query says dryRun."""
        transaction = Transaction(tuple(operations), call.user.name, change_reason.in_header(call))
        if dry_run(call):
            return self._context.store.preview(transaction)
        return await tracing.timed("store write", self._context.store.write(transaction))


def etag(revision: int) -> str:
    """The ETag of an object that this revision wrote."""
    return f'"{revision}"'


def dry_run(call: Call) -> bool:
    """Whether the write is only to be tried."""
    return call.is_trial or call.flag("dryRun", ("All", "true"))


def field_validation(call: Call) -> FieldValidation:
    """What happens to unknown fields: refused unless the query says otherwise."""
    word = call.query.get("fieldValidation", FieldValidation.STRICT.value)
    try:
        return FieldValidation(word)
    except ValueError:
        choices = ", ".join(choice.value for choice in FieldValidation)
        raise BadRequest(f'query parameter "fieldValidation" must be one of {choices}') from None


def _form(word: str) -> Form:
    if word not in _FORMATS:
        message = '"format" must be one of ["k8s", "kubernetes", "universal"]'
        raise Invalid([Violation("", message, "enum")])
    return _FORMATS[word]


async def _document(call: Call, kind: Kind) -> Json:
    try:
        return await call.document()
    except BadDocument as error:
        raise BadRequest(
            f'invalid {kind.name} object: "{error.detail}"', violations=error.violations
        ) from None


def _url_violations(draft: Draft, type_in_body: str, kind: Kind, mesh: str, name: str) -> list[Violation]:
    violations = []
    if draft.form is Form.KUBERNETES:
        names_in_body = draft.name, f"{draft.name}.{draft.namespace or 'default'}"
    else:
        names_in_body = draft.name, draft.name
    if name not in names_in_body:
        violations.append(Violation("name", "name from the URL has to be the same as in body", "url"))
    if type_in_body != kind.name:
        violations.append(Violation("type", "type from the URL has to be the same as in body", "url"))
    if kind.is_mesh_scoped and draft.mesh != mesh:
        violations.append(Violation("mesh", "mesh from the URL has to be the same as in body", "url"))
    return violations


def _check_preconditions(call: Call, stored: Resource | None) -> None:
    match, none_match = call.header("If-Match"), call.header("If-None-Match")
    if match is not None:
        if stored is None:
            raise PreconditionFailed("If-Match was given, and there is no such object")
        if match != "*" and etag(stored.revision) not in [part.strip() for part in match.split(",")]:
            current = etag(stored.revision)
            raise PreconditionFailed(
                f"If-Match says {match}, the stored object is {current}; read it again and retry"
            )
    if none_match == "*" and stored is not None:
        raise PreconditionFailed("If-None-Match: * was given, and the object exists")


def _revision_header(call: Call, changes: tuple[Change, ...]) -> dict[str, str]:
    """The revision of a deletion; a dry run wrote nothing, so there is none to name."""
    revision = max((change.revision for change in changes), default=0)
    return {} if dry_run(call) or not revision else {"Koguma-Revision": str(revision)}


def _write_response(
    admitted: Admitted,
    warnings: Sequence[str],
    changes: tuple[Change, ...],
    before: Resource | None,
    *,
    is_dry: bool,
) -> web.Response:
    change = next((c for c in changes if c.resource.key == admitted.resource.key), None)
    revision = change.revision if change else before.revision if before else 0
    status = 201 if change is not None and change.op is Op.CREATE else 200
    # A dry run wrote nothing, so there is no revision to name.
    headers = {} if is_dry else {"ETag": etag(revision), "Koguma-Revision": str(revision)}
    return answer_json({"warnings": list(warnings)} if warnings else {}, status, headers)
