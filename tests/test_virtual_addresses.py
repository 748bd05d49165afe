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
    deadline = time.monotonic() + 60
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


def warned(response):
    return [warning for warning in response.json["warnings"] if "KG020" in warning]


def test_a_host_name_of_two_services_is_reported_on_both_whichever_way_they_are_written(tmp_path):
    with LocalControlPlane(tmp_path) as plane:
        create(plane, "db", "cache")
        addresses(plane, 2)
        clash = {**external("new"), "spec": external("db")["spec"]}
        expected = (
            'spec.match[0].value: MeshExternalService "new" and MeshExternalService "db" claim the host name'
            ' "db.ext.svc.local": it leads to MeshExternalService "db"; choose another name for one of them'
            " (KG020)"
        )
        dry = plane("PUT", f"{URL}/new?dryRun=All", clash)
        assert warned(dry) == [expected]
        kube = {
            "apiVersion": "kuma.io/v1alpha1",
            "kind": "MeshExternalService",
            "metadata": {"name": "new", "namespace": "kuma-system", "labels": {"kuma.io/mesh": "default"}},
            "spec": clash["spec"],
        }
        path = "/apis/kuma.io/v1alpha1/namespaces/kuma-system/meshexternalservices"
        made = plane("POST", path, kube)
        assert made.status == 201
        assert "KG020" in made.headers["Warning"]
        assert plane("DELETE", f"{path}/new").status == 200
        assert warned(plane("PUT", f"{URL}/new", clash)) == [expected]
        # the one that has the name is warned of too, and so is the HostnameGenerator that gives a taken one
        assert warned(plane("PUT", f"{URL}/db", external("db"))) == [expected.partition(": ")[2]]
        generator = {
            "type": "HostnameGenerator",
            "name": "taken",
            "spec": {"selector": {"meshService": {"matchLabels": {}}}, "template": "db.ext.svc.local"},
        }
        service = {"type": "MeshService", "name": "web", "mesh": "default", "spec": {"ports": [{"port": 80}]}}
        assert plane("PUT", "/meshes/default/meshservices/web", service).status == 201
        (warning,) = warned(plane("PUT", "/hostnamegenerators/taken", generator))
        assert 'MeshService "web" and MeshExternalService "db" claim' in warning
        addresses(plane, 3)
        statuses = {each["name"]: each["status"] for each in plane("GET", URL).json["items"]}
        assert [name for name, status in statuses.items() if status.get("conditions")] == ["new"]
        assert statuses["new"]["conditions"] == [
            {
                "type": "HostnamesAvailable",
                "status": "False",
                "reason": "Collision",
                "message": '"db.ext.svc.local": Hostname collision with MeshExternalService: db',
            }
        ]
