"""The diff of two revisions, for `koguma diff REVISION REVISION`."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from koguma.cli import comparison, kind_lookup, objects, output, terminal
from koguma.cli.client import ApiClient
from koguma.cli.failures import ExitCode

_MOMENT: Final = re.compile(r"\d+|\d{4}-\d{2}-\d{2}T\S+|(\d+(\.\d+)?(ms|s|m|h))+")
_RANGE: Final = ".."


class RevisionRange(NamedTuple):
    """Two moments; without the second one, until now."""

    low: str
    high: str


def read(words: Sequence[str]) -> RevisionRange | None:
    """The range in `A B`, `A..B`, `A..` or `A`; None where the words mean something else."""
    moments = [part for word in words for part in (word.split(_RANGE, 1) if _RANGE in word else [word])]
    n_max = 2
    is_range = 0 < len(moments) <= n_max and all(_MOMENT.fullmatch(part) for part in moments if part)
    if not is_range or not moments[0] or any(Path(word).exists() for word in words):
        return None
    return RevisionRange(moments[0], moments[1] if len(moments) > 1 else "")


def show(client: ApiClient, moments: RevisionRange, output_format: str | None) -> ExitCode:
    """Print what differs; REFUSED where something does, as of files."""
    query = [("from", moments.low), *([("to", moments.high)] if moments.high else [])]
    answer = client.get("/_differences", query)
    items = answer.field("items")
    if output_format == "json":
        print(output.json_text(answer.object))
        return ExitCode.REFUSED if items else ExitCode.FINE
    kinds = kind_lookup.local_kinds()
    names = comparison.SideNames(*(f"revision {answer.field(side)}" for side in ("from", "to")))
    for item in items:
        title = objects.shown(item["type"], item["name"], item.get("mesh", ""))
        for line in comparison.lines(title, item["before"], item["after"], kinds.get(item["type"]), names):
            print(line)
    if not items:
        terminal.print_stderr("nothing differs")
    return ExitCode.REFUSED if items else ExitCode.FINE
