"""Whatever is offered, refused, delayed or cut off: a simulated Envoy ends with what was offered last.

The versions in these snapshots say what a piece needs, as real ones do, being hashes of the content.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import given

from koguma.envoy.snapshot import TYPES, Failure, Id, Snapshot, XdsResource, bundle
from koguma.xds.contract import Offer
from koguma.xds.protocol.session import DeltaSession
from tests.xds.simulated_envoy import Envoy

DRAIN_SECONDS = 30.0
CLUSTERS, LISTENERS, ROUTES = "abc", "lm", "rs"
GOOD, BAD = ("1", "2"), ("badp", "badw", "badq")


def made(type_: str, name: str, version: str, needs: Sequence[Id] = ()) -> XdsResource:
    whole = ">".join([version, *(":".join(need) for need in needs)])
    return XdsResource(type_, name, whole, whole.encode(), tuple(needs))


@st.composite
def snapshots(draw, versions: Sequence[str] = GOOD, *, failing: bool = False) -> Snapshot:
    """Consistent snapshots: whatever is needed is there, or could not be made."""
    version = st.sampled_from(versions)
    clusters = draw(st.lists(st.sampled_from(CLUSTERS), unique=True))
    some = st.lists(st.sampled_from(clusters), unique=True, max_size=2) if clusters else st.just([])
    pieces = [
        made("secret", "s", draw(version)),
        made("extension", "x", draw(version), ids("cluster", draw(some))),
    ]
    for name in clusters:
        needs = draw(st.sampled_from(((), (("endpoints", name),), (("endpoints", name), ("secret", "s")))))
        pieces.append(made("cluster", name, draw(version), needs))
        pieces.append(made("endpoints", name, draw(version)))
    pieces += [made("routes", name, draw(version), ids("cluster", draw(some))) for name in ROUTES]
    for name in draw(st.lists(st.sampled_from(LISTENERS), unique=True)):
        needs = [*ids("routes", draw(st.lists(st.sampled_from(ROUTES), max_size=1)))]
        needs += [*ids("cluster", draw(some)), *draw(st.sampled_from(([], [("extension", "x")])))]
        pieces.append(made("listener", name, draw(version), needs))
    lost = set(draw(st.lists(st.sampled_from(pieces), max_size=2))) if failing else set()
    left = [piece for piece in pieces if piece not in lost]
    failures = [Failure(piece.type, piece.name, "broken") for piece in lost]
    apart = bundle(piece for piece in left if piece.type == "endpoints")
    return Snapshot((bundle((piece for piece in left if piece.type != "endpoints"), failures), apart))


class Step(NamedTuple):
    """Other content of all pieces of one type; what else there is, is in the very same bundles."""

    type: str

    def after(self, snapshot: Snapshot) -> Snapshot:
        def changed(piece: XdsResource) -> XdsResource:
            version = "1" if piece.version.startswith("2") else "2"
            return made(piece.type, piece.name, version, piece.needs) if piece.type == self.type else piece

        return Snapshot(
            tuple(
                bundle(map(changed, each.resources.values()), each.failures)
                if each.count(self.type)
                else each
                for each in snapshot.bundles
            )
        )


def ids(type_: str, names: Sequence[str]) -> list[Id]:
    return [(type_, name) for name in names]


class World:
    """A proxy, its session, and the wire between them, which delivers when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.revisions = itertools.count(1)
        self.newest: Offer | None = None
        self.envoy = Envoy()
        self.session = DeltaSession(DRAIN_SECONDS)
        self.was_cut = False
        self.was_bad = False
        self.unbuilt: frozenset[str] = frozenset()  # clusters that some offer could not have

    def offer(self, snapshot: Snapshot, *, again: bool = False) -> None:
        self.newest = Offer(next(self.revisions), snapshot, retry_rejected=again)
        failed = {each.id for each in snapshot.failures}
        clusters = snapshot.of_type("cluster").values()
        self.unbuilt |= {name for type_, name in failed if type_ == "cluster"}
        self.unbuilt |= {each.name for each in clusters if not failed.isdisjoint(each.needs)}
        self.envoy.inbox.extend(self.session.offer(self.newest, self.now))

    def deliver_request(self) -> None:
        if self.envoy.outbox:
            request = self.envoy.outbox.popleft()
            self.was_bad = self.was_bad or bool(request.error)
            self.envoy.inbox.extend(self.session.receive(request, self.now))

    def deliver_response(self) -> None:
        if self.envoy.inbox:
            self.envoy.read()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.envoy.inbox.extend(self.session.tick(self.now))

    def reconnect(self) -> None:
        self.was_cut = True
        self.session = DeltaSession(DRAIN_SECONDS)
        self.envoy.connect()
        if self.newest is not None:
            self.session.offer(self.newest, self.now)

    def do(self, deed: object) -> None:
        match deed:
            case Snapshot():
                self.offer(deed)
            case Step():
                self.offer(deed.after(self.newest.snapshot if self.newest else Snapshot()))
            case float():
                self.pass_time(deed)
            case "request":
                self.deliver_request()
            case "response":
                self.deliver_response()
            case "reconnect":
                self.reconnect()
            case "again":
                self.offer(self.newest.snapshot if self.newest else Snapshot(), again=True)
        strictly = not self.was_cut and not self.envoy.n_impatient
        assert self.envoy.dangling(strictly=strictly, unbuilt=self.unbuilt) == set()

    def settle(self) -> None:
        """Deliver whatever is on its way, and let as much time pass as the session asks for."""
        for _ in range(1_000):
            if self.envoy.outbox:
                self.do("request")
            elif self.envoy.inbox:
                self.do("response")
            elif self.envoy.warming:
                self.envoy.lose_patience()
            elif self.session.next_tick is not None:
                self.do(self.session.next_tick - self.now)
            else:
                return
        raise AssertionError("they talk without an end")


