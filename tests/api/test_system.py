"""What the control plane says about itself, and objects by KRI."""

import hashlib

import pytest

from koguma.core import admission
from koguma.main import all_kinds
from koguma.model import labels, names
from koguma.model.resource import Resource
from koguma.store.contract import Put, Transaction
from tests.build import timeout
from tests.control_plane import LocalControlPlane


def test_the_index_names_product_and_version(plane):
    index = plane("GET", "/").json
    assert index["product"] == "Koguma"
    assert index["version"].startswith("0.0.0-preview.")
    assert index["clusterId"]


def test_health(plane):
    assert plane("GET", "/healthy").status == 200
    assert plane("GET", "/ready").json == {"status": "ready"}


def test_who_am_i_on_this_machine(plane):
    assert plane("GET", "/who-am-i").json == {
        "name": "mesh-system:admin",
        "groups": ["mesh-system:admin", "mesh-system:authenticated"],
    }


def test_policies_are_listed_as_kuma_does(plane):
    policies = {policy["name"]: policy for policy in plane("GET", "/policies").json["policies"]}
    assert list(policies) == sorted(policies)
    assert policies["MeshTimeout"] == {
        "name": "MeshTimeout",
        "readOnly": False,
        "path": "meshtimeouts",
        "singularDisplayName": "Mesh Timeout",
        "pluralDisplayName": "Mesh Timeouts",
        "isExperimental": False,
        "isTargetRefBased": True,
        "isInbound": True,
        "isOutbound": True,
    }
    assert policies["MeshHTTPRoute"]["pluralDisplayName"] == "Mesh HTTP Routes"
    assert policies["MeshTLS"]["pluralDisplayName"] == "Mesh TLSes"


def test_resources_tell_which_endpoints_share_objects(plane):
    resources = {kind["name"]: kind for kind in plane("GET", "/_resources").json["resources"]}
    prefix = b"/registry/kuma.io/meshtimeouts"
    assert resources["MeshTimeout"]["resourceID"] == hashlib.sha256(prefix).hexdigest()
    ids = [kind["resourceID"] for kind in resources.values()]
    assert len(set(ids)) == len(ids)
    assert resources["GlobalSecret"]["aliases"] == ["global-secrets"]
    assert resources["MeshTimeout"]["shortName"] == "mt"
    assert resources["Mesh"]["scope"] == "Global"
    assert resources["DataplaneInsight"]["readOnly"] is True


def test_every_kind_can_be_listed(plane):
    for kind in all_kinds():
        answer = plane("GET", f"/{kind.path}")
        assert answer.status == 200, kind.name
        assert answer.json["total"] == len(plane("GET", f"/{kind.path}?size=1000").json["items"])


def test_every_short_name_is_its_own(plane):
    kinds = list(all_kinds())
    shorts = [kind.short for kind in kinds if kind.short]
    assert len(set(shorts)) == len(shorts)
    wanted = {
        "m",
        "dp",
        "z",
        "hg",
        "msvc",
        "extsvc",
        "mzsvc",
        "mid",
        "mtrust",
        "motb",
        "mza",
        "wl",
        "mgw",
        "zi",
        "ze",
    }
    wanted |= {
        "mhttpr",
        "mtcpr",
        "mtls",
        "mlbs",
        "mp",
        "mal",
        "mtr",
        "mfi",
        "mrl",
        "mt",
        "mtp",
        "mhc",
        "mcb",
        "mr",
        "mm",
    }
    wanted |= {"mpp", "mgwhttpr", "rf"}
    assert set(shorts) == wanted


def test_settings_are_shown_without_secrets(plane):
    config = plane("GET", "/config").json
    assert config["apiPort"] == plane.port
    assert config["mode"] == "zone"


def test_metrics_count_requests(plane):
    plane("GET", "/meshes/default")
    text = plane("GET", "/metrics").body.decode()
    assert 'koguma_api_requests_total{code="200",endpoint="item",method="GET"}' in text
    assert "koguma_store_revision " in text


def test_the_checks_of_a_sound_control_plane_are_ok(tmp_path):
    # A control plane of its own: other tests leave Dataplanes at one address behind.
    with LocalControlPlane(tmp_path) as plane:
        checks = plane("GET", "/_check").json["checks"]
    assert {check["name"]: check["status"] for check in checks} == {"store": "ok", "certificate": "ok"}


@pytest.mark.parametrize(
    ("path", "status", "detail"),
    [
        ("invalid-kri", 400, 'bad request: invalid identifier string: "invalid-kri"'),
        (
            "id_dp_default_test-zone__dp-1_main-port",
            400,
            "bad request: identifier must start with 'kri': \"id_dp_default_test-zone__dp-1_main-port\"",
        ),
        ("kri_zz____x_", 400, 'bad request: unknown short name of resource type: "zz"'),
        ("kri_mt_default_default__nope_", 404, "Not found"),
    ],
)
def test_what_no_kri_finds(plane, path, status, detail):
    answer = plane("GET", f"/_kri/{path}")
    assert (answer.status, answer.json["detail"]) == (status, detail)


def test_any_object_is_found_by_its_kri(plane, mesh):
    plane("PUT", f"/meshes/{mesh}/meshtimeouts/slow", timeout("slow", mesh))
    for kri in (
        f"kri_m____{mesh}_",
        f"kri_mt_{mesh}_default__slow_",
        f"kri_mt_{mesh}_default__slow_some-section",
    ):
        found = plane("GET", f"/_kri/{kri}")
        assert found.status == 200
        assert found.json["kri"].rpartition("_")[0] == kri.rpartition("_")[0]


def test_one_zone_holds_equal_names_of_several_origins(plane, mesh):
    """Its own, Global's, and another zone's, in a namespace: each has its own KRI and core name."""
    plane("PUT", f"/meshes/{mesh}/meshtimeouts/slow", timeout("slow", mesh))
    for zone, namespace in (("", ""), ("west", "demo")):
        foreign = Resource(
            kind="MeshTimeout",
            mesh=mesh,
            zone=zone,
            namespace=namespace,
            name="slow",
            core_name=names.hashed(mesh, "slow", zone, namespace),
            labels={labels.ORIGIN: "global", labels.DISPLAY_NAME: "slow"},
            spec=timeout()["spec"],
        )
        plane.run(plane.plane.store.write(Transaction((Put(foreign, 0),), "sync")))
    kris = {item["kri"]: item["name"] for item in plane("GET", f"/meshes/{mesh}/meshtimeouts").json["items"]}
    assert set(kris) == {
        f"kri_mt_{mesh}_default__slow_",
        f"kri_mt_{mesh}___slow_",
        f"kri_mt_{mesh}_west_demo_slow_",
    }
    for kri, core_name in kris.items():
        assert plane("GET", f"/_kri/{kri}").json["name"] == core_name


def test_secrets_are_masked_for_people():
    kind = all_kinds()["Secret"]
    assert admission.masked({"data": "c2VjcmV0"}, kind) == {"data": "*****"}
