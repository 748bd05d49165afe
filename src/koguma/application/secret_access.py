"""Secret access: the writer of a reference to a Secret must be allowed to read that Secret.

A reference delivers a Secret to proxies, and parts of it to people who inspect them. So it needs the right
`get` on the Secret, in any API group that serves it. As in Kubernetes' escalation check for roles, one that
is already stored may stay when another user writes the object; only new ones are checked. One that goes to
other proxies, since a gateway has other selectors, is a new one; and so is a text in the gateway itself.

The checked user is kept in an annotation that only the control plane writes, and checked again later
(`lapsed`): a right that was revoked since is reported, but no traffic is cut, so that revoking the rights of
somebody who leaves takes no service down (decision 0012).
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from koguma.access.authorizer import REST_GROUP, Attempt
from koguma.access.user import User
from koguma.application import inline_secrets
from koguma.application.context import Context
from koguma.kinds import secret_references
from koguma.kinds.secret_references import SecretReference
from koguma.kube import namespaced_names
from koguma.kube.registry import KOGUMA, KUMA
from koguma.model import labels, reserved_secrets
from koguma.model.errors import Forbidden, Invalid
from koguma.model.kind import Kind
from koguma.model.resource import Key, Resource
from koguma.model.violation import Violation

_GROUPS: Final = (REST_GROUP, KUMA, KOGUMA)
_MESH: Final = "Mesh"
_SECRET: Final = "Secret"  # noqa: S105 - the name of a kind


class SecretReader(msgspec.Struct, frozen=True, omit_defaults=True):
    """The user who wrote a reference, with the groups of the token then, which are stored nowhere else."""

    user: str
    groups: tuple[str, ...] = ()

    def as_user(self) -> User:
        """The user for whom the access rules are evaluated."""
        return User(self.user, self.groups)


SecretReaders = Mapping[str, SecretReader]  # by the name of the Secret

_decoder: Final = msgspec.json.Decoder(dict[str, SecretReader])
_encoder: Final = msgspec.json.Encoder(order="sorted")


def checked(context: Context, user: User | None, written: Resource, before: Resource | None) -> Resource:
    """The object, its references' readers annotated; raises where the writer may not read one of them.

    `user` is None where the control plane itself writes.
    """
    kind = context.kinds[written.kind]
    references = secret_references.of(kind, written.spec)
    _refuse_reserved(kind, references)
    readers = readers_of(before)
    if before is not None and secret_references.has_other_audience(kind, written.spec, before.spec):
        if user is not None:
            _refuse_kept_texts(context, user, written, before)
        before = None
    kept_purposes = (
        {reference.purpose for reference in secret_references.of(kind, before.spec)} if before else set()
    )
    readers_by_name: dict[str, SecretReader] = {}
    for reference in references:
        reader = readers.get(reference.name)
        if user is not None and _may_read(context, user, _mesh(written), reference.name):
            if reader is None or not _may_read(context, reader.as_user(), _mesh(written), reference.name):
                reader = SecretReader(user.name, user.groups)
        elif user is not None and reference.purpose not in kept_purposes:
            raise _forbidden(context, user, written, reference)
        if reader is not None:
            readers_by_name[reference.name] = reader
    return _annotated(written, readers_by_name)


def _refuse_reserved(kind: Kind, references: tuple[SecretReference, ...]) -> None:
    violations = [
        Violation(reference.path, f'"{reference.name}" {reserved_secrets.MESSAGE}', "reserved")
        for reference in references
        if reserved_secrets.is_reserved(reference.name)
        and not (kind.name == _MESH and reserved_secrets.is_authority(reference.name))
    ]
    if violations:
        raise Invalid(violations)


def _refuse_kept_texts(context: Context, user: User, written: Resource, before: Resource) -> None:
    """Refuse to give stored texts to other proxies for somebody who has not read them."""
    kept = inline_secrets.texts(context, written) & inline_secrets.texts(context, before)
    if kept and not inline_secrets.may_read(context, user, written):
        attempt = Attempt("get", context.kinds[_SECRET].plural, "", _mesh(written), REST_GROUP)
        words = (
            f'user "{user}" cannot give the certificates in {written.key} to other proxies by its selectors:'
            f" that needs the right to {attempt}"
        )
        raise context.access.refusal(user, attempt, words)


def _mesh(of: Resource) -> str:
    return of.name if of.kind == _MESH else of.mesh


def _may_read(context: Context, user: User, mesh: str, name: str) -> bool:
    """Whether a user may read every Secret that the name can mean, in any of the groups that serve it."""
    return all(
        any(context.access.allows(user, attempt) for attempt in attempts)
        for attempts in _attempts(context, mesh, name)
    )


def _attempts(context: Context, mesh: str, name: str) -> Iterator[tuple[Attempt, ...]]:
    """For each Secret that the name stands for, the attempts of which one must be allowed.

    A name stands for the Secrets of all zones that have it; where none exists yet, for the one to come.
    """
    kind = context.kinds[_SECRET]
    secrets = [
        secret for secret in context.state.listed(_SECRET, mesh) if name in (secret.name, secret.core_name)
    ]
    not_yet_written = Resource(kind=_SECRET, mesh=mesh, name=name, core_name=name)
    for secret in secrets or (not_yet_written,):
        namespaced = namespaced_names.namespaced_name(secret, kind, context.control_plane)
        yield tuple(
            Attempt(
                "get",
                kind.plural,
                secret.core_name if group == REST_GROUP else namespaced.name,
                mesh,
                group,
                namespace=namespaced.namespace,
            )
            for group in _GROUPS
        )


def _forbidden(context: Context, user: User, written: Resource, reference: SecretReference) -> Forbidden:
    attempt = next(_attempts(context, _mesh(written), reference.name))[0]
    words = (
        f'user "{user}" cannot make {written.key} refer to Secret "{reference.name}" in {reference.path}:'
        f" that needs the right to {attempt}"
    )
    return context.access.refusal(user, attempt, words)


def readers_of(resource: Resource | None) -> SecretReaders:
    """The readers in the annotation of a stored object."""
    text = resource.annotations.get(labels.SECRET_READERS) if resource is not None else None
    if not text:
        return {}
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError:  # written past the API
        return {}


def _annotated(resource: Resource, readers: SecretReaders) -> Resource:
    """The object with exactly this annotation: what the writer sent for it is ignored."""
    text = _encoder.encode(readers).decode() if readers else ""
    if resource.annotations.get(labels.SECRET_READERS, "") == text:
        return resource
    other_annotations = {
        name: value for name, value in resource.annotations.items() if name != labels.SECRET_READERS
    }
    return msgspec.structs.replace(
        resource,
        annotations={**other_annotations, labels.SECRET_READERS: text} if text else other_annotations,
    )


class LapsedReference(NamedTuple):
    """A reference whose writer may not read the Secret any more."""

    by: Key
    path: str
    name: str
    user: str  # empty where it was stored before such checks existed

    def __str__(self) -> str:
        who = (
            f'user "{self.user}", who wrote that, may not read it any more'
            if self.user
            else "nobody has been asked"
        )
        return f'{self.by} refers to Secret "{self.name}" in {self.path}, and {who}'


LAPSED_HINT: Final = (
    "let somebody write the object again who may read the Secret, or take the reference away;"
    " proxies keep what they have until then"
)


def lapsed(context: Context) -> Iterator[LapsedReference]:
    """All references whose writer may not read the Secret, by the current access rules."""
    for kind in context.kinds:
        if secret_references.is_referring(kind):
            for resource in context.state.listed(kind.name, None):
                yield from lapsed_of(context, kind, resource)


def lapsed_of(context: Context, kind: Kind, resource: Resource) -> Iterator[LapsedReference]:
    """Those of one object."""
    readers = readers_of(resource)
    for reference in secret_references.of(kind, resource.spec):
        reader = readers.get(reference.name)
        if reader is None or not _may_read(context, reader.as_user(), _mesh(resource), reference.name):
            yield LapsedReference(resource.key, reference.path, reference.name, reader.user if reader else "")
