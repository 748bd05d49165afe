"""Another release of Koguma for tests: the same program with other numbers, in a directory of its own."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import koguma
from koguma.store import migrate

SOURCE = Path(koguma.__file__).parent


def other_release(directory: Path, version: str, *, store_format: int = 1, adds: str = "") -> dict[str, str]:
    """The environment in which `koguma` is a release of this version.

    It has a store format of its own number, or a migration more, which adds a table.
    """
    package = directory / "koguma"
    shutil.copytree(SOURCE, package)  # with what is compiled, which is still valid: times are copied too
    _replace(package / "__init__.py", {f'"{koguma.__version__}"': f'"{version}"'})
    if store_format != 1:
        numbers = {
            "FORMAT: Final = 1": f"FORMAT: Final = {store_format}",
            'SINCE: Final = "': f'SINCE: Final = "{version}" # "',
        }
        _replace(package / "store" / "store_format.py", numbers)
    for dialect in ("sqlite", "postgres") if adds else ():
        number = migrate.migrations(dialect)[-1].version + 1
        file = package / "store" / "migrations" / dialect / f"{number:04}_{adds}.sql"
        file.write_text(f"CREATE TABLE {adds} (id BIGINT PRIMARY KEY);\n")
    return {"PYTHONPATH": str(directory)}


def _replace(file: Path, words: Mapping[str, str]) -> None:
    text = file.read_text()
    for before, after in words.items():
        assert before in text, (file, before)
        text = text.replace(before, after)
    file.write_text(text)
