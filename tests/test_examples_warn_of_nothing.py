"""Nothing that we ship or show warns when it is applied, unless it is there to show the warning.

Looked at: the policies that come with a mesh, the example mesh, the example of a policy in a package of its
own, and every YAML of the documentation; tests/test_tidy.py looks at the examples on the pages of all kinds.
"""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from koguma.cli import lint, main, offline
from koguma.cli.kind_lookup import local_kinds
from koguma.core import admission, defaults
from koguma.model import documents, forms
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.errors import KogumaError
from koguma.model.kind import Kinds

ROOT = Path(__file__).parent.parent
KINDS = local_kinds()
# These pages show what is wrong, what is old, or parts of objects.
ABOUT_WARNINGS = ("lint.md", "decisions")
GUIDES = tuple(
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if not set(ABOUT_WARNINGS) & set(path.parts)
)


def warnings(value, kinds: Kinds = KINDS) -> tuple[str, ...]:
    return admission.admitted(forms.read(value, kinds), None, ControlPlaneInfo(zone="default")).warnings


@pytest.mark.parametrize(
    "policy", list(defaults.mesh_policies(KINDS, "shop", {})), ids=lambda policy: policy["name"]
)
def test_a_policy_that_comes_with_a_mesh_warns_of_nothing(policy):
    assert warnings(dict(policy)) == ()


def test_what_comes_with_a_mesh_is_not_linted_until_somebody_changes_it():
    values = [
        {**policy, "kri": f"kri_mt_shop___{policy['name']}_"}
        for policy in defaults.mesh_policies(KINDS, "shop", {})
    ]
    timeouts = [value for value in values if value["type"] == "MeshTimeout"]
    assert lint.findings(offline.load_stored(timeouts, ControlPlaneInfo(zone="default"))) == []
    spec = timeouts[0]["spec"]
    changed = {**timeouts[0], "spec": {**spec, "to": []}}
    found = lint.findings(offline.load_stored([changed], ControlPlaneInfo(zone="default")))
    assert [(one.code, one.field) for one in found] == [("KG007", "spec.from")]


def test_the_example_mesh_is_linted_without_a_finding(capsys):
    files = (ROOT / "examples" / "shop", ROOT / "examples" / "dataplanes.yaml")
    code = main(["lint", *(word for file in files for word in ("-f", str(file)))])
    assert (code, capsys.readouterr().out) == (0, "")


def test_the_example_of_zones_is_linted_without_a_finding(capsys):
    code = main(["lint", "-f", str(ROOT / "examples" / "zones")])
    assert (code, capsys.readouterr().out) == (0, "")


def test_the_example_of_a_policy_in_a_package_warns_of_nothing():
    file = ROOT / "examples" / "third_party_policy" / "mesh_note.py"
    spec = importlib.util.spec_from_file_location("mesh_note_example", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kinds = Kinds((*KINDS, module.KIND))
    (example,) = blocks(module.KIND.doc)
    (document,) = documents.load(example)
    assert warnings(document.value, kinds) == ()


def blocks(text: str) -> list[str]:
    return re.findall(r"^```ya?ml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def shown(page: Path) -> Iterator[tuple[str, object]]:
    """The objects in the YAML of a page; parts of objects and what is refused on purpose are left out."""
    for block in blocks(page.read_text()):
        try:
            read = documents.load(block)
        except KogumaError:
            continue
        for document in read:
            try:
                yield str(document.value)[:80], warnings(document.value)
            except KogumaError:
                continue


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_yaml_of_the_documentation_warns_of_nothing(page: Path):
    assert [(text, warned) for text, warned in shown(page) if warned] == []
