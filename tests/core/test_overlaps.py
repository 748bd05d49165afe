"""Policies of two kinds that set one field: who is told, who is not, and that built-in ones never do."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from building import KINDS, database, objects, stored
from test_build_all_policies import MESH, POLICIES, examples
from test_build_failures import MESH as SMALL_MESH
from test_build_failures import TOY, kinds_with

from koguma.core import problems
from koguma.model.kind import Kinds
from koguma.model.phase import Phase


def in_phase(kinds: Iterable[Any], names: Iterable[str], phase: Phase) -> Kinds:
    """The same kinds, some of them in another phase."""
    chosen = set(names)

    def moved(kind: Any) -> Any:
        policy = msgspec.structs.replace(kind.policy, phase=phase)
        return msgspec.structs.replace(kind, policy=policy)

    return Kinds(moved(kind) if kind.name in chosen else kind for kind in kinds)


def overlaps(kinds: Kinds) -> list[str]:
    """The fields that are set twice in the small mesh, and where."""
    db = database([*objects(SMALL_MESH), stored(TOY, kinds)], kinds=kinds)
    found = [each.text for each in problems.of_mesh(db, "default") if each.code == "KG017"]
    return [text.partition(" set Envoy's ")[2].partition(",")[0] for text in found]


CONNECT = {"cluster": {"connect_timeout": "9s", "lb_policy": "RANDOM"}}


@pytest.mark.parametrize(
    ("hooks", "expected"),
    [
        (
            {"outbound": lambda *_: CONNECT},
            (
                'cluster.connect_timeout differently for calls to MeshService "a" (mesh default zone east)'
                ' and 1 more: "9s" holds and "3s" does not'
            ),
        ),
        (
            {"inbound": lambda *_: CONNECT},
            (
                'cluster.connect_timeout differently for calls that arrive at Dataplane "web" (mesh default'
                ' zone east): "9s" holds and "2s" does not'
            ),
        ),
        ({"outbound": lambda *_: {"cluster": {"connect_timeout": "3s"}}}, None),  # the same value
        ({"outbound": lambda *_: {"hcm": {"server_name": "toy"}}}, None),  # another field
        ({"outbound": lambda *_: 1 / 0}, None),  # the build shows that
        ({"outbound": lambda *_: {"problems": {"spec": "no"}}}, None),
    ],
)
def test_a_field_that_two_kinds_set_differently_is_reported_with_both_values(
    hooks: Any, expected: str | None
):
    assert overlaps(kinds_with(**hooks)) == ([expected] if expected else [])


def test_a_kind_of_the_phase_overrides_is_not_reported():
    kinds = kinds_with(outbound=lambda *_: CONNECT)
    assert overlaps(in_phase(kinds, ["MeshToy"], Phase.OVERRIDES)) == []


def test_no_two_built_in_policies_set_the_same_field():
    """As if each were of another package, so that all of them are compared."""
    kinds = in_phase(KINDS, POLICIES, Phase.EXTENSIONS)
    there = [each for kind in POLICIES for each in examples(kind)]
    db = database([*objects(MESH), *there], kinds=kinds)
    assert {each.kind for each in there} == set(POLICIES)
    assert [each.text for each in problems.of_mesh(db, "default") if each.code == "KG017"] == []
