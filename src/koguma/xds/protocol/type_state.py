"""TypeState: one resource type on one stream: its subscription, what the proxy holds, what is in flight."""

from collections.abc import Mapping
from typing import Final

import msgspec

from koguma.envoy.snapshot import Id, XdsResource
from koguma.xds.contract import Offer
from koguma.xds.protocol.delta import FIRST_TYPES, DeltaRequest
from koguma.xds.protocol.nack import REMOVED, ResourceNack, names_in_error
from koguma.xds.protocol.subscription import Subscription

# A resource that the proxy holds; of one from an earlier stream we may know the version only.
HeldResource = XdsResource | str
DROPPED: Final = ""  # for a version: Envoy lists the resource as held, but whatever used it is gone


class InFlightResponse(msgspec.Struct, frozen=True):
    """A response that is neither ACKed nor NACKed yet. There is at most one for each type."""

    nonce: str
    resources: Mapping[str, XdsResource]
    removed: frozenset[str]
    revision: int
    completes: Offer | None = None  # the offer that an ACK of this response completes
    type: str = ""


class TypeState:
    """The state of one type. `pending` are the names that still need a response."""

    __slots__ = (
        "_bisect_groups",
        "_nacked_versions",
        "held",
        "in_flight",
        "initial_response_due",
        "known_missing",
        "nacks",
        "pending",
        "resend",
        "subscription",
        "type",
        "uncertain",
        "version_only",
    )

    def __init__(self, type_: str) -> None:
        self.type = type_
        self.subscription = Subscription(type_)
        self.held: dict[str, HeldResource] = {}
        self.version_only: set[str] = set()  # names in `held` whose content is unknown
        self.in_flight: InFlightResponse | None = None
        self.pending: set[str] = set()
        self.resend: set[str] = set()  # to send even if the proxy has the version
        self.uncertain: set[str] = set()  # were in a NACKed response; the proxy may have applied them or not
        self.known_missing: set[str] = set()  # subscribed names that the proxy knows do not exist
        self.initial_response_due = False  # Envoy waits for a first response, even an empty one
        self.nacks: dict[str, ResourceNack] = {}
        self._nacked_versions: dict[str, set[str]] = {}
        self._bisect_groups: list[frozenset[str]] = []

    @property
    def may_respond(self) -> bool:
        """Whether there may be a response to send now."""
        return self.in_flight is None and (bool(self.pending) or self.initial_response_due)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight, nothing is due and no NACK is remembered."""
        is_busy = self.in_flight or self.pending or self.initial_response_due or self._nacked_versions
        return not is_busy and self.is_certain

    @property
    def is_certain(self) -> bool:
        """Whether the proxy surely holds exactly `held`, and nothing has to be sent again."""
        return not (self.resend or self.uncertain or self.version_only or self.nacks)

    def version(self, name: str) -> str | None:
        """The version that the proxy holds."""
        held = self.held.get(name)
        return held.version if isinstance(held, XdsResource) else held

    def references(self, name: str) -> tuple[Id, ...]:
        """What the held version references, as far as its content is known."""
        held = self.held.get(name)
        return held.needs if isinstance(held, XdsResource) else ()

    def may_reference_anything(self, name: str) -> bool:
        """Whether the proxy holds, or may hold, a version whose references are unknown."""
        return name in self.version_only or name in self.uncertain

    def is_subscribed(self, name: str) -> bool:
        """Whether the proxy subscribes to that name."""
        return self.subscription.is_wildcard or name in self.subscription.names

    def is_subscribed_to_all(self, resources: Mapping[str, XdsResource]) -> bool:
        """Whether the proxy subscribes to all of these names."""
        return self.subscription.is_wildcard or resources.keys() <= self.subscription.names

    def is_being_removed(self, name: str) -> bool:
        """Whether a removal of that name is in flight."""
        return self.in_flight is not None and name in self.in_flight.removed

    def resume(self, request: DeltaRequest) -> bool:
        """Take over the initial_resource_versions of a reconnecting proxy; whether there are any."""
        for name, version in request.initial_versions.items():
            if self.is_subscribed(name):
                self.held[name] = version
                self.version_only.add(name)
        # A starting Envoy waits for a first response to a wildcard; a reconnecting one does not. An empty one
        # about virtual hosts would end the warming of routes whose hosts are still to come.
        self.initial_response_due = self.type in FIRST_TYPES and not self.held
        return bool(self.held)

    def set_held(self, resource: XdsResource) -> None:
        """The proxy holds this resource now."""
        self.held[resource.name] = resource
        for names in (self.version_only, self.uncertain, self.known_missing):
            names.discard(resource.name)
        self.nacks.pop(resource.name, None)

    def set_missing(self, name: str) -> None:
        """The proxy holds no resource of that name now."""
        self.held.pop(name, None)
        self.version_only.discard(name)
        self.uncertain.discard(name)
        if name in self.subscription.names:
            self.known_missing.add(name)

    def forget(self, name: str) -> None:
        """The proxy no longer subscribes to that name."""
        self.set_missing(name)
        for names in (self.resend, self.known_missing, self.pending):
            names.discard(name)
        self.nacks.pop(name, None)

    def send(self, response: InFlightResponse) -> None:
        """Note that a response was sent."""
        self.in_flight = response
        self.initial_response_due = False
        self.resend -= response.resources.keys() | response.removed
        if self._bisect_groups:
            self._bisect_groups.pop()

    def was_nacked(self, name: str, version: str) -> bool:
        """Whether that version was rejected on this stream, so that sending it again is useless."""
        return version in self._nacked_versions.get(name, ())

    @property
    def has_nacked_versions(self) -> bool:
        """Whether a version of anything was rejected."""
        return bool(self._nacked_versions)

    def nack(self, response: InFlightResponse, text: str) -> None:
        """Note a NACK, and which resources caused it.

        Envoy usually names the bad resources and applies the others, but after some errors it applies nothing
        and still names one. So the others are uncertain and are sent again, which is harmless if they were
        applied. If the error names none, the response is bisected until the bad resource is alone.
        """
        sent = {
            name: resource.version
            for name, resource in response.resources.items()
            if self.is_subscribed(name)
        }
        removed = {name for name in response.removed if self.is_subscribed(name)}
        sent = sent or dict.fromkeys(removed, REMOVED)
        named = names_in_error(text, sent)
        culprits = named or (frozenset(sent) if len(response.resources) <= 1 else frozenset())
        for name in culprits:
            self._nacked_versions.setdefault(name, set()).add(sent[name])
        for name in named or sent:
            self.nacks[name] = ResourceNack(sent[name], text, response.revision)
        if not culprits:
            self._bisect(sorted(sent))
        self.uncertain |= (sent.keys() | removed) - culprits

    def forget_other_nacks(self, name: str, offered: str) -> None:
        """Forget that versions other than the offered one were rejected: one that comes back is sent again.

        Else nobody would learn why the proxy does not get it.
        """
        if offered in self._nacked_versions.get(name, ()):
            self._nacked_versions[name] = {offered}
        else:
            self._nacked_versions.pop(name, None)

    def clear_nacked_versions(self) -> set[str]:
        """Allow rejected versions again, because the conflicting resource may be gone; their names."""
        names = set(self._nacked_versions)
        self._nacked_versions.clear()
        return names

    def next_names(self) -> set[str]:
        """The names that the next response may hold: a group of the bisection, or all that are pending."""
        while self._bisect_groups:
            if group := self._bisect_groups[-1] & self.pending:
                return set(group)
            self._bisect_groups.pop()
        return self.pending

    def skip_bisect_group(self) -> bool:
        """Skip the current group, because nothing of it can be sent; whether there was one."""
        if self._bisect_groups:
            self._bisect_groups.pop()
            return True
        return False

    def _bisect(self, names: list[str]) -> None:
        middle = len(names) // 2
        halves = (frozenset(names[middle:]), frozenset(names[:middle]))
        self._bisect_groups += [half for half in halves if half]
