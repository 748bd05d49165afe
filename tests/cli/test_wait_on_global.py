"""`koguma apply --wait`, `delete --wait` and `wait` on Global: what they print of zones, and how they end."""

import json
import threading

import pytest
import yaml

from koguma.model import names
from tests.sync.test_zones import OF_ZONE, URL, Federation, _has_mesh
from tests.test_arrival import headers_timeout, is_there, joined, settled, take
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    made = Federation(tmp_path_factory.mktemp("z"))
    with made.stack:
        yield made


@pytest.fixture(scope="module")
def east(federation):
    with federation.zone("east") as zone:
        until(lambda: _has_mesh(zone), "the mesh comes from Global")
        yield zone


@pytest.fixture(scope="module")
def web(east):
    return joined(east, "web-1")


@pytest.fixture
def run(koguma, monkeypatch, federation, east, web):
    """Runs a command on Global, once its one proxy has everything."""
    monkeypatch.setenv("KOGUMA_ADDRESS", federation.top.address)
    settled(east, web)
    revision = federation.top.plane.store.state.revision
    until(lambda: (take(east, web), is_there(federation.top, revision))[1])
    return koguma


@pytest.fixture
def acknowledging(east, web):
    """Its Envoy takes everything meanwhile."""
    is_over = threading.Event()

    def take_all():
        while not is_over.wait(0.05):
            take(east, web)

    thread = threading.Thread(target=take_all)
    thread.start()
    yield
    is_over.set()
    thread.join()


@pytest.mark.usefixtures("acknowledging")
def test_apply_wait_and_delete_return_when_the_proxies_of_zones_have_it(run):
    ended = run("apply", "-f", "-", "--wait", given=yaml.safe_dump(headers_timeout(3)))
    assert (ended.code, ended.err) == (0, "")
    assert "1 of 1 proxy has it (" in ended.out
    assert run("wait", "meshtimeout/t").code == 0
    answer = json.loads(run("wait", "-o", "json").out)
    assert (answer["arrived"], answer["zones"]) == (True, [])
    ended = run("delete", "meshtimeout/t", "--wait")
    assert (ended.code, "1 of 1 proxy has it (" in ended.out) == (0, True)


def test_who_is_not_in_time_is_named_with_his_zone(run, federation):
    given = yaml.safe_dump(headers_timeout(4))
    ended = run("apply", "-f", "-", "--wait", "--timeout", "1500ms", given=given)
    assert (ended.code, ended.out) == (2, "meshtimeout/t created\n")
    first, second = ended.err.splitlines()
    (proxy,) = federation.top("GET", "/_proxies").json["items"]
    assert f"0 of 1 proxy have it; {proxy['name']} (zone east) is behind since 20" in first
    assert second.startswith(f"  {proxy['name']} (zone east) is behind since 20")


@pytest.mark.usefixtures("acknowledging")
def test_what_a_zone_refuses_ends_it_at_once(run, federation, east):
    taken = names.hashed("default", "taken", "", "")
    assert east("PUT", f"{URL}/{taken}", {**headers_timeout(8, taken), "labels": OF_ZONE}).status == 201
    given = yaml.safe_dump(headers_timeout(5, "taken"))
    ended = run("apply", "-f", "-", "--wait", "--timeout", "1h", given=given)
    assert ended.code == 2
    assert "; zone east has refused kri_mt_default___taken_ (" in ended.err
    assert f'its name "{taken}" is taken by' in ended.err.splitlines()[-1]
    assert ended.err.splitlines()[-1].startswith("  zone east has refused kri_mt_default___taken_: ")
    assert federation.top("DELETE", f"{URL}/taken").status == 200
    assert east("DELETE", f"{URL}/{taken}").status == 200


@pytest.mark.usefixtures("acknowledging")
@pytest.mark.expected_errors("zone is gone", "stream of a zone ended")
def test_a_zone_that_is_away_is_named_and_may_be_left_out(run, federation):
    with federation.zone("west") as west:
        until(lambda: _has_mesh(west), "the mesh comes from Global")
    given = yaml.safe_dump(headers_timeout(6))
    ended = run("apply", "-f", "-", "--wait", "--timeout", "1s", given=given)
    assert ended.code == 2
    assert "; zone west is offline since 20" in ended.err
    assert ended.err.splitlines()[-1].startswith("  zone west is offline since 20")
    ended = run("apply", "-f", "-", "--wait", "--connected", given=yaml.safe_dump(headers_timeout(7)))
    assert (ended.code, "1 of 1 proxy has it" in ended.out) == (0, True), ended.err
    assert federation.top("DELETE", "/zones/west").status == 200
