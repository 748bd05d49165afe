"""Templates: what is read, what is refused, what comes out."""

import pytest

from koguma.model import template
from koguma.model.template import TemplateError

FIELDS = ("Name", "Zone")
VALUES = {"Name": "web", "Zone": "east"}
LABELS = {"team": "a", "k8s.io/x": "b", "}}": "c"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("plain.text", "plain.text"),
        ("{{ .Name }}", "web"),
        ("{{.Name}}.{{.Zone}}.mesh", "web.east.mesh"),
        ("{{  .Name  }}{{ .Name }}", "webweb"),
        ('{{ label "team" }}.svc', "a.svc"),
        ("{{ label `team` }}", "a"),
        ('{{label "k8s.io/x"}}', "b"),
        ('{{ label "}}" }}', "c"),
        ("a}}b{c}", "a}}b{c}"),
        ("{{\n.Name\n}}", "web"),
    ],
)
def test_a_template_fills_in_fields_and_labels(text: str, expected: str) -> None:
    assert template.render(template.parse(text, FIELDS), VALUES, LABELS) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ .Name", 'unclosed action "{{ .Name"; it ends with "}}"'),
        ("{{ .Other }}", 'unknown field in "{{ .Other }}"; known are .Name, .Zone'),
        ("{{ name }}", 'unexpected "{{ name }}"; use .Name, .Zone or label "key"'),
        ("{{ .Name.First }}", 'unexpected "{{ .Name.First }}"; use .Name, .Zone or label "key"'),
        ("{{ label team }}", 'unexpected "{{ label team }}"; use .Name, .Zone or label "key"'),
        ("{{ if .Name }}a{{ end }}", 'unexpected "{{ if .Name }}"; use .Name, .Zone or label "key"'),
        ("a{{}}", 'unexpected "{{}}"; use .Name, .Zone or label "key"'),
        ("{{ {{ .Name }} }}", 'unexpected "{{ {{ .Name }}"; use .Name, .Zone or label "key"'),
    ],
)
def test_what_is_no_template_is_refused_with_a_hint(text: str, message: str) -> None:
    with pytest.raises(TemplateError) as refused:
        template.parse(text, FIELDS)
    assert str(refused.value) == message


def test_a_missing_label_is_named() -> None:
    parsed = template.parse('{{ label "owner" }}', FIELDS)
    with pytest.raises(TemplateError, match='label "owner" is missing'):
        template.render(parsed, VALUES, LABELS)
