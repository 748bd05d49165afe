"""State: what is current, in memory, always as of one revision.

Every read of the control plane is answered from here. Only changes of the log alter it, in their
order, so equal logs give equal states.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from koguma.model.resource import Key, Resource
from koguma.store.contract import Change, Op, Unreadable
from koguma.store.log import LogSnapshot

Entry = Resource | Unreadable


class State:
    """The current objects, found by key or by core name, listed by kind."""

    def __init__(self, loaded: LogSnapshot | None = None) -> None:
        self.reset(loaded or LogSnapshot(0, 0, ()))

    def reset(self, loaded: LogSnapshot) -> None:
        """Begin again from what a log has loaded."""
        self.revision = loaded.revision
        self.compacted = loaded.compacted
        self._shelves: dict[str, _Shelf] = {}
        self._unreadable: dict[Key, Unreadable] = {}
        self._names: dict[tuple[str, str], dict[str, Key]] = {}  # by kind and mesh, then by core name
        for resource in loaded.resources:
            key = resource.key
            self._shelf(resource.kind).put(key, resource)
            self._name(key, resource.core_name)
        for broken in loaded.unreadable:
            self._unreadable[broken.key] = broken
            self._name(broken.key, broken.core_name)

    def get(self, key: Key) -> Resource | None:
        """The object under a key."""
        shelf = self._shelves.get(key.kind)
        return shelf.objects.get(key) if shelf else None

    def named(self, kind: str, mesh: str, core_name: str) -> Resource | None:
        """The object with a core name."""
        key = self.holder(kind, mesh, core_name)
        return self.get(key) if key else None

    def listed(self, kind: str, mesh: str | None = None) -> tuple[Resource, ...]:
        """The objects of a kind, in all meshes or in one, sorted by mesh and core name."""
        shelf = self._shelves.get(kind)
        if shelf is None:
            return ()
        found = shelf.listed()
        if mesh is None:
            return found
        low = bisect_left(found, mesh, key=_mesh)
        return found[low : bisect_right(found, mesh, lo=low, key=_mesh)]

    def all(self) -> Iterator[Resource]:
        """Every object, kind by kind."""
        for kind in sorted(self._shelves):
            yield from self._shelves[kind].listed()

    @property
    def unreadable(self) -> Mapping[Key, Unreadable]:
        """The objects that are stored and cannot be read."""
        return MappingProxyType(self._unreadable)

    def entry(self, key: Key) -> Entry | None:
        """What is stored under a key, readable or not."""
        shelf = self._shelves.get(key.kind)
        found = shelf.objects.get(key) if shelf else None
        return found if found is not None else self._unreadable.get(key)

    def holder(self, kind: str, mesh: str, core_name: str) -> Key | None:
        """Who has a core name."""
        names = self._names.get((kind, mesh))
        return names.get(core_name) if names else None

    def stored_keys(self) -> Iterator[Key]:
        """The keys of everything that is stored, readable or not."""
        for shelf in self._shelves.values():
            yield from shelf.objects
        yield from self._unreadable

    def apply(self, change: Change) -> None:
        """Take the next change of the log."""
        assert change.revision == self.revision + 1, f"{change.revision} cannot follow {self.revision}"
        resource = change.resource
        key = resource.key
        before = self.entry(key)
        if before is not None and (change.op is Op.DELETE or before.core_name != resource.core_name):
            self._unname(key, before.core_name)
        self._unreadable.pop(key, None)
        if change.op is Op.DELETE:
            self._shelf(key.kind).drop(key)
        else:
            self._name(key, resource.core_name)
            if change.error:
                self._shelf(key.kind).drop(key)
                self._unreadable[key] = Unreadable(key, resource.core_name, change.revision, change.error)
            else:
                self._shelf(key.kind).put(key, resource)
        self.revision = change.revision

    def _name(self, key: Key, core_name: str) -> None:
        names = self._names.setdefault((key.kind, key.mesh), {})
        if names.get(core_name) != key:  # else it stays as it is, one with the key on the shelf
            names[core_name] = key

    def _unname(self, key: Key, core_name: str) -> None:
        names = self._names.get((key.kind, key.mesh), {})
        names.pop(core_name, None)
        if not names:
            self._names.pop((key.kind, key.mesh), None)

    def _shelf(self, kind: str) -> "_Shelf":
        shelf = self._shelves.get(kind)
        if shelf is None:
            shelf = self._shelves[kind] = _Shelf()
        return shelf


def _mesh(resource: Resource) -> str:
    return resource.mesh


class _Shelf:
    """The objects of one kind. Their order is made on the first listing and then kept by small steps."""

    def __init__(self) -> None:
        self.objects: dict[Key, Resource] = {}
        self._order: list[tuple[str, str, Key]] | None = None
        self._listed: tuple[Resource, ...] | None = None

    def listed(self) -> tuple[Resource, ...]:
        """All of them, sorted by mesh and core name; the same tuple until something changes."""
        if self._order is None:
            self._order = sorted(_places(self.objects.values()))
        if self._listed is None:
            self._listed = tuple(self.objects[key] for _, _, key in self._order)
        return self._listed

    def put(self, key: Key, resource: Resource) -> None:
        """Add or replace one."""
        before = self.objects.get(key)
        if self._order is not None and (before is None or before.core_name != resource.core_name):
            if before is not None:
                self._forget(before)
            insort(self._order, (resource.mesh, resource.core_name, key))
        self.objects[key] = resource
        self._listed = None

    def drop(self, key: Key) -> None:
        """Remove one, if it is here."""
        before = self.objects.pop(key, None)
        if before is not None:
            self._forget(before)
            self._listed = None

    def _forget(self, resource: Resource) -> None:
        if self._order is not None:
            del self._order[bisect_left(self._order, (resource.mesh, resource.core_name, resource.key))]


def _places(resources: Iterable[Resource]) -> Iterator[tuple[str, str, Key]]:
    return ((resource.mesh, resource.core_name, resource.key) for resource in resources)
