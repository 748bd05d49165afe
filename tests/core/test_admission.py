"""Admission: identity, labels and rules of what users write, on each kind of control plane."""

import pytest

from koguma.core import admission, defaults
from koguma.core.admission import FieldValidation
from koguma.kinds import KINDS
from koguma.model import forms, labels
from koguma.model.control_plane_info import ControlPlaneInfo, Mode
from koguma.model.errors import Invalid
from koguma.model.kind import Kinds
from koguma.model.resource import Key
from koguma.policies import POLICIES
from tests.build import timeout

ALL = Kinds((*KINDS, *POLICIES))
ZONE = ControlPlaneInfo(zone="east")
GLOBAL = ControlPlaneInfo(mode=Mode.GLOBAL, zone="")
FEDERATED = ControlPlaneInfo(zone="east", federated=True)


def in_namespace(namespace, *targets, name="slow"):
    to = [{"targetRef": target, "default": {"idleTimeout": "5s"}} for target in targets]
    rules = {} if targets else {"rules": [{"default": {"idleTimeout": "5s"}}]}
    return {
        "apiVersion": "kuma.io/v1alpha1",
        "kind": "MeshTimeout",
        "metadata": {"name": name, "namespace": namespace, "labels": {"kuma.io/mesh": "default"}},
        "spec": {"to": to} if to else rules,
    }


def admit(document, control_plane=ZONE, stored=None, unknown=FieldValidation.STRICT):
    return admission.admitted(forms.read(document, ALL), stored, control_plane, unknown)


def violations(document, control_plane=ZONE, stored=None):
    with pytest.raises(Invalid) as caught:
        admit(document, control_plane, stored)
    return [(violation.field, violation.message) for violation in caught.value.violations]


def test_a_zones_object_carries_its_zone():
    made = admit(timeout()).resource
    assert made.key == Key("MeshTimeout", "default", "east", "", "slow")
    assert made.core_name == "slow"
    assert made.labels == {
        "kuma.io/display-name": "slow",
        "kuma.io/env": "universal",
        "kuma.io/mesh": "default",
        "kuma.io/origin": "zone",
        "kuma.io/zone": "east",
    }
    assert str(made.kri("mt")) == "kri_mt_default_east__slow_"


def test_a_globals_object_has_no_zone():
    made = admit(timeout(), GLOBAL).resource
    assert made.key.zone == ""
    assert made.labels[labels.ORIGIN] == "global"
    assert labels.ZONE not in made.labels


def test_a_mesh_has_no_zone_anywhere():
    made = admit({"type": "Mesh", "name": "default"}).resource
    assert made.key == Key("Mesh", "", "", "", "default")


def test_the_kubernetes_form_lives_in_its_namespace():
    made = admit(in_namespace("demo", {"kind": "MeshService", "name": "backend"})).resource
    assert made.key == Key("MeshTimeout", "default", "east", "demo", "slow")
    assert made.core_name == "slow.demo"
    assert made.labels[labels.NAMESPACE] == "demo"


def test_the_reserved_namespace_stands_for_none():
    made = admit(in_namespace("mesh-default", {"kind": "Mesh"})).resource
    assert made.key.namespace == ""
    assert made.core_name == "slow"
    assert labels.NAMESPACE not in made.labels


def test_a_plain_object_with_a_namespace_label_is_found_under_the_name_it_was_given():
    labelled = {"k8s.kuma.io/namespace": "demo"}
    short = admit(timeout(labels=labelled)).resource
    assert (short.key.namespace, short.key.name, short.core_name) == ("demo", "slow", "slow")
    long = admit(timeout(name="slow.demo", labels=labelled)).resource
    assert (long.key, long.core_name) == (short.key, "slow.demo")


@pytest.mark.parametrize(
    ("targets", "role"),
    [
        ([{"kind": "MeshService", "name": "backend"}], "producer"),
        ([{"kind": "MeshService", "name": "backend", "namespace": "demo"}], "producer"),
        ([{"kind": "MeshService", "labels": {"kuma.io/display-name": "backend"}}], "producer"),
        ([{"kind": "MeshService", "name": "backend", "namespace": "other"}], "consumer"),
        ([{"kind": "MeshService", "labels": {"app": "backend"}}], "consumer"),
        ([{"kind": "Mesh"}], "consumer"),
        ([], "workload-owner"),
    ],
)
def test_a_policys_role_follows_from_its_namespace_and_targets(targets, role):
    assert admit(in_namespace("demo", *targets)).resource.labels[labels.ROLE] == role


def test_a_policy_in_the_system_namespace_is_the_systems():
    made = admit(in_namespace("kuma-system", {"kind": "Mesh"})).resource
    assert made.labels[labels.ROLE] == "system"


def test_producer_and_consumer_targets_do_not_mix():
    document = in_namespace("demo", {"kind": "MeshService", "name": "backend"}, {"kind": "Mesh"})
    assert violations(document) == [
        ("spec", "it's not allowed to mix producer and consumer items in the same policy")
    ]


