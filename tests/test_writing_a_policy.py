"""The guide to writing a policy: its code works as it stands there, and its lists say what the code says."""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from koguma.model.overlay import PolicyHooks
from koguma.model.phase import Phase

PAGE = Path(__file__).parent.parent / "docs" / "writing-a-policy.md"
TEXT = PAGE.read_text()
*POLICY, TESTS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


@pytest.fixture
def tests(monkeypatch) -> Iterator[ModuleType]:
    """The module of tests on the page, beside that of the policy."""
    for name, text in (("mesh_badge", "\n\n".join(POLICY)), ("test_mesh_badge", TESTS)):
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(text, name, "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("name", re.findall(r"^def (test_\w+)", TESTS, re.MULTILINE))
def test_the_tests_of_the_page_pass(tests: ModuleType, name: str):
    getattr(tests, name)()


def test_the_package_leads_to_the_record(tests: ModuleType):
    (project,) = re.findall(r"^```toml\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    (entry,) = tomllib.loads(project)["project"]["entry-points"]["koguma.policies"].values()
    module, _, name = entry.partition(":")
    assert getattr(sys.modules[module], name) is tests.KIND


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_every_hook_and_phase_that_a_package_may_use_is_on_the_page():
    rows = re.findall(r"^\| `(\w+)", section("Hooks"), re.MULTILINE)
    assert sorted(rows) == sorted(field.name for field in msgspec.structs.fields(PolicyHooks))
    rows = re.findall(r"^\| `(\w+)", section("Phases"), re.MULTILINE)
    assert rows == [phase.name for phase in Phase if phase >= Phase.EXTENSIONS]


def test_every_part_of_an_overlay_is_on_the_page():
    module = sys.modules[PolicyHooks.__module__].__doc__ or ""
    described = re.findall(r"^    (\w+)  ", module, re.MULTILINE)
    rows = re.findall(r"^\| (`[^|]*`) \|", section("Parts of an overlay"), re.MULTILINE)
    assert sorted(name for row in rows for name in re.findall(r"`(\w+)`", row)) == sorted(described)
