"""Export as `kumactl export` does it: what is read over the API can be applied to another control plane.

The requests and the conversion are those of Kuma 2.13's command line. It lists every kind of a profile,
changes meshes so that applying them makes nothing anew, and writes one document after the other.
"""

import pytest

from tests.build import timeout
from tests.control_plane import LocalControlPlane

LAST = "user-token-signing-key"  # from here on the token that applies is one of the other control plane
LEFT_OUT = ("envoy-admin-ca", "inter-cp-ca")
ZERO = "0001-01-01T00:00:00Z"


def kinds(plane, profile):
    """The kinds of a profile, as /_resources describes them."""
    assert plane("GET", "/").json["product"]
    for kind in plane("GET", "/_resources").json["resources"]:
        is_policy = kind.get("policy", {}).get("isTargetRef") or kind["name"] == "MeshGateway"
        match profile:
            case "federation" if kind["includeInFederation"] and not is_policy:
                yield kind
            case "all" if not kind["readOnly"]:
                yield kind
            case "no-dataplanes" if not kind["readOnly"] and kind["name"] != "Dataplane":
                yield kind


def listed(plane, path):
    while path:
        page = plane("GET", path)
        assert page.status == 200, page.json
        yield from page.json["items"]
        path = (page.json["next"] or "").removeprefix(plane.address)


def exported(plane, profile):
    """The documents of a profile in the order in which they are to be applied."""
    found = []
    meshes = list(listed(plane, "/meshes"))
    for kind in kinds(plane, profile):
        paths = [f"/meshes/{mesh['name']}/{kind['path']}" for mesh in meshes]
        for path in paths if kind["scope"] == "Mesh" else [f"/{kind['path']}"]:
            found += [(path, document) for document in listed(plane, path)]
    return sorted(
        ((path, converted(document)) for path, document in found if document["name"] not in LEFT_OUT),
        key=lambda pair: place(pair[1]),
    )


def place(document):
    order = {"Mesh": 0, "Secret": 1, "GlobalSecret": 1}
    return document["name"].startswith(LAST), order.get(document["type"], 2)


def converted(document):
    document = {**document, "labels": dict(document.get("labels") or {})}
    document["labels"].pop("kuma.io/origin", None)
    if document["type"] == "Mesh":
        document["skipCreatingInitialPolicies"] = ["*"]
        if "mtls" in document:
            backends = [provided(document["name"], each) for each in document["mtls"]["backends"]]
            document["mtls"] = {**document["mtls"], "skipValidation": True, "backends": backends}
    return document


def provided(mesh, backend):
    """A builtin CA as one that is provided by the same secrets."""
    if backend["type"] != "builtin":
        return backend
    conf = {part: {"secret": f"{mesh}.ca-builtin-{part}-{backend['name']}"} for part in ("cert", "key")}
    return {**backend, "type": "provided", "conf": conf}


def apply(plane, documents):
    """As `kumactl apply` writes them: read, then PUT without a status and with empty times."""
    for path, document in documents:
        item = f"{path}/{document['name']}"
        assert plane("GET", item).status in (200, 404)
        body = {name: value for name, value in document.items() if name not in ("status", "kri")}
        answer = plane("PUT", item, {**body, "creationTime": ZERO, "modificationTime": ZERO})
        assert answer.status in (200, 201), (item, answer.json)


def contents(documents):
    """What there is, without what every control plane writes for itself."""
    own = ("creationTime", "modificationTime", "status")
    return {
        (path, document["name"]): {name: value for name, value in document.items() if name not in own}
        for path, document in documents
        if "kuma.io/managed-by" not in document["labels"]
    }


def of_global(document):
    """A document as Global has it: of no zone."""
    own = {name: value for name, value in document["labels"].items() if name != "kuma.io/zone"}
    shown = {**document, "labels": own}
    if "kri" in document:
        word, short, mesh, _zone, *rest = document["kri"].split("_")
        shown["kri"] = "_".join((word, short, mesh, "", *rest))
    return shown


@pytest.fixture
def source(tmp_path):
    with LocalControlPlane(tmp_path / "source") as plane:
        backend = {"name": "ca-1", "type": "builtin"}
        mesh = {"type": "Mesh", "name": "shop", "mtls": {"enabledBackend": "ca-1", "backends": [backend]}}
        external = {
            "match": {"type": "HostnameGenerator", "port": 443, "protocol": "http"},
            "endpoints": [{"address": "192.0.2.1", "port": 443}],
        }
        inbound = {"port": 80, "name": "http", "tags": {"kuma.io/service": "web", "kuma.io/protocol": "http"}}
        matches = [{"path": {"type": "PathPrefix", "value": "/"}}]
        route = [{"matches": matches, "default": {"backendRefs": [{"kind": "MeshService", "name": "web"}]}}]
        listener = {"port": 8080, "protocol": "HTTP"}
        documents = [
            mesh,
            {"type": "Secret", "mesh": "shop", "name": "own", "data": "c2VjcmV0"},
            {"type": "GlobalSecret", "name": "everybodys", "data": "c2VjcmV0"},
            {"type": "MeshExternalService", "mesh": "shop", "name": "mail", "spec": external},
            timeout("slow", "shop", labels={"team": "red"}),
            {"type": "MeshHTTPRoute", "mesh": "shop", "name": "split"}
            | {"spec": {"to": [{"targetRef": {"kind": "MeshService", "name": "web"}, "rules": route}]}},
            {"type": "Dataplane", "mesh": "shop", "name": "web-1", "labels": {"kuma.io/workload": "web"}}
            | {"networking": {"address": "10.0.0.1", "inbound": [inbound]}},
            {"type": "MeshGateway", "mesh": "shop", "name": "edge", "conf": {"listeners": [listener]}}
            | {"selectors": [{"match": {"kuma.io/service": "edge"}}]},
        ]
        answer = plane("POST", "/_apply", {"objects": documents})
        assert answer.status == 200, answer.json
        yield plane


