"""Envoy changes: which resources of a proxy's Envoy are added, removed or changed, and their sizes.

Bundles that proxies share are compared once, and only where both sides do not hold the same one.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from koguma.core.plan.model import EndpointChange, ResourceChange, leaves
from koguma.envoy.encode import Encoder
from koguma.envoy.snapshot import CLUSTER, ENDPOINTS, SECRET, Bundle, Id, Snapshot, XdsResource
from koguma.model.redacted import SHOWN

ADDED: Final = "added"
REMOVED: Final = "removed"
CHANGED: Final = "changed"
_EXTERNAL: Final = "kri_extsvc_"


class XdsChange(NamedTuple):
    """A resource on both sides; None where there is none."""

    id: Id
    before: XdsResource | None
    after: XdsResource | None

    @property
    def action(self) -> str:
        """What happens to it."""
        return ADDED if self.before is None else REMOVED if self.after is None else CHANGED


class SnapshotDifferences:
    """Compares snapshots; each pair of bundles is compared once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[tuple[XdsChange, ...], Bundle, Bundle]] = {}
        self._sizes: dict[int, tuple[int, Bundle]] = {}

    def of(self, before: Snapshot | None, after: Snapshot | None) -> tuple[XdsChange, ...]:
        """The resources that differ, in the order of their ids within each bundle.

        One that several bundles have is one resource.
        """
        old, new = (side.bundles if side is not None else () for side in (before, after))
        if before is None or after is None or len(old) != len(new):
            return tuple(_changes(_resources(old), _resources(new)))
        found = [each for pair in zip(old, new, strict=True) for each in self._bundles(*pair)]
        by_id = {each.id: XdsChange(each.id, before.get(each.id), after.get(each.id)) for each in found}
        return tuple(each for each in by_id.values() if each.before != each.after)

    def size(self, snapshot: Snapshot | None) -> int:
        """How many bytes the resources of a snapshot have."""
        return sum(self._size(each) for each in snapshot.bundles) if snapshot is not None else 0

    def _size(self, bundle: Bundle) -> int:
        known = self._sizes.get(id(bundle))
        if known is None:
            total = sum(len(each.body) for each in bundle.resources.values())
            known = self._sizes[id(bundle)] = total, bundle
        return known[0]

    def _bundles(self, before: Bundle, after: Bundle) -> tuple[XdsChange, ...]:
        if before is after:
            return ()
        name = id(before), id(after)
        known = self._known.get(name)
        if known is None:
            ids = before.possible_differences(after)
            found = tuple(_changes(before.resources, after.resources, ids))
            known = self._known[name] = found, before, after
        return known[0]


def _resources(bundles: tuple[Bundle, ...]) -> dict[Id, XdsResource]:
    return {id_: each for bundle in reversed(bundles) for id_, each in bundle.resources.items()}


def _changes(before: Any, after: Any, ids: Iterable[Id] | None = None) -> Iterator[XdsChange]:
    for id_ in sorted(before.keys() | after.keys() if ids is None else ids):
        one, other = before.get(id_), after.get(id_)
        if one is not other and one != other:
            yield XdsChange(id_, one, other)


def shown(change: XdsChange, encoder: Encoder | None, *, fields: bool) -> ResourceChange:
    """A change for people, on request with the fields that differ; secrets are hidden."""
    type_, name = change.id
    if not fields or encoder is None:
        return ResourceChange(type_, name, change.action)
    before, after = (_data(each, encoder) for each in (change.before, change.after))
    return ResourceChange(type_, name, change.action, leaves(before, after) if change.before else ())


def _data(resource: XdsResource | None, encoder: Encoder) -> Any:
    if resource is None:
        return None
    return {"secret": SHOWN} if resource.type == SECRET else encoder.shown(resource, json_names=False)


class EndpointDifferences:
    """The addresses behind clusters that come and go, each pair of versions decoded once.

    Those of an external service are in the cluster itself.
    """

    def __init__(self, encoder: Encoder | None) -> None:
        self._encoder = encoder
        self._known: dict[tuple[str, str, str], EndpointChange | None] = {}

    def of(self, changes: Iterable[XdsChange]) -> tuple[EndpointChange, ...]:
        """The clusters whose addresses differ."""
        found = (self._of(each) for each in changes if _has_endpoints(each.id))
        return tuple(each for each in found if each is not None)

    def _of(self, change: XdsChange) -> EndpointChange | None:
        old, new = (each.version if each is not None else "" for each in (change.before, change.after))
        name = change.id[1], old, new
        if name not in self._known:
            before, after = (self._addresses(each) for each in (change.before, change.after))
            added, removed = sorted(after - before), sorted(before - after)
            difference = EndpointChange(change.id[1], tuple(added), tuple(removed), len(before), len(after))
            # A cluster may be without addresses: where a request was going decides.
            is_whole = change.id[0] == CLUSTER or (change.before is not None and change.after is not None)
            is_same = not added and not removed and is_whole
            self._known[name] = None if is_same else difference
        return self._known[name]

    def _addresses(self, resource: XdsResource | None) -> set[str]:
        if resource is None or self._encoder is None:
            return set()
        data = self._encoder.decoded(resource)
        if resource.type == CLUSTER:
            data = data.get("load_assignment") or {}
        return {
            _address(each)
            for locality in data.get("endpoints") or ()
            for each in locality.get("lb_endpoints") or ()
        }


def _has_endpoints(id_: Id) -> bool:
    type_, name = id_
    return type_ == ENDPOINTS or (type_ == CLUSTER and name.startswith(_EXTERNAL))


def _address(endpoint: Any) -> str:
    address = (endpoint.get("endpoint") or {}).get("address") or {}
    socket = address.get("socket_address")
    if socket:
        return f"{socket.get('address', '')}:{socket.get('port_value', 0)}"
    return str((address.get("pipe") or {}).get("path") or endpoint.get("endpoint_name") or "")
