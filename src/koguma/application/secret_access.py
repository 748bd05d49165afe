"""Secret access: whoever makes an object refer to a Secret must be allowed to read that Secret.

A reference hands a Secret to proxies, and shows parts of it to people who look at them. So it needs the right
`get` on the Secret, in any group that serves it. As Kubernetes does it for roles, a reference that is there
already may stay when somebody else writes the object; a new one is checked.

Who was checked stands in an annotation that the control plane alone writes. It is asked again whenever
somebody looks (`lapsed`): a right that was taken away since is shown, and no traffic is cut, so that nobody
who leaves takes a service down. Decision 0004 says more.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from koguma.access.authorizer import REST_GROUP, Attempt
from koguma.access.user import User
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
    """Who made an object refer to a Secret, with the groups of that moment: only tokens say more."""

    user: str
    groups: tuple[str, ...] = ()

    def as_user(self) -> User:
        """As whom the access rules are asked."""
        return User(self.user, self.groups)


SecretReaders = Mapping[str, SecretReader]  # by the name of the Secret

_decoder: Final = msgspec.json.Decoder(dict[str, SecretReader])
_encoder: Final = msgspec.json.Encoder(order="sorted")


def checked(context: Context, user: User | None, made: Resource, before: Resource | None) -> Resource:
    """The object with who may read what it refers to; raises where the writer may not.

    `user` is None where the control plane itself writes.
    """
    kind = context.kinds[made.kind]
    references = secret_references.of(kind, made.spec)
    _refuse_reserved(kind, references)
    readers = readers_of(before)
    kept = {each.purpose for each in secret_references.of(kind, before.spec)} if before else set()
    found: dict[str, SecretReader] = {}
    for each in references:
        reader = readers.get(each.name)
        if user is not None and _may_read(context, user, _mesh(made), each.name):
            if reader is None or not _may_read(context, reader.as_user(), _mesh(made), each.name):
                reader = SecretReader(user.name, user.groups)
        elif user is not None and each.purpose not in kept:
            raise _forbidden(context, user, made, each)
        if reader is not None:
            found[each.name] = reader
    return _annotated(made, found)


def _refuse_reserved(kind: Kind, references: tuple[SecretReference, ...]) -> None:
    wrong = [
        Violation(each.path, f'"{each.name}" {reserved_secrets.MESSAGE}', "reserved")
        for each in references
        if reserved_secrets.is_reserved(each.name)
        and not (kind.name == _MESH and reserved_secrets.is_authority(each.name))
    ]
    if wrong:
        raise Invalid(wrong)


def _mesh(of: Resource) -> str:
    return of.name if of.kind == _MESH else of.mesh


def _may_read(context: Context, user: User, mesh: str, name: str) -> bool:
    """Whether a user may read every Secret that the name can mean, in any of the groups that serve it."""
    return all(
        any(context.access.allows(user, attempt) for attempt in attempts)
        for attempts in _attempts(context, mesh, name)
    )


def _attempts(context: Context, mesh: str, name: str) -> Iterator[tuple[Attempt, ...]]:
    """For each Secret that is meant, the attempts of which one must be allowed.

    A name means the Secrets of all zones that have it; where there is none yet, the one that will have it.
    """
    kind = context.kinds[_SECRET]
    there = [each for each in context.state.listed(_SECRET, mesh) if name in (each.name, each.core_name)]
    unwritten = Resource(kind=_SECRET, mesh=mesh, name=name, core_name=name)
    for each in there or (unwritten,):
        spot = namespaced_names.namespaced_name(each, kind, context.control_plane)
        yield tuple(
            Attempt(
                "get",
                kind.plural,
                each.core_name if group == REST_GROUP else spot.name,
                mesh,
                group,
                namespace=spot.namespace,
            )
            for group in _GROUPS
        )


def _forbidden(context: Context, user: User, made: Resource, reference: SecretReference) -> Forbidden:
    attempt = next(_attempts(context, _mesh(made), reference.name))[0]
    words = (
        f'user "{user}" cannot make {made.key} refer to Secret "{reference.name}" in {reference.path}:'
        f" that needs the right to {attempt}"
    )
    return context.access.refusal(user, attempt, words)


def readers_of(resource: Resource | None) -> SecretReaders:
    """Who may read what an object refers to, as it was when they wrote it."""
    text = resource.annotations.get(labels.SECRET_READERS) if resource is not None else None
    if not text:
        return {}
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError:  # stored by somebody who passed us by
        return {}


def _annotated(made: Resource, readers: SecretReaders) -> Resource:
    """The object with this annotation and no other: what a writer says about it does not count."""
    text = _encoder.encode(readers).decode() if readers else ""
    if made.annotations.get(labels.SECRET_READERS, "") == text:
        return made
    kept = {name: value for name, value in made.annotations.items() if name != labels.SECRET_READERS}
    return msgspec.structs.replace(made, annotations={**kept, labels.SECRET_READERS: text} if text else kept)


class LapsedReference(NamedTuple):
    """A reference that nobody answers for any more: who made it may not read the Secret now."""

    by: Key
    path: str
    name: str
    user: str  # empty where it was written before anybody was asked

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
    """All references that nobody answers for, by the rights of the moment."""
    for kind in context.kinds:
        if secret_references.is_referring(kind):
            for resource in context.state.listed(kind.name, None):
                yield from lapsed_of(context, kind, resource)


def lapsed_of(context: Context, kind: Kind, resource: Resource) -> Iterator[LapsedReference]:
    """Those of one object."""
    readers = readers_of(resource)
    for each in secret_references.of(kind, resource.spec):
        reader = readers.get(each.name)
        if reader is None or not _may_read(context, reader.as_user(), _mesh(resource), each.name):
            yield LapsedReference(resource.key, each.path, each.name, reader.user if reader else "")
