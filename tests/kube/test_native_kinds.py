"""Kubernetes' own kinds: what they take, what they refuse and in which words, and what is stored of them."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from koguma.kube import native
from koguma.kube.kinds import ALIAS_KINDS, NATIVE_KINDS, REVIEW_KINDS
from koguma.kube.kinds.core import CONFIG_MAP, NAMESPACE, SECRET
from koguma.kube.kinds.events import EVENT
from koguma.kube.kinds.rbac import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE, ROLE_BINDING
from koguma.kube.kinds.services import SERVICE
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kind, ValidationContext
from koguma.policies import mesh_timeout

MEBIBYTE = 1024 * 1024
WRITTEN_ALIASES = tuple(kind for kind in ALIAS_KINDS.values() if kind != SERVICE)  # which is only read
EVERY = (*NATIVE_KINDS, *REVIEW_KINDS.values(), *WRITTEN_ALIASES)
every_kind = pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.stored_as)


def context(namespace: str = "default", stored: Any = None) -> ValidationContext:
    return ValidationContext(control_plane=ControlPlaneInfo(), name="it", namespace=namespace, stored=stored)


def refusals(kind: Kind, spec: Any, stored: Any = None, namespace: str = "default") -> list[str]:
    """What the API would say of a spec, one text each."""
    ready = native.stored_spec(kind, spec)
    return [f"{v.field}: {v.message}" for v in kind.violations(ready, context(namespace, stored))]


CASES = yaml.safe_load((Path(__file__).parent / "native_kinds.yaml").read_text())
BY_WORD = {kind.stored_as: kind for kind in EVERY}


def cases(section: str) -> list[Any]:
    """The cases of a section, each with its kind, named for the kind and their turn."""
    return [
        pytest.param(BY_WORD[word], case, id=f"{word}-{turn}")
        for word, listed in CASES[section].items()
        for turn, case in enumerate(listed)
    ]


@pytest.mark.parametrize(("kind", "spec"), cases("accepted"))
def test_what_kubernetes_takes_is_taken(kind: Kind, spec: Any):
    given = copy.deepcopy(spec)
    assert refusals(kind, spec) == []
    assert spec == given, "a spec was changed in place"
    assert native.stored_spec(kind, native.stored_spec(kind, spec)) == native.stored_spec(kind, spec)


@pytest.mark.parametrize(("kind", "case"), cases("refused"))
def test_what_kubernetes_refuses_is_refused_in_its_words(kind: Kind, case: Any):
    assert refusals(kind, case["spec"]) == [case["says"]]


@pytest.mark.parametrize(
    ("kind", "spec", "at"),
    [
        (CONFIG_MAP, {"data": {"a": "x" * MEBIBYTE}}, None),
        (CONFIG_MAP, {"data": {"a": "é" * (MEBIBYTE // 2), "b": "x"}}, "[]"),
        (CONFIG_MAP, {"data": {"a": "x" * MEBIBYTE}, "binaryData": {"b": "AA=="}}, "[]"),
        (SECRET, {"stringData": {"a": "x" * MEBIBYTE}}, None),
        (SECRET, {"stringData": {"a": "x" * MEBIBYTE}, "data": {"b": "AA=="}}, "data"),
    ],
)
def test_no_more_than_a_mebibyte_is_kept(kind: Kind, spec: Any, at: str | None):
    text = f"{at}: Too long: may not be more than 1048576 bytes"
    assert refusals(kind, spec) == ([] if at is None else [text])


def test_a_name_and_a_password_are_missed_together():
    violations_found = refusals(SECRET, {"type": "kubernetes.io/basic-auth"})
    assert violations_found == ["data[username]: Required value", "data[password]: Required value"]


def test_a_newer_event_says_who_saw_it_and_what_was_done():
    violations_found = refusals(EVENT, {"eventTime": "2026-11-15T09:22:00.000000Z", "message": "m" * 1025})
    assert violations_found == [
        "reportingController: Required value",
        "reportingInstance: Required value",
        "action: Required value",
        "reason: Required value",
        'message: Invalid value: "": can have at most 1024 characters',
    ]


def test_no_text_of_a_secret_comes_back_in_a_refusal():
    secret = "hunter2-hunter2"
    for spec in (
        {"data": {"a": secret}},
        {"type": "kubernetes.io/dockercfg", "stringData": {".dockercfg": secret}},
    ):
        violations_found = refusals(SECRET, spec)
        assert violations_found
        assert not any(secret in text for text in violations_found)


@pytest.mark.parametrize(("kind", "case"), cases("changes"))
def test_what_cannot_change_is_refused_against_what_is_stored(kind: Kind, case: Any):
    assert refusals(kind, case["spec"], case["stored"]) == case["says"]


@pytest.mark.parametrize(("kind", "case"), cases("prepared"))
def test_what_is_stored_is_what_kubernetes_would_show(kind: Kind, case: Any):
    assert native.stored_spec(kind, case["spec"]) == case["stored"]


def test_our_own_kinds_are_stored_as_they_were_written():
    spec = {"to": None}
    assert native.stored_spec(mesh_timeout.KIND, spec) is spec


def test_an_update_of_a_namespace_leaves_its_finalizers_alone():
    stored = {"finalizers": ["kubernetes"]}
    assert native.stored_spec(NAMESPACE, {"finalizers": []}, stored) == stored


def test_a_namespace_begins_active_and_can_be_selected_by_its_name():
    assert native.first_status(NAMESPACE) == {"phase": "Active"}
    assert native.added_labels(NAMESPACE, "shop") == {"kubernetes.io/metadata.name": "shop"}
    assert native.first_status(SECRET) is None
    assert native.added_labels(SECRET, "shop") == {}


NAMES: tuple[tuple[Kind, str, str], ...] = (
    (SECRET, "a.b-c", ""),
    (SECRET, "A", "a lowercase RFC 1123 subdomain must consist of"),
    (SECRET, "a" * 254, "must be no more than 253 bytes"),
    (EVENT, "web.17a1b2c3d4e5f6a7", ""),
    (NAMESPACE, "shop-1", ""),
    (NAMESPACE, "a.b", "a lowercase RFC 1123 label must consist of"),
    (NAMESPACE, "a" * 64, "must be no more than 63 bytes"),
    (ROLE, "system:Node-Reader", ""),
    (CLUSTER_ROLE, "a/b", "may not contain '/'"),
    (CLUSTER_ROLE_BINDING, "50%", "may not contain '%'"),
    (ROLE_BINDING, "..", "may not be '..'"),
)


@pytest.mark.parametrize(("kind", "name", "begins"), NAMES)
def test_names_obey_the_rule_of_their_kind(kind: Kind, name: str, begins: str):
    violations_found = [v.message for v in native.name_violations(kind, name)]
    assert len(violations_found) == (1 if begins else 0)
    assert all(text.startswith(f'Invalid value: "{name}": {begins}') for text in violations_found)


def test_an_object_needs_a_name():
    (violations_found,) = native.name_violations(SECRET, "")
    assert (violations_found.field, violations_found.message) == (
        "metadata.name",
        "Required value: name or generateName is required",
    )


@every_kind
def test_the_fields_are_those_of_the_published_api(kind: Kind):
    assert set(kind.spec.__struct_encode_fields__) == set(CASES["fields"][kind.stored_as])


@every_kind
def test_null_is_the_same_as_absence(kind: Kind):
    nothing = dict.fromkeys(kind.spec.__struct_encode_fields__)
    assert [v for v in kind.checker(kind.clean(nothing)) if v.rule == "type"] == []
    assert None not in (native.stored_spec(kind, nothing) or {}).values() or kind in ALIAS_KINDS.values()


@every_kind
def test_what_is_no_object_is_refused_and_breaks_nothing(kind: Kind):
    for odd in ([], "text", 5, None, {"data": []}, {"subjects": [1], "roleRef": "x", "rules": {}}):
        list(kind.violations(native.stored_spec(kind, odd), context()))
    assert next(iter(kind.violations(native.stored_spec(kind, "text"), context()))).rule == "type"


def test_secrets_leave_the_history_and_only_administrators_see_them():
    assert {kind.name for kind in NATIVE_KINDS if kind.short_history} == {"Secret", "Event", "Lease"}
    assert {kind.name for kind in NATIVE_KINDS if kind.admin_only} == {"Secret"}
