"""Visibility: which problems may be told to whom may not read every object.

A problem names the objects that it is about. Most are true because of others too, or because there are no
others: that no proxy is selected tells which proxies there are. So these are told only to whom may read all
of the mesh; Secrets do not count, but where it is about them.
"""

from typing import Final, Protocol

from koguma.core.lint.problem import (
    ADVICE,
    AROUND_EGRESS,
    BAD_CERTIFICATE,
    DEPRECATED_ROUTE,
    INVALID,
    NEVER_MATCHED,
    NO_EGRESS,
    NO_PLUGIN,
    NOT_BUILT,
    NOT_CALLED,
    SAME_ADDRESS,
    SHARED_ADDRESSES,
    SHARED_HOSTNAME,
    Problem,
)
from koguma.model.resource import Key

# True by what the named objects say, whatever else there is.
_OF_NAMED_OBJECTS: Final = frozenset(
    {
        *(INVALID, DEPRECATED_ROUTE, ADVICE, NOT_BUILT, NEVER_MATCHED, NO_PLUGIN),
        *(SAME_ADDRESS, SHARED_ADDRESSES),
    }
)
# Objects of no mesh decide too: zone egresses, HostnameGenerators, meshes.
_BEYOND_THE_MESH: Final = frozenset({NO_EGRESS, AROUND_EGRESS, SHARED_HOSTNAME, NOT_CALLED})


class Visibility(Protocol):
    """What a reader may read."""

    def may_see(self, key: Key) -> bool:
        """Whether he may read an object."""

    def sees_all(self, kind: str, mesh: str) -> bool:
        """Whether he may read every object of a kind in a mesh, also those that are not there yet."""

    def sees_mesh(self, mesh: str) -> bool:
        """The same for all kinds but those of Secrets; an empty name is for the objects of no mesh."""


class _Everything:
    def may_see(self, _key: Key) -> bool:
        return True

    def sees_all(self, _kind: str, _mesh: str) -> bool:
        return True

    def sees_mesh(self, _mesh: str) -> bool:
        return True


EVERYTHING: Final[Visibility] = _Everything()


def may_tell(problem: Problem, visible: Visibility) -> bool:
    """Whether a problem tells nothing that its reader may not read."""
    if not all(map(visible.may_see, problem.objects)):
        return False
    if problem.code in _OF_NAMED_OBJECTS:
        return True
    meshes = {key.mesh or key.name for key in problem.objects if key.mesh or key.kind == "Mesh"}
    if problem.code in _BEYOND_THE_MESH or not meshes:
        meshes.add("")
    if problem.code == BAD_CERTIFICATE and not all(visible.sees_all("Secret", mesh) for mesh in meshes):
        return False
    return all(map(visible.sees_mesh, meshes))
