"""Transactions: the store operations of a write request, which are committed together or not at all."""

import asyncio
import base64
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from koguma.application import (
    field_ownership,
    inline_secrets,
    machine_access,
    namespaces,
    presented_certificates,
    secret_access,
)
from koguma.application.context import Context, mesh_key
from koguma.application.write_access import WriteAccess
from koguma.core import admission, defaults, identity, statuses
from koguma.core.admission import Admitted, FieldValidation
from koguma.identity import authority
from koguma.identity.claims import DATAPLANE
from koguma.kinds import mesh as mesh_kind
from koguma.model import forms, labels
from koguma.model.errors import AlreadyExists, Invalid
from koguma.model.forms import Draft, Form
from koguma.model.resource import Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation, item, under
from koguma.runtime.clock import now
from koguma.store.contract import (
    Delete,
    DeleteMesh,
    DeleteZone,
    Operation,
    Put,
    Require,
    RequireAbsent,
    RequireNone,
    rfc3339,
)


class MeshSecretName(NamedTuple):
    """A Secret of a mesh, by its core name."""

    mesh: str
    name: str


PLAIN_MANAGER: Final = "koguma-rest"  # the field manager of writes through the plain form


def replaced_object(context: Context, draft: Draft) -> Resource | None:
    """The stored object that a draft replaces: that of its key, or else of its core name."""
    identified = identity.of(draft, context.control_plane)
    state = context.state
    return state.get(identified.key) or state.named(
        identified.key.kind, identified.key.mesh, identified.core_name
    )


def put(
    context: Context,
    access: WriteAccess,
    draft: Draft,
    before: Resource | None,
    unknown_fields: FieldValidation,
    mesh_field: str = "mesh",
    secrets_in_request: Collection[MeshSecretName] = (),
) -> tuple[Admitted, list[Operation]]:
    """The operations that write one object, after all checks of rights and content.

    They compare and swap with the revision that the writer saw, and require its mesh and namespace. Where
    the object has managed fields, the plain form becomes the manager of those that change.
    `secrets_in_request` are the Secrets that the same request writes.
    """
    access.check(context, draft.kind, admission.identity_of(draft, before, context.control_plane), before)
    draft = inline_secrets.restored(context, draft, before)
    placeholders = list(inline_secrets.violations(draft.kind, draft.spec))
    if placeholders:
        raise Invalid(list(_at_root(draft, placeholders)))
    admitted = admission.admitted(
        draft, before, context.control_plane, unknown_fields, context.patch_checks()
    )
    machine_access.check(context, access.writer, admitted.resource, before)
    try:
        resource = secret_access.checked(context, access.writer, admitted.resource, before)
        presented_certificates.check(context, resource, before)
    except Invalid as error:
        raise Invalid(list(_at_root(draft, error.violations))) from None
    admitted = msgspec.structs.replace(admitted, resource=resource)
    if draft.kind.name == "Mesh":
        missing_secrets = list(_missing_secrets(context, admitted.resource, secrets_in_request))
        if missing_secrets:
            raise Invalid(list(_at_root(draft, missing_secrets)))
    if before is not None and before.meta.managed_fields:
        resource = field_ownership.with_changed_fields_owned(
            context, before, admitted.resource, PLAIN_MANAGER, now()
        )
        admitted = msgspec.structs.replace(admitted, resource=resource)
    operations: list[Operation] = []
    if before is None:
        operations += _namespace_requirements(context, admitted.resource)
    if draft.kind.is_mesh_scoped:
        missing = context.mesh_not_found(access.user, admitted.resource.mesh, mesh_field)
        operations.append(Require(mesh_key(admitted.resource.mesh), missing))
    unreadable = context.state.unreadable.get(admitted.resource.key)  # may be overwritten, as it is
    revision = before.revision if before else unreadable.revision if unreadable else 0
    expected = draft.revision if draft.revision is not None else revision
    operations.append(Put(admitted.resource, expected))
    return admitted, operations


def _at_root(draft: Draft, violations: Iterable[Violation]) -> Iterator[Violation]:
    """Violations at the fields as the writer has them: the Kubernetes form has a `spec` around them."""
    return under("spec" if draft.kind.inline and draft.form is Form.KUBERNETES else "", violations)


