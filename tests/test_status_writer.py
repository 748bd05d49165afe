"""Statuses as they are stored: by whom, when, how often, and by several control planes at once."""

import asyncio
import contextlib
import json
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from koguma.access.authorizer import Authorizer
from koguma.access.user import SYSTEM
from koguma.application import transactions
from koguma.application.context import Context, InstanceInfo
from koguma.application.live_engine import LiveEngine
from koguma.core import admission, pipeline, vips
from koguma.model import forms
from koguma.model.control_plane_info import ControlPlaneInfo, Mode
from koguma.model.errors import Invalid
from koguma.reconcile.statuses import COUNT_INTERVAL, COUNT_PAUSE_SECONDS_MAX, StatusWriter
from koguma.runtime import settings
from koguma.store.contract import Delete, DeleteMesh, Put, Transaction
from koguma.store.memory import MemoryLog
from koguma.store.store import Store
from tests.core.destinations import (
    ALL,
    HERE,
    stored,
    stored_dataplane,
    stored_external,
    stored_generator,
    stored_mesh,
    stored_service,
)

pytestmark = pytest.mark.slow

SVC = stored_generator("local", "{{ .DisplayName }}.svc.mesh.local")


# Between two counts; the longer the work takes, and so the busier the machine is, the longer the pause.
LONGER_THAN_A_PAUSE = COUNT_INTERVAL + timedelta(seconds=COUNT_PAUSE_SECONDS_MAX)
NOTE = 1  # the revision that says which addresses are used


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self):
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self):
        return self.now


class Plane:
    """What a writer needs of a control plane, on a log that others may share."""

    def __init__(self, log=None, control_plane=HERE):
        self.clock = Clock()
        self.store = Store(log or MemoryLog(), self.clock)
        self.control_plane = control_plane
        self.connected: set = set()

    async def open(self):
        await self.store.open()
        engine = LiveEngine(self.store, ALL, self.control_plane)
        self.context = Context(
            kinds=ALL,
            control_plane=self.control_plane,
            store=self.store,
            access=Authorizer((), ()),
            about=InstanceInfo("here", "here-1", lambda: "", "0", dict),
            signing_key=lambda: "",
            database=engine.database,
            beside=engine.beside,
        )
        self.writer = self.new_writer()
        return self

    def new_writer(self, context=None, ranges=vips.DEFAULT):
        return StatusWriter(
            context or self.context, self.clock, lambda: frozenset(self.connected), frozenset, ranges
        )

    def blind_to(self, *resources):
        """A writer that does not know yet what somebody else wrote a moment ago."""
        hidden = {resource.key for resource in resources}

        async def behind():
            seen = [each for each in self.store.state.all() if each.key not in hidden]
            return pipeline.load(ALL, self.control_plane, seen)

        return self.new_writer(msgspec.structs.replace(self.context, database=behind))

    async def write(self, *resources):
        for one in resources:
            await self.store.write(Transaction((Put(one),), "somebody"))

    async def delete(self, resource):
        await self.store.write(Transaction((Delete(resource.key),), "somebody"))

    def status(self, resource):
        return self.store.state.get(resource.key).status

    def address(self, resource):
        return [each["ip"] for each in (self.status(resource) or {}).get("vips", [])]

    def count(self, resource):
        return self.status(resource)["dataplaneProxies"]["connected"]

    async def revisions(self, work):
        """How many revisions something makes."""
        before = self.store.state.revision
        await work
        return self.store.state.revision - before


@pytest.fixture
async def plane():
    async with planes(1) as (one,):
        yield one


@contextlib.asynccontextmanager
async def planes(number):
    """Control planes on one store, with the mesh `shop`."""
    log = MemoryLog(shared=number > 1)
    made = [await Plane(log).open() for _ in range(number)]
    await made[0].write(stored_mesh())
    try:
        yield made
    finally:
        for each in made:
            await each.store.close()


