"""Keys that encrypt Secrets, from a file or from a command that prints the same content.

One key per line, 32 bytes in base64, as `openssl rand -base64 32` prints; empty lines and lines that begin
with `#` are ignored. The first key seals, all of them open. The id of a key is its digest, so that a row can
name its key and nobody has to number them.
"""

import base64
import binascii
import hashlib
import os
import secrets
import shlex
import stat
import subprocess
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import structlog

from koguma.store.contract import StoreUnusable

_KEY_BYTES: Final = 32
_ID_BYTES: Final = 8
_COMMAND_SECONDS: Final = 30
_FOREIGN_BITS: Final = stat.S_IRWXG | stat.S_IRWXO

_log = structlog.get_logger("koguma.store")


class StoreKey(NamedTuple):
    """A key and its id. Its repr hides the key."""

    id: str
    secret: bytes

    def __repr__(self) -> str:
        return f"StoreKey({self.id})"


class KeySource(Protocol):
    """Where keys come from; `str` of it is used in messages."""

    def keys(self, *, may_make: bool) -> tuple[StoreKey, ...]:
        """The keys, the first of which seals; none if there is no source. StoreUnusable if invalid."""

    def has_changed(self) -> bool:
        """Whether the keys may have changed since they were read."""


class KeyFile:
    """A file that only its owner should read. `is_default`: nobody configured it, so it may be created."""

    def __init__(self, path: str | Path, *, is_default: bool = False) -> None:
        self.path = Path(path)
        self._is_default = is_default
        self._read_version: tuple[int, int] | None = None

    def __str__(self) -> str:
        return f"the key file {self.path}"

    def keys(self, *, may_make: bool) -> tuple[StoreKey, ...]:
        """The keys in the file; a missing default file may be created with a new key."""
        if self._is_default and may_make and not self.path.exists():
            _write_new(self.path)
        try:
            with self.path.open("rb") as file:
                stats = os.fstat(file.fileno())
                content = file.read()
        except FileNotFoundError:
            if self._is_default:
                return ()
            raise StoreUnusable(
                f"{self} is not there; put it back, or write one with: openssl rand -base64 32"
            ) from None
        except OSError as error:
            raise StoreUnusable(f"{self} cannot be read: {error.strerror}") from error
        self._read_version = (stats.st_mtime_ns, stats.st_ino)
        if stats.st_mode & _FOREIGN_BITS:
            mode = stat.S_IMODE(stats.st_mode)
            _log.warning(
                "key file is open to others", file=str(self.path), mode=f"{mode:04o}", hint="chmod 600"
            )
        return _parsed(content, str(self))

    def has_changed(self) -> bool:
        """Whether the file has changed since it was read."""
        try:
            stats = self.path.stat()
        except OSError:
            return False
        return (stats.st_mtime_ns, stats.st_ino) != self._read_version


class KeyCommand:
    """A command that prints the keys, for example by asking a key management service."""

    def __init__(self, command: str) -> None:
        self._command = shlex.split(command)

    def __str__(self) -> str:
        return f"the key command {self._command[0] if self._command else ''}"  # arguments may be secret

    def keys(self, *, may_make: bool) -> tuple[StoreKey, ...]:  # noqa: ARG002 - a command creates its own keys
        """The keys that the command prints."""
        try:
            done = subprocess.run(  # noqa: S603 - the operator's own command
                self._command, capture_output=True, timeout=_COMMAND_SECONDS, check=False
            )
        except (OSError, IndexError, subprocess.TimeoutExpired) as error:
            reason = getattr(error, "strerror", None) or f"no answer within {_COMMAND_SECONDS} seconds"
            raise StoreUnusable(f"{self} cannot be run: {reason}") from None
        if done.returncode:
            last_line = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise StoreUnusable(f"{self} failed with code {done.returncode}: {''.join(last_line)[:200]}")
        return _parsed(done.stdout, str(self))

    def has_changed(self) -> bool:
        """Never: the command runs only at the start."""
        return False


def _parsed(content: bytes, source: str) -> tuple[StoreKey, ...]:
    keys = []
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith(b"#"):
            continue
        try:
            secret = base64.b64decode(line.strip(), validate=True)
        except binascii.Error:
            secret = b""
        if len(secret) != _KEY_BYTES:
            raise StoreUnusable(
                f"{source}: line {number} is no key; a key is {_KEY_BYTES} bytes in base64, as"
                f" printed by: openssl rand -base64 {_KEY_BYTES}"
            )
        keys.append(
            StoreKey(hashlib.sha256(b"koguma store key\0" + secret).hexdigest()[: 2 * _ID_BYTES], secret)
        )
    if not keys:
        raise StoreUnusable(f"{source} has no key; write one with: openssl rand -base64 {_KEY_BYTES}")
    return tuple(keys)


def _write_new(path: Path) -> None:
    """Write a new key atomically: the file exists completely or not at all."""
    key = base64.b64encode(os.urandom(_KEY_BYTES)) + b"\n"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            return  # another process was faster; its key is used
    except OSError as error:
        raise StoreUnusable(f"the key file {path} cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    _log.info("key for Secrets made", file=str(path))
