"""Owners: which objects belong to which, and what follows when one of them goes.

An object whose owners are all gone goes too. One that is deleted in the foreground waits for those that block
it; one that is to leave orphans lets go of them first. Pure: it is told of objects, and says what to do.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from koguma.model.resource import Resource
from koguma.model.schema import Json

FOREGROUND: Final = "foregroundDeletion"
ORPHAN: Final = "orphan"


class DeleteDependent(msgspec.Struct, frozen=True):
    """Delete this object: nobody who owns it is left, or its owner goes `in_foreground`, and so should it."""

    resource: Resource
    in_foreground: bool = False


class RemoveFinalizer(msgspec.Struct, frozen=True):
    """Take a finalizer of the collector's from an object: what it stood for is done."""

    resource: Resource
    finalizer: str


class RemoveOwnerReference(msgspec.Struct, frozen=True):
    """Take the references to an owner out of an object, which stays."""

    resource: Resource
    owner: str


CollectionStep = DeleteDependent | RemoveFinalizer | RemoveOwnerReference


def _namespace(resource: Resource) -> str:
    return resource.namespace


def _nothing(_reference: Json) -> bool:
    return False


class OwnerGraph:
    """All objects by uid, and who belongs to whom; `due` says what has to be done for those that changed.

    `namespace_of` says where an object appears. `is_hidden` says of a reference whether an object may be
    there that cannot be read: that one is not gone.
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
        """An object is there, or is there in another form."""
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
        """An object is gone; whoever belongs to it, and whomever it held back, is looked at."""
        before = self._live.pop(resource.uid, None)
        if before is not None:
            self._forget(before)
            self._suspects.update(_owners(before))
        self._suspects.update(self._owned.get(resource.uid, ()))

    def _forget(self, resource: Resource) -> None:
        for owner in _owners(resource):
            there = self._owned.get(owner)
            if there is not None:
                there.discard(resource.uid)
                if not there:
                    del self._owned[owner]

    def due(self) -> list[CollectionStep]:
        """What is to be done now, in a fixed order; each suspect is looked at once."""
        looked, self._suspects = sorted(self._suspects), set()
        found = (self._live.get(uid) for uid in looked)
        return [step for resource in found if resource is not None for step in self._steps(resource)]

    def suspect(self, resource: Resource) -> None:
        """Look at this object again: what was to be done could not be."""
        self._suspects.add(resource.uid)

    def _steps(self, resource: Resource) -> Iterator[CollectionStep]:
        meta = resource.meta
        if not meta.deletion_timestamp:
            if meta.owner_references and not any(self._is_owner(o, resource) for o in meta.owner_references):
                yield DeleteDependent(resource)
            return
        dependents = [self._live[uid] for uid in sorted(self._owned.get(resource.uid, ()))]
        if ORPHAN in meta.finalizers:
            yield from (RemoveOwnerReference(each, resource.uid) for each in dependents)
            if not dependents:
                yield RemoveFinalizer(resource, ORPHAN)
        elif FOREGROUND in meta.finalizers:
            living = (each for each in dependents if not each.meta.deletion_timestamp)
            yield from (DeleteDependent(each, in_foreground=each.uid in self._owned) for each in living)
            if not any(_blocks(each, resource.uid) for each in dependents):
                yield RemoveFinalizer(resource, FOREGROUND)

    def _is_owner(self, reference: Json, resource: Resource) -> bool:
        """Whether a reference leads to an object that can own: one that is there, not of another namespace.

        What lives in no namespace stays where its owner lives in one: that owner was never to be found.
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
