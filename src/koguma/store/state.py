"""State: the current objects in memory, always as of one revision.

Every read of the control plane is answered from here. Only changes of the log alter it, in revision order, so
equal logs give equal states.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from koguma.model.resource import Key, Resource
from koguma.store.contract import Change, Op, Place, Unreadable
from koguma.store.log import LogSnapshot

Entry = Resource | Unreadable


class State:
    """The current objects, found by key or by core name, listed by kind."""

    def __init__(self, snapshot: LogSnapshot | None = None) -> None:
        self.reset(snapshot or LogSnapshot(0, 0, ()))

    def reset(self, snapshot: LogSnapshot) -> None:
        """Start again from the snapshot of a log."""
        self.revision = snapshot.revision
        self.transaction = (
            snapshot.transaction
        )  # of that revision, which its number alone does not tell apart
        self.compacted = snapshot.compacted
        self._indexes: dict[str, _KindIndex] = {}
        self._unreadable: dict[Key, Unreadable] = {}
        self._names: dict[tuple[str, str], dict[str, Key]] = {}  # by kind and mesh, then by core name
        self._counts: dict[str, Counter[Place]] = {}  # by kind: how many are stored in each place
        for resource in snapshot.resources:
            key = resource.key
            self._count(key, 1)
            self._index(resource.kind).put(key, resource)
            self._add_name(key, resource.core_name)
        for unreadable in snapshot.unreadable:
            self._unreadable[unreadable.key] = unreadable
            self._count(unreadable.key, 1)
            self._add_name(unreadable.key, unreadable.core_name)

    def get(self, key: Key) -> Resource | None:
        """The object under a key."""
        index = self._indexes.get(key.kind)
        return index.objects.get(key) if index else None

    def named(self, kind: str, mesh: str, core_name: str) -> Resource | None:
        """The object with a core name."""
        key = self.key_named(kind, mesh, core_name)
        return self.get(key) if key else None

    def listed(self, kind: str, mesh: str | None = None) -> tuple[Resource, ...]:
        """The objects of a kind, in all meshes or in one, sorted by mesh and core name."""
        index = self._indexes.get(kind)
        if index is None:
            return ()
        resources = index.listed()
        if mesh is None:
            return resources
        low = bisect_left(resources, mesh, key=_mesh)
        return resources[low : bisect_right(resources, mesh, lo=low, key=_mesh)]

    def all(self) -> Iterator[Resource]:
        """Every object, kind by kind."""
        for kind in sorted(self._indexes):
            yield from self._indexes[kind].listed()

    @property
    def unreadable(self) -> Mapping[Key, Unreadable]:
        """The stored objects that cannot be read."""
        return MappingProxyType(self._unreadable)

    def entry(self, key: Key) -> Entry | None:
        """The object under a key, readable or not."""
        index = self._indexes.get(key.kind)
        resource = index.objects.get(key) if index else None
        return resource if resource is not None else self._unreadable.get(key)

    def key_named(self, kind: str, mesh: str, core_name: str) -> Key | None:
        """The key of the object with a core name."""
        names = self._names.get((kind, mesh))
        return names.get(core_name) if names else None

    def stored_keys(self) -> Iterator[Key]:
        """The keys of all stored objects, readable or not."""
        for index in self._indexes.values():
            yield from index.objects
        yield from self._unreadable

    def resources(self, kind: str) -> Iterator[Resource]:
        """The readable objects of a kind, in any order."""
        index = self._indexes.get(kind)
        return iter(index.objects.values() if index else ())

    def counts(self, kind: str) -> Mapping[Place, int]:
        """The number of objects of a kind, readable or not, in each place that has some."""
        return self._counts.get(kind, {})

    def apply(self, change: Change) -> None:
        """Apply the next change of the log."""
        assert change.revision == self.revision + 1, f"{change.revision} cannot follow {self.revision}"
        resource = change.resource
        key = resource.key
        before = self.entry(key)
        if before is not None and (change.op is Op.DELETE or before.core_name != resource.core_name):
            self._remove_name(key, before.core_name)
        self._count(key, (change.op is not Op.DELETE) - (before is not None))
        self._unreadable.pop(key, None)
        if change.op is Op.DELETE:
            self._index(key.kind).remove(key)
        else:
            self._add_name(key, resource.core_name)
            if change.error:
                self._index(key.kind).remove(key)
                self._unreadable[key] = Unreadable(key, resource.core_name, change.revision, change.error)
            else:
                self._index(key.kind).put(key, resource)
        self.revision = change.revision
        self.transaction = change.transaction

    def _count(self, key: Key, difference: int) -> None:
        if difference:
            place, counts = (
                Place(key.mesh, key.zone, key.namespace),
                self._counts.setdefault(key.kind, Counter()),
            )
            counts[place] += difference
            if not counts[place]:
                del counts[place]

    def _add_name(self, key: Key, core_name: str) -> None:
        names = self._names.setdefault((key.kind, key.mesh), {})
        if names.get(core_name) != key:  # else keep the Key object that the index shares
            names[core_name] = key

    def _remove_name(self, key: Key, core_name: str) -> None:
        names = self._names.get((key.kind, key.mesh), {})
        names.pop(core_name, None)
        if not names:
            self._names.pop((key.kind, key.mesh), None)

    def _index(self, kind: str) -> "_KindIndex":
        index = self._indexes.get(kind)
        if index is None:
            index = self._indexes[kind] = _KindIndex()
        return index


def _mesh(resource: Resource) -> str:
    return resource.mesh


class _KindIndex:
    """The objects of one kind. They are sorted at the first listing; then the order is updated."""

    def __init__(self) -> None:
        self.objects: dict[Key, Resource] = {}
        self._order: list[tuple[str, str, Key]] | None = None
        self._listed: tuple[Resource, ...] | None = None

    def listed(self) -> tuple[Resource, ...]:
        """All objects, sorted by mesh and core name; the same tuple until one changes."""
        if self._order is None:
            self._order = sorted(_sort_keys(self.objects.values()))
        if self._listed is None:
            self._listed = tuple(self.objects[key] for _, _, key in self._order)
        return self._listed

    def put(self, key: Key, resource: Resource) -> None:
        """Add or replace an object."""
        before = self.objects.get(key)
        if self._order is not None and (before is None or before.core_name != resource.core_name):
            if before is not None:
                self._remove_from_order(before)
            insort(self._order, (resource.mesh, resource.core_name, key))
        self.objects[key] = resource
        self._listed = None

    def remove(self, key: Key) -> None:
        """Remove an object, if it exists."""
        before = self.objects.pop(key, None)
        if before is not None:
            self._remove_from_order(before)
            self._listed = None

    def _remove_from_order(self, resource: Resource) -> None:
        if self._order is not None:
            del self._order[bisect_left(self._order, (resource.mesh, resource.core_name, resource.key))]


def _sort_keys(resources: Iterable[Resource]) -> Iterator[tuple[str, str, Key]]:
    return ((resource.mesh, resource.core_name, resource.key) for resource in resources)
