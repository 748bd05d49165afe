"""The lock files: packages with their versions and the hashes of their files."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
RUNTIME: Final = ROOT / "requirements" / "runtime.lock"
DEV: Final = ROOT / "requirements" / "dev.lock"

_PIN: Final = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)(?:\s*;\s*([^\\]+?))?\s*\\?$")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class Pin(NamedTuple):
    """A pinned package; `marker` is its environment marker (PEP 508), empty where it is always installed."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]  # SHA-256 of each file that the index has for it


class UnreadableLock(Exception):
    """A line of a lock file cannot be parsed."""


def pins(file: Path) -> tuple[Pin, ...]:
    """All pins of a lock."""
    return tuple(_pins(file))


def _pins(file: Path) -> Iterator[Pin]:
    head: tuple[str, str, str] | None = None
    hashes: list[str] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        digest = _HASH.search(text)
        if digest and text.startswith("--hash"):
            hashes.append(digest[1])
            continue
        pin = _PIN.fullmatch(text)
        if pin is None:
            raise UnreadableLock(f"{file}: cannot read {text!r}; make it again with `make lock`")
        if head:
            yield Pin(*head, tuple(hashes))
        head, hashes = (pin[1].lower(), pin[2], pin[3] or ""), []
    if head:
        yield Pin(*head, tuple(hashes))
