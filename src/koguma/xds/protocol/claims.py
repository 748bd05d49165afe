"""Claims: what a proxy that begins says it has, compared with an offer without being read.

After a restart all proxies come back, each names the versions of a thousand resources, and mostly these are
just what it is offered. So what it says is added up as it comes and the sums are compared with those of the
bundles, which are found once for all who share one. Only where they differ is anything read, and tables are
made of it. So, too, one that has nothing yet costs little until it is its turn to be told.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from sys import intern
from typing import Final

import msgspec

from koguma.envoy.snapshot import TYPES, Mark, Snapshot, XdsResource, entry_of
from koguma.xds.protocol.exchange import WILDCARD, WILDCARD_TYPES, DeltaRequest

_EVERYTHING: Final[tuple[tuple[str, ...], ...]] = ((), (WILDCARD,))  # two ways to ask for it


class Unread(Mapping[str, str]):
    """Versions as they came, each an entry of bytes; read by whoever asks for one."""

    __slots__ = ("_read", "_versions", "mark", "n_entries")

    def __init__(self, entries: Sequence[bytes], read: Callable[[], Mapping[str, str]]) -> None:
        self.n_entries = len(entries)
        self.mark = sum(map(hash, entries))
        self._read = read
        self._versions: Mapping[str, str] | None = None

    def __getitem__(self, name: str) -> str:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __bool__(self) -> bool:
        return bool(self.n_entries)

    def _all(self) -> Mapping[str, str]:
        if self._versions is None:
            self._versions = self._read()
        return self._versions


class _Claim(msgspec.Struct, frozen=True):
    """One type: the request as it came, and its sums."""

    request: DeltaRequest
    now: float
    n_entries: int
    mark: Mark


class Claims:
    """What a proxy has said on its stream, as long as it only says what it has and asks for that."""

    __slots__ = ("_made",)

    def __init__(self, made: Mapping[str, _Claim] | None = None) -> None:
        self._made = made or {}

    def and_of(self, request: DeltaRequest, now: float) -> "Claims | None":
        """These and what a request claims; None where it says something else, or not for the first time."""
        if request.type in self._made or not _is_claim(request):
            return None
        return Claims({**self._made, request.type: _claim(request, now)})

    def __iter__(self) -> Iterator[tuple[DeltaRequest, float]]:
        for each in self._made.values():
            # Names that are kept are one text, however many proxies ask for them.
            names = tuple(map(intern, each.request.subscribe))
            yield msgspec.structs.replace(each.request, subscribe=names), each.now

    @property
    def types(self) -> frozenset[str]:
        """The types that the proxy asked for."""
        return frozenset(self._made)

    def held(self, type_: str, snapshot: Snapshot | None) -> Mapping[str, XdsResource | str]:
        """What the proxy has of a type, by name: pieces of the snapshot that was found to hold just these."""
        made = self._made.get(type_)
        if made is None:
            return {}
        if snapshot is not None:
            return snapshot.of_type(type_)
        versions, asked = made.request.initial_versions, frozenset(made.request.subscribe)
        is_wildcard = type_ in WILDCARD_TYPES or WILDCARD in asked
        return {name: version for name, version in versions.items() if is_wildcard or name in asked}

    def are_true(self, snapshot: Snapshot, types: AbstractSet[str]) -> bool:
        """Whether of each of these types the proxy has just what a snapshot has, and asks for just that."""
        if snapshot.failures:
            return False
        sums = snapshot.sums()
        return all(_is_true(each, *sums[type_]) for type_, each in self._made.items() if type_ in types)

    def left(self, snapshot: Snapshot) -> frozenset[str]:
        """The types of which a snapshot has something, and that the proxy has not asked for."""
        return frozenset(t for t in TYPES if t not in self._made and snapshot.n_of_type(t))

    def will_ask_for(self, types: AbstractSet[str], snapshot: Snapshot) -> bool:
        """Whether the proxy surely is to ask for some of these types: for all there is, or what it needs."""
        if types & WILDCARD_TYPES:
            return True
        has = (piece for piece in snapshot if piece.type in self._made)
        return any(n[0] in types and snapshot.get(n) is not None for piece in has for n in piece.needs)


def _is_claim(request: DeltaRequest) -> bool:
    if request.nonce or request.error or request.unsubscribe:
        return False
    if request.type in WILDCARD_TYPES:
        return request.subscribe in _EVERYTHING
    return bool(request.subscribe)


def _claim(request: DeltaRequest, now: float) -> _Claim:
    versions = _unread(request)
    names = 0 if request.type in WILDCARD_TYPES else sum(map(hash, request.subscribe))
    return _Claim(request, now, versions.n_entries, (names, versions.mark))


def _unread(request: DeltaRequest) -> Unread:
    versions = request.initial_versions
    if isinstance(versions, Unread):
        return versions
    return Unread([entry_of(*each) for each in versions.items()], lambda: versions)


def _is_true(claim: _Claim, n_pieces: int, mark: Mark) -> bool:
    # As many as the bundles have, so there is none that hides one of another bundle. One that has nothing
    # waits for an answer even if there is nothing for it.
    if not claim.n_entries or claim.n_entries != n_pieces:
        return False
    names, entries = mark
    return claim.mark == (0 if claim.request.type in WILDCARD_TYPES else names, entries)
