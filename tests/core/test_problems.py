"""What is odd in a mesh: each file in `problems` is a case, resources above the dashes, problems below."""

import os
import re
import runpy
from pathlib import Path

import msgspec
import pytest

from koguma.core import admission, pipeline, problems
from koguma.core.incremental import Db
from koguma.core.lint.problem import Problem
from koguma.kinds import KINDS
from koguma.model import documents, forms, labels
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kinds, Policy
from koguma.model.resource import Resource
from koguma.policies import POLICIES

EXAMPLE = Path(__file__).parents[2] / "examples" / "third_party_policy" / "mesh_note.py"
MESH_NOTE = runpy.run_path(str(EXAMPLE))["KIND"]  # of another package, as an installed one would be
# A policy of a package that has no hooks yet, which the manual's example is about.
MESH_IDEA = msgspec.structs.replace(
    MESH_NOTE, name="MeshIdea", plural="meshideas", short="midea", policy=Policy(has_to=True)
)
ALL_KINDS = Kinds((*KINDS, *POLICIES, MESH_NOTE, MESH_IDEA))
CASES = sorted((Path(__file__).parent / "cases" / "problems").glob("*.yaml"))
DASHES = "-" * 40 + "\n"
MESH = "default"
TIED = """
type: MeshTimeout
name: a
mesh: default
spec: {to: [{targetRef: {kind: Mesh}, default: {idleTimeout: 1s}}]}
---
type: MeshTimeout
name: b
mesh: default
spec: {to: [{targetRef: {kind: Mesh}, default: {idleTimeout: 2s}}]}
"""


def resources(text: str) -> list[Resource]:
    """The objects of a YAML stream, as a control plane would store them."""
    drafts = [forms.read(document.value, ALL_KINDS) for document in documents.load(text)]
    return [admission.admitted(draft, None, ControlPlaneInfo()).resource for draft in drafts]


def database(text: str) -> Db:
    return pipeline.load(ALL_KINDS, ControlPlaneInfo(), resources(text))


def as_line(problem: Problem) -> str:
    about = " and ".join(f"{key.kind}/{key.name}" for key in problem.objects)
    return f"{problem.code} {problem.severity} of {about}, {problem.path or '-'}\n  {problem.message}\n"


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_the_mesh_has_exactly_these_problems(case: Path):
    above, dashes, below = case.read_text().partition(DASHES)
    assert dashes, "resources, a line of 40 dashes, problems"
    found = "".join(as_line(problem) for problem in problems.of_mesh(database(above), MESH)) or "nothing\n"
    if os.environ.get("KOGUMA_GOLDEN") == "rewrite" and found != below:
        case.write_text(above + DASHES + found)
    else:
        assert found == below


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_each_problem_is_reported_for_every_policy_that_it_is_about(case: Path):
    db = database(case.read_text().partition(DASHES)[0])
    for problem in problems.of_mesh(db, MESH):
        for key in problem.objects:
            if ALL_KINDS[key.kind].policy is not None:
                assert problem in problems.of_policy(db, key)


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_the_order_of_arrival_does_not_matter(case: Path):
    there = resources(case.read_text().partition(DASHES)[0])
    db = pipeline.load(ALL_KINDS, ControlPlaneInfo(), ())
    for resource in reversed(there):
        pipeline.take(db, [resource])
        problems.of_mesh(db, MESH)
    assert problems.of_mesh(db, MESH) == problems.of_mesh(
        pipeline.load(ALL_KINDS, ControlPlaneInfo(), there), MESH
    )


def test_every_code_is_shown_by_a_case():
    shown = {line[:5] for case in CASES for line in case.read_text().partition(DASHES)[2].splitlines()}
    assert set(problems.CODES) - shown == {"KG000"}  # that is what admission refuses


