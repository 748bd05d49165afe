"""OpeningState: the first subscriptions of a stream, compared with an offer without parsing them.

After a restart of the control plane all proxies reconnect. Each names the versions of a thousand resources
(initial_resource_versions), and usually they are exactly what it is offered. So the hashes of the entries are
summed as they arrive and compared with the sums of the bundles, which are computed once for all proxies that
share a bundle. Entries are parsed, and per-type states made, only where the sums differ. In the same way a
proxy that holds nothing yet costs little until it is its turn to get responses.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from sys import intern

import msgspec

from koguma.envoy import names
from koguma.envoy.snapshot import (
    ROUTES,
    TYPES,
    VIRTUAL_HOST,
    Snapshot,
    VersionSum,
    XdsResource,
    version_entry,
)
from koguma.xds.protocol.delta import (
    FIRST_TYPES,
    WILDCARD,
    WILDCARD_SUBSCRIPTIONS,
    WILDCARD_TYPES,
    DeltaRequest,
)


class UnparsedVersions(Mapping[str, str]):
    """initial_resource_versions as raw map entries, parsed at the first access."""

    __slots__ = ("_parse", "_versions", "mark", "n_entries")

    def __init__(self, entries: Sequence[bytes], parse: Callable[[], Mapping[str, str]]) -> None:
        self.n_entries = len(entries)
        self.mark = sum(map(hash, entries))
        self._parse = parse
        self._versions: Mapping[str, str] | None = None

    def __getitem__(self, name: str) -> str:
        return self._parsed()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parsed())

    def __len__(self) -> int:
        return len(self._parsed())

    def __bool__(self) -> bool:
        return bool(self.n_entries)

    def _parsed(self) -> Mapping[str, str]:
        if self._versions is None:
            self._versions = self._parse()
        return self._versions


class _FirstRequest(msgspec.Struct, frozen=True):
    """The first request of a type, and its hash sums."""

    request: DeltaRequest
    received_at: float
    n_entries: int
    mark: VersionSum


class OpeningState:
    """The first request of each type, as long as the stream has sent nothing else."""

    __slots__ = ("_requests",)

    def __init__(self, requests: Mapping[str, _FirstRequest] | None = None) -> None:
        self._requests = requests or {}

    def with_request(self, request: DeltaRequest, now: float) -> "OpeningState | None":
        """The state with one more first request; None where the request is anything else."""
        if request.type in self._requests or not _is_first_subscription(request):
            return None
        return OpeningState({**self._requests, request.type: _first_request(request, now)})

    def __iter__(self) -> Iterator[tuple[DeltaRequest, float]]:
        for first in self._requests.values():
            # Interned, so that a name is kept once however many proxies subscribe to it.
            subscribed = tuple(map(intern, first.request.subscribe))
            yield msgspec.structs.replace(first.request, subscribe=subscribed), first.received_at

    @property
    def has_versions(self) -> bool:
        """Whether the proxy holds something from an earlier stream."""
        return any(first.n_entries for first in self._requests.values())

    @property
    def types(self) -> frozenset[str]:
        """The types that the proxy subscribed to."""
        return frozenset(self._requests)

    def held(self, type_: str, snapshot: Snapshot | None) -> Mapping[str, XdsResource | str]:
        """What the proxy holds of a type; a snapshot is passed only after it was found to match."""
        first = self._requests.get(type_)
        if first is None:
            return {}
        if snapshot is not None:
            return snapshot.of_type(type_)
        versions, subscribed = first.request.initial_versions, frozenset(first.request.subscribe)
        is_wildcard = type_ in WILDCARD_TYPES or WILDCARD in subscribed
        return {name: version for name, version in versions.items() if is_wildcard or name in subscribed}

    def matches(self, snapshot: Snapshot, types: AbstractSet[str]) -> bool:
        """Whether the proxy holds and subscribes to exactly what a snapshot has of each of these types."""
        firsts = {type_: first for type_, first in self._requests.items() if type_ in types}
        # A proxy without any resource waits for a response, even if there is nothing for it.
        if snapshot.failures or not all(first.n_entries for first in firsts.values()):
            return False
        sums = snapshot.counts_and_sums()
        return all(_matches(first, *sums[type_]) for type_, first in firsts.items())

    def missing_types(self, snapshot: Snapshot) -> frozenset[str]:
        """The types of a snapshot that the proxy has not subscribed to yet."""
        return frozenset(t for t in TYPES if t not in self._requests and snapshot.n_of_type(t))

    def will_subscribe(self, types: AbstractSet[str], snapshot: Snapshot) -> bool:
        """Whether the proxy is sure to subscribe to one of these types: a wildcard, or a reference it has."""
        if types & FIRST_TYPES or (VIRTUAL_HOST in types and self._has_routes_of_hosts(snapshot)):
            return True
        held = (resource for resource in snapshot if resource.type in self._requests)
        return any(
            need[0] in types and snapshot.get(need) is not None
            for resource in held
            for need in resource.needs
        )

    def _has_routes_of_hosts(self, snapshot: Snapshot) -> bool:
        """Whether the proxy has routes whose virtual hosts are sent apart."""
        if ROUTES not in self._requests:
            return False
        hosts = snapshot.of_type(VIRTUAL_HOST)
        return any(snapshot.get((ROUTES, names.routes_of(name))) is not None for name in hosts)


def _is_first_subscription(request: DeltaRequest) -> bool:
    if request.nonce or request.error or request.unsubscribe:
        return False
    if request.type in WILDCARD_TYPES:
        return request.subscribe in WILDCARD_SUBSCRIPTIONS
    return bool(request.subscribe)


def _first_request(request: DeltaRequest, now: float) -> _FirstRequest:
    versions = _unparsed(request)
    subscribed = 0 if request.type in WILDCARD_TYPES else sum(map(hash, request.subscribe))
    return _FirstRequest(request, now, versions.n_entries, (subscribed, versions.mark))


def _unparsed(request: DeltaRequest) -> UnparsedVersions:
    versions = request.initial_versions
    if isinstance(versions, UnparsedVersions):
        return versions
    return UnparsedVersions([version_entry(*entry) for entry in versions.items()], lambda: versions)


def _matches(first: _FirstRequest, n_resources: int, mark: VersionSum) -> bool:
    # The count has to be equal too: then no resource shadows one of another bundle.
    if first.n_entries != n_resources:
        return False
    name_sum, entries = mark
    return first.mark == (0 if first.request.type in WILDCARD_TYPES else name_sum, entries)
