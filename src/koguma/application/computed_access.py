"""Access to computed objects: who may not read what they are computed from sees none of them."""

from collections.abc import Callable

from koguma.access.user import User
from koguma.application.context import Context
from koguma.model.kind import ComputedFrom, Kind
from koguma.model.resource import Resource


def source_mesh(computed: ComputedFrom, mesh: str, name: str) -> str:
    """The mesh of what an object is computed from; the summary of a mesh has the mesh's name."""
    return mesh or (name if computed.is_summary else "")


def check_get(context: Context, user: User, kind: Kind, mesh: str, name: str) -> None:
    """Raise Forbidden unless the user may read, in the plain form, what an object is computed from."""
    if kind.computed is None:
        return
    source = context.kinds[kind.computed.kind]
    if kind.computed.is_summary:
        context.check(user, "list", source, source_mesh(kind.computed, mesh, name))
    else:
        context.check(user, "get", source, mesh, name)


def check_list(context: Context, user: User, kind: Kind, mesh: str | None) -> None:
    """Raise Forbidden where the user may list, in the plain form, nothing of what is asked for."""
    if kind.computed is not None and mesh is not None:
        context.check(user, "list", context.kinds[kind.computed.kind], mesh)


def plain_filter(context: Context, user: User, kind: Kind) -> Callable[[Resource], bool] | None:
    """Which objects of a list a user may see in the plain form; None where he may see all."""
    if kind.computed is None:
        return None
    computed, plural = kind.computed, context.kinds[kind.computed.kind].plural

    def is_visible(resource: Resource) -> bool:
        mesh = source_mesh(computed, resource.mesh, resource.name)
        return context.access.allows_on(user, "list", plural, "", mesh)

    return is_visible
