"""Events in two groups: the same objects in other words, and nothing lost on the way."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koguma.kube.kinds.events import CONVERTER, EVENT, NEWER

OLDER_WORDS = {
    "involvedObject": {"kind": "Mesh", "name": "default", "namespace": "default"},
    "reason": "Made",
    "message": "made it",
    "source": {"component": "koguma", "host": "cp-1"},
    "firstTimestamp": "2026-11-15T09:22:00Z",
    "lastTimestamp": "2026-11-15T09:23:00Z",
    "count": 3,
    "type": "Normal",
    "eventTime": "2026-11-15T09:22:00.000000Z",
    "series": {"count": 3, "lastObservedTime": "2026-11-15T09:23:00.000000Z"},
    "action": "Make",
    "related": {"kind": "Zone", "name": "east"},
    "reportingComponent": "koguma.io/cp",
    "reportingInstance": "cp-1",
}
NEWER_WORDS = {
    "regarding": {"kind": "Mesh", "name": "default", "namespace": "default"},
    "reason": "Made",
    "note": "made it",
    "deprecatedSource": {"component": "koguma", "host": "cp-1"},
    "deprecatedFirstTimestamp": "2026-11-15T09:22:00Z",
    "deprecatedLastTimestamp": "2026-11-15T09:23:00Z",
    "deprecatedCount": 3,
    "type": "Normal",
    "eventTime": "2026-11-15T09:22:00.000000Z",
    "series": {"count": 3, "lastObservedTime": "2026-11-15T09:23:00.000000Z"},
    "action": "Make",
    "related": {"kind": "Zone", "name": "east"},
    "reportingController": "koguma.io/cp",
    "reportingInstance": "cp-1",
}


def test_every_field_has_its_other_name():
    assert CONVERTER.from_storage(OLDER_WORDS) == NEWER_WORDS
    assert CONVERTER.to_storage(NEWER_WORDS) == OLDER_WORDS
    assert set(OLDER_WORDS) == set(EVENT.spec.__struct_encode_fields__)
    assert set(NEWER_WORDS) == set(NEWER.spec.__struct_encode_fields__)


def some_of(words: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    values = st.none() | st.integers() | st.text(max_size=5) | st.dictionaries(st.text(max_size=3), st.text())
    return st.dictionaries(st.sampled_from(sorted(words)), values)


@given(some_of(OLDER_WORDS))
def test_the_core_groups_events_survive_the_way_there_and_back(spec: dict[str, Any]):
    before = dict(spec)
    assert CONVERTER.to_storage(CONVERTER.from_storage(spec)) == before == spec


@given(some_of(NEWER_WORDS))
def test_newer_events_survive_the_way_there_and_back(spec: dict[str, Any]):
    assert CONVERTER.from_storage(CONVERTER.to_storage(spec)) == spec


def test_both_shapes_read_what_the_other_writes():
    assert list(EVENT.checker(CONVERTER.to_storage(NEWER_WORDS))) == []
    assert list(NEWER.checker(CONVERTER.from_storage(OLDER_WORDS))) == []


NEW = {"eventTime": "2026-11-15T09:22:00.000000Z", "type": "Warning"}


@pytest.mark.parametrize(
    ("spec", "texts"),
    [
        (NEW, []),
        (NEWER_WORDS, []),  # an older one, which may be updated through the newer group
        ({"type": "Normal"}, ["eventTime: Required value"]),
        ({**NEW, "type": "Odd"}, ['type: Invalid value: "": has invalid value: Odd']),
        (
            {**NEW, "series": {"count": 1}},
            [
                'series.count: Invalid value: "": should be at least 2',
                "series.lastObservedTime: Required value",
            ],
        ),
        ("text", []),  # the schema's to say
    ],
)
def test_the_newer_group_wants_newer_events(spec: Any, texts: list[str]):
    assert [f"{v.field}: {v.message}" for v in CONVERTER.refusals(spec)] == texts
