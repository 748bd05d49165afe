"""The diff of two bundles is the same whether they are built from parts or not."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from koguma.envoy.snapshot import Bundle, XdsResource, bundle
from koguma.xds.protocol.bundle_diff import BundleDiff

LEAVES = 8
FEW = 2
SOME = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from("12"), max_size=4)


def leaf(versions: dict[str, str]) -> Bundle:
    return bundle(XdsResource("routes", name, version, b"") for name, version in versions.items())


def joined(parts: list[Bundle]) -> Bundle:
    """As outbounds are: parts of the same name hide those before them."""
    return Bundle(
        {id_: resource for each in parts for id_, resource in each.resources.items()}, (), tuple(parts)
    )


def nested(leaves: list[Bundle], unlike: list[int]) -> Bundle:
    """Leaves put together by few; of some of these another object, though it has the same parts."""
    few = [joined(leaves[at : at + FEW]) for at in range(0, len(leaves), FEW)]
    for number in unlike:
        few[number] = joined(leaves[FEW * number : FEW * (number + 1)])
    return joined(few)


@st.composite
def pairs(draw) -> tuple[Bundle, Bundle]:
    """Two bundles that share most of their smallest parts."""
    before = [leaf(draw(SOME)) for _ in range(LEAVES)]
    after = list(before)
    for number in draw(st.sets(st.integers(0, LEAVES - 1), max_size=3)):
        after[number] = leaf(draw(SOME))
    if draw(st.booleans()):
        after = after[FEW:]
    return nested(before, []), nested(after, draw(st.lists(st.integers(0, LEAVES // FEW - 2), max_size=2)))


@pytest.mark.property
@given(pairs())
def test_the_diff_of_parts_equals_the_full_diff(pair: tuple[Bundle, Bundle]):
    before, after = pair
    plain = BundleDiff(Bundle(before.resources), Bundle(after.resources))
    step = BundleDiff(before, after)
    assert set(step.ids) == set(plain.ids)
    assert (step.resources, step.type) == (plain.resources, plain.type)
    assert (before == after) == (before.resources == after.resources)


def test_only_the_smallest_parts_that_differ_are_compared():
    leaves = [leaf({f"{number}": "1"}) for number in range(LEAVES)]
    changed = [*leaves[:3], leaf({"3": "2"}), *leaves[4:]]
    found = nested(changed, []).possible_differences(nested(leaves, []))
    assert found is not None
    assert set(found) == {("routes", "3")}