def _namespace_requirements(context: Context, resource: Resource) -> Iterator[Operation]:
    """A new object needs its namespace, and in it no object of the same name from another mesh."""
    yield from namespaces.required_namespace(context, resource.namespace, str(resource.key))
    if not resource.namespace or not resource.mesh:
        return
    for mesh in context.state.listed("Mesh"):
        other = resource.key._replace(mesh=mesh.name)
        if other != resource.key:
            text = f"{resource.key} cannot be stored: {other} has the same name in the same namespace"
            yield RequireAbsent(other, AlreadyExists(f"{text}; choose another name or another namespace"))


async def mesh_companions(context: Context, mesh: Resource, *, is_restored: bool = False) -> list[Put]:
    """The objects that are created with a new mesh: its token signing key and the default policies.

    One that is restored has the policies that it had, and no others.
    """
    if context.control_plane.federated:
        return []
    data = await asyncio.to_thread(context.signing_key)  # RSA takes tens of milliseconds
    secret = {"type": "Secret", "mesh": mesh.name, "name": DATAPLANE.key_name(1, mesh.name), "data": data}
    policies = () if is_restored else defaults.mesh_policies(context.kinds, mesh.name, mesh.spec)
    documents = (secret, *policies)
    return [Put(control_plane_object(context, document), None) for document in documents]


def control_plane_object(context: Context, document: Json) -> Resource:
    """An object that the control plane itself writes, from a document of the plain form."""
    kind = context.kinds[document["type"]]
    origin = {labels.ORIGIN: context.control_plane.origin}
    draft = forms.read_plain({**document, "labels": {**origin, **document.get("labels", {})}}, kind)
    return admission.admitted(draft, None, context.control_plane).resource


def delete(context: Context, resource: Resource, expected: int | None) -> Sequence[Operation]:
    """Delete one object, if nothing needs it; a mesh with everything in it, a zone with all that it sent.

    One with finalizers is only marked, and deleted when its last finalizer is removed.
    """
    _check_origin(context, resource)
    if resource.kind == "Secret":
        _check_secret_unused(context, resource)
    if resource.kind == "Zone":
        _check_zone_offline(context, resource)
    guard = (_no_dataplanes(resource.name),) if resource.kind == "Mesh" else ()
    if resource.meta.finalizers:
        return (*guard, Put(marked_for_deletion(resource), resource.revision))
    inside: tuple[Operation, ...] = ()
    if resource.kind == "Mesh":
        inside = (DeleteMesh(resource.name),)
    elif resource.kind == "Zone" and context.control_plane.is_global:
        inside = (DeleteZone(resource.name),)
    return (*guard, *inside, Delete(resource.key, expected))


def _no_dataplanes(mesh: str) -> RequireNone:
    text = "unable to delete mesh, there are still some dataplanes attached"
    return RequireNone("Dataplane", mesh, Invalid([Violation("mesh", text, "in-use")]))


def _check_zone_offline(context: Context, zone: Resource) -> None:
    insight = context.computed.named("ZoneInsight", "", zone.core_name)
    if insight is None or not context.control_plane.is_global:
        return
    subscriptions = (context.computed.filled(insight).spec or {}).get("subscriptions") or ()
    if any(not subscription.get("disconnectTime") for subscription in subscriptions):
        text = "unable to delete Zone, Zone CP is still connected, please shut it down first"
        raise Invalid([Violation("zone", text, "in-use")])


def marked_for_deletion(resource: Resource) -> Resource:
    """The object with a deletion timestamp: it is deleted when its last finalizer is removed."""
    if resource.meta.deletion_timestamp:
        return resource
    meta = msgspec.structs.replace(resource.meta, deletion_timestamp=rfc3339(now()))
    return msgspec.structs.replace(resource, meta=meta)


def _check_origin(context: Context, resource: Resource) -> None:
    if elsewhere := admission.written_elsewhere(resource, context.control_plane):
        raise Invalid([Violation(f'labels["{labels.ORIGIN}"]', elsewhere, "origin")])


def _check_secret_unused(context: Context, secret: Resource) -> None:
    mesh = context.state.get(mesh_key(secret.mesh))
    for backend in _backends(mesh):
        if secret.name in _secret_names(backend, secret.mesh):
            name = backend.get("name", "")
            message = (
                f'The secret "{secret.name}" that you are trying to remove is currently in use in Mesh'
                f' "{secret.mesh}" in mTLS backend "{name}". Please remove the reference from the "{name}"'
                " backend before removing the secret."
            )
            raise Invalid([Violation("name", message, "in-use")])


def _backends(mesh: Resource | None) -> Sequence[Json]:
    return ((mesh.spec.get("mtls") or {}).get("backends") or ()) if mesh else ()


