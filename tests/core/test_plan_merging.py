"""Plans of zones as one plan: groups, what has no effect, problems and risks."""

from typing import Any

import msgspec
import pytest

from koguma.core.lint.problem import NO_OBJECT, NO_PERMISSION, NOBODY_SELECTED
from koguma.core.plan import merging
from koguma.core.plan.model import (
    ObjectChange,
    Plan,
    PlannedObject,
    PlannedProblem,
    ProxyGroup,
    ResourceChange,
    Risk,
    UnknownZone,
    ValueChange,
)

KRI = "kri_mt_default___slow_"
VALUE = ValueChange(
    "calls", "kri_msvc_default_east__web_main", "MeshTimeout", "http.requestTimeout", "1s", "2s"
)


def plan(**fields: Any) -> Plan:
    empty: dict[str, Any] = dict.fromkeys(("groups", "objects", "risks", "new_problems", "gone_problems"), ())
    return Plan(**{"total": 0, "changed": 0, **empty, **fields})


def group(*names: str, action: str = "changed", **fields: Any) -> ProxyGroup:
    return ProxyGroup(action, len(names), tuple(PlannedObject("Dataplane", name) for name in names), **fields)


def policy(proxies: int | None = 0, why: str = "", kri: str = KRI, **fields: Any) -> ObjectChange:
    return ObjectChange("MeshTimeout", "slow", "configured", kri=kri, proxies=proxies, why=why, **fields)


def proxies(found: ProxyGroup) -> list[tuple[str, str]]:
    return [(each.zone, each.name) for each in found.proxies]


def test_groups_of_several_zones_with_the_same_words_are_one() -> None:
    east = plan(total=3, changed=2, groups=(group("b", "a", values=(VALUE,), bytes_after=7),), bytes_after=9)
    west = plan(total=2, changed=1, groups=(group("c", values=(VALUE,), bytes_after=8),), bytes_after=8)
    found = merging.merged(plan(), {"east": east, "west": west}, [], unasked=5)
    (one,) = found.groups
    assert (one.total, proxies(one)) == (3, [("east", "a"), ("east", "b"), ("west", "c")])
    assert (found.total, found.changed, found.bytes_after) == (10, 3, 17)


def test_what_has_no_words_is_not_taken_for_the_same() -> None:
    changed = (ResourceChange("secret", "ca", "changed"),)
    plans = {zone: plan(groups=(group("a", resources=changed),)) for zone in ("east", "west")}
    assert [proxies(each) for each in merging.merged(plan(), plans, []).groups] == [
        [("east", "a")],
        [("west", "a")],
    ]
    # Two groups of one zone are told apart by something that is not shown.
    twice = {"east": plan(groups=(group("a", values=(VALUE,)), group("b", values=(VALUE,))))}
    assert len(merging.merged(plan(), twice, []).groups) == 2
    gone = {zone: plan(groups=(group(zone, action="removed"),)) for zone in ("east", "west")}
    assert [each.total for each in merging.merged(plan(), gone, []).groups] == [2]


def test_the_own_name_of_a_proxy_makes_no_difference() -> None:
    plans = {
        zone: plan(
            groups=(group(zone, values=(VALUE,), resources=(ResourceChange("l", f"in_{zone}", "x"),)),)
        )
        for zone in ("east", "west")
    }
    assert [each.total for each in merging.merged(plan(), plans, []).groups] == [2]


@pytest.mark.parametrize(
    ("east", "west", "unknown", "expected"),
    [
        (policy(2), policy(0, "it selects no proxy"), False, (2, "")),
        (policy(0, "same"), policy(0, "same"), False, (0, "same")),
        (policy(0, "one"), policy(0, "other"), False, (0, "in zone east: one; in zone west: other")),
        (policy(0, "one"), None, False, (0, "one")),
        (None, None, False, (0, "no zone gets it")),
        (policy(0, "one"), None, True, (None, "")),
        (policy(2), None, True, (2, "")),
        (policy(None), policy(None), False, (None, "")),
    ],
)
def test_an_object_has_no_effect_where_every_zone_says_so(
    east: ObjectChange | None,
    west: ObjectChange | None,
    unknown: bool,  # noqa: FBT001
    expected: tuple[int | None, str],
) -> None:
    plans = {
        zone: plan(objects=(each,) if each is not None else ())
        for zone, each in (("east", east), ("west", west))
    }
    away = [UnknownZone("south", 'zone "south" is offline')] if unknown else []
    own = policy(0, warnings=("of Global",))
    (found,) = merging.merged(plan(objects=(own,)), plans, away).objects
    assert (found.proxies, found.why, found.warnings) == (*expected, ("of Global",))


def test_what_a_zone_would_write_by_itself_has_its_zone() -> None:
    made = ObjectChange("MeshService", "web", "created", kri="kri_msvc_default_east__web_", is_generated=True)
    named = msgspec.structs.replace(made, kri="", is_generated=False)
    found = merging.merged(plan(objects=(policy(None),)), {"east": plan(objects=(made, named))}, [])
    assert found.objects[1:] == (msgspec.structs.replace(made, zone="east"),)


def test_problems_and_risks_of_one_zone_are_told_with_it() -> None:
    selects, lacks = (PlannedProblem(code, code.lower()) for code in (NOBODY_SELECTED, NO_OBJECT))
    denied = PlannedProblem(NO_PERMISSION, "denied")
    risks = tuple(Risk("r", f"{each.message} ({each.code})") for each in (lacks, denied))
    plans = {
        "east": plan(new_problems=(selects, lacks, denied), risks=risks),
        "west": plan(new_problems=(selects,), gone_problems=(lacks,)),
    }
    found = merging.merged(plan(), plans, [])
    # That it refers to nothing is of one zone alone, where the object has nothing to do.
    assert found.new_problems == tuple(sorted((selects, msgspec.structs.replace(denied, zone="east"))))
    assert (found.gone_problems, found.risks) == ((), (msgspec.structs.replace(risks[1], zone="east"),))
    own = plan(new_problems=(lacks, denied), risks=(risks[1],))
    found = merging.merged(own, plans, [])
    assert found.new_problems == tuple(sorted((selects, lacks, denied)))
    assert found.risks == (risks[1],)