@pytest.mark.parametrize(
    ("profile", "flags", "some"),
    [
        ("all", {}, {"Mesh", "Secret", "MeshTimeout", "MeshHTTPRoute", "Dataplane", "MeshGateway"}),
        ("no-dataplanes", {}, {"Mesh", "Secret", "MeshTimeout", "MeshGateway"}),
        ("federation", {}, {"Mesh", "Secret", "GlobalSecret"}),
        ("federation", {"mode": "global"}, {"Mesh", "Secret", "GlobalSecret"}),
    ],
)
def test_what_is_exported_applies_to_an_empty_control_plane(tmp_path, source, profile, flags, some):
    documents = exported(source, profile)
    assert {document["type"] for _, document in documents} >= some
    with LocalControlPlane(tmp_path / "target", **flags) as target:
        apply(target, documents)
        there, expected = contents(exported(target, profile)), contents(documents)
        assert set(there) >= set(expected)
        for key, document in expected.items():
            assert there[key] == (of_global(document) if flags else document)


def test_the_kubernetes_form_of_everything_is_kept_by_the_export_and_applies_again(tmp_path, source):
    documents = []
    for path, document in exported(source, "all"):
        answer = source("GET", f"{path}/{document['name']}?format=k8s")
        assert answer.status == 200
        shown = answer.json
        assert shown["metadata"].get("namespace", "kuma-system") == "kuma-system"
        assert "kri" not in shown
        if document["type"] in ("Secret", "GlobalSecret"):
            word = "secret" if document["type"] == "Secret" else "global-secret"
            assert (shown["apiVersion"], shown["kind"]) == ("v1", "Secret")
            assert (shown["type"], shown["data"]) == (f"system.kuma.io/{word}", {"value": document["data"]})
            assert shown["metadata"]["labels"].get("kuma.io/mesh") == document.get("mesh")
        for name in ("uid", "resourceVersion", "generation", "creationTimestamp"):
            shown["metadata"].pop(name, None)
        shown["metadata"].get("labels", {}).pop("kuma.io/origin", None)
        documents.append({name: value for name, value in shown.items() if name != "status"})
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kuma-system"}}
    with LocalControlPlane(tmp_path / "target") as target:
        target("POST", "/api/v1/namespaces", namespace)
        answer = target("POST", "/_apply", {"objects": documents})
        assert answer.status == 200, answer.json
        for name in ("own", "shop.ca-builtin-cert-ca-1"):
            path = f"/meshes/shop/secrets/{name}"
            assert target("GET", path).json["data"] == source("GET", path).json["data"]
        slow = target("GET", "/meshes/shop/meshtimeouts/slow.kuma-system").json
        assert (slow["spec"], slow["labels"]["team"]) == (timeout()["spec"], "red")


def test_the_kubernetes_form_goes_back_to_the_object_that_it_came_from(source):
    path = "/meshes/shop/meshtimeouts/slow"
    for query in ("", "&namespace=mesh-shop"):
        shown = source("GET", f"{path}?format=kubernetes{query}").json
        assert source("PUT", path, shown).status == 200
    shown = source("GET", f"{path}?format=kubernetes&namespace=mesh-shop").json
    (result,) = source("POST", "/_apply", {"objects": [shown]}).json["results"]
    assert (result["name"], result["action"]) == ("slow", "unchanged")
    assert [item["name"] for item in source("GET", "/meshes/shop/meshtimeouts?name=slow").json["items"]] == [
        "slow"
    ]
    secret = source("GET", "/meshes/shop/secrets/own?format=kubernetes").json
    secret["data"]["value"] = "bmV3"
    assert source("PUT", "/meshes/shop/secrets/own", secret).status == 200
    assert source("GET", "/meshes/shop/secrets/own").json["data"] == "bmV3"
    for wrong, field in (({"data": {"other": "bmV3"}}, "data"), ({"metadata": None}, "metadata")):
        answer = source("POST", "/_apply", {"objects": [{**secret, **wrong}]})
        assert (answer.status, answer.fields[0][0]) == (400, f"objects[0].{field}")