def _secret_names(backend: Json, mesh: str) -> set[str]:
    name, conf = backend.get("name", ""), backend.get("conf") or {}
    if backend.get("type") == "builtin":
        return set(authority.secret_names(mesh, name))
    return {(conf.get(part) or {}).get("secret", "") for part in ("cert", "key")} - {""}


def _missing_secrets(
    context: Context, mesh: Resource, secrets_in_request: Collection[MeshSecretName]
) -> Iterator[Violation]:
    """Secrets that a provided CA of a mesh names and that do not exist."""
    mtls = mesh_kind.mtls_of(mesh.spec)
    if mtls.skip_validation:
        return
    for index, backend in enumerate(mtls.backends or ()):
        if backend.type != "provided":
            continue
        conf = mesh_kind.provided_conf(backend)
        for part, source in (("cert", conf.cert), ("key", conf.key)):
            name = source.secret if source else None
            if not name or MeshSecretName(mesh.name, name) in secrets_in_request:
                continue
            if context.state.named("Secret", mesh.name, name) is None:
                place = f'type="Secret" name="{name}" mesh="{mesh.name}"'
                message = (
                    f"could not load data: Resource not found: {place}; write it first, or in the same apply"
                )
                yield Violation(f"{item('mtls.backends', index)}.conf.{part}", message, "reference")


async def mesh_side_effects(
    context: Context, resources: Sequence[Resource], *, are_restored: bool = False
) -> list[Put]:
    """What else must be written with the meshes among these resources, unless the request writes it itself.

    For a new mesh, its companions. For every mesh, the missing CAs of its builtin backends. Where a mesh
    switches mTLS on, statuses which say that its services are not ready for it yet.
    """
    written = {resource.key for resource in resources}
    companions: list[Put] = []
    for resource in resources:
        if resource.kind != "Mesh":
            continue
        if context.state.get(resource.key) is None:
            companion_puts = await mesh_companions(context, resource, is_restored=are_restored)
            companions += [put for put in companion_puts if put.resource.key not in written]
        secrets = (other for other in resources if (other.kind, other.mesh) == ("Secret", resource.name))
        names_in_request = frozenset(other.core_name for other in secrets)
        companions += await mesh_authorities(context, resource, names_in_request)
        companions += [
            put for put in _services_to_reset(context, resource) if put.resource.key not in written
        ]
    return companions


def _services_to_reset(context: Context, mesh: Resource) -> Iterator[Put]:
    """Services whose status still says that they are ready for mTLS, where a mesh switches it on again.

    The status writer follows the mesh a moment later. Until then callers would believe the old status, and
    use TLS with proxies that have no certificate yet.
    """
    before = context.state.get(mesh.key)
    if not _enabled_backend(mesh) or (before is not None and _enabled_backend(before)):
        return
    for service in context.state.listed("MeshService", mesh.name):
        unready = statuses.unready(service)
        if unready is not service:
            yield Put(unready, service.revision)


def _enabled_backend(mesh: Resource) -> str:
    try:
        return mesh_kind.mtls_of(mesh.spec).enabled_backend or ""
    except msgspec.ValidationError:  # stored, and cannot be decoded: this write replaces it
        return ""


async def mesh_authorities(context: Context, mesh: Resource, names_in_request: frozenset[str]) -> list[Put]:
    """The missing CAs of the builtin backends of a mesh, as Secrets, unless the request has them itself.

    Control planes may race here: the first one wins, and its Secret is not overwritten.
    """
    if context.control_plane.federated:
        return []
    puts: list[Put] = []
    for backend in mesh_kind.mtls_of(mesh.spec).backends or ():
        names = authority.secret_names(mesh.name, backend.name or "")
        stored_secrets = [context.state.named("Secret", mesh.name, name) for name in names]
        if backend.type == "builtin" and None in stored_secrets and names_in_request.isdisjoint(names):
            certificate = mesh_kind.builtin_cert(backend)
            ca = await asyncio.to_thread(authority.make, mesh.name, certificate, now())  # RSA takes its time
            for name, text in zip(names, (ca.certificate, ca.key.reveal()), strict=True):
                puts.append(_put_over_current(context, _secret(mesh.name, name, text)))
    return puts


def _secret(mesh: str, name: str, text: str) -> Json:
    return {"type": "Secret", "mesh": mesh, "name": name, "data": base64.b64encode(text.encode()).decode()}


def _put_over_current(context: Context, document: Json) -> Put:
    """Write an object over the current revision, and over no other."""
    resource = control_plane_object(context, document)
    seen = context.state.entry(resource.key)
    return Put(resource, seen.revision if seen else 0)
