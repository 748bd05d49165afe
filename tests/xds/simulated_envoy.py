"""A simulated Envoy: applies delta responses in the same order as a real one.

It subscribes to names that it references and unsubscribes later; it ACKs clusters only when they are warm,
that is when the endpoints of each changed one came after it; and it NACKs bad resources in one of three ways.
Virtual hosts act in routes that it holds, and are lost otherwise, while their versions are kept.
What Envoy does after its warming timeout it does in `end_warming`, which a correct session never needs.
"""

from collections import deque

from koguma.envoy import names as envoy_names
from koguma.envoy.snapshot import (
    CLUSTER,
    ENDPOINTS,
    LISTENER,
    ROUTES,
    SECRET,
    TYPES,
    VIRTUAL_HOST,
    Id,
    XdsResource,
)
from koguma.xds.protocol.delta import FIRST_TYPES, WILDCARD_TYPES, DeltaRequest, DeltaResponse


def is_bad(resource: XdsResource) -> bool:
    """Whether an Envoy rejects it; the version says so, and the letter after it says how."""
    return resource.version.startswith("bad")


class Envoy:
    """One proxy. `inbox` and `outbox` are the two directions of its stream."""

    def __init__(self) -> None:
        self.has: dict[str, dict[str, XdsResource]] = {type_: {} for type_ in TYPES}
        self.versions: dict[str, dict[str, str]] = {
            type_: {} for type_ in TYPES
        }  # as in initial_resource_versions
        self.subscribed: dict[str, set[str]] = {type_: set() for type_ in TYPES}
        self.warm: set[str] = set()  # clusters that are in use
        self.warming: dict[str, set[Id]] = {}  # clusters that warm, and for what they wait
        self.delayed_ack: DeltaRequest | None = None  # the ACK of clusters, while some are warming
        self.inbox: deque[DeltaResponse] = deque()
        self.outbox: deque[DeltaRequest] = deque()
        self.n_warming_timeouts = 0
        self.discovers_hosts = False  # subscribes to virtual hosts, since it has had routes once
        self.connect()

    def connect(self) -> None:
        """Start a new stream: subscribe to everything again, with initial_resource_versions."""
        self.inbox.clear()
        self.outbox.clear()
        self.delayed_ack = None
        for type_ in TYPES:
            if type_ in FIRST_TYPES or (type_ == VIRTUAL_HOST and self.discovers_hosts):
                self.outbox.append(DeltaRequest(type_, initial_versions=dict(self.versions[type_])))
            elif self.subscribed[type_]:
                names = tuple(sorted(self.subscribed[type_]))
                self.outbox.append(DeltaRequest(type_, names, initial_versions=dict(self.versions[type_])))

    def read(self) -> None:
        """Read the next response, and ACK or NACK it."""
        response = self.inbox.popleft()
        bad = [resource for resource in response.resources if is_bad(resource)]
        text = self.error(response, bad) if bad else ""
        if not bad:
            self.apply(response, {resource.name for resource in response.resources})
            self.note_versions(response)
        elif bad[0].version[3] == "p":  # in part: the rest is applied
            self.apply(response, {resource.name for resource in response.resources if not is_bad(resource)})
        answer = DeltaRequest(response.type, nonce=response.nonce, error=text)
        if response.type == CLUSTER and self.warming:
            self.delayed_ack = answer
        else:
            self.outbox.append(answer)
        self.update_subscriptions()

    def error(self, response: DeltaResponse, bad: list[XdsResource]) -> str:
        """An error message that names the bad resources, or none."""
        if bad[0].version[3] == "q" and response.type not in WILDCARD_TYPES:
            return "Proto constraint validation failed"
        return "Error adding/updating " + ", ".join(f"{resource.name}: boom" for resource in bad)

    def apply(self, response: DeltaResponse, names: set[str]) -> None:
        """Apply these resources of a response, and its removals."""
        has = self.has[response.type]
        for name in response.removed:
            has.pop(name, None)
            self.warm.discard(name) if response.type == CLUSTER else None
            self.warmed((response.type, name))
        if response.type not in WILDCARD_TYPES:
            names &= self.subscribed[response.type]  # Envoy ignores what it is not subscribed to
        if response.type == VIRTUAL_HOST:
            names = {name for name in names if envoy_names.routes_of(name) in self.has[ROUTES]}
        for resource in (resource for resource in response.resources if resource.name in names):
            changed = has.get(resource.name) != resource
            has[resource.name] = resource
            if response.type == CLUSTER and changed:
                self.start_warming(resource)
            self.warmed(resource.id)
        if response.type == ROUTES and has and not self.discovers_hosts:
            self.discovers_hosts = True
            self.outbox.append(DeltaRequest(VIRTUAL_HOST))

    def start_warming(self, cluster: XdsResource) -> None:
        secrets = {need for need in cluster.needs if need[0] == SECRET and need[1] not in self.has[SECRET]}
        self.warming[cluster.name] = secrets | {need for need in cluster.needs if need[0] == ENDPOINTS}
        self.warmed((CLUSTER, ""))

    def warmed(self, came: Id) -> None:
        """A resource arrived that clusters may have waited for; warm ones are in use, and ACKed."""
        for name, waits in list(self.warming.items()):
            waits.discard(came)
            if not waits or name not in self.has[CLUSTER]:
                del self.warming[name]
                if name in self.has[CLUSTER]:
                    self.warm.add(name)
        if self.delayed_ack is not None and not self.warming:
            self.outbox.append(self.delayed_ack)
            self.delayed_ack = None

    def note_versions(self, response: DeltaResponse) -> None:
        for name in response.removed:
            self.versions[response.type].pop(name, None)
        has, is_all = self.has[response.type], response.type == VIRTUAL_HOST
        self.versions[response.type].update(
            {p.name: p.version for p in response.resources if is_all or p.name in has}
        )

    def update_subscriptions(self) -> None:
        """Subscribe to names that are referenced now, and unsubscribe from others."""
        needed: dict[str, set[str]] = {type_: set() for type_ in TYPES}
        for type_ in (CLUSTER, LISTENER):
            for resource in self.has[type_].values():
                for need_type, name in resource.needs:
                    needed[need_type].add(name)
        for type_ in (type_ for type_ in TYPES if type_ not in WILDCARD_TYPES):
            added, removed = needed[type_] - self.subscribed[type_], self.subscribed[type_] - needed[type_]
            self.subscribed[type_] = needed[type_]
            for name in removed:
                self.has[type_].pop(name, None)
                self.versions[type_].pop(name, None)
                if type_ == ROUTES:
                    self.drop_hosts(name)
            if added or removed:
                self.outbox.append(DeltaRequest(type_, tuple(sorted(added)), tuple(sorted(removed))))

    def drop_hosts(self, routes: str) -> None:
        """The virtual hosts of routes that are gone act no more."""
        hosts = self.has[VIRTUAL_HOST]
        for name in [name for name in hosts if envoy_names.routes_of(name) == routes]:
            del hosts[name]

    def end_warming(self) -> None:
        """Use clusters that have been warming for too long."""
        self.n_warming_timeouts += bool(self.warming)
        for waits in self.warming.values():
            waits.clear()
        self.warmed((CLUSTER, ""))

    def dangling(self, *, strictly: bool, unbuilt: frozenset[str] = frozenset()) -> set[tuple[Id, Id]]:
        """References to clusters that it does not hold; strictly, to those that are not warm.

        References to clusters that could not be built are allowed.
        """
        clusters = (self.warm if strictly else self.has[CLUSTER].keys()) | unbuilt
        return {
            (resource.id, need)
            for type_ in TYPES
            for resource in self.has[type_].values()
            for need in resource.needs
            if need[0] == CLUSTER and need[1] not in clusters
        }