@contextlib.asynccontextmanager
async def running(*writers):
    tasks = [asyncio.create_task(writer.run()) for writer in writers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def eventually(question, expected):
    """Ask until the answer is this one; the last answer is compared, and so shown."""
    for _ in range(6000):
        if question() == expected:
            break
        await asyncio.sleep(0.01)
    assert question() == expected


# What is written.


async def test_the_history_says_who_wrote_a_status_and_why(plane):
    web = stored_service("web")
    await plane.write(web, SVC)
    await plane.writer.settle(["shop"])
    change, first = await plane.store.history(web.key)
    assert (change.author, change.reason, first.author) == (SYSTEM, "status", "somebody")
    assert change.resource.status["vips"] == [{"ip": "241.0.0.1"}]
    assert (change.resource.spec, change.resource.generation) == (first.resource.spec, 1)


async def test_a_settled_mesh_makes_no_revisions(plane):
    await plane.write(
        stored_service("web"),
        stored_service("far", zone="west"),
        stored_external("db"),
        SVC,
        stored_dataplane("w", "web"),
    )
    assert await plane.revisions(plane.writer.settle(["shop"])) == 3 + NOTE
    plane.clock.now += 10 * COUNT_INTERVAL
    assert await plane.revisions(plane.writer.settle(["shop"])) == 0
    assert await plane.revisions(plane.new_writer().settle(["shop"])) == 0


async def test_many_services_are_written_in_few_batches(plane):
    await plane.write(*(stored_service(f"s{number}") for number in range(300)))
    before = plane.store.batches
    assert await plane.revisions(plane.writer.settle(["shop"])) == 300 + NOTE
    assert plane.store.batches - before == 2 + NOTE


async def test_a_mesh_that_is_not_there_is_no_trouble(plane):
    assert await plane.revisions(plane.writer.settle(["nowhere", ""])) == 0


async def test_a_global_control_plane_writes_no_status():
    one = await Plane(control_plane=ControlPlaneInfo(mode=Mode.GLOBAL, zone="")).open()
    await one.write(stored_mesh(), stored_service("web"))
    assert await one.revisions(one.writer.settle(["shop"])) == 0
    await one.store.close()


def test_users_cannot_write_a_status():
    kind, web = ALL["MeshService"], stored_service("web", "241.0.0.1")
    document = {
        "type": "MeshService",
        "mesh": "shop",
        "name": "web",
        "spec": web.spec,
        "status": {"vips": [{"ip": "1.2.3.4"}]},
    }
    draft = forms.read_plain(document, kind)
    assert admission.admitted(draft, None, HERE).resource.status is None
    assert admission.admitted(draft, web, HERE).resource.status == web.status


MTLS = {"enabledBackend": "ca-1", "backends": [{"name": "ca-1", "type": "builtin", "mode": "PERMISSIVE"}]}


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({}, {"mtls": MTLS}, "NotReady"),  # callers must not take the status of then for one of now
        ({"mtls": MTLS}, {"mtls": MTLS}, "Ready"),
        ({"mtls": MTLS}, {}, "Ready"),  # the writer tells
    ],
)
async def test_no_service_is_ready_in_the_moment_when_mtls_comes_on(plane, before, after, told):
    web = msgspec.structs.replace(
        stored_service("web", "241.0.0.1"), status={"tls": {"status": "Ready"}, "x": 1}
    )
    await plane.write(stored_mesh(**before), web, stored_service("new"))
    changed = stored_mesh(**after)
    puts = await transactions.mesh_side_effects(plane.context, [changed])
    await plane.store.write(Transaction((Put(changed), *puts), "somebody"))
    assert plane.status(web) == {"tls": {"status": told}, "x": 1}
    assert plane.store.state.get(web.key).spec == web.spec
    assert plane.status(stored_service("new")) is None


# Addresses.


async def test_an_address_outlives_a_restart():
    log, api, web = MemoryLog(), stored_service("api"), stored_service("web")
    first = await Plane(log).open()
    await first.write(stored_mesh(), web)
    await first.writer.settle(["shop"])
    await first.write(api)
    await first.writer.settle(["shop"])
    await first.store.close()
    second = await Plane(log).open()
    assert await second.revisions(second.writer.settle(["shop"])) == 0
    assert [second.address(one) for one in (web, api)] == [["241.0.0.1"], ["241.0.0.2"]]
    await second.store.close()


async def test_a_freed_address_is_not_given_to_the_next_service(plane):
    web, api, new = stored_service("web"), stored_service("api"), stored_service("new")
    async with running(plane.writer):
        await plane.write(web)
        await eventually(lambda: plane.address(web), ["241.0.0.1"])
        await plane.write(api)
        await eventually(lambda: plane.address(api), ["241.0.0.2"])
        await plane.delete(api)
        await plane.write(new)
        await eventually(lambda: plane.address(new), ["241.0.0.3"])


async def test_a_control_plane_does_not_reuse_what_another_gave_and_somebody_freed():
    async with planes(2) as (one, other), running(other.writer):
        web, new = stored_service("web"), stored_service("new")
        await other.writer.settle(["shop"])
        await one.write(web)
        await one.writer.settle(["shop"])
        assert one.address(web) == ["241.0.0.1"]
        await one.delete(web)
        await one.write(new)
        await eventually(lambda: other.store.state.get(new.key) and other.address(new), ["241.0.0.2"])


