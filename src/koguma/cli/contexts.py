"""Contexts: named control planes with credentials, in one private file.

`$XDG_CONFIG_HOME/koguma/config.yaml`, or `~/.config/koguma/config.yaml`. It may hold tokens, so it is written
with mode 0600, and atomically: first to a temporary file beside it, which then replaces it.
"""

import contextlib
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from koguma.cli import terminal
from koguma.cli.failures import CommandFailure, ExitCode
from koguma.model.redacted import Redacted

_KEYS: Final = {
    "address": "address",
    "token": "token",
    "tokenFile": "token_file",
    "caFile": "ca_file",
    "dataDir": "data_dir",
}
_FOREIGN_BITS: Final = stat.S_IRWXG | stat.S_IRWXO
MASK: Final = "*****"


class CliContext(NamedTuple):
    """One control plane, and the credentials for it."""

    name: str
    address: str
    token: Redacted | None = None
    token_file: str = ""
    ca_file: str = ""
    data_dir: str = ""  # of a control plane on this machine, whose owner needs no token

    def document(self, *, masked: bool = False) -> dict[str, str]:
        """The entry in the file."""
        token = "" if self.token is None else MASK if masked else self.token.reveal()
        values = {**self._asdict(), "token": token}
        return {"name": self.name} | {key: values[name] for key, name in _KEYS.items() if values[name]}


class Config(NamedTuple):
    """The content of the file."""

    current: str = ""
    contexts: tuple[CliContext, ...] = ()

    def named(self, name: str) -> CliContext:
        """The context of that name; a failure lists those that exist."""
        for context in self.contexts:
            if context.name == name:
                return context
        known = ", ".join(context.name for context in self.contexts) or "none yet"
        raise CommandFailure(
            f'there is no context "{name}" (known: {known}); `koguma config add` makes one',
            code=ExitCode.USAGE,
        )

    def with_context(self, context: CliContext) -> "Config":
        """The same with a context added or replaced; the first one becomes the current one."""
        others = tuple(other for other in self.contexts if other.name != context.name)
        return Config(self.current or context.name, (*others, context))

    def without(self, name: str) -> "Config":
        """The same without a context."""
        others = tuple(other for other in self.contexts if other is not self.named(name))
        return Config("" if self.current == name else self.current, others)

    def document(self, *, masked: bool = False) -> dict[str, Any]:
        """The file as YAML data."""
        return {
            "currentContext": self.current,
            "contexts": [context.document(masked=masked) for context in self.contexts],
        }


def path(environment: Mapping[str, str]) -> Path:
    """The path of the file."""
    base = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "koguma" / "config.yaml"


def load(file: Path) -> Config:
    """The content of the file; empty where it does not exist."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Config()
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(file, f"cannot be read: {error}") from None
    config = _config(file, _parsed(file, text))
    if any(context.token for context in config.contexts) and file.stat().st_mode & _FOREIGN_BITS:
        terminal.print_stderr(f"warning: {file} holds a token and others can read it; run `chmod 600 {file}`")
    return config


def save(file: Path, config: Config) -> None:
    """Write the file, readable by its owner alone."""
    import yaml  # noqa: PLC0415 - commands without contexts do not need it

    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        with os.fdopen(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as stream:
            yaml.safe_dump(config.document(), stream, sort_keys=False)
        temporary.replace(file)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def _parsed(file: Path, text: str) -> Any:
    import yaml  # noqa: PLC0415 - commands without contexts do not need it

    try:
        return yaml.load(text, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
        raise CommandFailure(f"{place}: {error.problem}", code=ExitCode.USAGE) from None
    except yaml.YAMLError as error:
        raise _unusable(file, str(error)) from None


def _config(file: Path, value: Any) -> Config:
    if value is None:
        return Config()
    entries = value.get("contexts") if isinstance(value, dict) else None
    if not isinstance(entries or [], list) or not isinstance(value, dict):
        raise _unusable(file, "must be a mapping with `currentContext` and a list `contexts`")
    current = value.get("currentContext") or ""
    return Config(
        str(current), tuple(_context(file, index, entry) for index, entry in enumerate(entries or ()))
    )


def _context(file: Path, index: int, entry: Any) -> CliContext:
    place = f"contexts[{index}]"
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise _unusable(file, f"{place} must be a mapping of texts")
    unknown = sorted(set(entry) - {"name", *_KEYS})
    if unknown:
        raise _unusable(file, f'{place}: unknown field "{unknown[0]}"; known are name, {", ".join(_KEYS)}')
    if not entry.get("name") or not entry.get("address"):
        raise _unusable(file, f"{place} needs a name and an address")
    token = Redacted(entry["token"]) if entry.get("token") else None
    texts = (entry.get(key, "") for key in ("tokenFile", "caFile", "dataDir"))
    return CliContext(entry["name"], entry["address"], token, *texts)


def _unusable(file: Path, why: str) -> CommandFailure:
    return CommandFailure(f"{file}: {why}", code=ExitCode.USAGE)
