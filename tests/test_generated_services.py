"""MeshServices made from Dataplanes, on a running control plane."""

import copy
import threading
import time
from datetime import timedelta

import msgspec
import pytest

from koguma.core import pipeline
from koguma.reconcile.services import ServiceGenerator
from koguma.runtime.clock import now
from tests import build
from tests.control_plane import LocalControlPlane
from tests.waiting import eventually, until

pytestmark = pytest.mark.slow

GENERATOR = "meshservice-generator"
STARTED = "kuma.io/deletion-grace-period-started-at"
NOTHING = {"skipCreatingInitialPolicies": ["*"]}


@pytest.fixture
def plane(tmp_path):
    with LocalControlPlane(tmp_path) as running:
        assert running("PUT", "/meshes/shop", {"type": "Mesh", "name": "shop", **NOTHING}).status == 201
        yield running


def write_dataplane(plane, name, service="web", port=8080, mesh="shop", protocol="http"):
    inbound = build.inbound(service, port, protocol=protocol)
    body = build.dataplane(name, mesh=mesh, address="10.0.0.1", inbound=[inbound])
    answer = plane("PUT", f"/meshes/{mesh}/dataplanes/{name}", body)
    assert answer.status in (200, 201), answer.json


def write_service(plane, name, ports):
    body = build.document("MeshService", name, "shop", spec={"ports": ports})
    return plane("PUT", f"/meshes/shop/meshservices/{name}", body).status


def services(plane, mesh="shop"):
    """The services of a mesh: ports by name."""
    listed = plane("GET", f"/meshes/{mesh}/meshservices").json["items"]
    return {item["name"]: [port["port"] for port in item["spec"].get("ports", [])] for item in listed}


def labels(plane, name):
    return plane("GET", f"/meshes/shop/meshservices/{name}").json.get("labels", {})


def test_a_service_follows_its_dataplanes(plane):
    write_dataplane(plane, "web-1")
    eventually(lambda: services(plane), {"web": [8080]})
    shown = plane("GET", "/meshes/shop/meshservices/web").json
    assert shown["kri"] == "kri_msvc_shop_default__web_"
    assert shown["labels"] == {
        "kuma.io/display-name": "web",
        "kuma.io/env": "universal",
        "kuma.io/managed-by": GENERATOR,
        "kuma.io/mesh": "shop",
        "kuma.io/origin": "zone",
        "kuma.io/zone": "default",
    }
    write_dataplane(plane, "web-2", port=9090, protocol="grpc")
    eventually(lambda: services(plane), {"web": [8080, 9090]})
    assert plane("DELETE", "/meshes/shop/dataplanes/web-1").status == 200
    eventually(lambda: services(plane), {"web": [9090]})
    assert plane("DELETE", "/meshes/shop/dataplanes/web-2").status == 200
    eventually(lambda: STARTED in labels(plane, "web"), expected=True)
    assert services(plane) == {"web": [9090]}
    write_dataplane(plane, "web-2", port=9090, protocol="grpc")
    eventually(lambda: STARTED in labels(plane, "web"), expected=False)


def test_instances_with_different_ports_are_one_port_that_stays_while_they_come_and_go(plane):
    def port():
        found = plane("GET", "/meshes/shop/meshservices/web").json
        return [(each["port"], each["targetPort"]) for each in (found.get("spec") or {}).get("ports", ())]

    write_dataplane(plane, "web-1", port=10080)
    eventually(port, [(10080, 10080)])
    write_dataplane(plane, "web-2", port=10081)
    eventually(port, [(10080, "http")])
    eventually(
        lambda: "vips" in (plane("GET", "/meshes/shop/meshservices/web").json.get("status") or {}),
        expected=True,
    )
    vips = plane("GET", "/meshes/shop/meshservices/web").json["status"]["vips"]
    for gone, back in (("web-1", 10080), ("web-2", 10081)):
        assert plane("DELETE", f"/meshes/shop/dataplanes/{gone}").status == 200
        plane.run(plane.plane._services.settle(["shop"]))
        assert port() == [(10080, "http")]
        write_dataplane(plane, gone, port=back)
        plane.run(plane.plane._services.settle(["shop"]))
        assert port() == [(10080, "http")]
    assert plane("GET", "/meshes/shop/meshservices/web").json["status"]["vips"] == vips
    assert len(history(plane, "web")) == 2, "nothing was written but the service and its second instance"