@pytest.mark.parametrize(
    ("control_plane", "written", "expected"),
    [
        (ZONE, {"kuma.io/origin": "moon"}, ('labels["kuma.io/origin"]', 'unknown resource origin "moon"')),
        (
            GLOBAL,
            {"kuma.io/origin": "zone"},
            ('labels["kuma.io/origin"]', "the origin label must be set to 'global'"),
        ),
        (FEDERATED, {}, ('labels["kuma.io/origin"]', "the origin label must be set to 'zone'")),
        (
            ZONE,
            {"kuma.io/zone": "west"},
            ('labels["kuma.io/zone"]', "kuma.io/zone label should have east value"),
        ),
        (
            ZONE,
            {"kuma.io/mesh": "other"},
            ('labels["kuma.io/mesh"]', "kuma.io/mesh label must not differ from mesh set on resource"),
        ),
        (ZONE, {"a/b/c": "x"}, ('labels["a/b/c"]', "a qualified name")),
        (ZONE, {"a": "-x"}, ('labels["a"]', "a valid label must be an empty string")),
        (ZONE, {"k8s.kuma.io/namespace": "mesh-x"}, ('labels["k8s.kuma.io/namespace"]', "is reserved")),
    ],
)
def test_labels_that_contradict_the_place_are_refused(control_plane, written, expected):
    (found,) = violations(timeout(labels=written), control_plane)
    assert found[0] == expected[0]
    assert expected[1] in found[1]


def test_all_violations_are_reported_at_once():
    document = timeout(
        name="Slow", labels={"kuma.io/origin": "moon"}, spec={"to": [{"default": {}}]}, extra=1
    )
    fields = [field for field, _ in violations(document)]
    assert fields == ["name", 'labels["kuma.io/origin"]', "extra", "spec.to[0].targetRef"]


def test_unknown_fields_are_refused_warned_about_or_ignored():
    spec = {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": "5s", "idleTimout": "1s"}}]}
    document = timeout(spec=spec)
    ((field, message),) = violations(document)
    assert field == "spec.to[0].default.idleTimout"
    assert 'did you mean "idleTimeout"?' in message
    warned = admit(document, unknown=FieldValidation.WARN)
    assert warned.warnings == (f"{field}: {message}",)
    assert warned.resource.spec == spec
    assert admit(document, unknown=FieldValidation.IGNORE).warnings == ()


def test_where_an_object_lives_cannot_change():
    stored = admit(in_namespace("demo", {"kind": "Mesh"})).resource
    moved = timeout(name="slow.demo", labels={"k8s.kuma.io/namespace": "other"})
    assert violations(moved, stored=stored) == [
        ('labels["k8s.kuma.io/namespace"]', 'is immutable, cannot be changed from "demo" to "other"')
    ]


def test_an_update_that_does_not_say_where_stays_there():
    stored = admit(in_namespace("demo", {"kind": "Mesh"})).resource
    updated = admit(timeout(name="slow.demo"), stored=stored).resource
    assert updated.key == stored.key
    assert updated.core_name == "slow.demo"


@pytest.mark.parametrize("name", ["1mesh", "my.mesh", "m" * 64])
def test_a_meshs_name_must_fit_into_identifiers(name):
    assert [field for field, _ in violations({"type": "Mesh", "name": name})] == ["name"]


def test_a_system_kind_stays_in_the_system_namespace():
    spec = {"selector": {"meshService": {}}, "template": "{{ .DisplayName }}.mesh"}
    document = {
        "apiVersion": "kuma.io/v1alpha1",
        "kind": "HostnameGenerator",
        "metadata": {"name": "mine", "namespace": "demo"},
        "spec": spec,
    }
    assert violations(document) == [
        ("metadata.namespace", "HostnameGenerator is allowed in namespace kuma-system only")
    ]


@pytest.mark.parametrize("control_plane", [ZONE, GLOBAL])
def test_all_default_objects_are_admitted_without_a_word(control_plane):
    documents = [*defaults.mesh_policies(POLICIES, "demo", {}), *defaults.hostname_generators(control_plane)]
    assert len(documents) == 4 + (2 if control_plane is ZONE else 5)
    for document in documents:
        made = admit(document, control_plane)
        assert made.resource.spec == document["spec"]


def test_a_mesh_can_skip_default_policies():
    assert list(defaults.mesh_policies(POLICIES, "demo", {"skipCreatingInitialPolicies": ["*"]})) == []
    left = {
        d["type"]
        for d in defaults.mesh_policies(POLICIES, "demo", {"skipCreatingInitialPolicies": ["MeshTimeout"]})
    }
    assert left == {"MeshCircuitBreaker", "MeshRetry"}


def as_stored(document, control_plane=ZONE):
    return admission.is_stored(
        forms.read(document, ALL), admit(timeout(labels={"team": "a"})).resource, control_plane
    )


def test_what_was_admitted_is_known_again():
    stored = admit(timeout(labels={"team": "a"})).resource
    assert as_stored(timeout(labels={"team": "a"}))
    assert as_stored(timeout(labels=dict(stored.labels)))


@pytest.mark.parametrize(
    "other",
    [
        timeout(labels={"team": "b"}),
        timeout(labels={}),
        timeout(labels={"team": "a", "tier": "web"}),
        timeout(labels={"team": "a", labels.ORIGIN: "global"}),
        timeout(labels={"team": "a", labels.ZONE: "west"}),
        timeout(labels={"team": "a"}, name="slower"),
        timeout(labels={"team": "a"}, mesh="other"),
        timeout(labels={"team": "a"}, fantasy=1),
        timeout(labels={"team": "a"}, spec={**timeout()["spec"], "targetRef": {"kind": "Mesh"}}),
    ],
)
def test_what_differs_from_what_is_stored_is_admitted_anew(other):
    assert not as_stored(other)


def test_what_a_federated_zone_would_refuse_is_not_known_again():
    assert not as_stored(timeout(labels={"team": "a"}), FEDERATED)
    assert as_stored(timeout(labels={"team": "a", labels.ORIGIN: "zone"}), FEDERATED)
