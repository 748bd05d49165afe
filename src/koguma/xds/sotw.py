"""State of the world: the older xDS variant, translated to and from a delta session.

A request lists all subscribed names and has one version_info for its type. A response about clusters or
listeners lists all of them; what it lacks is removed. A response about any other type may list only what is
new, and cannot say that something does not exist.
"""

import hashlib
from collections.abc import Mapping

import msgspec

from koguma.envoy.snapshot import XdsResource
from koguma.xds.contract import Offer, ProxyStatus
from koguma.xds.protocol.delta import WILDCARD, WILDCARD_TYPES, DeltaRequest, DeltaResponse
from koguma.xds.protocol.session import DeltaSession


class SotwRequest(msgspec.Struct, frozen=True):
    """A DiscoveryRequest: all subscribed names, and an ACK or NACK if there was a response."""

    type: str
    names: tuple[str, ...] = ()
    version: str = ""  # version_info: of the last response that was ACKed
    nonce: str = ""
    error: str = ""


class SotwResponse(msgspec.Struct, frozen=True):
    """A DiscoveryResponse: all resources of its type, or for some types the new ones."""

    type: str
    version: str
    nonce: str
    resources: tuple[XdsResource, ...]


class _SotwSubscription(msgspec.Struct):
    """The subscription to one type."""

    names: frozenset[str]
    nonce: str = ""  # of the newest response
    is_answered: bool = False  # the newest response was ACKed or NACKed


class SotwSession:
    """A session of the older variant, with the methods of a DeltaSession."""

    def __init__(self, session: DeltaSession) -> None:
        self._session = session
        self._subscriptions: dict[str, _SotwSubscription] = {}
        self._early_requests: list[SotwRequest] = []

    def receive(self, request: SotwRequest, now: float) -> list[SotwResponse]:
        """Handle a request of the proxy."""
        if self._session.snapshot is None:
            # Whether the proxy's version is the current one is known only once there is an offer.
            self._early_requests.append(request)
            return []
        translated = self._translated(request)
        return [] if translated is None else self._responses(self._session.receive(translated, now))

    def offer(self, offer: Offer, now: float) -> list[SotwResponse]:
        """Replace the configuration that the proxy should have."""
        responses = self._responses(self._session.offer(offer, now))
        early_requests, self._early_requests = self._early_requests, []
        for request in early_requests:
            responses += self.receive(request, now)
        return responses

    def accept_if_held(self, _offer: Offer) -> bool:
        """Always False: what a reconnecting proxy holds is known only after `offer`."""
        return False

    def tick(self, now: float) -> list[SotwResponse]:
        """Handle that time has passed."""
        return self._responses(self._session.tick(now))

    @property
    def next_tick(self) -> float | None:
        """When `tick` is to be called, if nothing else happens before."""
        return self._session.next_tick

    @property
    def status(self) -> ProxyStatus:
        """The status of the proxy."""
        return self._session.status

    @property
    def n_acks(self) -> int:
        """The number of responses that the proxy has ACKed."""
        return self._session.n_acks

    def _translated(self, request: SotwRequest) -> DeltaRequest | None:
        """The request as a delta request; None where it changes nothing."""
        names = frozenset(request.names)
        subscription = self._subscriptions.get(request.type)
        if subscription is None:
            self._subscriptions[request.type] = _SotwSubscription(names)
            versions = self._initial_versions(request)
            return DeltaRequest(request.type, tuple(sorted(names)), initial_versions=versions)
        if request.nonce not in ("", subscription.nonce):
            return None  # answers an older response; the answer to the newest one lists these names too
        before, subscription.names = subscription.names, names
        nonce = request.nonce if not subscription.is_answered else ""
        if not nonce and request.nonce and names == before:
            return self._resubscription(request.type, names)
        subscription.is_answered = subscription.is_answered or bool(nonce)
        return DeltaRequest(
            request.type,
            subscribe=tuple(sorted(names - before)),
            unsubscribe=tuple(sorted(before - names)),
            nonce=nonce,
            error=request.error if nonce else "",
        )

    def _resubscription(self, type_: str, names: frozenset[str]) -> DeltaRequest | None:
        """The same request again: this is how a changed cluster asks for endpoints that Envoy had before."""
        return None if type_ in WILDCARD_TYPES else DeltaRequest(type_, tuple(sorted(names)))

    def _initial_versions(self, request: SotwRequest) -> Mapping[str, str]:
        """What a reconnecting proxy holds, if its version_info is that of the current resources."""
        snapshot = self._session.snapshot
        assert snapshot is not None
        versions = {name: resource.version for name, resource in snapshot.of_type(request.type).items()}
        if request.names and WILDCARD not in request.names:
            versions = {name: version for name, version in versions.items() if name in request.names}
        return versions if versions and request.version == version_info(versions) else {}

    def _responses(self, responses: list[DeltaResponse]) -> list[SotwResponse]:
        return [self._response(response) for response in responses]

    def _response(self, response: DeltaResponse) -> SotwResponse:
        held = self._session.held(response.type)
        resources = {name: item for name, item in held.items() if isinstance(item, XdsResource)}
        resources |= {resource.name: resource for resource in response.resources}
        for name in response.removed:
            resources.pop(name, None)
        subscription = self._subscriptions[response.type]
        subscription.nonce, subscription.is_answered = response.nonce, False
        lists_all = response.type in WILDCARD_TYPES
        return SotwResponse(
            response.type,
            version_info({name: resource.version for name, resource in resources.items()}),
            response.nonce,
            tuple(resources[name] for name in sorted(resources)) if lists_all else response.resources,
        )


def version_info(versions: Mapping[str, str]) -> str:
    """One version for many resources: equal where all of them are."""
    digest = hashlib.blake2b(digest_size=12)
    for name, version in sorted(versions.items()):
        digest.update(f"{name}\0{version}\0".encode())
    return digest.hexdigest()
