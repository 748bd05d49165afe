"""Finding: objects of an endpoint, one or many, in the order in which Kubernetes lists them."""

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

Placed = tuple[NamespacedName, Resource]


class ListSnapshot(msgspec.Struct, frozen=True):
    """All objects of a set as they were at one revision, sorted by place."""

    revision: int
    objects: tuple[Placed, ...]


class ListChunk(msgspec.Struct, frozen=True):
    """A part of a list. `after` is where the next one begins, if there is one."""

    revision: int
    objects: Sequence[Placed]
    token: str = ""
    n_left: int | None = None


class ContinueToken(msgspec.Struct, frozen=True):
    """What a `continue` token says: the list's revision, and the last place that was handed out."""

    rv: int
    namespace: str
    name: str


class Finder:
    """Looks objects up by namespace and name, and keeps lists while somebody pages through them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._sorted: dict[str, tuple[object, tuple[Placed, ...]]] = {}
        self._kept: OrderedDict[tuple[str, int], ListSnapshot] = OrderedDict()

    def get(self, target: RequestTarget) -> Resource:
        """The object that a target names; NotFound, or what is wrong where it cannot be read."""
        found = self.find(target.endpoint, target.where, target.name)
        if found is None:
            raise NotFound
        if isinstance(found, Unreadable):
            raise KogumaError(
                f"{found.key} is stored and cannot be read ({found.error}); delete it, or write it again"
            )
        return found

    def find(self, endpoint: KubeEndpoint, namespace: str, name: str) -> Resource | Unreadable | None:
        """What is stored at a place, readable or not."""
        kind, control_plane, state = endpoint.kind, self._context.control_plane, self._context.state
        wanted = NamespacedName(namespace if endpoint.namespaced else "", name)
        zone = identity.local_zone(kind, control_plane)
        meshes = [mesh.name for mesh in state.listed("Mesh")]
        looked = namespaced_names.lookup_keys(kind, wanted, zone, meshes, control_plane)
        for key in looked.keys:
            found = state.entry(key)
            if isinstance(found, Unreadable):
                return found
            if found is not None and namespaced_names.namespaced_name(found, kind, control_plane) == wanted:
                return found
        for mesh, core_name in looked.names:
            held = state.key_named(kind.stored_as, mesh, core_name)
            found = state.entry(held) if held else None
            if isinstance(found, Unreadable) or (
                found and namespaced_names.namespaced_name(found, kind, control_plane) == wanted
            ):
                return found
        return None

    def unreadable(self, endpoint: KubeEndpoint) -> Iterator[Unreadable]:
        """What of an endpoint is stored and cannot be read."""
        stored_as = endpoint.set.stored_as
        return (broken for key, broken in self._context.state.unreadable.items() if key.kind == stored_as)

    def snapshot(self, endpoint: KubeEndpoint) -> ListSnapshot:
        """All objects of an endpoint's set, as they are now."""
        state, stored_as = self._context.state, endpoint.set.stored_as
        listed = state.listed(stored_as)
        known = self._sorted.get(stored_as)
        if known is None or known[0] is not listed:
            placed = tuple(
                namespaced_names.sorted_by_namespaced_name(listed, endpoint.kind, self._context.control_plane)
            )
            known = self._sorted[stored_as] = (listed, placed)
        return ListSnapshot(state.revision, known[1])

    def at(self, endpoint: KubeEndpoint, revision: int) -> ListSnapshot:
        """The objects as they were at a revision, where that is kept."""
        kept = self._kept.get((endpoint.set.stored_as, revision))
        if kept is not None:
            return kept
        now = self.snapshot(endpoint)
        if now.revision == revision:
            return now
        raise Expired(f"The resourceVersion for the provided list is too old: {revision} is kept no more.")

    def page(
        self,
        target: RequestTarget,
        fits: Callable[[Resource], bool] | None,
        limit: int,
        token: str,
        revision: int | None,
    ) -> ListChunk:
        """A page of what fits; `revision` asks for the state of that moment."""
        endpoint = target.endpoint
        begin = _decoded(token) if token else None
        if begin is not None:
            shot = self._going_on(endpoint, begin)
        else:
            shot = self.snapshot(endpoint) if revision is None else self.at(endpoint, revision)
        namespace = target.namespace if endpoint.namespaced else None
        low, high = _range(shot.objects, namespace, begin)
        objects: Sequence[Placed] = shot.objects
        if fits is not None:
            objects = [each for each in objects[low:high] if fits(each[1])]
            low, high = 0, len(objects)
        if not limit or high - low <= limit:
            return ListChunk(shot.revision, objects[low:high])
        self._keep(endpoint, shot)
        end = low + limit
        token = _encoded(ContinueToken(shot.revision, *objects[end - 1][0]))
        return ListChunk(shot.revision, objects[low:end], token, high - end if fits is None else None)

    def _going_on(self, endpoint: KubeEndpoint, begin: ContinueToken) -> ListSnapshot:
        if begin.rv < 0:  # goes on with what is current, after its list was given up
            return self.snapshot(endpoint)
        try:
            return self.at(endpoint, begin.rv)
        except Expired:
            resume = _encoded(ContinueToken(-1, begin.namespace, begin.name))
            text = "The provided continue parameter is too old to display a consistent list result."
            hint = "List again without it, or go on from what is current with the token in metadata.continue."
            raise Expired(f"{text} {hint}", resume) from None

    def _keep(self, endpoint: KubeEndpoint, shot: ListSnapshot) -> None:
        self._kept[endpoint.set.stored_as, shot.revision] = shot
        self._kept.move_to_end((endpoint.set.stored_as, shot.revision))
        while len(self._kept) > SNAPSHOTS_MAX:
            self._kept.popitem(last=False)


def _range(objects: Sequence[Placed], namespace: str | None, begin: ContinueToken | None) -> tuple[int, int]:
    """Which part of the sorted objects is in a namespace (None: in any), and after what was handed out."""
    low, high = 0, len(objects)
    if namespace is not None:
        low = bisect_left(objects, namespace, key=_namespace)
        high = bisect_right(objects, namespace, lo=low, key=_namespace)
    if begin is not None:
        low = bisect_right(objects, NamespacedName(begin.namespace, begin.name), lo=low, hi=high, key=_spot)
    return low, high


def _spot(placed: Placed) -> NamespacedName:
    return placed[0]


def _namespace(placed: Placed) -> str:
    return placed[0].namespace


def _encoded(token: ContinueToken) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(token)).decode()


def _decoded(text: str) -> ContinueToken:
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text), type=ContinueToken)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise BadRequest("continue key is not valid: take it from the list's metadata as it is") from None
