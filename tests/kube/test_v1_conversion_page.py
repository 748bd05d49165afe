"""The page about the clean shape says what the code says, and its examples are true."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from koguma.kube import v1_conversion
from koguma.model import documents
from koguma.model.kind import Deprecation
from tests.kube.valid_specs import KINDS, is_valid

BY_NAME = {kind.name: kind for kind in KINDS}
PAGE = Path(__file__).parents[2] / "docs" / "clean-shape.md"


def rows() -> Iterator[str]:
    """The table of the page."""
    yield "| Kind | v1 does not have | Instead |"
    yield "|---|---|---|"
    yield from (_row("every policy", each, each.instead) for each in v1_conversion.POLICY_LACKS)
    for kind in KINDS:
        yield from (_row(f"`{kind.name}`", each, each.instead) for each in kind.v1.lacks)
    yield ""
    yield "| Kind | v1 still has | Newer | It stays, since |"
    yield "|---|---|---|---|"
    yield from (_row("every policy", each, each.instead, each.kept) for each in v1_conversion.POLICY_KEEPS)
    for kind in KINDS:
        yield from (_row(f"`{kind.name}`", each, each.instead, each.kept) for each in kind.v1.keeps)


def _row(kind: str, older: Deprecation, *words: str) -> str:
    what = f"`{older.field}`" + (f" that is {older.value}" if older.value else "")
    return f"| {' | '.join((kind, what, *words))} |"


def test_the_page_has_the_tables_that_the_code_has():
    text = PAGE.read_text()
    before, _, rest = text.partition("<!-- tables -->\n")
    _, _, after = rest.partition("<!-- end of tables -->")
    wanted = f"{before}<!-- tables -->\n" + "\n".join(rows()) + f"\n<!-- end of tables -->{after}"
    if os.environ.get("KOGUMA_GOLDEN") == "rewrite":
        PAGE.write_text(wanted)
    assert text == wanted


def pairs() -> list[tuple[Any, Any]]:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    found = [document.value for block in blocks for document in documents.load(block)]
    return list(zip(found[::2], found[1::2], strict=True))


def test_the_examples_of_the_page_are_true():
    assert len(pairs()) >= 4
    for old, new in pairs():
        assert (old["apiVersion"], new["apiVersion"]) == ("kuma.io/v1alpha1", v1_conversion.VERSION)
        kind = BY_NAME[old["kind"]]
        assert is_valid(kind, old["spec"])
        assert v1_conversion.converter(kind).from_storage(old["spec"]) == new["spec"] != old["spec"]
        assert list(v1_conversion.refusals(kind, new["spec"])) == []
