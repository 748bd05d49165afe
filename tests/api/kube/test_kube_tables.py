"""Tables and metadata alone: in which shape an answer comes, and how much of each object it carries."""

import pytest

from tests.kube_client import PARTIAL, PARTIAL_LIST, TABLE, failure_with_causes, names, resource_version

JSON = "application/json"
KUBECTL = f"{TABLE}, {TABLE.replace('v=v1;', 'v=v1beta1;')}, {JSON}"


def columns(table, *, wide=False):
    return [column["name"] for column in table["columnDefinitions"] if wide or not column["priority"]]


@pytest.mark.parametrize("accept", [TABLE, KUBECTL, f"application/vnd.kubernetes.protobuf;as=Table,{TABLE}"])
def test_a_list_can_be_a_table(config_maps, accept):
    config_maps.put("a", "text")
    config_maps.put("b")
    answer = config_maps.list(accept)
    table = answer.json
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert columns(table) == ["Name", "Data", "Age"]
    assert table["columnDefinitions"][0]["format"] == "name"
    assert [row["cells"][:2] for row in table["rows"]] == [["a", 1], ["b", 1]]
    assert set(table["metadata"]) == {"resourceVersion"}
    assert answer.headers["Content-Type"].startswith(JSON)


def test_one_object_can_be_a_table_of_one_row(config_maps):
    made = config_maps.put("a")
    table = config_maps.plane("GET", f"{config_maps.path}/a", Accept=KUBECTL).json
    assert (table["kind"], table["metadata"]["resourceVersion"]) == ("Table", resource_version(made))
    assert [row["cells"][0] for row in table["rows"]] == ["a"]


def test_the_answer_to_a_write_can_be_a_table(config_maps):
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    made = config_maps.plane("POST", config_maps.path, body, Accept=TABLE)
    assert (made.status, made.json["kind"], made.json["rows"][0]["cells"][:2]) == (201, "Table", ["a", 0])


def test_an_empty_table_has_its_columns(config_maps):
    table = config_maps.list(TABLE).json
    assert (columns(table), table["rows"]) == (["Name", "Data", "Age"], [])


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_shapes_are_said_in_the_version_that_was_asked_for(config_maps, version):
    config_maps.put("a")
    for accept in (TABLE, PARTIAL_LIST):
        answer = config_maps.list(accept.replace("v=v1;", f"v={version};")).json
        assert answer["apiVersion"] == f"meta.k8s.io/{version}"
        inside = [row["object"] for row in answer.get("rows", ())] or answer["items"]
        assert {(one["kind"], one["apiVersion"]) for one in inside} == {
            ("PartialObjectMetadata", f"meta.k8s.io/{version}")
        }


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/api/v1/namespaces", ["Name", "Status", "Age"]),
        ("/api/v1/secrets", ["Name", "Type", "Data", "Age"]),
        ("/apis/coordination.k8s.io/v1/leases", ["Name", "Holder", "Age"]),
        ("/apis/rbac.authorization.k8s.io/v1/clusterroles", ["Name", "Created At"]),
        ("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", ["Name", "Role", "Age"]),
        ("/api/v1/events", ["Last Seen", "Type", "Reason", "Object", "Message"]),
        ("/apis/events.k8s.io/v1/events", ["Last Seen", "Type", "Reason", "Object", "Message"]),
    ],
)
def test_kubernetes_own_kinds_have_their_own_columns(plane, path, shown):
    table = plane("GET", path, Accept=TABLE).json
    assert columns(table) == shown
    assert all(len(row["cells"]) == len(table["columnDefinitions"]) for row in table["rows"])


def test_our_kinds_have_the_same_columns_under_both_groups(plane):
    tables = [
        plane("GET", f"/apis/{root}/meshtimeouts", Accept=TABLE).json
        for root in ("kuma.io/v1alpha1", "koguma.io/v1")
    ]
    assert columns(tables[0], wide=True) == columns(tables[1], wide=True)
    assert columns(tables[0])[:2] == ["Name", "Mesh"]
    assert "KRI" in columns(tables[0], wide=True)
    assert "KRI" not in columns(tables[0])


@pytest.mark.parametrize(
    ("include", "kind"),
    [
        ("", "PartialObjectMetadata"),
        ("Metadata", "PartialObjectMetadata"),
        ("Object", "ConfigMap"),
        ("None", None),
    ],
)
def test_rows_carry_as_much_of_their_objects_as_asked(config_maps, include, kind):
    config_maps.put("a", "text")
    (row,) = config_maps.list(TABLE, includeObject=include).json["rows"]
    if kind is None:
        assert row["object"] is None
        return
    assert (row["object"]["kind"], row["object"]["metadata"]["name"]) == (kind, "a")
    assert ("data" in row["object"]) is (kind == "ConfigMap")


@pytest.mark.parametrize("query", [{}, {"watch": "true"}], ids=str)
def test_an_unknown_measure_is_refused(config_maps, query):
    config_maps.put("a")
    assert failure_with_causes(config_maps.list(TABLE, includeObject="All", **query)) == (
        400,
        "BadRequest",
        [],
    )


def test_a_list_can_be_of_metadata_alone(config_maps):
    config_maps.put("a", "text", team="red")
    config_maps.put("b")
    listed = config_maps.list(PARTIAL_LIST, limit=1).json
    assert (listed["kind"], names(listed)) == ("PartialObjectMetadataList", ["a"])
    assert listed["metadata"]["remainingItemCount"] == 1
    (one,) = listed["items"]
    assert set(one) == {"kind", "apiVersion", "metadata"}
    assert one["metadata"]["labels"] == {"team": "red"}


def test_one_object_and_a_watch_can_be_of_metadata_alone(config_maps):
    config_maps.put("a", "text")
    one = config_maps.plane("GET", f"{config_maps.path}/a", Accept=PARTIAL).json
    assert (one["kind"], "data" in one) == ("PartialObjectMetadata", False)
    with config_maps.watch(PARTIAL) as watch:
        event = watch.next()
    assert (event["type"], event["object"]) == ("ADDED", one)


@pytest.mark.parametrize(
    "accept",
    [
        "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io",
        "text/html",
        "application/json;as=Table;v=v2;g=meta.k8s.io",
        "application/json;as=Table;v=v1;g=example.com",
        "application/json;as=Sheet;v=v1;g=meta.k8s.io",
    ],
)
@pytest.mark.parametrize("query", [{}, {"watch": "true"}], ids=str)
def test_what_we_do_not_have_is_refused_and_named(config_maps, accept, query):
    config_maps.put("a")
    refused = config_maps.list(accept, **query)
    assert failure_with_causes(refused) == (406, "NotAcceptable", [])
    assert "application/json" in refused.json["message"]
    assert failure_with_causes(config_maps.plane("GET", f"{config_maps.path}/a", Accept=accept))[0] == 406


@pytest.mark.parametrize(
    "accept",
    [f"application/vnd.kubernetes.cbor,{JSON}", "*/*", "application/*", f"{JSON};q=0.8", "text/html,*/*"],
)
def test_who_takes_json_too_gets_json(config_maps, accept):
    config_maps.put("a")
    assert config_maps.list(accept).json["kind"] == "ConfigMapList"


def test_a_review_is_no_table(plane):
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"nonResourceAttributes": {"path": "/x", "verb": "get"}},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert failure_with_causes(plane("POST", path, review, Accept=TABLE)) == (406, "NotAcceptable", [])
    assert plane("POST", path, review, Accept=KUBECTL).status in (201, 406)