async def test_a_service_that_comes_back_has_a_new_address(plane):
    web = stored_service("web")
    await plane.write(web)
    await plane.writer.settle(["shop"])
    await plane.delete(web)
    await plane.write(web)
    await plane.writer.settle(["shop"])
    assert plane.address(web) == ["241.0.0.2"]


async def test_a_range_that_is_used_up_is_told_and_others_go_on(plane):
    writer = plane.new_writer(ranges=vips.ranges("241.0.0.0/30"))
    there = [stored_service(f"s{number}") for number in range(3)]
    async with running(writer):
        await plane.write(*there)
        await eventually(lambda: [problem.about for problem in writer.problems], [there[2].key])
        await eventually(lambda: plane.address(there[0]), ["241.0.0.1"])
        await plane.delete(there[0])
        await eventually(lambda: list(writer._history.freed_at), ["241.0.0.1"])
        plane.clock.now += timedelta(hours=1)
        await writer.settle(["shop"])
        assert plane.address(there[2]) == []
        plane.clock.now += timedelta(hours=23)
        writer.recount("elsewhere")  # as time itself would, the clock being ours
        await eventually(lambda: [plane.address(one) for one in there[1:]], [["241.0.0.2"], ["241.0.0.1"]])
        assert writer.problems == []


async def test_an_address_is_not_forgotten_with_the_object_that_had_it():
    log, api, web, new = (MemoryLog(), *map(stored_service, ("api", "web", "new")))
    first = await Plane(log).open()
    await first.write(stored_mesh(), web, api)
    await first.writer.settle(["shop"])
    assert first.address(web) == ["241.0.0.2"]
    await first.delete(web)  # nobody looks before the restart
    await first.store.close()
    second = await Plane(log).open()
    await second.write(new)
    await second.writer.settle(["shop"])
    assert second.address(new) == ["241.0.0.3"]
    note = second.store.state.named("Config", "", "koguma-used-addresses-east")
    assert json.loads(note.spec["config"])["241.0.0.0/8"] == "241.0.0.3"
    await second.store.close()


async def test_a_note_that_cannot_be_read_is_written_again(plane):
    web = stored_service("web")
    await plane.write(web)
    await plane.writer.settle(["shop"])
    note = plane.store.state.named("Config", "", "koguma-used-addresses-east")
    await plane.write(msgspec.structs.replace(note, spec={"config": "?"}), stored_service("api"))
    await plane.writer.settle(["shop"])
    note = plane.store.state.named("Config", "", "koguma-used-addresses-east")
    assert json.loads(note.spec["config"])["241.0.0.0/8"] == "241.0.0.2"


# Several control planes.


async def test_control_planes_that_know_nothing_of_each_other_allocate_different_addresses():
    async with planes(2) as (one, other):
        old, young = stored_service("old"), stored_service("young")
        await one.write(old, young)
        await eventually(lambda: other.store.state.revision, one.store.state.revision)
        await one.blind_to(young).settle(["shop"])
        await eventually(lambda: other.store.state.revision, one.store.state.revision)
        await other.blind_to(old).settle(["shop"])
        assert [other.address(old), other.address(young)] == [["241.0.0.1"], ["241.0.0.2"]]


async def test_who_allocates_at_the_same_moment_waits_and_takes_the_next():
    async with planes(2) as (one, other):
        web, api = stored_service("web"), stored_service("api")
        await one.write(web, api)
        await eventually(lambda: other.store.state.revision, one.store.state.revision)
        async with running(one.writer, other.writer):
            await eventually(lambda: sorted(one.address(web) + one.address(api)), ["241.0.0.1", "241.0.0.2"])
            await quiet(one)


@pytest.mark.parametrize("place", ["shop", "other"])
async def test_one_address_that_two_have_is_mended(place):
    async with planes(2) as (one, other):
        old, young = (
            stored_service("old", "241.0.0.1"),
            stored_service("a-young-one", "241.0.0.1", mesh=place),
        )
        await one.write(stored_mesh("other"), old)
        one.clock.now += timedelta(seconds=5)
        await one.write(young)
        await one.writer.settle(["shop"])  # also where the mesh of the younger one was not touched
        assert [one.address(old), one.address(young)] == [["241.0.0.1"], ["241.0.0.2"]]
        await eventually(lambda: other.store.state.revision, one.store.state.revision)
        assert await other.revisions(other.writer.settle(["shop", "other"])) == 0


