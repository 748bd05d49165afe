"""The data directory: where it is, and the local admin's socket in it.

Light to import: every command of the CLI looks here, and a control plane too.
"""

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

VARIABLE: Final = "KOGUMA_DATA_DIR"
# Every request that comes over this socket is the administrator's: only its owner can open it.
ADMIN_SOCKET: Final = "api.sock"

_ADDRESS_BYTES_MAX: Final = 100  # the kernel takes 107, macOS 103


def default(environment: Mapping[str, str]) -> Path:
    """The data directory of a control plane that is told nothing."""
    base = environment.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "koguma"


@contextlib.contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """A path as an address for `bind` and `connect`, which take about a hundred bytes at most.

    A longer path is shortened by way of the open directory, where the system offers that (Linux).
    """
    if len(os.fsencode(path)) <= _ADDRESS_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def connected(path: Path, timeout_seconds: float) -> socket.socket:
    """A connection to the socket; OSError where nobody listens."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout_seconds)
        with socket_address(path) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection
