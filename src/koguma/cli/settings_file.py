"""Settings file: changes keys of a control plane's settings file, and leaves all else as it is written."""

import re
from collections.abc import Mapping
from pathlib import Path

from koguma.cli.failures import CommandFailure
from koguma.model import documents
from koguma.model.documents import BadDocument


def change(path: str, values: Mapping[str, str | None]) -> None:
    """Set keys at the top of a YAML file, or remove them (None); comments and order stay."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8") if file.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailure(f"{path} cannot be read: {getattr(error, 'strerror', '') or error}") from None
    changed = changed_text(text, values)
    try:
        loaded = documents.load(changed.encode())
    except BadDocument as error:
        raise CommandFailure(f"{path} cannot be changed: {error}; change it by hand") from None
    read = loaded[0].value if loaded else {}
    if not isinstance(read, dict) or any(read.get(key) != value for key, value in values.items()):
        raise CommandFailure(f"{path} is written in another way than a key a line; change it by hand")
    try:
        file.write_text(changed, encoding="utf-8")
    except OSError as error:
        raise CommandFailure(f"{path} cannot be written: {error.strerror or error}") from None


def changed_text(text: str, values: Mapping[str, str | None]) -> str:
    """The text of a settings file with other values."""
    lines = text.splitlines()
    for key, value in values.items():
        at = next((number for number, line in enumerate(lines) if re.match(rf"{key}\s*:", line)), None)
        new = [] if value is None else [f"{key}: {_quoted(value)}"]
        if at is None:
            lines += new
        else:
            lines[at : at + 1] = new
    return "\n".join(lines) + "\n" if lines else ""


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
