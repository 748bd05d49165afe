"""OpenAPI of the Kubernetes form: version 3, version 2, and version 2 as protobuf."""

import re
from collections.abc import Iterator

import msgspec
import pytest

from koguma.kube import openapi
from koguma.kube.meta_schemas import STATUS
from koguma.kube.registry import Registry
from koguma.model.schema import Json
from tests.kube import gnostic
from tests.kube.described import ALL_KINDS, NATIVE, REGISTRY, SCHEMAS

ROOTS = openapi.v3_roots(REGISTRY)
V3 = {root: openapi.v3_document(REGISTRY, SCHEMAS, *place) for root, place in ROOTS.items()}
V2 = openapi.v2_document(REGISTRY, SCHEMAS)
METHODS = ("get", "put", "post", "delete", "patch")
MERGE = {"application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"}
STRATEGIC = "application/strategic-merge-patch+json"
TIMEOUTS = "/apis/kuma.io/v1alpha1/namespaces/{namespace}/meshtimeouts"


def operations(document: Json) -> Iterator[tuple[str, str, Json, Json]]:
    """Path, method, path item and operation of all operations."""
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                yield path, method, item, item[method]


def references(node: Json) -> Iterator[str]:
    """All references in a document."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref" and isinstance(value, str):
                yield value
            else:
                yield from references(value)
    elif isinstance(node, list):
        for each in node:
            yield from references(each)


def at(document: Json, pointer: str) -> Json:
    """What a reference leads to."""
    for step in pointer.removeprefix("#/").split("/"):
        document = document[step]
    return document


def names(parameters: list[Json]) -> set[str]:
    """The names of parameters."""
    return {parameter["name"] for parameter in parameters}


def test_there_is_a_document_for_every_group_and_version():
    assert sorted(ROOTS) == [
        "api/v1",
        "apis/authorization.k8s.io/v1",
        "apis/koguma.io/v1",
        "apis/kuma.io/v1alpha1",
        "apis/rbac.authorization.k8s.io/v1",
    ]


@pytest.mark.parametrize("document", [*V3.values(), V2], ids=[*V3, "v2"])
def test_all_references_lead_somewhere_and_nothing_is_described_in_vain(document):
    found = set(references(document))
    for reference in found:
        assert at(document, reference)
    definitions = document.get("definitions") or document["components"]["schemas"]
    used = {reference.rpartition("/")[2] for reference in found}
    assert definitions.keys() - used <= {STATUS}


@pytest.mark.parametrize("document", [*V3.values(), V2], ids=[*V3, "v2"])
def test_every_operation_says_who_it_is_and_all_of_its_path_is_explained(document):
    ids = [operation["operationId"] for *_, operation in operations(document)]
    assert ids
    assert len(ids) == len(set(ids))
    for path, _method, item, operation in operations(document):
        assert names(item.get("parameters", [])) == set(re.findall(r"{(\w+)}", path))
        assert operation["x-kubernetes-action"]
        assert operation["x-kubernetes-group-version-kind"].keys() == {"group", "version", "kind"}
        assert {"200", "401"} <= operation["responses"].keys()


@pytest.mark.parametrize("document", V3.values(), ids=V3)
def test_beside_a_reference_stands_nothing_in_version_3(document):
    assert document["openapi"] == "3.0.0"
    assert [node for node in dicts(document) if isinstance(node.get("$ref"), str) and len(node) > 1] == []


def dicts(node: Json) -> Iterator[Json]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from dicts(value)
    elif isinstance(node, list):
        for each in node:
            yield from dicts(each)


def test_version_2_knows_no_null_and_no_choice():
    assert any(node.get("nullable") is True for document in V3.values() for node in dicts(document))
    for word in ("nullable", "allOf", "anyOf", "oneOf"):
        assert [node for node in dicts(V2) if word in node and not isinstance(node[word], dict)] == []


def test_version_2_has_the_paths_of_all_documents_of_version_3():
    shown = [(path, method) for document in V3.values() for path, method, *_ in operations(document)]
    assert sorted(shown) == sorted((path, method) for path, method, *_ in operations(V2))


def actions(document: Json, path: str) -> dict[str, str]:
    """The methods of a path, and what they do."""
    item = document["paths"].get(path, {})
    return {method: item[method]["x-kubernetes-action"] for method in METHODS if method in item}


EVERYTHING = {
    "": {"get": "list", "post": "post", "delete": "deletecollection"},
    "/{name}": {"get": "get", "put": "put", "patch": "patch", "delete": "delete"},
}


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        (TIMEOUTS, EVERYTHING[""]),
        (f"{TIMEOUTS}/{{name}}", EVERYTHING["/{name}"]),
        (f"{TIMEOUTS}/{{name}}/status", {}),
        ("/apis/kuma.io/v1alpha1/meshtimeouts", {"get": "list"}),
        ("/apis/kuma.io/v1alpha1/meshes", EVERYTHING[""]),
        ("/apis/kuma.io/v1alpha1/namespaces/{namespace}/meshes", {}),
        ("/apis/koguma.io/v1/namespaces/{namespace}/meshtimeouts/{name}", EVERYTHING["/{name}"]),
        (
            "/apis/kuma.io/v1alpha1/namespaces/{namespace}/meshservices/{name}/status",
            {"get": "get", "put": "put", "patch": "patch"},
        ),
        ("/apis/kuma.io/v1alpha1/zone-insights", {"get": "list"}),
        ("/apis/kuma.io/v1alpha1/zone-insights/{name}", {"get": "get"}),
        ("/api/v1/namespaces/{namespace}/configmaps", EVERYTHING[""]),
        ("/api/v1/namespaces/{name}/finalize", {"put": "put"}),
        ("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {"post": "post"}),
        ("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews/{name}", {}),
    ],
)
def test_a_path_offers_what_its_endpoint_does(path, wanted):
    root = next(root for root in V3 if path.startswith(f"/{root}/"))
    assert actions(V3[root], path) == wanted
    assert actions(V2, path) == wanted


def patches() -> Iterator[tuple[str, set[str], Json]]:
    for document in V3.values():
        for path, method, _item, operation in operations(document):
            if method == "patch":
                yield path, set(operation["requestBody"]["content"]), operation


def test_only_kinds_of_kubernetes_take_strategic_patches():
    assert len(list(patches())) > len(ALL_KINDS)
    for path, media, operation in patches():
        ours = path.startswith(("/apis/kuma.io/", "/apis/koguma.io/"))
        assert media == (MERGE if ours else MERGE | {STRATEGIC})
        assert set(V2["paths"][path]["patch"]["consumes"]) == media
        assert names(operation["parameters"]) == {"dryRun", "fieldManager", "fieldValidation", "force"}


def test_lists_can_be_narrowed_and_watched():
    wanted = {"labelSelector", "fieldSelector", "limit", "continue", "watch", "resourceVersion"}
    wanted |= {"resourceVersionMatch", "sendInitialEvents", "allowWatchBookmarks", "timeoutSeconds"}
    for path in (TIMEOUTS, "/apis/kuma.io/v1alpha1/meshtimeouts"):
        assert names(V3["apis/kuma.io/v1alpha1"]["paths"][path]["get"]["parameters"]) == wanted


def test_a_body_in_version_2_is_a_parameter():
    create, delete = V2["paths"][TIMEOUTS]["post"], V2["paths"][f"{TIMEOUTS}/{{name}}"]["delete"]
    assert create["parameters"][0]["schema"] == {"$ref": "#/definitions/io.kuma.v1alpha1.MeshTimeout"}
    assert create["parameters"][0]["required"]
    assert "required" not in delete["parameters"][0]


def test_words_beside_a_reference_are_kept_in_both_versions():
    name = "io.kuma.v1alpha1.MeshTimeout"
    spec = V3["apis/kuma.io/v1alpha1"]["components"]["schemas"][name]["properties"]["spec"]
    assert spec == {
        "allOf": [{"$ref": f"#/components/schemas/{name}.MeshTimeoutSpec"}],
        "description": "What is asked for.",
    }
    assert V2["definitions"][name]["properties"]["spec"] == {
        "$ref": f"#/definitions/{name}.MeshTimeoutSpec",
        "description": "What is asked for.",
    }


def test_the_index_names_each_document_with_its_hash():
    digests = {root: openapi.digest(msgspec.json.encode(document)) for root, document in V3.items()}
    index = openapi.v3_index(digests)["paths"]
    assert list(index) == sorted(ROOTS)
    url = index["apis/kuma.io/v1alpha1"]["serverRelativeURL"]
    assert re.fullmatch(r"/openapi/v3/apis/kuma\.io/v1alpha1\?hash=[0-9A-F]{64}", url)
    assert len(set(digests.values())) == len(digests)


def test_equal_registries_have_equal_documents_in_whatever_order_they_were_filled():
    turned = Registry(reversed(list(REGISTRY)))
    assert msgspec.json.encode(openapi.v2_document(turned, SCHEMAS)) == msgspec.json.encode(V2)


def test_the_protobuf_says_what_the_json_says():
    assert gnostic.read(openapi.v2_protobuf(V2)) == carried(V2)


def carried(node: Json) -> Json:
    """What the message can say: no limit of 0, which stands for none, and limits of numbers as doubles."""
    if isinstance(node, dict):
        return {
            key: float(value) if key in ("minimum", "maximum") and type(value) is int else carried(value)
            for key, value in node.items()
            if type(value) is not int or value != 0
        }
    return [carried(each) for each in node] if isinstance(node, list) else node


def test_a_word_that_the_protobuf_could_not_carry_is_refused():
    lost = {**V2, "definitions": {"A": {"type": "object", "oneOf": []}}}
    with pytest.raises(KeyError, match="oneOf"):
        openapi.v2_protobuf(lost)


@pytest.mark.parametrize("number", [0, 1, 127, 128, 65_535, -1, 2**40])
def test_numbers_of_all_sizes_arrive(number):
    schema = {"type": "integer", "maxLength": number, "minimum": float(number)}
    document = {"swagger": "2.0", "definitions": {"A": schema}}
    said = gnostic.read(openapi.v2_protobuf(document))["definitions"]["A"]
    wanted = schema if number else {"type": "integer"}
    assert said == wanted


def test_the_native_kinds_are_in_the_core_document():
    assert {endpoint.kind_name for endpoint in NATIVE if not endpoint.group} == {"ConfigMap", "Namespace"}
    shown = V3["api/v1"]["components"]["schemas"]
    assert {"io.k8s.api.core.v1.ConfigMap", "io.k8s.api.core.v1.NamespaceList"} <= shown.keys()
    assert not any(name.startswith("io.kuma.") for name in shown)