def check_end(world: World, final: Snapshot) -> None:
    """The proxy has what was offered last: all clusters and listeners, and of the rest what these need."""
    world.do(final)
    world.settle()
    for type_ in TYPES:
        wanted = final.of_type(type_)
        if type_ not in ("cluster", "listener"):
            wanted = {name: piece for name, piece in wanted.items() if name in world.envoy.asked[type_]}
        assert world.envoy.has[type_] == wanted
    status = world.session.status
    assert (status.state, status.acked) == ("synced", world.newest.revision if world.newest else None)
    assert status.acked_versions == {type_: has for type_, has in versions(world.envoy).items() if has}


def versions(envoy: Envoy) -> dict[str, dict[str, str]]:
    return {type_: {name: p.version for name, p in has.items()} for type_, has in envoy.has.items()}


WIRE = st.sampled_from(("request", "request", "response", "response", "response"))
TIME = st.sampled_from((1.0, 20.0, 40.0))
STEP = st.builds(Step, st.sampled_from(("endpoints", "listener", "routes")))


def deeds(*more: st.SearchStrategy) -> st.SearchStrategy[list]:
    return st.lists(st.one_of(WIRE, WIRE, TIME, STEP, *more), max_size=60)


@pytest.mark.property
@given(snapshots(), deeds(st.just("reconnect")), st.sampled_from(("routes", "endpoints")))
def test_a_proxy_at_peace_that_takes_steps_ends_with_the_last_one(first, history, last):
    world = World()
    world.do(first)
    world.settle()
    for deed in history:
        world.do(deed)
    assert world.newest is not None
    check_end(world, Step(last).after(world.newest.snapshot))


@pytest.mark.property
@given(deeds(snapshots()), snapshots())
def test_a_proxy_ends_with_what_was_offered_last_and_never_waits_in_vain(history, final):
    world = World()
    for deed in history:
        world.do(deed)
    check_end(world, final)
    assert world.envoy.n_impatient == 0


@pytest.mark.property
@given(deeds(snapshots(failing=True), st.just("reconnect")), snapshots())
def test_a_proxy_that_reconnects_and_pieces_that_fail(history, final):
    world = World()
    for deed in history:
        world.do(deed)
    check_end(world, final)


@pytest.mark.property
@given(deeds(snapshots(versions=(*GOOD, *BAD), failing=True), st.just("again")), snapshots())
def test_a_proxy_that_refuses_some_of_it(history, final):
    world = World()
    for deed in history:
        world.do(deed)
    check_end(world, final)


@pytest.mark.property
@given(deeds(snapshots(versions=(*GOOD, *BAD)), st.just("again")), snapshots(versions=(*GOOD, *BAD)))
def test_what_is_refused_is_reported_and_the_talk_ends(history, final):
    world = World()
    for deed in [*history, final]:
        world.do(deed)
    world.settle()
    status = world.session.status
    refused = {(each.type, name) for each in status.rejections for name in each.names}
    acked = {
        (type_, name): version
        for type_, found in status.acked_versions.items()
        for name, version in found.items()
    }
    assert refused <= {piece.id for piece in final if acked.get(piece.id) != piece.version}
    assert (status.state == "nack") == bool(refused)


@pytest.mark.property
@given(deeds(snapshots(failing=True), st.just("reconnect")), snapshots(failing=True))
def test_pieces_that_fail_never_keep_a_proxy_from_being_synced(history, final):
    world = World()
    for deed in [*history, final]:
        world.do(deed)
    world.settle()
    status = world.session.status
    assert (status.state, status.acked) == ("synced", world.newest.revision if world.newest else None)
    # Of what could be built, only what needs something that could not is missing.
    failed = {each.id for each in final.failures}
    for piece in final:
        if piece.type in ("cluster", "listener") and not without(final, piece, failed):
            assert world.envoy.has[piece.type].get(piece.name) == piece


def without(snapshot: Snapshot, piece: XdsResource, failed: set[Id]) -> bool:
    """Whether a piece has to do without something that it cannot do without."""
    for need in piece.needs:
        found = snapshot.get(need)
        if need[0] != "cluster" and (need in failed or (found and without(snapshot, found, failed))):
            return True
    return False
