"""Makes docs/reference from the code: a page for every kind, the settings, the command line.

`python -m docs.generate` writes the pages and removes those of kinds that are gone; with `--check` it only
names the pages that differ and ends with 1. The same code always gives the same bytes.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from docs.writing import commands, kinds, settings
from koguma.kinds import KINDS
from koguma.model.kind import Kinds
from koguma.policies import POLICIES

FOLDER: Final = Path(__file__).with_name("reference")


def pages() -> dict[str, str]:
    """All pages, text by path below docs/reference."""
    known = Kinds((*KINDS, *POLICIES))
    made = {f"kinds/{kind.name}.md": kinds.page(kind) for kind in known}
    made |= {"README.md": kinds.index(known), "settings.md": settings.page(), "cli.md": commands.page()}
    return {path: made[path] for path in sorted(made)}


def differences(folder: Path = FOLDER) -> list[str]:
    """The pages that are missing, differ from what the code says, or belong to nothing any more."""
    return _differing(folder, pages())


def _differing(folder: Path, wanted: Mapping[str, str]) -> list[str]:
    found = {
        file.relative_to(folder).as_posix(): file.read_text(encoding="utf-8") for file in folder.rglob("*.md")
    }
    return sorted(path for path in wanted.keys() | found.keys() if wanted.get(path) != found.get(path))


def write(folder: Path = FOLDER) -> list[str]:
    """Write the pages that differ, remove those that belong to nothing; answers their paths."""
    wanted = pages()
    changed = _differing(folder, wanted)
    for path in changed:
        file = folder / path
        if path in wanted:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(wanted[path], encoding="utf-8")
        else:
            file.unlink()
    return changed


def main(arguments: Sequence[str]) -> int:
    """The command."""
    if list(arguments) not in ([], ["--check"]):
        print("usage: python -m docs.generate [--check]", file=sys.stderr)
        return 2
    if arguments:
        found = differences()
        for path in found:
            print(f"docs/reference/{path} differs from what the code says; run `make docs`")
        return 1 if found else 0
    for path in write():
        print(f"docs/reference/{path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
