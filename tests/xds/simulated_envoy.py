"""A simulated Envoy: takes incremental responses as the real one does, as far as the order of things goes.

It asks for names when it has got what refers to them and leaves them later; it answers for clusters only
when they are warm, that is when the endpoints of each changed one came after it; and it refuses what is bad
in one of three ways. What it would do after its own timeout it does in `lose_patience`, which a good session
never needs.
"""

from collections import deque

from koguma.envoy.snapshot import CLUSTER, ENDPOINTS, LISTENER, SECRET, TYPES, Id, XdsResource
from koguma.xds.protocol.delta import WILDCARD_TYPES, DeltaRequest, DeltaResponse


def is_bad(piece: XdsResource) -> bool:
    """Whether an Envoy refuses it; the version says so, and the letter after it says how."""
    return piece.version.startswith("bad")


class Envoy:
    """One proxy. `inbox` and `outbox` are the two directions of its stream."""

    def __init__(self) -> None:
        self.has: dict[str, dict[str, XdsResource]] = {type_: {} for type_ in TYPES}
        self.versions: dict[str, dict[str, str]] = {type_: {} for type_ in TYPES}  # as it would name them
        self.asked: dict[str, set[str]] = {type_: set() for type_ in TYPES}
        self.warm: set[str] = set()  # clusters that are in use
        self.warming: dict[str, set[Id]] = {}  # clusters that wait, and for what
        self.late: DeltaRequest | None = None  # the answer about clusters, while some are warming
        self.inbox: deque[DeltaResponse] = deque()
        self.outbox: deque[DeltaRequest] = deque()
        self.n_impatient = 0
        self.connect()

    def connect(self) -> None:
        """Begin a new stream: ask for everything again, and name what it has."""
        self.inbox.clear()
        self.outbox.clear()
        self.late = None
        for type_ in TYPES:
            if type_ in WILDCARD_TYPES:
                self.outbox.append(DeltaRequest(type_, initial_versions=dict(self.versions[type_])))
            elif self.asked[type_]:
                names = tuple(sorted(self.asked[type_]))
                self.outbox.append(DeltaRequest(type_, names, initial_versions=dict(self.versions[type_])))

    def read(self) -> None:
        """Take the next response, and answer it."""
        response = self.inbox.popleft()
        bad = [piece for piece in response.resources if is_bad(piece)]
        text = self.refusal(response, bad) if bad else ""
        if not bad:
            self.take(response, {piece.name for piece in response.resources})
            self.note_versions(response)
        elif bad[0].version[3] == "p":  # in part: the rest is taken
            self.take(response, {piece.name for piece in response.resources if not is_bad(piece)})
        answer = DeltaRequest(response.type, nonce=response.nonce, error=text)
        if response.type == CLUSTER and self.warming:
            self.late = answer
        else:
            self.outbox.append(answer)
        self.ask()

    def refusal(self, response: DeltaResponse, bad: list[XdsResource]) -> str:
        """Words that name the bad ones, or nobody."""
        if bad[0].version[3] == "q" and response.type not in WILDCARD_TYPES:
            return "Proto constraint validation failed"
        return "Error adding/updating " + ", ".join(f"{piece.name}: boom" for piece in bad)

    def take(self, response: DeltaResponse, names: set[str]) -> None:
        """Have what the response says, as far as it is good."""
        has = self.has[response.type]
        for name in response.removed:
            has.pop(name, None)
            self.warm.discard(name) if response.type == CLUSTER else None
            self.warmed((response.type, name))
        if response.type not in WILDCARD_TYPES:
            names &= self.asked[response.type]  # whatever comes for a name that it has left it does not take
        for piece in (piece for piece in response.resources if piece.name in names):
            changed = has.get(piece.name) != piece
            has[piece.name] = piece
            if response.type == CLUSTER and changed:
                self.start_warming(piece)
            self.warmed(piece.id)

    def start_warming(self, cluster: XdsResource) -> None:
        secrets = {need for need in cluster.needs if need[0] == SECRET and need[1] not in self.has[SECRET]}
        self.warming[cluster.name] = secrets | {need for need in cluster.needs if need[0] == ENDPOINTS}
        self.warmed((CLUSTER, ""))

    def warmed(self, came: Id) -> None:
        """Something came that clusters may have waited for; at last they are in use, and are answered for."""
        for name, waits in list(self.warming.items()):
            waits.discard(came)
            if not waits or name not in self.has[CLUSTER]:
                del self.warming[name]
                if name in self.has[CLUSTER]:
                    self.warm.add(name)
        if self.late is not None and not self.warming:
            self.outbox.append(self.late)
            self.late = None

    def note_versions(self, response: DeltaResponse) -> None:
        for name in response.removed:
            self.versions[response.type].pop(name, None)
        has = self.has[response.type]
        self.versions[response.type].update({p.name: p.version for p in response.resources if p.name in has})

    def ask(self) -> None:
        """Ask for names that are needed now, and leave those that are not."""
        needed: dict[str, set[str]] = {type_: set() for type_ in TYPES}
        for type_ in (CLUSTER, LISTENER):
            for piece in self.has[type_].values():
                for need_type, name in piece.needs:
                    needed[need_type].add(name)
        for type_ in (type_ for type_ in TYPES if type_ not in WILDCARD_TYPES):
            more, less = needed[type_] - self.asked[type_], self.asked[type_] - needed[type_]
            self.asked[type_] = needed[type_]
            for name in less:
                self.has[type_].pop(name, None)
                self.versions[type_].pop(name, None)
            if more or less:
                self.outbox.append(DeltaRequest(type_, tuple(sorted(more)), tuple(sorted(less))))

    def lose_patience(self) -> None:
        """Take into use what has waited for too long."""
        self.n_impatient += bool(self.warming)
        for waits in self.warming.values():
            waits.clear()
        self.warmed((CLUSTER, ""))

    def dangling(self, *, strictly: bool, unbuilt: frozenset[str] = frozenset()) -> set[tuple[Id, Id]]:
        """What it has that needs a cluster which it does not have; strictly, one that is not in use.

        Clusters that could not be built are needed in vain.
        """
        clusters = (self.warm if strictly else self.has[CLUSTER].keys()) | unbuilt
        return {
            (piece.id, need)
            for type_ in TYPES
            for piece in self.has[type_].values()
            for need in piece.needs
            if need[0] == CLUSTER and need[1] not in clusters
        }