def test_a_mesh_can_switch_it_off_and_on(plane):
    write_dataplane(plane, "web-1")
    assert write_service(plane, "by-hand", []) == 201
    eventually(lambda: services(plane), {"web": [8080], "by-hand": []})
    off = {"type": "Mesh", "name": "shop", "meshServices": {"mode": "Disabled"}}
    assert plane("PUT", "/meshes/shop", off).status == 200
    eventually(lambda: services(plane), {"by-hand": []})
    assert plane("PUT", "/meshes/shop", {"type": "Mesh", "name": "shop"}).status == 200
    eventually(lambda: services(plane), {"by-hand": [], "web": [8080]})


def test_who_writes_a_service_by_hand_has_it(plane):
    assert write_service(plane, "web", [{"port": 80, "targetPort": 8080}]) == 201
    write_dataplane(plane, "web-1")
    write_dataplane(plane, "api-1", service="api")
    eventually(lambda: services(plane), {"web": [80], "api": [8080]})
    assert write_service(plane, "api", [{"port": 90}]) == 200  # without the label it is the writer's
    write_dataplane(plane, "api-1", service="api", port=9999)
    write_dataplane(plane, "last-1", service="last")
    eventually(lambda: services(plane), {"web": [80], "api": [90], "last": [8080]})
    assert not [check for check in plane("GET", "/_check").json["checks"] if check["name"] == "services"]
    assert plane("DELETE", "/meshes/shop/meshservices/web").status == 200
    eventually(lambda: services(plane), {"web": [8080], "api": [90], "last": [8080]})


def test_what_cannot_be_a_service_is_told_by_the_check(plane):
    write_dataplane(plane, "web-1", service="web_default_svc_80")
    write_dataplane(plane, "web-2", service="ok")

    def told():
        checks = plane("GET", "/_check").json["checks"]
        return [check["status"] for check in checks if 'of kuma.io/service "web_default' in check["message"]]

    eventually(told, ["warning"])
    eventually(lambda: services(plane), {"ok": [8080]})


def test_the_history_says_who_made_a_service_and_why(plane):
    write_dataplane(plane, "web-1")
    eventually(lambda: services(plane), {"web": [8080]})
    (change,) = history(plane, "web")
    assert (change.op.value, change.author) == ("create", "mesh-system:control-plane")
    assert change.reason == "generated from dataplanes"


def test_after_the_grace_period_a_service_is_deleted(plane):
    write_dataplane(plane, "web-1")
    eventually(lambda: services(plane), {"web": [8080]})
    assert plane("DELETE", "/meshes/shop/dataplanes/web-1").status == 200
    eventually(lambda: STARTED in labels(plane, "web"), expected=True)
    context = plane.plane._services.context
    plane.run(ServiceGenerator(context, lambda: now() + timedelta(minutes=59)).settle(["shop"]))
    assert services(plane) == {"web": [8080]}
    plane.run(ServiceGenerator(context, lambda: now() + timedelta(minutes=61)).settle(["shop"]))
    assert services(plane) == {}


@pytest.mark.slow
def test_the_end_of_a_grace_period_is_not_missed(plane):
    """Nothing changes any more when a period ends, so only a clock can tell."""
    impatient = ServiceGenerator(plane.plane._services.context, now, timedelta(seconds=1))

    async def start():
        plane.plane._tasks.append(plane._loop.create_task(impatient.run()))

    plane.run(start())
    write_dataplane(plane, "web-1")
    eventually(lambda: services(plane), {"web": [8080]})
    assert plane("DELETE", "/meshes/shop/dataplanes/web-1").status == 200
    eventually(lambda: services(plane), {})


def test_a_mesh_goes_with_its_generated_services(plane):
    write_dataplane(plane, "web-1")
    eventually(lambda: services(plane), {"web": [8080]})
    assert plane("DELETE", "/meshes/shop/dataplanes/web-1").status == 200
    assert plane("DELETE", "/meshes/shop").status == 200
    assert plane("PUT", "/meshes/shop", {"type": "Mesh", "name": "shop", **NOTHING}).status == 201
    write_dataplane(plane, "api-1", service="api")
    eventually(lambda: services(plane), {"api": [8080]})


