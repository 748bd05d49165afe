"""`/meshes/{mesh}/_can`: who may call whom, for who may see them, and nothing of what one may not read."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from koguma.core.simulation import answers
from tests.control_plane import LocalControlPlane

MESH = {
    "type": "Mesh",
    "name": "shop",
    "mtls": {"enabledBackend": "ca", "backends": [{"name": "ca", "type": "builtin"}]},
}


def proxy(name, service, address, **more):
    tags = {"kuma.io/service": service, "kuma.io/protocol": "http"}
    networking = {"address": address, "inbound": [{"port": 8080, "tags": tags}], **more}
    return {"type": "Dataplane", "mesh": "shop", "name": name, "networking": networking}


def service(name):
    return {
        "type": "MeshService",
        "mesh": "shop",
        "name": name,
        "spec": {
            "selector": {"dataplaneTags": {"kuma.io/service": name}},
            "ports": [{"port": 8080, "name": "http", "appProtocol": "http"}],
        },
    }


def outbound(kind, name, port):
    return {"port": port, "backendRef": {"kind": kind, "name": name, "port": 8080}}


PERMISSION = {
    "type": "MeshTrafficPermission",
    "mesh": "shop",
    "name": "web-may",
    "spec": {
        "targetRef": {"kind": "Mesh"},
        "from": [
            {
                "targetRef": {"kind": "MeshSubset", "tags": {"kuma.io/service": "web"}},
                "default": {"action": "Allow"},
            }
        ],
    },
}
EXTERNAL = {
    "type": "MeshExternalService",
    "mesh": "shop",
    "name": "mail",
    "spec": {
        "match": {"type": "HostnameGenerator", "port": 8080, "protocol": "http"},
        "endpoints": [{"address": "192.0.2.1", "port": 25}],
    },
}
SETTINGS = """
access:
  roles:
    - {name: few, rules: [{verbs: [get, list], resources: [dataplanes, meshservices]}]}
    - {name: fewer, rules: [{verbs: [get, list], resources: [meshservices, meshtrafficpermissions]}]}
  bindings:
    - {role: view, users: [reader]}
    - {role: few, users: [few]}
    - {role: fewer, users: [fewer]}
"""


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    data = tmp_path_factory.mktemp("can")
    (data / "settings.yaml").write_text(SETTINGS)
    with LocalControlPlane(data, str(data / "settings.yaml")) as running:
        outbounds = [outbound("MeshService", "backend", 9001), outbound("MeshExternalService", "mail", 9002)]
        objects = [
            MESH,
            proxy("web-1", "web", "10.0.0.1", outbound=outbounds),
            proxy("backend-1", "backend", "10.0.0.2", outbound=[outbound("MeshService", "web", 9001)]),
            *(service(name) for name in ("web", "backend")),
            PERMISSION,
            EXTERNAL,
        ]
        answer = running("POST", "/_apply", {"objects": objects})
        assert answer.status == 200, answer.json
        yield running


def can(plane, query, **headers):
    return plane("GET", f"/meshes/shop/_can?{query}", **headers)


def test_yes_and_no_with_the_rule(plane):
    yes = can(plane, "from=web&to=backend").json
    assert yes["verdict"] == "yes"
    (outcome,) = yes["groups"][0]["outcomes"]
    (origin,) = outcome["decidedBy"]
    assert (origin["kri"], origin["path"]) == ("kri_mtp_shop_default__web-may_", "spec.from[0]")
    assert origin["line"] > 0
    assert outcome["endpoints"] == {"backend-1": 100}
    no = can(plane, "from=backend&to=web&method=POST&path=/x&header=a:b").json
    assert no["verdict"] == "no"
    assert no["groups"][0]["outcomes"][0]["status"] == 403


def test_others_are_answered_while_a_call_is_simulated(plane, monkeypatch):
    simulates, other_is_answered = threading.Event(), threading.Event()
    groups = answers.groups

    def slow(*args):
        simulates.set()
        assert other_is_answered.wait(15)
        return groups(*args)

    monkeypatch.setattr(answers, "groups", slow)
    with ThreadPoolExecutor(1) as beside:
        asked = beside.submit(can, plane, "from=web&to=backend")
        assert simulates.wait(15)
        assert plane("GET", "/meshes/shop/meshservices/web").status == 200
        assert not asked.done()
        other_is_answered.set()
        assert asked.result().json["verdict"] == "yes"


def test_an_external_service(plane):
    answer = can(plane, "from=web&to=mail&port=8080").json
    assert answer["verdict"] == "yes"
    assert answer["groups"][0]["outcomes"][0]["endpoints"] == {"192.0.2.1:25": 100}


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("to=web", 400, "must be given"),
        ("from=web&to=backend&path=x", 400, "must start with a slash"),
        ("from=web&to=backend&method=G%20T", 400, "must be a method such as GET"),
        ("from=web&to=backend&method=", 400, "must be a method such as GET"),
        ("from=web&to=backend&header=x", 400, "must be NAME:VALUE"),
        ("from=web&to=backend&port=1", 400, "has no port"),
        ("from=web&to=backend&how=1", 400, "how"),
        ("from=web&to=bakend", 404, 'did you mean \\"backend\\"?'),
    ],
)
def test_wrong_questions(plane, query, status, text):
    answer = can(plane, query)
    assert answer.status == status
    assert text in answer.body.decode()


def test_no_such_mesh(plane):
    assert plane("GET", "/meshes/none/_can?from=web&to=backend").status == 404


def token(plane, name):
    answer = plane("POST", "/tokens/user", {"name": name, "groups": [], "validFor": "1h"})
    assert answer.status == 200
    return {"Authorization": f"Bearer {answer.body.decode()}"}


def test_who_may_read_all_sees_all(plane):
    query = "from=web&to=backend"
    assert can(plane, query, **token(plane, "reader")).json == can(plane, query).json


def test_who_may_read_little_learns_nothing_of_the_rest(plane):
    few = token(plane, "few")
    answer = can(plane, "from=web&to=backend", **few)
    assert answer.json["verdict"] == "yes"
    assert "web-may" not in answer.body.decode()
    (outcome,) = answer.json["groups"][0]["outcomes"]
    assert outcome["reason"] == "a MeshTrafficPermission that you may not read allows it"
    assert "decidedBy" not in outcome or outcome["decidedBy"] == []
    for to in ("mail", "meshexternalservice/mail", "kri_extsvc_shop_default__mail_"):
        hidden, missing = (
            can(plane, f"from=web&to={each}", **few) for each in (to, to.replace("mail", "post"))
        )
        assert (hidden.status, missing.status) == (404, 404)
        assert hidden.json["detail"].replace("mail", "post") == missing.json["detail"]


def test_who_may_not_list_proxies_may_not_ask(plane):
    answer = can(plane, "from=web&to=backend", **token(plane, "fewer"))
    assert answer.status == 403
    assert "dataplanes" in answer.body.decode()
