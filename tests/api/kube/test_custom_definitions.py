"""CustomResourceDefinitions: what one must be, what its status says, and what happens when it goes."""

import pytest

from koguma.application import custom_definitions
from tests.control_plane import LocalControlPlane
from tests.custom_resources import (
    WIDGET,
    defined,
    definition_spec,
    definitions_of,
    version,
)
from tests.kube_client import KubeClient, accepted, failure
from tests.waiting import until


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    """Definitions change discovery for all, so that these tests have a control plane of their own."""
    with LocalControlPlane(tmp_path_factory.mktemp("definitions")) as plane:
        yield plane


@pytest.fixture
def definitions(plane):
    return definitions_of(plane)


def conditions(definition):
    return {each["type"]: (each["status"], each["reason"]) for each in definition["status"]["conditions"]}


def refused(definitions, name, spec, **fields):
    answer = definitions.create(name, spec=spec, **fields)
    assert failure(answer) == (422, "Invalid"), answer.body
    assert not definitions.exists(name)
    return answer.json["message"]


def test_a_definition_is_established_by_the_write_that_stores_it(definitions, plane):
    spec = definition_spec(group="first.example.com", names={"shortNames": ["wd"], "categories": ["all"]})
    made = accepted(definitions.create("widgets.first.example.com", spec=spec))
    assert conditions(made) == {
        "NamesAccepted": ("True", "NoConflicts"),
        "Established": ("True", "InitialNamesAccepted"),
    }
    names = {"kind": "Widget", "plural": "widgets", "singular": "widget", "listKind": "WidgetList"}
    assert made["status"]["acceptedNames"] == {**names, "shortNames": ["wd"], "categories": ["all"]}
    assert made["status"]["storedVersions"] == ["v1"]
    assert made["spec"]["conversion"] == {"strategy": "None"}
    resources = plane("GET", "/apis/first.example.com/v1").json["resources"]
    assert [entry["name"] for entry in resources] == ["widgets", "widgets/status", "widgets/scale"]
    assert resources[0]["shortNames"] == ["wd"]
    assert "resourceID" in resources[0]
    assert not any("resourceID" in entry for entry in resources[1:]), "subresources have none"
    assert (resources[2]["group"], resources[2]["kind"]) == ("autoscaling", "Scale")


def without(name):
    schema = {
        **WIDGET,
        "properties": {**WIDGET["properties"], "spec": {"type": "object", "properties": {"a": name}}},
    }
    return definition_spec(version(schema=schema))