def sections() -> dict[str, str]:
    """The sections of the page about codes."""
    page = (Path(__file__).parents[2] / "docs" / "lint.md").read_text()
    found = re.split(r"^## (KG\d+)\n", page, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def test_the_manual_has_a_section_for_every_code_and_no_other():
    assert list(sections()) == list(problems.CODES)
    for code, title in problems.CODES.items():
        assert sections()[code].lower().startswith(f"\n**{title.lower()}.**")


@pytest.mark.parametrize("code", [code for code in problems.CODES if code != problems.INVALID])
def test_the_manuals_example_has_the_problem_and_no_other(code: str):
    example = re.search(r"^```yaml\n(.*?)^```$", sections()[code], re.DOTALL | re.MULTILINE)
    assert example
    assert {problem.code for problem in problems.of_mesh(database(example[1]), MESH)} - {code} == set()
    assert problems.of_mesh(database(example[1]), MESH)


def test_what_is_compared_between_policies_is_kept_and_follows_every_change():
    there = resources(TIED)
    db = pipeline.load(ALL_KINDS, ControlPlaneInfo(), there[:1])
    problems.keep(db, [there[0].key])
    assert problems.of_policy(db, there[0].key) == ()
    for present in (there, there[:1], there):
        pipeline.take(db, present, {one.key for one in there} - {one.key for one in present})
        db.changed()
        fresh = pipeline.load(ALL_KINDS, ControlPlaneInfo(), present)
        for one in present:
            assert problems.of_policy(db, one.key) == problems.of_policy(fresh, one.key)
    assert [problem.code for problem in problems.of_policy(db, there[0].key)] == ["KG010"]


def test_asking_leaves_nothing_behind_that_loops_over_all_policies_at_the_next_change():
    there = resources(TIED)
    db = pipeline.load(ALL_KINDS, ControlPlaneInfo(), there)
    for one in there:
        problems.of_policy(db, one.key)
    db.reset_counts()
    pipeline.take(db, resources(TIED.replace("2s", "3s")))
    db.changed()
    assert db.runs["contenders.in_shard"] == db.runs["contenders._strongest"] == 0
    assert db.runs["contenders.of_entry"] <= 1


def test_a_policy_that_fails_is_a_problem_of_its_objects_and_hides_no_other():
    def warn(_spec, _about):
        raise ZeroDivisionError("oh")

    broken = msgspec.structs.replace(ALL_KINDS["MeshTimeout"], warn=warn)
    kinds = Kinds(broken if kind.name == broken.name else kind for kind in ALL_KINDS)
    found = problems.of_mesh(pipeline.load(kinds, ControlPlaneInfo(), resources(TIED)), MESH)
    assert [problem.code for problem in found] == ["KG000", "KG000", "KG010"]
    assert "oh" in found[0].message


EXAMPLES = [
    example
    for kind in ALL_KINDS
    for example in re.findall(r"^```yaml\n(.*?)^```$", kind.doc, re.DOTALL | re.MULTILINE)
]


def test_everything_that_manuals_show_can_be_asked_about_together():
    db = database("---\n".join(EXAMPLES))
    found = problems.of_mesh(db, MESH)
    assert {problem.code for problem in found} <= {
        "KG002",
        "KG005",
        "KG006",
        "KG007",
        "KG010",
        "KG012",
        "KG014",
        "KG015",
        "KG024",
        "KG028",
    }
    assert all(problem.message and problem.objects for problem in found)


def test_writing_a_policy_again_compares_it_with_its_rivals_and_no_others():
    apart = TIED.replace("kind: Mesh}", "kind: MeshService, name: web}").replace("name: ", "name: other-")
    db = database(f"{TIED}---{apart}")
    written = resources(TIED)[1].key
    assert not problems.are_kept(db, [written])
    problems.keep(db, [written])
    assert problems.are_kept(db, [written])
    db.reset_counts()
    pipeline.take(db, resources(TIED.replace("2s", "3s")))
    problems.keep(db, [written])
    assert [problem.code for problem in problems.of_policy(db, written)] == ["KG010"]
    assert db.runs["contenders.in_shard"] == 0
    assert db.runs["contenders.of_entry"] == 2


SAME_PLACE = """
type: Dataplane
name: one
mesh: default
networking: {address: 10.0.0.1, inbound: [{port: 80, tags: {kuma.io/service: one}}]}
---
type: Dataplane
name: two
mesh: default
networking: {address: 10.0.0.1, inbound: [{port: 80, tags: {kuma.io/service: two}}]}
"""


def codes(*there: Resource) -> list[str]:
    return [
        problem.code for problem in problems.of_proxies(pipeline.load(ALL_KINDS, ControlPlaneInfo(), there))
    ]


def test_each_zone_has_addresses_of_its_own():
    one, two = resources(SAME_PLACE)
    assert codes(one, two) == ["KG013"]
    assert codes(one, msgspec.structs.replace(two, zone="west")) == []


def test_a_proxy_that_is_not_ready_conflicts_with_none():
    one, two = resources(SAME_PLACE)
    marked = {**two.labels, labels.REGISTERED_BY: "proxy", labels.INSTANCE: "run-1"}
    waiting = msgspec.structs.replace(two, labels=marked)
    assert codes(one, waiting) == []
    assert codes(one, msgspec.structs.replace(waiting, annotations={labels.READY: "run-1"})) == ["KG013"]


def test_a_proxy_that_is_written_again_does_not_conflict_with_itself():
    one, two = resources(SAME_PLACE)
    db = pipeline.load(ALL_KINDS, ControlPlaneInfo(), [one])
    again = msgspec.structs.replace(one, labels={**one.labels, labels.INSTANCE: "run-2"})
    pipeline.take(db, [again])
    assert problems.of_proxies(db) == ()
    pipeline.take(db, [two])
    assert [problem.code for problem in problems.of_proxies(db)] == ["KG013"]
