"""State of the world: the older form of xDS, spoken by translating to and from the incremental session.

A request lists all names that are asked for, and has one version for everything of its type. A response
about clusters or listeners lists all that there are; what is missing in it is removed. A response about any
other type may list just what is new, and cannot say that something does not exist.
"""

import hashlib
from collections.abc import Mapping

import msgspec

from koguma.envoy.snapshot import XdsResource
from koguma.xds.contract import Offer, ProxyStatus
from koguma.xds.protocol.delta import WILDCARD, WILDCARD_TYPES, DeltaRequest, DeltaResponse
from koguma.xds.protocol.session import DeltaSession


class SotwRequest(msgspec.Struct, frozen=True):
    """One request: what is asked for, and an answer to a response if there was one."""

    type: str
    names: tuple[str, ...] = ()
    version: str = ""  # the last one that was accepted
    nonce: str = ""
    error: str = ""


class SotwResponse(msgspec.Struct, frozen=True):
    """One response: all that there is, or of some types what is new."""

    type: str
    version: str
    nonce: str
    resources: tuple[XdsResource, ...]


class _Line(msgspec.Struct):
    """What was said about one type."""

    names: frozenset[str]
    nonce: str = ""  # of the newest response
    is_answered: bool = False


class SotwSession:
    """A session in the older form; it has the same deeds as the incremental one."""

    def __init__(self, session: DeltaSession) -> None:
        self._session = session
        self._lines: dict[str, _Line] = {}
        self._early: list[SotwRequest] = []

    def receive(self, request: SotwRequest, now: float) -> list[SotwResponse]:
        """The proxy asks for something, or answers."""
        if self._session.snapshot is None:
            # Whether the proxy's version is the current one can be told only when there is a current one.
            self._early.append(request)
            return []
        translated = self._translated(request)
        return [] if translated is None else self._responses(self._session.receive(translated, now))

    def offer(self, offer: Offer, now: float) -> list[SotwResponse]:
        """The proxy is to have this, and no longer what was offered before."""
        responses = self._responses(self._session.offer(offer, now))
        early, self._early = self._early, []
        for request in early:
            responses += self.receive(request, now)
        return responses

    def accept_if_held(self, _offer: Offer) -> bool:
        """Whether it came back with all of an offer; that is found out with its requests only."""
        return False

    def tick(self, now: float) -> list[SotwResponse]:
        """Time has passed."""
        return self._responses(self._session.tick(now))

    @property
    def next_tick(self) -> float | None:
        """When `tick` is to be called, if nothing else happens before."""
        return self._session.next_tick

    @property
    def status(self) -> ProxyStatus:
        """How far the proxy is."""
        return self._session.status

    @property
    def n_acks(self) -> int:
        """How many responses the proxy has taken."""
        return self._session.n_acks

    def _translated(self, request: SotwRequest) -> DeltaRequest | None:
        """The request in the incremental form; None where it says nothing new."""
        names = frozenset(request.names)
        line = self._lines.get(request.type)
        if line is None:
            self._lines[request.type] = _Line(names)
            versions = self._resumed(request)
            return DeltaRequest(request.type, tuple(sorted(names)), initial_versions=versions)
        if request.nonce not in ("", line.nonce):
            return None  # an answer to an older response; the one to the newest will say all of this again
        before, line.names = line.names, names
        answers = request.nonce if not line.is_answered else ""
        if not answers and request.nonce and names == before:
            return self._repetition(request.type, names)
        line.is_answered = line.is_answered or bool(answers)
        return DeltaRequest(
            request.type,
            subscribe=tuple(sorted(names - before)),
            unsubscribe=tuple(sorted(before - names)),
            nonce=answers,
            error=request.error if answers else "",
        )

    def _repetition(self, type_: str, names: frozenset[str]) -> DeltaRequest | None:
        """The same request once more: so a changed cluster asks for the endpoints that it had before."""
        return None if type_ in WILDCARD_TYPES else DeltaRequest(type_, tuple(sorted(names)))

    def _resumed(self, request: SotwRequest) -> Mapping[str, str]:
        """What the proxy has from an earlier stream, if it says that it has just what there is now."""
        snapshot = self._session.snapshot
        assert snapshot is not None
        found = {name: piece.version for name, piece in snapshot.of_type(request.type).items()}
        if request.names and WILDCARD not in request.names:
            found = {name: version for name, version in found.items() if name in request.names}
        return found if found and request.version == version_of(found) else {}

    def _responses(self, responses: list[DeltaResponse]) -> list[SotwResponse]:
        return [self._response(response) for response in responses]

    def _response(self, response: DeltaResponse) -> SotwResponse:
        held = {
            n: each for n, each in self._session.held(response.type).items() if isinstance(each, XdsResource)
        }
        everything = held | {piece.name: piece for piece in response.resources}
        for name in response.removed:
            everything.pop(name, None)
        line = self._lines[response.type]
        line.nonce, line.is_answered = response.nonce, False
        is_whole = response.type in WILDCARD_TYPES
        return SotwResponse(
            response.type,
            version_of({name: piece.version for name, piece in everything.items()}),
            response.nonce,
            tuple(everything[name] for name in sorted(everything)) if is_whole else response.resources,
        )


def version_of(versions: Mapping[str, str]) -> str:
    """One version for many resources: equal where all of them are."""
    digest = hashlib.blake2b(digest_size=12)
    for name, version in sorted(versions.items()):
        digest.update(f"{name}\0{version}\0".encode())
    return digest.hexdigest()
