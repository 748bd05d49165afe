"""Tables, ages, and YAML that reads back as what was written."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from koguma.cli import columns, output, tables, terminal
from koguma.cli.kind_lookup import KindInfo
from koguma.model import documents

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.property
@given(st.dictionaries(TEXT, VALUES, min_size=1, max_size=5))
@example(
    {"a": ["1e5", ".5e3", "0755", "on", "No", "~", "", "1.", "+1", "2026-01-01", "1_000", "0x1F", "=", "<<"]}
)
@example({"<<": {"a": 1}, "=": 2, "a": "line\nline\n"})
def test_yaml_that_is_printed_is_read_back_the_same(value):
    read = documents.load(output.yaml_text(value))
    assert [document.value for document in read] == [value]


def test_several_objects_are_a_stream_of_documents():
    text = output.yaml_stream([{"a": 1}, {"b": 2}])
    assert text == "a: 1\n---\nb: 2\n"


def test_columns_are_as_wide_as_what_stands_in_them():
    lines = tables.lines(("NAME", "AGE"), [("a-long-name", "1s"), ("b", "")])
    assert list(lines) == ["NAME          AGE", "a-long-name   1s", "b             -"]


def test_rows_that_come_later_keep_the_columns():
    table = tables.TextTable(("NAME", "AGE"))
    assert list(table.start([("abcdefg", "1s")])) == ["NAME      AGE", "abcdefg   1s"]
    assert table.row(("b", "2s")) == "b         2s"


def test_a_cell_cannot_steer_the_terminal():
    assert list(tables.lines(("A",), [("\x1b[31mred\n",)]))[1] == "?[31mred?"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-5, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (200, "3m20s"),
        (3599, "59m"),
        (3600, "1h"),
        (3600 * 5 + 60 * 7, "5h7m"),
        (3600 * 30, "1d6h"),
        (86400 * 12, "12d"),
        (86400 * 400, "1y35d"),
        (86400 * 365 * 20, "20y"),
    ],
)
def test_an_age_has_few_letters(seconds, expected):
    assert tables.age((NOW - timedelta(seconds=seconds)).isoformat(), NOW) == expected


def test_an_age_that_cannot_be_known_is_a_question():
    assert tables.age("", NOW) == tables.age("2026-01-01", NOW) == "?"


def shown(kind: KindInfo, value, *, wide: bool = False) -> dict[str, str]:
    chosen = columns.columns(kind, NOW, wide=wide)
    return dict(zip(columns.header(chosen), columns.row(chosen, value), strict=True))


TIMEOUT = KindInfo("MeshTimeout", "meshtimeouts", "mt", is_policy=True)


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        (None, "Mesh"),
        ({"kind": "MeshService", "name": "a"}, "MeshService/a"),
        ({"kind": "Dataplane", "labels": {"a": "b"}, "sectionName": "http"}, "Dataplane/a=b:http"),
    ],
)
def test_a_policy_shows_its_target(ref, expected):
    assert shown(TIMEOUT, {"name": "x", "spec": {"targetRef": ref}})["TARGET"] == expected


def test_wide_tables_show_where_an_object_comes_from():
    value = {
        "name": "x.n",
        "mesh": "m",
        "labels": {"kuma.io/zone": "z", "k8s.kuma.io/namespace": "n", "kuma.io/origin": "zone"},
        "creationTime": "2026-11-15T11:59:00Z",
        "kri": "kri_mt_m_z_n_x_",
    }
    assert shown(TIMEOUT, value, wide=True) == {
        "NAME": "x.n",
        "MESH": "m",
        "TARGET": "Mesh",
        "ZONE": "z",
        "NAMESPACE": "n",
        "ORIGIN": "zone",
        "ROLE": "system",
        "AGE": "60s",
        "KRI": "kri_mt_m_z_n_x_",
    }


@pytest.mark.parametrize(
    ("kind", "value", "title", "expected"),
    [
        ("Mesh", {"mtls": {"enabledBackend": "ca-1"}}, "MTLS", "ca-1"),
        ("Mesh", {}, "MTLS", "off"),
        ("Dataplane", {"networking": {"address": "10.0.0.1"}}, "ADDRESS", "10.0.0.1"),
        (
            "MeshService",
            {"spec": {"ports": [{"port": 80}, {"port": 81, "name": "x"}]}},
            "PORTS",
            "80:80,x:81",
        ),
        ("MeshService", {"spec": {"ports": 3}}, "PORTS", ""),
        ("Secret", {"data": "aGVsbG8="}, "SIZE", "5B"),
        ("Secret", {"data": "!"}, "SIZE", "not base64"),
    ],
)
def test_kinds_have_columns_of_their_own(kind, value, title, expected):
    assert shown(KindInfo(kind, "things"), value)[title] == expected


class Screen:
    def __init__(self, *, is_a_terminal: bool) -> None:
        self.is_a_terminal = is_a_terminal

    def isatty(self) -> bool:
        return self.is_a_terminal


def test_colours_are_for_terminals_that_want_them(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert terminal.is_coloured(Screen(is_a_terminal=True))
    assert not terminal.is_coloured(Screen(is_a_terminal=False))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not terminal.is_coloured(Screen(is_a_terminal=True))
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not terminal.is_coloured(Screen(is_a_terminal=True))


def test_json_keeps_letters_readable():
    assert output.json_text({"a": "ü"}) == '{\n  "a": "ü"\n}'
    assert json.loads(output.json_text({"a": [1]})) == {"a": [1]}
