"""Owner graph: which objects own which by ownerReferences, and what garbage collection has to do.

An object whose owners are all gone is deleted; one with an owner left loses the references to those that are
gone. One that is deleted in the foreground waits for dependents that block it; one whose dependents are to be
orphaned is removed from their references first. Pure: it is given objects, and returns the steps to take.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from koguma.model.resource import Resource
from koguma.model.schema import Json

FOREGROUND: Final = "foregroundDeletion"
ORPHAN: Final = "orphan"


class DeleteDependent(msgspec.Struct, frozen=True):
    """Delete this object: none of its owners is left, or its owner is deleted in the foreground."""

    resource: Resource
    in_foreground: bool = False


class RemoveFinalizer(msgspec.Struct, frozen=True):
    """Remove one of the garbage collector's finalizers from an object: what it waited for is done."""

    resource: Resource
    finalizer: str


class RemoveOwnerReference(msgspec.Struct, frozen=True):
    """Remove the references to an owner from an object, which stays: as an orphan, or for another owner."""

    resource: Resource
    owner: str


CollectionStep = DeleteDependent | RemoveFinalizer | RemoveOwnerReference


def _namespace(resource: Resource) -> str:
    return resource.namespace


def _nothing(_reference: Json) -> bool:
    return False


class OwnerGraph:
    """All objects by uid with their dependents; `due` gives the steps for those that changed.

    `namespace_of` gives the namespace of an object. `is_hidden` says whether a reference may lead to an
    object that is stored and cannot be read: such an owner is not gone.
    """

    def __init__(
        self,
        resources: Iterable[Resource] = (),
        namespace_of: Callable[[Resource], str] = _namespace,
        is_hidden: Callable[[Json], bool] = _nothing,
    ) -> None:
        self._namespace_of = namespace_of
        self._is_hidden = is_hidden
        self._live: dict[str, Resource] = {}
        self._owned: dict[str, set[str]] = {}  # by the owner's uid, the uids of its dependents
        self._suspects: set[str] = set()
        for resource in resources:
            self.take(resource)

    def take(self, resource: Resource) -> None:
        """Add an object, or replace its last version."""
        before = self._live.get(resource.uid)
        if before is not None:
            self._forget(before)
            self._suspects.update(_owners(before))
        self._live[resource.uid] = resource
        for owner in _owners(resource):
            self._owned.setdefault(owner, set()).add(resource.uid)
        if resource.meta.owner_references or resource.meta.deletion_timestamp:
            self._suspects.add(resource.uid)

    def drop(self, resource: Resource) -> None:
        """Remove an object; its dependents and its owners are examined again."""
        before = self._live.pop(resource.uid, None)
        if before is not None:
            self._forget(before)
            self._suspects.update(_owners(before))
        self._suspects.update(self._owned.get(resource.uid, ()))

    def _forget(self, resource: Resource) -> None:
        for owner in _owners(resource):
            dependents = self._owned.get(owner)
            if dependents is not None:
                dependents.discard(resource.uid)
                if not dependents:
                    del self._owned[owner]

    def due(self) -> list[CollectionStep]:
        """The steps to take now, in a fixed order; each changed object is examined once."""
        uids, self._suspects = sorted(self._suspects), set()
        resources = (self._live.get(uid) for uid in uids)
        return [step for resource in resources if resource is not None for step in self._steps(resource)]

    def suspect(self, resource: Resource) -> None:
        """Examine this object again: its step failed."""
        self._suspects.add(resource.uid)

    def _steps(self, resource: Resource) -> Iterator[CollectionStep]:
        meta = resource.meta
        if not meta.deletion_timestamp:
            yield from self._steps_of_dependent(resource)
            return
        dependents = [self._live[uid] for uid in sorted(self._owned.get(resource.uid, ()))]
        if ORPHAN in meta.finalizers:
            yield from (RemoveOwnerReference(dependent, resource.uid) for dependent in dependents)
            if not dependents:
                yield RemoveFinalizer(resource, ORPHAN)
        elif FOREGROUND in meta.finalizers:
            living = (dependent for dependent in dependents if not dependent.meta.deletion_timestamp)
            yield from (
                RemoveOwnerReference(dependent, resource.uid)
                if any(self._is_solid(owner, dependent) for owner in dependent.meta.owner_references)
                else DeleteDependent(dependent, in_foreground=dependent.uid in self._owned)
                for dependent in living
            )
            if not any(_blocks(dependent, resource.uid) for dependent in dependents):
                yield RemoveFinalizer(resource, FOREGROUND)

    def _steps_of_dependent(self, resource: Resource) -> Iterator[CollectionStep]:
        """What an object that is not being deleted needs, by which of its owners exist."""
        references = resource.meta.owner_references
        gone = [owner for owner in references if not self._is_owner(owner, resource)]
        if not gone:
            return
        if len(gone) == len(references):
            yield DeleteDependent(resource)
        else:
            yield RemoveOwnerReference(resource, str(gone[0].get("uid", "")))  # the next one comes after it

    def _is_solid(self, reference: Json, resource: Resource) -> bool:
        """Whether a reference leads to an owner that stays: it is not waiting for its dependents to go."""
        owner = self._live.get(str(reference.get("uid", "")))
        waits = owner is not None and owner.meta.deletion_timestamp and FOREGROUND in owner.meta.finalizers
        return self._is_owner(reference, resource) and not waits

    def _is_owner(self, reference: Json, resource: Resource) -> bool:
        """Whether a reference leads to an existing owner, in the same namespace or in none.

        A cluster-scoped object with a namespaced owner is kept: such an owner is invalid and never resolves.
        """
        owner = self._live.get(str(reference.get("uid", "")))
        if owner is None:
            return self._is_hidden(reference)
        here = self._namespace_of(resource)
        return not here or self._namespace_of(owner) in ("", here)


def _owners(resource: Resource) -> Iterator[str]:
    return (str(each.get("uid", "")) for each in resource.meta.owner_references if isinstance(each, dict))


def _blocks(resource: Resource, owner: str) -> bool:
    return any(
        each.get("uid") == owner and each.get("blockOwnerDeletion") is True
        for each in resource.meta.owner_references
    )
