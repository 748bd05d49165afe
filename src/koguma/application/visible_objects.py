"""Visible objects: which stored objects a user may read, as a value that a thread can ask.

On Global the rights of its users are its own, and zones answer for their proxies. `SentRights` is what a zone
needs to know of them: keys are the same everywhere, names are not.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from koguma.access.authorizer import ANY, Attempt, namespace_of
from koguma.access.user import User
from koguma.application.context import Context
from koguma.model.kind import Kind
from koguma.model.resource import Key, Resource


class SentRights(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a user may read by the rights that he has on another control plane, as a plain value."""

    is_everything: bool = False
    kinds: Mapping[str, tuple[str, ...]] = {}  # of which he may read all objects, by mesh; "": of no mesh
    keys: tuple[Key, ...] = ()  # of other objects that he may read


class VisibleObjects:
    """The objects that a user may read now: those that are stored, and some that are not stored yet."""

    def __init__(self, context: Context, user: User, requested: Iterable[Key] = ()) -> None:
        self._requested = frozenset(requested)
        self._kinds = tuple(context.kinds)
        self._whole = frozenset(_whole(context, user, self._requested))
        self._hidden = frozenset(_hidden(context, user, self._whole))
        self._stored = frozenset(resource.key for resource in context.state.all())
        self._is_everything = context.access.allows(user, Attempt("get", ANY, group=ANY))

    def may_see(self, key: Key) -> bool:
        """Whether the user may read an object; one that is not stored needs a right on all of its kind."""
        if key in self._requested or (key.kind, key.mesh) in self._whole:
            return True
        return key in self._stored and key not in self._hidden

    def sees_all(self, kind: str, mesh: str) -> bool:
        """Whether the user may read every object of a kind in a mesh, also those that are not stored yet."""
        return (kind, mesh) in self._whole

    def sees_mesh(self, mesh: str) -> bool:
        """The same for all stored kinds but those of Secrets; an empty name is for the objects of no mesh."""
        return all(self.sees_all(name, mesh) for name in _kinds_of_mesh(self._kinds, mesh))

    def sent(self) -> SentRights:
        """The same for another control plane, of whose own objects those of whole kinds are visible."""
        if self._is_everything:
            return SentRights(is_everything=True)
        kinds: dict[str, list[str]] = {}
        for kind, mesh in sorted(self._whole):
            kinds.setdefault(mesh, []).append(kind)
        keys = {key for key in self._stored - self._hidden if (key.kind, key.mesh) not in self._whole}
        return SentRights(
            kinds={mesh: tuple(names) for mesh, names in kinds.items()},
            keys=tuple(sorted(keys | self._requested)),
        )


class ReceivedRights:
    """The objects that a user of another control plane may read here."""

    def __init__(self, context: Context, sent: SentRights) -> None:
        self._is_everything = sent.is_everything
        self._kinds = tuple(context.kinds)
        self._whole = {mesh: frozenset(kinds) for mesh, kinds in sent.kinds.items()}
        self._keys = frozenset(sent.keys)

    def may_see(self, key: Key) -> bool:
        """Whether the user may read an object."""
        return key in self._keys or self.sees_all(key.kind, key.mesh)

    def sees_all(self, kind: str, mesh: str) -> bool:
        """Whether the user may read every object of a kind in a mesh, also those that are not stored yet."""
        return self._is_everything or kind in self._whole.get(mesh, ())

    def sees_mesh(self, mesh: str) -> bool:
        """The same for all stored kinds but those of Secrets; an empty name is for the objects of no mesh."""
        return all(self.sees_all(name, mesh) for name in _kinds_of_mesh(self._kinds, mesh))


def _kinds_of_mesh(kinds: Iterable[Kind], mesh: str) -> Iterator[str]:
    """The stored kinds of a mesh, or of no mesh, but those of Secrets."""
    for kind in kinds:
        if not kind.admin_only and kind.computed is None and kind.is_mesh_scoped is bool(mesh):
            yield kind.name


def _whole(context: Context, user: User, requested: frozenset[Key]) -> Iterator[tuple[str, str]]:
    """The kinds and meshes of which the user may read every object; a mesh that he asks for is one."""
    stored = (mesh.name for mesh in context.state.listed("Mesh"))
    meshes = {"", *stored, *(key.name for key in requested if key.kind == "Mesh")}
    for kind in context.kinds:
        for mesh in meshes:
            if context.access.allows_on(user, "get", kind.plural, "", mesh):
                yield kind.name, mesh


def _hidden(context: Context, user: User, whole: frozenset[tuple[str, str]]) -> Iterator[Key]:
    for resource in context.state.all():
        if (resource.kind, resource.mesh) not in whole and not _may_get(context, user, resource):
            yield resource.key


def _may_get(context: Context, user: User, resource: Resource) -> bool:
    kind = context.kinds.by_name.get(resource.kind)
    if kind is not None:
        namespace = namespace_of(kind, context.control_plane, resource.mesh, resource)
        return context.access.allows_on(
            user, "get", kind.plural, resource.core_name, resource.mesh, namespace
        )
    if context.catalog.kind(resource.kind) is None:  # the control plane's own, or nobody serves it any more
        return False
    endpoint = context.catalog.stored(resource.kind)
    attempt = Attempt(
        "get", endpoint.plural, resource.name, resource.mesh, endpoint.group, namespace=resource.namespace
    )
    return context.access.allows(user, attempt)
