"""Whatever is offered, rejected, delayed or cut off: a simulated Envoy ends with the last offer.

The versions in these snapshots include the references, as real ones do, being hashes of the content.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from koguma.envoy.names import routes_of
from koguma.envoy.snapshot import TYPES, Failure, Id, Snapshot, XdsResource, bundle
from koguma.xds.contract import Offer
from koguma.xds.protocol.delta import DeltaResponse
from koguma.xds.protocol.session import DeltaSession
from tests.xds.simulated_envoy import Envoy

pytestmark = pytest.mark.slow

DRAIN_SECONDS = 30.0
CLUSTERS, LISTENERS, ROUTES = "abc", "lm", "rs"
HOSTS = ("r/x", "r/y", "s/x")
GOOD, BAD = ("1", "2"), ("badp", "badw", "badq")


def resource_of(type_: str, name: str, version: str, needs: Sequence[Id] = ()) -> XdsResource:
    full_version = ">".join([version, *(":".join(need) for need in needs)])
    return XdsResource(type_, name, full_version, full_version.encode(), tuple(needs))


@st.composite
def snapshots(draw, versions: Sequence[str] = GOOD, *, failing: bool = False) -> Snapshot:
    """Consistent snapshots: every referenced resource exists, or could not be built."""
    version = st.sampled_from(versions)
    clusters = draw(st.lists(st.sampled_from(CLUSTERS), unique=True))
    cluster_names = st.lists(st.sampled_from(clusters), unique=True, max_size=2) if clusters else st.just([])
    resources = [
        resource_of("secret", "s", draw(version)),
        resource_of("extension", "x", draw(version), ids("cluster", draw(cluster_names))),
    ]
    for name in clusters:
        needs = draw(st.sampled_from(((), (("endpoints", name),), (("endpoints", name), ("secret", "s")))))
        resources.append(resource_of("cluster", name, draw(version), needs))
        resources.append(resource_of("endpoints", name, draw(version)))
    resources += [
        resource_of("routes", name, draw(version), ids("cluster", draw(cluster_names))) for name in ROUTES
    ]
    resources += [
        resource_of("virtual_host", name, draw(version), ids("cluster", draw(cluster_names)))
        for name in draw(st.lists(st.sampled_from(HOSTS), unique=True))
    ]
    for name in draw(st.lists(st.sampled_from(LISTENERS), unique=True)):
        needs = [*ids("routes", draw(st.lists(st.sampled_from(ROUTES), max_size=1)))]
        needs += [*ids("cluster", draw(cluster_names)), *draw(st.sampled_from(([], [("extension", "x")])))]
        resources.append(resource_of("listener", name, draw(version), needs))
    failing_resources = set(draw(st.lists(st.sampled_from(resources), max_size=2))) if failing else set()
    built = [resource for resource in resources if resource not in failing_resources]
    failures = [Failure(resource.type, resource.name, "broken") for resource in failing_resources]
    apart = bundle(resource for resource in built if resource.type == "endpoints")
    return Snapshot(
        (bundle((resource for resource in built if resource.type != "endpoints"), failures), apart)
    )


class ContentChange(NamedTuple):
    """New content of all resources of one type; all other bundles stay the same objects."""

    type: str

    def after(self, snapshot: Snapshot) -> Snapshot:
        def changed(resource: XdsResource) -> XdsResource:
            version = "1" if resource.version.startswith("2") else "2"
            return (
                resource_of(resource.type, resource.name, version, resource.needs)
                if resource.type == self.type
                else resource
            )

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
    """A proxy, its session, and the stream between them, which delivers on command."""

    def __init__(self) -> None:
        self.now = 0.0
        self.revisions = itertools.count(1)
        self.newest: Offer | None = None
        self.envoy = Envoy()
        self.session = DeltaSession(DRAIN_SECONDS)
        self.has_reconnected = False
        self.has_nacked = False
        self.counted: Counter[tuple[str, str]] = Counter()  # messages of this stream, by type
        self.unbuilt: frozenset[str] = frozenset()  # clusters that could not be built in some offer

    def offer(self, snapshot: Snapshot, *, retry: bool = False) -> None:
        self.newest = Offer(next(self.revisions), snapshot, retry_rejected=retry)
        failed = {each.id for each in snapshot.failures}
        clusters = snapshot.of_type("cluster").values()
        self.unbuilt |= {name for type_, name in failed if type_ == "cluster"}
        self.unbuilt |= {each.name for each in clusters if not failed.isdisjoint(each.needs)}
        self.send(self.session.offer(self.newest, self.now))

    def send(self, responses: Sequence[DeltaResponse]) -> None:
        self.envoy.inbox.extend(responses)
        self.counted.update((response.type, "sent") for response in responses)

    def deliver_request(self) -> None:
        if self.envoy.outbox:
            request = self.envoy.outbox.popleft()
            self.has_nacked = self.has_nacked or bool(request.error)
            if request.nonce:
                self.counted[request.type, "rejected" if request.error else "acked"] += 1
            self.send(self.session.receive(request, self.now))

    def deliver_response(self) -> None:
        if self.envoy.inbox:
            self.envoy.read()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.send(self.session.tick(self.now))

    def reconnect(self) -> None:
        self.has_reconnected = True
        self.session = DeltaSession(DRAIN_SECONDS)
        self.counted.clear()
        self.envoy.connect()
        if self.newest is not None:
            self.session.offer(self.newest, self.now)

    def apply(self, event: object) -> None:
        match event:
            case Snapshot():
                self.offer(event)
            case ContentChange():
                self.offer(event.after(self.newest.snapshot if self.newest else Snapshot()))
            case float():
                self.pass_time(event)
            case "request":
                self.deliver_request()
            case "response":
                self.deliver_response()
            case "reconnect":
                self.reconnect()
            case "retry":
                self.offer(self.newest.snapshot if self.newest else Snapshot(), retry=True)
        strictly = not self.has_reconnected and not self.envoy.n_warming_timeouts
        assert self.envoy.dangling(strictly=strictly, unbuilt=self.unbuilt) == set()

    def settle(self) -> None:
        """Deliver all messages, and let as much time pass as the session asks for."""
        for _ in range(1_000):
            if self.envoy.outbox:
                self.apply("request")
            elif self.envoy.inbox:
                self.apply("response")
            elif self.envoy.warming:
                self.envoy.end_warming()
            elif self.session.next_tick is not None:
                self.apply(self.session.next_tick - self.now)
            else:
                break
        else:
            raise AssertionError("the exchange does not end")
        counts = {
            (type_, word): number
            for type_, count in self.session.status.responses.items()
            for word, number in msgspec.structs.asdict(count).items()
            if number
        }
        assert counts == self.counted


def check_end(world: World, final: Snapshot) -> None:
    """The proxy holds the last offer: all clusters and listeners, and what these reference."""
    world.apply(final)
    world.settle()
    for type_ in TYPES:
        expected = final.of_type(type_)
        if type_ == "virtual_host":
            routes = world.envoy.has["routes"]
            expected = {name: each for name, each in expected.items() if routes_of(name) in routes}
        elif type_ not in ("cluster", "listener"):
            expected = {
                name: resource for name, resource in expected.items() if name in world.envoy.subscribed[type_]
            }
        assert world.envoy.has[type_] == expected
    status = world.session.status
    assert (status.state, status.acked) == ("synced", world.newest.revision if world.newest else None)
    assert status.acked_versions == {type_: has for type_, has in versions(world.envoy).items() if has}


def versions(envoy: Envoy) -> dict[str, dict[str, str]]:
    return {type_: {name: p.version for name, p in has.items()} for type_, has in envoy.has.items()}


WIRE = st.sampled_from(("request", "request", "response", "response", "response"))
TIME = st.sampled_from((1.0, 20.0, 40.0))
CONTENT_CHANGE = st.builds(
    ContentChange, st.sampled_from(("endpoints", "listener", "routes", "virtual_host"))
)


def histories(*more: st.SearchStrategy) -> st.SearchStrategy[list]:
    return st.lists(st.one_of(WIRE, WIRE, TIME, CONTENT_CHANGE, *more), max_size=60)


@pytest.mark.property
@given(snapshots(), histories(st.just("reconnect")), st.sampled_from(("routes", "endpoints", "virtual_host")))
def test_content_changes_for_an_idle_proxy_end_with_the_last_one(first, history, last):
    world = World()
    world.apply(first)
    world.settle()
    for event in history:
        world.apply(event)
    assert world.newest is not None
    check_end(world, ContentChange(last).after(world.newest.snapshot))


@pytest.mark.property
@given(histories(snapshots()), snapshots())
def test_a_proxy_ends_with_the_last_offer_and_no_warming_times_out(history, final):
    world = World()
    for event in history:
        world.apply(event)
    check_end(world, final)
    assert world.envoy.n_warming_timeouts == 0


@pytest.mark.property
@given(histories(snapshots(failing=True), st.just("reconnect")), snapshots())
def test_a_proxy_that_reconnects_and_resources_that_fail(history, final):
    world = World()
    for event in history:
        world.apply(event)
    check_end(world, final)


@pytest.mark.property
@given(histories(snapshots(versions=(*GOOD, *BAD), failing=True), st.just("retry")), snapshots())
def test_a_proxy_that_nacks_some_resources(history, final):
    world = World()
    for event in history:
        world.apply(event)
    check_end(world, final)


@pytest.mark.property
@given(histories(snapshots(versions=(*GOOD, *BAD)), st.just("retry")), snapshots(versions=(*GOOD, *BAD)))
def test_nacks_are_reported_and_the_exchange_ends(history, final):
    world = World()
    for event in [*history, final]:
        world.apply(event)
    world.settle()
    status = world.session.status
    refused = {(each.type, name) for each in status.rejections for name in each.names}
    acked = {
        (type_, name): version
        for type_, found in status.acked_versions.items()
        for name, version in found.items()
    }
    assert refused <= {resource.id for resource in final if acked.get(resource.id) != resource.version}
    assert (status.state == "nack") == bool(refused)


@pytest.mark.property
@given(histories(snapshots(failing=True), st.just("reconnect")), snapshots(failing=True))
def test_resources_that_fail_never_keep_a_proxy_from_being_synced(history, final):
    world = World()
    for event in [*history, final]:
        world.apply(event)
    world.settle()
    status = world.session.status
    assert (status.state, status.acked) == ("synced", world.newest.revision if world.newest else None)
    # Of what could be built, only what references something that could not is missing.
    failed = {each.id for each in final.failures}
    for resource in final:
        if resource.type in ("cluster", "listener") and not is_blocked(final, resource, failed):
            assert world.envoy.has[resource.type].get(resource.name) == resource


def is_blocked(snapshot: Snapshot, resource: XdsResource, failed: set[Id]) -> bool:
    """Whether a resource references something that failed and that it cannot work without."""
    for need in resource.needs:
        needed = snapshot.get(need)
        if need[0] != "cluster" and (need in failed or (needed and is_blocked(snapshot, needed, failed))):
            return True
    return False