async def test_control_planes_that_mend_at_once_agree():
    async with planes(3) as (one, other, third), running(one.writer, other.writer, third.writer):
        there = [stored_service(f"s{number}", "241.0.0.7") for number in range(20)]
        await one.write(*there)

        def addresses():
            return len({tuple(third.address(each)) for each in there if third.store.state.get(each.key)})

        await eventually(addresses, 20)
        await quiet(third)
        assert addresses() == 20
        assert third.address(there[0]) == ["241.0.0.7"]


async def test_a_control_plane_that_is_behind_overwrites_nothing():
    async with planes(1) as (one,):
        web = stored_service("web")
        await one.write(web)
        old = list(one.store.state.all())
        await one.writer.settle(["shop"])

        async def behind():
            return pipeline.load(ALL, HERE, old)

        late = one.new_writer(
            msgspec.structs.replace(one.context, database=behind), vips.ranges("10.0.0.0/8")
        )
        assert await one.revisions(late.settle(["shop"])) == NOTE
        assert one.address(web) == ["241.0.0.1"]


async def test_control_planes_that_count_differently_do_not_quarrel():
    web, proxies = stored_service("web"), [stored_dataplane(f"w{number}", "web") for number in range(3)]
    async with planes(2) as (one, other):
        await one.write(web, *proxies)
        one.connected = {proxy.key for proxy in proxies}
        async with running(one.writer, other.writer):
            await eventually(lambda: bool(one.status(web)), expected=True)
            for _ in range(3):
                look_again(one, other)
                await quiet(one)
            look_again(one, other)
            assert await one.revisions(asyncio.sleep(0.4)) == 0


def look_again(*planes):
    for each in planes:
        each.clock.now += LONGER_THAN_A_PAUSE
        each.writer.recount("shop")


async def quiet(plane):
    """Wait until nobody writes any more."""
    for _ in range(20):
        if await plane.revisions(asyncio.sleep(0.2)) == 0:
            return
    pytest.fail("they write and write")


# When to look, and how often to write.


async def test_changes_are_noticed_and_a_generator_concerns_every_mesh(plane):
    web, there, proxy = (
        stored_service("web"),
        stored_service("web", mesh="other"),
        stored_dataplane("w", "web"),
    )
    async with running(plane.writer):
        await plane.write(stored_mesh("other"), web, there)
        await eventually(lambda: [plane.address(one) for one in (there, web)], [["241.0.0.1"], ["241.0.0.2"]])
        await plane.write(SVC)
        await eventually(lambda: ["addresses" in plane.status(one) for one in (web, there)], [True, True])
        plane.clock.now += LONGER_THAN_A_PAUSE
        await plane.write(proxy)
        await eventually(lambda: plane.status(web)["dataplaneProxies"]["total"], 1)


async def test_a_poke_counts_the_proxies(plane):
    web, proxy = stored_service("web"), stored_dataplane("w", "web")
    async with running(plane.writer):
        await plane.write(web, proxy)
        await eventually(lambda: plane.status(web) and plane.status(web)["dataplaneProxies"]["total"], 1)
        await asyncio.sleep(0.2)  # now the writer waits for news, and none will come
        plane.clock.now += LONGER_THAN_A_PAUSE
        plane.connected = {proxy.key}
        plane.writer.recount("shop")
        await eventually(lambda: plane.count(web), 1)


async def test_the_proxies_of_a_workload_are_counted(plane):
    backend = stored("Workload", "backend", {})
    elsewhere = stored("Workload", "backend", {}, zone="west", core_name="backend-west")
    of_backend = {"labels": {"kuma.io/workload": "backend"}}
    proxies = [
        stored("Dataplane", f"web-{n}", stored_dataplane("x", "web").spec, **of_backend) for n in range(3)
    ]
    plane.connected = {proxies[0].key, proxies[1].key, stored_dataplane("other", "web").key}
    await plane.write(backend, elsewhere, *proxies, stored_dataplane("other", "web"))
    await plane.writer.settle(["shop"])
    assert plane.status(backend) == {"dataplaneProxies": {"connected": 2, "healthy": 3, "total": 3}}
    assert plane.status(elsewhere) is None
    assert await plane.revisions(plane.writer.settle(["shop"])) == 0


async def test_proxies_are_counted_at_a_pace_and_the_last_count_is_not_lost(plane):
    web, proxies = stored_service("web"), [stored_dataplane(f"w{number}", "web") for number in range(5)]
    await plane.write(web, *proxies)
    await plane.writer.settle(["shop"])
    plane.clock.now += COUNT_INTERVAL
    counted = []
    for proxy in proxies:
        plane.connected.add(proxy.key)
        await plane.writer.settle(["shop"])
        counted.append(plane.count(web))
        plane.clock.now += COUNT_INTERVAL / 4
    assert counted == [1, 1, 1, 1, 5]
    assert await plane.revisions(plane.writer.settle(["shop"])) == 0


