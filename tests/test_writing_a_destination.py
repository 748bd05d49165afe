"""The guide to writing a destination: its code works as it stands there, and its lists are complete."""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from koguma.model.destination import DestinationParts, DestinationPlugin, DestinationPort

PAGE = Path(__file__).parent.parent / "docs" / "writing-a-destination.md"
TEXT = PAGE.read_text()
*PLUGIN, TESTS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


@pytest.fixture
def tests(monkeypatch) -> Iterator[ModuleType]:
    """The module of tests on the page, beside that of the plugin."""
    for name, text in (("partner_api", "\n\n".join(PLUGIN)), ("test_partner_api", TESTS)):
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(text, name, "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("name", re.findall(r"^def (test_\w+)", TESTS, re.MULTILINE))
def test_the_tests_of_the_page_pass(tests: ModuleType, name: str):
    getattr(tests, name)()


def test_the_package_leads_to_the_record(tests: ModuleType):
    (project,) = re.findall(r"^```toml\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    (entry,) = tomllib.loads(project)["project"]["entry-points"]["koguma.destinations"].values()
    module, _, name = entry.partition(":")
    assert getattr(sys.modules[module], name) is tests.PLUGIN


@pytest.mark.parametrize(
    ("title", "record"),
    [
        ("Fields of the record", DestinationPlugin),
        ("What build is told", DestinationPort),
        ("What build returns", DestinationParts),
    ],
)
def test_every_field_is_on_the_page(title: str, record: type[msgspec.Struct]):
    section = TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)", section, re.MULTILINE)
    assert sorted(rows) == sorted(field.name for field in msgspec.structs.fields(record))
