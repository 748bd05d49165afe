"""Computed objects: objects of kinds that nobody stores, made from stored ones when they are read."""

from collections.abc import Sequence
from typing import Final, Protocol

from koguma.model.resource import Resource


class ComputedObjects(Protocol):
    """The source of all objects of the kinds that have `computed_from`.

    They have no revision and no uid. An object of a list may lack its spec until it is `filled`, so that a
    page of a long list costs as much as its own objects.
    """

    @property
    def problem(self) -> str:
        """Why the objects may not be of this moment; empty where they are."""

    async def prepare(self, kind: str, mesh: str | None) -> None:
        """Compute ahead what objects of a kind need, in small steps, so that other requests are served."""

    def listed(self, kind: str, mesh: str | None = None) -> Sequence[Resource]:
        """The objects of a kind, in all meshes or in one, sorted by mesh and core name."""

    def named(self, kind: str, mesh: str, core_name: str) -> Resource | None:
        """The object with a core name."""

    def filled(self, resource: Resource) -> Resource:
        """An object of a list, complete."""


class NothingComputed:
    """The source where nothing computes anything."""

    problem: Final = ""

    async def prepare(self, _kind: str, _mesh: str | None) -> None:
        """Nothing."""

    def listed(self, _kind: str, _mesh: str | None = None) -> Sequence[Resource]:
        """None."""
        return ()

    def named(self, _kind: str, _mesh: str, _core_name: str) -> Resource | None:
        """None."""
        return None

    def filled(self, resource: Resource) -> Resource:
        """As it is."""
        return resource