@pytest.mark.parametrize(
    ("name", "spec", "message"),
    [
        ("others.example.com", definition_spec(), 'must be spec.names.plural+"."+spec.group'),
        (
            "widgets.kuma.io",
            definition_spec(group="kuma.io"),
            "spec.group: Forbidden: the groups kuma.io and koguma.io",
        ),
        ("widgets.x.koguma.io", definition_spec(group="x.koguma.io"), "spec.group: Forbidden"),
        (
            "widgets.events.k8s.io",
            definition_spec(group="events.k8s.io"),
            "served by the control plane itself",
        ),
        (
            "widgets.new.k8s.io",
            definition_spec(group="new.k8s.io"),
            'approval annotation "api-approved.kubernetes.io"',
        ),
        (
            "widgets.example.com",
            definition_spec(version("v1"), version("v2")),
            "must have exactly one version marked as storage version",
        ),
        (
            "widgets.example.com",
            definition_spec(version("v1"), version("v1", storage=False)),
            'spec.versions[1].name: Duplicate value: "v1"',
        ),
        (
            "widgets.example.com",
            definition_spec(scope="Everywhere"),
            'spec.scope: Unsupported value: "Everywhere"',
        ),
        (
            "widgets.example.com",
            definition_spec(preserveUnknownFields=True),
            "spec.preserveUnknownFields: Invalid value",
        ),
        (
            "widgets.example.com",
            definition_spec({"name": "v1", "served": True, "storage": True}),
            "spec.versions[0].schema.openAPIV3Schema: Required value: schemas are required",
        ),
        (
            "widgets.example.com",
            without({}),
            "openAPIV3Schema.properties[spec].properties[a].type: Required value: must not be empty",
        ),
        ("widgets.example.com", without({"type": "text"}), 'Unsupported value: "text"'),
        ("widgets.example.com", without({"type": "array"}), "properties[a].items: Required value"),
        (
            "widgets.example.com",
            without({"type": "string", "pattern": "("}),
            "must be a valid regular expression",
        ),
        (
            "widgets.example.com",
            without({"type": "string", "default": 5}),
            "properties[a].default: Invalid value",
        ),
        ("widgets.example.com", without({"type": "string", "$ref": "#/x"}), "$ref: Forbidden"),
        (
            "widgets.example.com",
            without({"type": "object", "additionalProperties": False}),
            "additionalProperties cannot be set to false",
        ),
        (
            "widgets.example.com",
            without({"type": "object", "anyOf": [{"properties": {"b": {}}}]}),
            "properties[b]: Required value: because it is defined in",
        ),
        (
            "widgets.example.com",
            without({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map"}),
            "x-kubernetes-list-map-keys: Required value",
        ),
        (
            "widgets.example.com",
            without({"type": "integer", "x-kubernetes-validations": [{"rule": "self >"}]}),
            "x-kubernetes-validations[0].rule: Invalid value",
        ),
        (
            "widgets.example.com",
            without({"type": "string", "x-kubernetes-validations": [{"rule": "quantity(self).isInteger()"}]}),
            "quantity is of Kubernetes' own libraries, which are not available here",
        ),
        (
            "widgets.example.com",
            definition_spec(
                version(additionalPrinterColumns=[{"name": "A", "type": "string", "jsonPath": "{"}])
            ),
            "additionalPrinterColumns[0].jsonPath: Invalid value",
        ),
        (
            "widgets.example.com",
            definition_spec(version(selectableFields=[{"jsonPath": ".spec.tags"}])),
            "selectableFields[0].jsonPath: Invalid value",
        ),
        (
            "widgets.example.com",
            definition_spec(version(subresources={"scale": {"specReplicasPath": ".status.a"}})),
            "subresources.scale.specReplicasPath: Invalid value",
        ),
        (
            "widgets.example.com",
            definition_spec(conversion={"strategy": "Webhook"}),
            "spec.conversion.webhook.clientConfig: Required value",
        ),
    ],
)
def test_a_definition_that_cannot_be_served_is_refused_with_the_field(definitions, name, spec, message):
    assert message in refused(definitions, name, spec)


def test_an_approved_group_of_kubernetes_is_taken(definitions):
    approved = {"annotations": {"api-approved.kubernetes.io": "https://example.com/1"}}
    spec = definition_spec(group="approved.k8s.io")
    accepted(definitions.create("widgets.approved.k8s.io", spec=spec, metadata=approved))


def test_there_are_not_too_many_of_them(definitions, plane, monkeypatch):
    n_stored = len(definitions.list().json["items"])
    monkeypatch.setattr(custom_definitions, "DEFINITIONS_MAX", n_stored + 1)
    widgets = defined(plane, group="last.example.com")
    answer = definitions.create("widgets.more.example.com", spec=definition_spec(group="more.example.com"))
    assert failure(answer) == (403, "Forbidden")
    assert "CustomResourceDefinitions; delete some that nobody needs" in answer.json["message"]
    accepted(definitions.patch("widgets.last.example.com", {"metadata": {"labels": {"a": "b"}}}))
    assert widgets.send("GET", "").status == 200


def test_keywords_that_do_not_exist_are_left_out_with_a_warning(definitions):
    schema = {**WIDGET, "requried": ["spec"], "x-other": 1}
    spec = definition_spec(version(schema=schema), group="typos.example.com")
    strict = definitions.create("widgets.typos.example.com", spec=spec, query={"fieldValidation": "Strict"})
    assert failure(strict) == (400, "BadRequest")
    assert 'unknown field "spec.versions[0].schema.openAPIV3Schema.requried"' in strict.json["message"]
    loose = definitions.create("widgets.typos.example.com", spec=spec)
    assert len(loose.warnings) == 2
    assert accepted(loose)["spec"]["versions"][0]["schema"]["openAPIV3Schema"] == WIDGET


def test_custom_resources_are_listed_beside_our_own_kinds(plane):
    widgets = defined(plane, version("v1"), version("v2", storage=False))
    listed = plane("GET", "/_resources").json
    group = widgets.version.partition("/")[0]
    found = next(each for each in listed["customResources"] if each["group"] == group)
    ids = [plane("GET", f"/apis/{group}/{name}").json["resources"][0]["resourceID"] for name in ("v1", "v2")]
    assert ids == [found["resourceID"]] * 2
    assert found["paths"] == [f"/apis/{group}/v1/widgets", f"/apis/{group}/v2/widgets"]
    assert all("group" not in each for each in listed["resources"])


def test_a_definition_takes_no_name_of_a_built_in_kind(definitions, plane):
    """Clients take the first group that has a name, whichever group sorts before another."""
    spec = definition_spec(kind="MeshTimeout", group="a.example.com", names={"shortNames": ["mt", "ns"]})
    accepted(definitions.create("meshtimeouts.a.example.com", spec=spec))
    groups = [each["name"] for each in plane("GET", "/apis").json["groups"]]
    assert groups.index("rbac.authorization.k8s.io") < groups.index("a.example.com")
    assert groups.index("kuma.io") < groups.index("koguma.io") < groups.index("a.example.com")
    form = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    aggregated = plane("GET", "/apis", Accept=form).json["items"]
    assert [each["metadata"]["name"] for each in aggregated] == groups


def test_what_identifies_a_definition_does_not_change(definitions, plane):
    widgets = defined(plane)
    name = f"widgets.{widgets.version.partition('/')[0]}"
    for change in ({"scope": "Cluster"}, {"names": {"kind": "Other"}}, {"group": "b.example.com"}):
        assert failure(definitions.patch(name, {"spec": change})) == (422, "Invalid")


def test_names_that_are_taken_wait_until_they_are_free(definitions, plane):
    group = "names.example.com"
    defined(plane, group=group)
    second = definition_spec(group=group, kind="Gadget", names={"shortNames": ["widget"]})
    made = accepted(definitions.create(f"gadgets.{group}", spec=second))
    assert conditions(made) == {
        "NamesAccepted": ("False", "ShortNamesConflict"),
        "Established": ("False", "NotAccepted"),
    }
    gadgets = KubeClient(plane, "custom", f"{group}/v1", "Gadget")
    assert gadgets.send("GET", "").status == 404
    assert definitions.delete(f"widgets.{group}").json["status"] == "Success"
    until(lambda: conditions(definitions.get(f"gadgets.{group}"))["Established"][0] == "True")
    assert gadgets.send("GET", "").status == 200


def test_a_version_in_which_objects_may_be_stored_stays(definitions, plane):
    widgets = defined(plane, version("v1"))
    name = f"widgets.{widgets.version.partition('/')[0]}"
    moved = [version("v1", storage=False), version("v2")]
    changed = accepted(definitions.patch(name, {"spec": {"versions": moved}}))
    assert changed["status"]["storedVersions"] == ["v1", "v2"]
    answer = definitions.patch(name, {"spec": {"versions": [version("v2")]}})
    assert failure(answer) == (422, "Invalid")
    assert "v1 was previously a storage version" in answer.json["message"]
    trimmed = {"status": {"storedVersions": ["v2"]}}
    assert accepted(definitions.patch(f"{name}/status", trimmed))["status"]["storedVersions"] == ["v2"]
    accepted(definitions.patch(name, {"spec": {"versions": [version("v2")]}}))


def test_a_definition_goes_with_its_objects(definitions, plane):
    widgets = defined(plane)
    name = f"widgets.{widgets.version.partition('/')[0]}"
    accepted(widgets.create("free", spec={"size": 1}))
    accepted(widgets.create("held", spec={"size": 1}, metadata={"finalizers": ["example.com/hold"]}))
    ending = definitions.delete(name).json
    assert ending["metadata"]["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]
    assert conditions(ending)["Terminating"] == ("True", "InstanceDeletionPending")
    until(lambda: not widgets.exists("free"))
    assert widgets.create("late", spec={"size": 1}).status == 405
    assert widgets.apply("late", spec={"size": 1}).status == 405
    verbs = plane("GET", f"/apis/{widgets.version}").json["resources"][0]["verbs"]
    assert "create" not in verbs
    assert definitions.exists(name)
    definitions.patch(name, {"metadata": {"finalizers": None}})
    assert definitions.exists(name), "nobody can leave its objects behind"
    assert widgets.patch("held", {"metadata": {"finalizers": None}}).status == 200
    until(lambda: not definitions.exists(name))
    assert plane("GET", f"/apis/{widgets.version}").status == 404
    assert widgets.send("GET", "").status == 404
