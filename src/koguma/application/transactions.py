"""Transactions: what a request does to the store, as operations that happen together or not at all."""

import asyncio
import base64
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from koguma.application import inline_secrets, machine_access, namespaces, ownership, secret_access
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


PLAIN_MANAGER: Final = "koguma-rest"  # who owns what the plain form has changed


def stored(context: Context, draft: Draft) -> Resource | None:
    """What a draft would replace: the object of its key, or else of its core name."""
    wanted = identity.of(draft, context.control_plane)
    state = context.state
    return state.get(wanted.key) or state.named(wanted.key.kind, wanted.key.mesh, wanted.core_name)


def put(
    context: Context,
    access: WriteAccess,
    draft: Draft,
    before: Resource | None,
    unknown_fields: FieldValidation,
    mesh_field: str = "mesh",
    secrets_beside: Collection[MeshSecretName] = (),
) -> tuple[Admitted, list[Operation]]:
    """Write one object that the writer may write: over what it saw, in a mesh and a namespace that exist.

    Where fields of it have owners, the plain form owns now what this changes. `secrets_beside` are the
    Secrets that the same request writes.
    """
    access.check(context, draft.kind, admission.identity_of(draft, before, context.control_plane), before)
    draft = inline_secrets.restored(context, draft, before)
    meaningless = list(inline_secrets.violations(draft.kind, draft.spec))
    if meaningless:
        raise Invalid(list(_at_root(draft, meaningless)))
    made = admission.admitted(draft, before, context.control_plane, unknown_fields, context.patch_checks())
    machine_access.check(context, access.writer, made.resource, before)
    try:
        resource = secret_access.checked(context, access.writer, made.resource, before)
    except Invalid as error:
        raise Invalid(list(_at_root(draft, error.violations))) from None
    made = msgspec.structs.replace(made, resource=resource)
    if draft.kind.name == "Mesh":
        missing_secrets = list(_missing_secrets(context, made.resource, secrets_beside))
        if missing_secrets:
            raise Invalid(list(_at_root(draft, missing_secrets)))
    if before is not None and before.meta.managed_fields:
        owned = ownership.moved(context, before, made.resource, PLAIN_MANAGER, now())
        made = msgspec.structs.replace(made, resource=owned)
    operations: list[Operation] = []
    if before is None:
        operations += _room(context, made.resource)
    if draft.kind.is_mesh_scoped:
        missing = context.no_mesh(access.user, made.resource.mesh, mesh_field)
        operations.append(Require(mesh_key(made.resource.mesh), missing))
    broken = context.state.unreadable.get(made.resource.key)  # may be overwritten, as it is
    seen = before.revision if before else broken.revision if broken else 0
    expected = draft.revision if draft.revision is not None else seen
    operations.append(Put(made.resource, expected))
    return made, operations


def _at_root(draft: Draft, violations: Iterable[Violation]) -> Iterator[Violation]:
    """Violations of a kind whose fields stand at the root of the plain form, where the writer has them."""
    return under("spec" if draft.kind.inline and draft.form is Form.KUBERNETES else "", violations)


def _room(context: Context, resource: Resource) -> Iterator[Operation]:
    """What a new object needs: its namespace, and that no other mesh has an object of the name in it."""
    yield from namespaces.needed(context, resource.namespace, str(resource.key))
    if not resource.namespace or not resource.mesh:
        return
    for mesh in context.state.listed("Mesh"):
        other = resource.key._replace(mesh=mesh.name)
        if other != resource.key:
            text = f"{resource.key} cannot be stored: {other} has the same name in the same namespace"
            yield RequireAbsent(other, AlreadyExists(f"{text}; choose another name or another namespace"))


async def mesh_companions(context: Context, mesh: Resource) -> list[Put]:
    """What comes with a new mesh: its token signing key and the first policies."""
    if context.control_plane.federated:
        return []
    data = await asyncio.to_thread(context.signing_key)  # tens of milliseconds of arithmetic
    secret = {"type": "Secret", "mesh": mesh.name, "name": DATAPLANE.key_name(1, mesh.name), "data": data}
    documents = (secret, *defaults.mesh_policies(context.kinds, mesh.name, mesh.spec))
    return [Put(made_here(context, document), None) for document in documents]


def made_here(context: Context, document: Json) -> Resource:
    """An object that the control plane itself writes, from its plain document."""
    kind = context.kinds[document["type"]]
    origin = {labels.ORIGIN: context.control_plane.origin}
    draft = forms.read_plain({**document, "labels": {**origin, **document.get("labels", {})}}, kind)
    return admission.admitted(draft, None, context.control_plane).resource


def delete(context: Context, resource: Resource, expected: int | None) -> Sequence[Operation]:
    """Remove one object, if nothing needs it; a mesh takes what is in it along.

    One with finalizers is only marked, and goes with the last of them.
    """
    _check_origin(context, resource)
    if resource.kind == "Secret":
        _check_secret_unused(context, resource)
    guard = (_no_dataplanes(resource.name),) if resource.kind == "Mesh" else ()
    if resource.meta.finalizers:
        return (*guard, Put(ending(resource), resource.revision))
    inside = (DeleteMesh(resource.name),) if resource.kind == "Mesh" else ()
    return (*guard, *inside, Delete(resource.key, expected))


