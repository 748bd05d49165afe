"""Entry points: what installed packages offer, loaded so that a mistake of one stays its own."""

from collections.abc import Callable, Collection
from importlib import metadata
from typing import Any, Final

POLICIES: Final = "koguma.policies"
DESTINATIONS: Final = "koguma.destinations"

Warn = Callable[[str], None]


def place(entry: metadata.EntryPoint) -> str:
    """The package and entry point, for people."""
    package = f"package {entry.dist.name}" if entry.dist else "package without a name"
    return f'{package}, entry point "{entry.name}" ({entry.value})'


def offered(entry: metadata.EntryPoint, record: type, warn: Warn) -> Collection[Any]:
    """What an entry point leads to: one record, or several; nothing where it cannot be loaded."""
    try:
        loaded = entry.load()
        return (loaded,) if isinstance(loaded, record) else tuple(loaded)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, it is that package's alone
        warn(f"{place(entry)}: cannot be loaded: {described(error)}")
        return ()


def described(error: BaseException) -> str:
    """An exception of a plugin, in one line that is not too long."""
    return f"{type(error).__name__}: {error}"[:500]
