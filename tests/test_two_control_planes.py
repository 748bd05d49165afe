"""Two control planes on one PostgreSQL, direct or pooled: writes of each reach the other, outages pass."""

import threading
import time

import pytest

from tests.build import timeout
from tests.control_plane import LocalControlPlane
from tests.pgbouncer import PgBouncer

pytestmark = pytest.mark.slow
URL = "/meshes/default/meshtimeouts"


@pytest.fixture(scope="module")
def own_pgbouncer(own_postgres):
    pooler = PgBouncer(own_postgres.url, pool_size=6)
    pooler.start()
    yield pooler
    pooler.remove()


@pytest.fixture(params=["direct", "pooled"])
def pair(request, own_postgres, own_pgbouncer, tmp_path):
    store = own_postgres.database()
    if request.param == "pooled":
        store = own_pgbouncer.in_front_of(store)
    with (
        LocalControlPlane(tmp_path / "a", store=store) as first,
        LocalControlPlane(tmp_path / "b", store=store) as second,
    ):
        yield first, second


def test_both_are_one_cluster_with_one_set_of_keys(pair):
    first, second = pair
    assert first("GET", "/").json["clusterId"] == second("GET", "/").json["clusterId"]
    token = (first.data_dir / "admin-token").read_text()
    assert second("GET", "/who-am-i", Authorization=f"Bearer {token}").json["name"] == "mesh-system:admin"


def test_writes_of_both_are_seen_by_a_watch_in_revision_order(pair):
    first, second = pair
    with second.watch(f"{URL}?watch=true") as watch:
        watch.until("BOOKMARK")

        def write(plane, letter):
            for number in range(20):
                name = f"{letter}-{number}"
                assert plane("PUT", f"{URL}/{name}", timeout(name)).status == 201

        writers = [threading.Thread(target=write, args=args) for args in ((first, "a"), (second, "b"))]
        for writer in writers:
            writer.start()
        events = [watch.next() for _ in range(40)]
        for writer in writers:
            writer.join()
    revisions = [event["revision"] for event in events]
    assert revisions == sorted(set(revisions))
    names = [event["object"]["name"] for event in events]
    assert [name for name in names if name[0] == "a"] == [f"a-{n}" for n in range(20)]
    assert [name for name in names if name[0] == "b"] == [f"b-{n}" for n in range(20)]


def test_of_two_who_change_the_same_one_is_told(pair):
    first, second = pair
    tag = first("PUT", f"{URL}/x", timeout("x")).headers["ETag"]
    assert second("PUT", f"{URL}/x", timeout("x", idle="6s"), If_Match=tag).status in (200, 412)
    assert first("PUT", f"{URL}/x", timeout("x", idle="7s"), If_Match=tag).status in (200, 412)
    statuses = [plane("PUT", f"{URL}/y", timeout("y"), If_None_Match="*").status for plane in pair]
    assert statuses.count(201) == 1


@pytest.mark.parametrize("seconds", [pytest.param(2), pytest.param(5, marks=pytest.mark.soak)])
def test_a_database_that_goes_away_loses_nothing(own_postgres, pair, seconds):
    first, second = pair
    acknowledged: list[str] = []
    stop = threading.Event()

    def write():
        for number in range(10_000):
            if stop.is_set():
                return
            name = f"w-{number}"
            if first("PUT", f"{URL}/{name}", timeout(name)).status == 201:
                acknowledged.append(name)

    writer = threading.Thread(target=write)
    writer.start()
    time.sleep(0.3)
    own_postgres.stop()
    assert second("GET", "/meshes/default").status == 200  # reads go on
    time.sleep(seconds)
    own_postgres.start()
    before = len(acknowledged)
    deadline = time.monotonic() + 60
    while len(acknowledged) < before + 20 and time.monotonic() < deadline:
        time.sleep(0.05)
    stop.set()
    writer.join()
    assert len(acknowledged) >= before + 20  # recovered by itself
    last = second("PUT", f"{URL}/after", timeout("after"))
    assert last.status == 201
    listed = set()
    for offset in range(0, len(acknowledged) + 200, 1000):
        page = second("GET", f"{URL}?size=1000&offset={offset}").json
        listed |= {item["name"] for item in page["items"]}
    assert set(acknowledged) <= listed
