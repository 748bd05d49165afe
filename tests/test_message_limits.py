"""Limits of what proxies and users send: what is wrong is told in short, and looked for only so long."""

import json

import pytest

from koguma.fleet.registration import document
from koguma.model.errors import BadRequest, Invalid
from koguma.model.nearest import nearest
from koguma.model.schema import UNKNOWN, Checker, Spec
from koguma.model.violation import MORE, SHOWN_MAX, VIOLATIONS_MAX, Violation, truncated
from tests.build import timeout
from tests.control_plane import LocalControlPlane

FIELDS = {f"fiield{number}": number for number in range(20_000)}


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("limits")) as running:
        yield running


def test_an_error_names_the_first_and_counts_the_rest():
    violations = [Violation(f"spec.to[{number}]", "is wrong", "x") for number in range(SHOWN_MAX + 7)]
    error = Invalid(violations)
    assert error.violations == (*violations[:SHOWN_MAX], Violation("", "and 7 more", MORE))
    assert str(error).endswith("; spec.to[19]: is wrong; and 7 more")
    assert Invalid(violations[:SHOWN_MAX]).violations == tuple(violations[:SHOWN_MAX])
    assert truncated(error.violations) == error.violations, "an error that is told again counts the same"
    (long,) = Invalid([Violation("x" * 10_000, "y" * 10_000)]).violations
    assert (len(long.field), len(long.message)) == (512, 2048)


class Port(Spec):
    number: int


class Ports(Spec):
    ports: tuple[Port, ...] | None = None


def test_what_is_broken_is_found_behind_any_number_of_unknown_fields():
    ports = [{"number": 1, f"other{number}": 1} for number in range(1_000)]
    violations = list(Checker(Ports)({"ports": [*ports, {"number": "x"}]}))
    assert [each.field for each in violations if each.rule != UNKNOWN] == ["ports[1000].number"]
    assert len(violations) == VIOLATIONS_MAX + 1
    assert "known fields are number" in violations[0].message
    assert violations[SHOWN_MAX].message == 'unknown field "other20"'


def test_nobody_looks_for_more_than_enough():
    checked = []

    class Counted(dict):
        def get(self, name):
            checked.append(name)
            return "x"

    violations = list(Checker(Ports)({"ports": [Counted() for _ in range(10_000)]}))
    assert len(violations) == len(checked) == VIOLATIONS_MAX


def test_a_word_too_long_to_be_a_slip_is_compared_with_nothing():
    word = "m" * 100_000
    assert nearest(word, [word[:-1]] * 10) is None


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_an_answer_about_many_unknown_fields_is_short(plane, method):
    wrong = {**timeout(), **FIELDS, "spec": {**timeout()["spec"], **FIELDS}}
    if method == "POST":
        answer = plane("POST", "/_apply", [wrong])
    else:
        answer = plane("PUT", "/meshes/default/meshtimeouts/slow", wrong)
    assert (answer.status, len(answer.body) < 20_000) == (400, True)
    fields = answer.json["invalid_parameters"]
    assert len(fields) == SHOWN_MAX + 1
    assert fields[-1]["reason"].startswith("and ")


@pytest.mark.parametrize("validation", ["Strict", "Warn"])
def test_the_kubernetes_form_tells_of_the_first_unknown_fields_too(plane, validation):
    path = "/apis/kuma.io/v1alpha1/namespaces/mesh-default/meshtimeouts"
    body = {
        "apiVersion": "kuma.io/v1alpha1",
        "kind": "MeshTimeout",
        "metadata": {"name": f"many-{validation.lower()}", "labels": {"kuma.io/mesh": "default"}},
        "spec": {**timeout()["spec"], **FIELDS},
    }
    answer = plane("POST", f"{path}?fieldValidation={validation}", body)
    assert answer.status == (400 if validation == "Strict" else 201), answer.body[:500]
    if validation == "Warn":
        assert len(answer.warnings) == SHOWN_MAX + 1
        assert answer.warnings[-1].startswith("and ")
    else:
        assert len(answer.body) < 20_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 30_000, "no JSON"),
        ('{"a":' * 100 + "1" + "}" * 100, "nested deeper than 64 levels"),
        (json.dumps({"name": "x" * 70_000}), "larger than 65536 bytes"),
    ],
)
def test_a_dataplane_that_a_proxy_brings_has_limits(text, words):
    with pytest.raises(BadRequest) as refused:
        document(text, "default", "web-1")
    assert words in str(refused.value)