async def test_a_count_that_waits_is_written_when_its_time_comes(plane):
    web, proxy = stored_service("web"), stored_dataplane("w", "web")
    await plane.write(web, proxy)
    async with running(plane.writer):
        await eventually(lambda: bool(plane.status(web)), expected=True)
        plane.connected = {proxy.key}
        plane.writer.recount("shop")
        await asyncio.sleep(0.1)
        assert plane.count(web) == 0
        plane.clock.now += LONGER_THAN_A_PAUSE
        plane.writer.recount("elsewhere")  # as time itself would, the clock being ours
        await eventually(lambda: plane.count(web), 1)


async def test_an_address_or_a_name_does_not_wait_for_the_next_count(plane):
    web = stored_service("web")
    await plane.write(web)
    await plane.writer.settle(["shop"])
    await plane.write(SVC, stored_dataplane("w", "web"))
    await plane.writer.settle(["shop"])
    assert "addresses" in plane.status(web)


async def test_a_store_that_is_away_is_waited_for(plane):
    await plane.write(stored_service("web"))
    await plane.store.close()
    plane.writer.recount("shop")
    await plane.writer.settle(["shop"])
    assert plane.writer._loop._due_at == {"shop": plane.clock.now + timedelta(seconds=5)}


async def test_what_is_known_of_a_mesh_goes_with_it(plane):
    await plane.write(stored_service("web"), stored_external("a", "x.ext"), stored_external("b", "x.ext"))
    await plane.writer.settle(["shop"])
    assert [problem.rule for problem in plane.writer.problems] == ["hostname"]
    gone = Transaction((DeleteMesh("shop"), Delete(stored_mesh().key)), "somebody")
    await plane.store.write(gone)
    await plane.writer.settle(["shop"])
    assert plane.writer.problems == []
    memory = (plane.writer._written, plane.writer._looked_at, plane.writer._loop._due_at)
    assert memory == ({}, {}, {})


# Settings.


def load(**flags):
    return settings.load(None, {"KOGUMA_DATA_DIR": "data"}, flags)


@pytest.mark.parametrize("text", ["10.0.0.0/24", "fd00::/64", "242.0.0.0/8"])
def test_a_range_is_any_network_that_is_large_enough(text):
    assert load(mesh_service_cidr=text, mesh_external_service_cidr="250.0.0.0/8").mesh_service_cidr == text


@pytest.mark.parametrize(
    ("setting", "text", "message"),
    [
        ("mesh_service_cidr", "all", '"all" is no range of addresses; write one as 241.0.0.0/8'),
        ("mesh_service_cidr", "10.0.0.1/16", '"10.0.0.1/16" is no range of addresses'),
        ("mesh_multi_zone_service_cidr", "10.0.0.0/25", "10.0.0.0/25 is too small: at least 256 addresses"),
        ("mesh_multi_zone_service_cidr", "10.0.0.1", "10.0.0.1/32 is too small: at least 256 addresses"),
        (
            "mesh_external_service_cidr",
            "241.1.0.0/16",
            "241.1.0.0/16 overlaps meshServiceCidr (241.0.0.0/8); give every kind a range of its own",
        ),
    ],
)
def test_a_range_that_cannot_be_used_is_refused(setting, text, message):
    with pytest.raises(Invalid) as refused:
        load(**{setting: text})
    (violation,) = refused.value.violations
    assert violation.field == "--" + setting.replace("_", "-")
    assert violation.message.startswith(message)


@pytest.mark.parametrize("text", ["fd00:fd00::/64", "fd00:fd00::1/96", "10.0.0.0/8", "x"])
def test_a_range_of_ipv6_that_cannot_be_used_is_refused(text):
    with pytest.raises(Invalid, match=r'"\S+" is no range of IPv6 .*; write one as fd00:fd00::/96'):
        load(virtual_ipv6_cidr=text)


def test_a_range_of_ipv6_is_one_of_its_own():
    with pytest.raises(Invalid, match=r"fd00::/96 overlaps meshServiceCidr \(fd00::/64\)"):
        load(virtual_ipv6_cidr="fd00::/96", mesh_service_cidr="fd00::/64")
    assert load(virtual_ipv6_cidr="fd00::/96").virtual_ipv6_cidr == "fd00::/96"


def test_the_settings_default_to_the_ranges_that_the_keeper_does():
    found = load()
    texts = found.mesh_service_cidr, found.mesh_external_service_cidr, found.mesh_multi_zone_service_cidr
    assert vips.ranges(*texts) == vips.DEFAULT
