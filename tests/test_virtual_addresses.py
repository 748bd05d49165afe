"""Virtual addresses of external services, with real control planes: on one PostgreSQL, and over restarts."""

import json
import threading
import time

import pytest

from tests.control_plane import LocalControlPlane

pytestmark = pytest.mark.slow
URL = "/meshes/default/meshexternalservices"


def external(name):
    match = {"type": "InternalVIP", "value": f"{name}.ext.svc.local", "port": 80, "protocol": "http"}
    destination = {"type": "Regular", "endpoints": [{"address": "127.0.0.1"}]}
    spec = {"match": [match], "destination": destination}
    return {"type": "MeshExternalService", "name": name, "mesh": "default", "spec": spec}


def create(plane, *names):
    for name in names:
        assert plane("PUT", f"{URL}/{name}", external(name)).status == 201


def addresses(plane, number):
    """The addresses of all services by name, once so many have one."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        items = plane("GET", f"{URL}?size=1000").json["items"]
        found = {each["name"]: each["status"]["vips"] for each in items if each.get("status")}
        if len(found) == number:
            return found
        time.sleep(0.05)
    pytest.fail(f"{len(found)} of {number} services have an address")


def ips(found):
    return [vip["ip"] for listed in found.values() for vip in listed]


def test_control_planes_on_one_database_give_each_service_an_address_that_stays(postgres, tmp_path):
    store = postgres.database()
    places = (tmp_path / "a", tmp_path / "b")
    with (
        LocalControlPlane(places[0], store=store) as first,
        LocalControlPlane(places[1], store=store) as second,
    ):
        writers = [
            threading.Thread(target=create, args=(plane, *(f"{letter}{number}" for number in range(15))))
            for plane, letter in ((first, "a"), (second, "b"))
        ]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        before = addresses(second, 30)
        assert len(set(ips(before))) == 30
        assert before["a0"] == [{"ip": before["a0"][0]["ip"], "type": "Kuma", "hostname": "a0.ext.svc.local"}]
        assert addresses(first, 30) == before
        highest = max(before, key=lambda name: int(before[name][0]["ip"].split(".")[3]))
        assert second("DELETE", f"{URL}/{highest}").status == 200
    with LocalControlPlane(places[1], store=store) as again:
        gone = before.pop(highest)
        assert addresses(again, 29) == before
        create(again, "new")
        assert ips({"new": addresses(again, 30)["new"]})[0] not in [gone[0]["ip"], *ips(before)]
        note = again("GET", "/configs/koguma-used-addresses-default").json
        assert json.loads(note["config"])["242.0.0.0/8"] == addresses(again, 30)["new"][0]["ip"]


def test_a_range_of_ones_own_and_one_of_ipv6(tmp_path):
    flags = {"mesh_external_service_cidr": "10.77.0.0/16", "virtual_ipv6_cidr": "fd00:fd00::/96"}
    with LocalControlPlane(tmp_path, **flags) as plane:
        create(plane, "db")
        assert addresses(plane, 1)["db"] == [
            {"ip": "10.77.0.1", "type": "Kuma", "hostname": "db.ext.svc.local"},
            {"ip": "fd00:fd00::a4d:1", "type": "Kuma", "hostname": "db.ext.svc.local"},
        ]
