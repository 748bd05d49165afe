"""Finding: objects by namespace and name, and lists in Kubernetes' order with `continue` tokens."""

import base64
import binascii
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from koguma.api.kube.status import Expired
from koguma.api.kube.target import RequestTarget
from koguma.application.context import Context
from koguma.core import identity
from koguma.kube import namespaced_names
from koguma.kube.namespaced_names import NamespacedName
from koguma.kube.registry import KubeEndpoint
from koguma.model.errors import BadRequest, KogumaError, NotFound
from koguma.model.resource import Resource
from koguma.store.contract import Unreadable

SNAPSHOTS_MAX: Final = 64

NamedResource = tuple[NamespacedName, Resource]


class ListSnapshot(msgspec.Struct, frozen=True):
    """All objects of a resource at one revision, sorted by namespace and name."""

    revision: int
    objects: tuple[NamedResource, ...]


class ListChunk(msgspec.Struct, frozen=True):
    """A part of a list; `token` continues it, where something is left."""

    revision: int
    objects: Sequence[NamedResource]
    token: str = ""
    n_left: int | None = None


class ContinueToken(msgspec.Struct, frozen=True):
    """The content of a `continue` token: the list's revision, and the last object that was sent."""

    rv: int
    namespace: str
    name: str


class Finder:
    """Looks objects up by namespace and name, and caches list snapshots for `continue` tokens."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._sorted: dict[str, tuple[object, tuple[NamedResource, ...]]] = {}
        self._snapshots: OrderedDict[tuple[str, int], ListSnapshot] = OrderedDict()

    def get(self, target: RequestTarget) -> Resource:
        """The object of a target; raises where there is none, or where it cannot be decoded."""
        found = self.find(target.endpoint, target.where, target.name)
        if found is None:
            raise NotFound
        if isinstance(found, Unreadable):
            raise KogumaError(
                f"{found.key} is stored and cannot be read ({found.error}); delete it, or write it again"
            )
        return found

    def find(self, endpoint: KubeEndpoint, namespace: str, name: str) -> Resource | Unreadable | None:
        """What is stored under a namespace and name, readable or not; or what is computed of that."""
        if endpoint.kind.computed is not None:
            return self._find_computed(endpoint, NamespacedName(namespace, name))
        kind, control_plane, state = endpoint.kind, self._context.control_plane, self._context.state
        named = NamespacedName(namespace if endpoint.namespaced else "", name)
        zone = identity.local_zone(kind, control_plane)
        meshes = [mesh.name for mesh in state.listed("Mesh")]
        lookup = namespaced_names.lookup_keys(kind, named, zone, meshes, control_plane)
        for key in lookup.keys:
            found = state.entry(key)
            if isinstance(found, Unreadable):
                return found
            if found is not None and namespaced_names.namespaced_name(found, kind, control_plane) == named:
                return found
        for mesh, core_name in lookup.names:
            stored_key = state.key_named(kind.stored_as, mesh, core_name)
            found = state.entry(stored_key) if stored_key else None
            if isinstance(found, Unreadable) or (
                found and namespaced_names.namespaced_name(found, kind, control_plane) == named
            ):
                return found
        return None

    def _find_computed(self, endpoint: KubeEndpoint, named: NamespacedName) -> Resource | None:
        objects = self.snapshot(endpoint).objects
        at = bisect_left(objects, named, key=_name_of)
        is_there = at < len(objects) and objects[at][0] == named
        return self._context.computed.filled(objects[at][1]) if is_there else None

    def unreadable(self, endpoint: KubeEndpoint) -> Iterator[Unreadable]:
        """The stored objects of an endpoint that cannot be decoded."""
        stored_as = endpoint.set.stored_as
        return (
            unreadable for key, unreadable in self._context.state.unreadable.items() if key.kind == stored_as
        )

    def snapshot(self, endpoint: KubeEndpoint) -> ListSnapshot:
        """All objects of an endpoint, as they are now."""
        state, stored_as = self._context.state, endpoint.set.stored_as
        listed = self._context.listed(endpoint.kind, None)
        cached = self._sorted.get(stored_as)
        if cached is None or cached[0] is not listed:
            named_resources = tuple(
                namespaced_names.sorted_by_namespaced_name(listed, endpoint.kind, self._context.control_plane)
            )
            cached = self._sorted[stored_as] = (listed, named_resources)
        return ListSnapshot(state.revision, cached[1])

    def at(self, endpoint: KubeEndpoint, revision: int) -> ListSnapshot:
        """The objects as they were at a revision, where a snapshot of it is cached."""
        cached = self._snapshots.get((endpoint.set.stored_as, revision))
        if cached is not None and revision >= self._context.state.compacted:
            return cached
        current = self.snapshot(endpoint)
        if current.revision == revision:
            return current
        raise Expired(f"The resourceVersion for the provided list is too old: {revision} is kept no more.")

    def chunk(
        self,
        target: RequestTarget,
        matches: Callable[[Resource], bool] | None,
        limit: int,
        token: str,
        revision: int | None,
    ) -> ListChunk:
        """The next part of a list; `revision` asks for the state at that revision."""
        endpoint = target.endpoint
        after = _decoded(token) if token else None
        if after is not None:
            snapshot = self._snapshot_of_token(endpoint, after)
        else:
            snapshot = self.snapshot(endpoint) if revision is None else self.at(endpoint, revision)
        namespace = target.namespace if endpoint.namespaced else None
        low, high = _range(snapshot.objects, namespace, after)
        objects: Sequence[NamedResource] = snapshot.objects
        if matches is not None:
            objects = [named for named in objects[low:high] if matches(named[1])]
            low, high = 0, len(objects)
        if not limit or high - low <= limit:
            return ListChunk(snapshot.revision, objects[low:high])
        self._cache(endpoint, snapshot)
        end = low + limit
        token = _encoded(ContinueToken(snapshot.revision, *objects[end - 1][0]))
        return ListChunk(snapshot.revision, objects[low:end], token, high - end if matches is None else None)

    def _snapshot_of_token(self, endpoint: KubeEndpoint, after: ContinueToken) -> ListSnapshot:
        if after.rv < 0:  # continues on the current state, after the snapshot expired
            return self.snapshot(endpoint)
        try:
            return self.at(endpoint, after.rv)
        except Expired:
            resume = _encoded(ContinueToken(-1, after.namespace, after.name))
            text = "The provided continue parameter is too old to display a consistent list result."
            hint = "List again without it, or go on from what is current with the token in metadata.continue."
            raise Expired(f"{text} {hint}", resume) from None

    def _cache(self, endpoint: KubeEndpoint, snapshot: ListSnapshot) -> None:
        self._snapshots[endpoint.set.stored_as, snapshot.revision] = snapshot
        self._snapshots.move_to_end((endpoint.set.stored_as, snapshot.revision))
        while len(self._snapshots) > SNAPSHOTS_MAX:
            self._snapshots.popitem(last=False)


def _range(
    objects: Sequence[NamedResource], namespace: str | None, after: ContinueToken | None
) -> tuple[int, int]:
    """The range of the sorted objects that is in a namespace (None: in any), after a `continue` token."""
    low, high = 0, len(objects)
    if namespace is not None:
        low = bisect_left(objects, namespace, key=_namespace)
        high = bisect_right(objects, namespace, lo=low, key=_namespace)
    if after is not None:
        low = bisect_right(
            objects, NamespacedName(after.namespace, after.name), lo=low, hi=high, key=_name_of
        )
    return low, high


def _name_of(named: NamedResource) -> NamespacedName:
    return named[0]


def _namespace(named: NamedResource) -> str:
    return named[0].namespace


def _encoded(token: ContinueToken) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode()


def _decoded(text: str) -> ContinueToken:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text), type=ContinueToken)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise BadRequest("continue key is not valid: take it from the list's metadata as it is") from None