def _no_dataplanes(mesh: str) -> RequireNone:
    text = "unable to delete mesh, there are still some dataplanes attached"
    return RequireNone("Dataplane", mesh, Invalid([Violation("mesh", text, "in-use")]))


def ending(resource: Resource) -> Resource:
    """An object that is to go as soon as those who have a finalizer on it are done."""
    if resource.meta.deletion_timestamp:
        return resource
    meta = msgspec.structs.replace(resource.meta, deletion_timestamp=rfc3339(now()))
    return msgspec.structs.replace(resource, meta=meta)


def _check_origin(context: Context, resource: Resource) -> None:
    here = context.control_plane.origin
    may_be_foreign = not context.control_plane.is_global and not context.control_plane.federated
    if not may_be_foreign and resource.origin not in ("", here):
        at = f'labels["{labels.ORIGIN}"]'
        raise Invalid([Violation(at, f"the origin label must be set to '{here}'", "origin")])


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
    context: Context, mesh: Resource, secrets_beside: Collection[MeshSecretName]
) -> Iterator[Violation]:
    """Secrets that a provided CA of a mesh names and that are not there."""
    mtls = mesh_kind.mtls_of(mesh.spec)
    if mtls.skip_validation:
        return
    for index, backend in enumerate(mtls.backends or ()):
        if backend.type != "provided":
            continue
        conf = mesh_kind.provided_conf(backend)
        for part, source in (("cert", conf.cert), ("key", conf.key)):
            name = source.secret if source else None
            if not name or MeshSecretName(mesh.name, name) in secrets_beside:
                continue
            if context.state.named("Secret", mesh.name, name) is None:
                place = f'type="Secret" name="{name}" mesh="{mesh.name}"'
                message = (
                    f"could not load data: Resource not found: {place}; write it first, or in the same apply"
                )
                yield Violation(f"{item('mtls.backends', index)}.conf.{part}", message, "reference")


async def new_meshes(context: Context, resources: Sequence[Resource]) -> list[Put]:
    """What the meshes among these resources bring, less what the same change writes itself.

    A new mesh brings its companions; a new or changed one brings the CAs of its builtin backends that are not
    there yet. One that switches mTLS on brings that no service has it yet.
    """
    written = {resource.key for resource in resources}
    companions: list[Put] = []
    for resource in resources:
        if resource.kind != "Mesh":
            continue
        if context.state.get(resource.key) is None:
            made = await mesh_companions(context, resource)
            companions += [put for put in made if put.resource.key not in written]
        secrets = (each for each in resources if (each.kind, each.mesh) == ("Secret", resource.name))
        brought = frozenset(each.core_name for each in secrets)
        companions += await mesh_authorities(context, resource, brought)
        companions += [put for put in _unready(context, resource) if put.resource.key not in written]
    return companions


def _unready(context: Context, mesh: Resource) -> Iterator[Put]:
    """Services that were ready for mTLS when it was last on, where a mesh switches it on again.

    Statuses follow a mesh a moment later. Callers would take an old one for a new one, and come with TLS to
    proxies that do not have it yet.
    """
    before = context.state.get(mesh.key)
    if not _enabled(mesh) or (before is not None and _enabled(before)):
        return
    for service in context.state.listed("MeshService", mesh.name):
        unready = statuses.unready(service)
        if unready is not service:
            yield Put(unready, service.revision)


def _enabled(mesh: Resource) -> str:
    try:
        return mesh_kind.mtls_of(mesh.spec).enabled_backend or ""
    except msgspec.ValidationError:  # stored, and cannot be read: so it is written again
        return ""


async def mesh_authorities(context: Context, mesh: Resource, brought: frozenset[str]) -> list[Put]:
    """The CAs that the builtin backends of a mesh lack, as Secrets; not those that a change brings itself.

    Whoever is first has made them: a Secret that came between is not overwritten.
    """
    if context.control_plane.federated:
        return []
    puts: list[Put] = []
    for backend in mesh_kind.mtls_of(mesh.spec).backends or ():
        names = authority.secret_names(mesh.name, backend.name or "")
        there = [context.state.named("Secret", mesh.name, name) for name in names]
        if backend.type == "builtin" and None in there and brought.isdisjoint(names):
            wanted = mesh_kind.builtin_cert(backend)
            made = await asyncio.to_thread(authority.make, mesh.name, wanted, now())  # RSA takes its time
            for name, text in zip(names, (made.certificate, made.key.reveal()), strict=True):
                puts.append(_put_where_seen(context, _secret(mesh.name, name, text)))
    return puts


def _secret(mesh: str, name: str, text: str) -> Json:
    return {"type": "Secret", "mesh": mesh, "name": name, "data": base64.b64encode(text.encode()).decode()}


def _put_where_seen(context: Context, document: Json) -> Put:
    """Write an object over what is there now, and over nothing else."""
    resource = made_here(context, document)
    seen = context.state.entry(resource.key)
    return Put(resource, seen.revision if seen else 0)