def test_many_dataplanes_at_once_make_few_batches(plane):
    objects = [
        {
            "type": "Dataplane",
            "name": f"dp-{number}",
            "mesh": "shop",
            "networking": {
                "address": "10.0.0.1",
                "inbound": [{"port": 80, "tags": {"kuma.io/service": f"s-{number % 300}"}}],
            },
        }
        for number in range(600)
    ]
    before = plane.plane.store.batches
    assert plane("POST", "/_apply", objects).status == 200
    eventually(lambda: plane("GET", "/meshes/shop/meshservices?size=1").json["total"], 300)
    assert plane.plane.store.batches - before <= 10


def test_a_restart_finds_what_is_there_and_changes_nothing(tmp_path):
    store = f"sqlite:///{tmp_path / 'mesh.db'}"
    with LocalControlPlane(tmp_path / "a", store=store) as first:
        write_dataplane(first, "web-1", mesh="default")
        eventually(lambda: services(first, "default"), {"web": [8080]})
    with LocalControlPlane(tmp_path / "a", store=store) as second:
        write_dataplane(second, "api-1", service="api", mesh="default")
        eventually(lambda: services(second, "default"), {"web": [8080], "api": [8080]})
        assert len(history(second, "web", "default")) == 1


@pytest.mark.parametrize("knows_the_service", [True, False])
def test_a_control_plane_that_is_behind_overwrites_nothing(plane, knows_the_service):
    write_dataplane(plane, "web-1", port=7070)
    eventually(lambda: services(plane), {"web": [7070]})
    context = plane.plane._services.context
    old = {resource.key: resource for resource in context.state.all()}
    write_dataplane(plane, "web-1", port=9090)
    eventually(lambda: services(plane), {"web": [9090]})
    written = history(plane, "web")
    moved = copy.deepcopy(next(r for k, r in old.items() if k.kind == "Dataplane"))
    moved.spec["networking"]["inbound"][0]["port"] = 8080  # so that it has something to write
    seen = [r for k, r in old.items() if k.kind != "MeshService" or knows_the_service]

    async def behind():
        return pipeline.load(context.kinds, context.control_plane, [*seen, moved])

    late = ServiceGenerator(msgspec.structs.replace(context, database=behind), now)
    plane.run(late.settle(["shop"]))
    assert services(plane) == {"web": [9090]}
    assert history(plane, "web") == written


def history(plane, name, mesh="shop"):
    """What was written of a service, but reports of how it is."""
    stored = plane.plane.store.state.named("MeshService", mesh, name)
    return [each for each in plane.run(plane.plane.store.history(stored.key)) if each.reason != "status"]


def is_quiet(plane):
    """Whether nothing is written for longer than any writer waits."""
    revision = plane.plane.store.state.revision
    time.sleep(1.5)
    return plane.plane.store.state.revision == revision


@pytest.mark.slow
def test_two_control_planes_create_each_service_once(postgres, tmp_path):
    store = postgres.database()
    with (
        LocalControlPlane(tmp_path / "a", store=store) as first,
        LocalControlPlane(tmp_path / "b", store=store) as second,
    ):
        assert first("PUT", "/meshes/shop", {"type": "Mesh", "name": "shop", **NOTHING}).status == 201
        eventually(lambda: second("GET", "/meshes/shop").status, 200)

        def write(plane, letter):
            for number in range(20):
                port, protocol = (8000, "http") if letter == "a" else (8001, "tcp")
                write_dataplane(plane, f"{letter}-{number}", f"s-{number}", port=port, protocol=protocol)

        writers = [threading.Thread(target=write, args=args) for args in ((first, "a"), (second, "b"))]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        expected = {f"s-{number}": [8000, 8001] for number in range(20)}
        for plane in (first, second):
            eventually(lambda plane=plane: services(plane), expected)
        until(lambda: is_quiet(first), "nobody writes any more")
        for name in expected:
            ops = [change.op.value for change in history(first, name)]
            assert ops.count("create") == 1
            assert ops in (["create"], ["update", "create"])
