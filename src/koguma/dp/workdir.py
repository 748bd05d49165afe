"""Workdir: the private directory in which a proxy keeps its bootstrap and its sockets.

The control plane knows the names of the sockets too: Envoy's configuration refers to them. The path of a unix
socket has at most 107 bytes on Linux, so the path of the directory must be short.
"""

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from koguma.envoy import access_logs, names
from koguma.envoy.bootstrap import ADMIN_SOCKET, TOKEN_FILE
from koguma.identity import files
from koguma.model.errors import KogumaError
from koguma.model.redacted import Redacted

READINESS_SOCKET: Final = "kuma-readiness-reporter.sock"
DYNAMIC_CONFIG_SOCKET: Final = "kuma-mesh-metric-config.sock"

_SOCKETS: Final = (ADMIN_SOCKET, READINESS_SOCKET, DYNAMIC_CONFIG_SOCKET, names.METRICS_SOCKET)
_FILES: Final = (TOKEN_FILE, access_logs.PIPE, names.METRICS_CERTIFICATE, names.METRICS_KEY)
_SOCKET_PATH_MAX: Final = 107  # sun_path, without its terminating zero
_NAME_MAX: Final = 24
_SUFFIX_LENGTH: Final = 8  # what tempfile adds
_FOREIGN_BITS: Final = stat.S_IRWXG | stat.S_IRWXO


class Workdir(msgspec.Struct, frozen=True):
    """The directory of one proxy; a temporary one is removed when the proxy stops."""

    path: Path
    is_temporary: bool = False
    warning: str = ""

    @property
    def bootstrap(self) -> Path:
        """The bootstrap file; an older control plane puts the token into it."""
        return self.path / "bootstrap.json"

    @property
    def token(self) -> Path:
        """The token file, which Envoy reads again whenever it is replaced."""
        return self.path / TOKEN_FILE

    @property
    def admin(self) -> Path:
        """The socket of Envoy's admin interface."""
        return self.path / ADMIN_SOCKET

    @property
    def readiness(self) -> Path:
        """The socket of the agent's readiness server."""
        return self.path / READINESS_SOCKET

    @property
    def dynamic_config(self) -> Path:
        """The socket of Envoy's dynamic configuration listener."""
        return self.path / DYNAMIC_CONFIG_SOCKET

    @property
    def access_log(self) -> Path:
        """The pipe to which Envoy writes access logs for TCP collectors."""
        return self.path / access_logs.PIPE

    @property
    def metrics(self) -> Path:
        """The socket from which Envoy's metrics listener gets the merged metrics."""
        return self.path / names.METRICS_SOCKET

    def write_bootstrap(self, content: Redacted) -> None:
        """Write the bootstrap, readable by our user alone."""
        files.write_private(self.bootstrap, content)

    def remove(self) -> None:
        """Remove a temporary directory; of a configured one, only our files."""
        if self.is_temporary:
            shutil.rmtree(self.path, ignore_errors=True)
            return
        for name in (self.bootstrap.name, *_SOCKETS, *_FILES):
            (self.path / name).unlink(missing_ok=True)


def create(configured: str, name: str, environment: Mapping[str, str]) -> Workdir:
    """The configured directory, created where it does not exist; or a temporary one with a short path."""
    if not configured:
        return Workdir(_temporary(name, environment), is_temporary=True)
    path = Path(configured).absolute()
    if not _fits(str(path)):
        limit = _SOCKET_PATH_MAX - _longest() - 1
        raise KogumaError(
            f"--workdir {path}: a unix socket in it would have too long a name; at most {limit} bytes"
        )
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise KogumaError(f"--workdir {path}: {error.strerror}") from error
    _refuse_if_used(path)
    warning = f'"{path}" is open to others (mode {mode:04o}); run: chmod 700 "{path}"'
    return Workdir(path, warning=warning if mode & _FOREIGN_BITS else "")


def _temporary(name: str, environment: Mapping[str, str]) -> Path:
    prefix = f"koguma-{name[:_NAME_MAX]}-"
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    for base in (runtime, tempfile.gettempdir(), "/tmp"):  # noqa: S108 - mkdtemp makes it private
        if base and os.access(base, os.W_OK) and _fits(os.path.join(base, prefix + "x" * _SUFFIX_LENGTH)):  # noqa: PTH118 - counts bytes
            return Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    raise KogumaError("there is no short directory for unix sockets; give one with --workdir")


def _fits(path: str) -> bool:
    return len(os.fsencode(path)) + 1 + _longest() <= _SOCKET_PATH_MAX


def _longest() -> int:
    return max(len(name) for name in _SOCKETS)


def _refuse_if_used(path: Path) -> None:
    """Refuse a directory whose readiness socket answers: our sockets would replace those of that proxy."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path / READINESS_SOCKET))
        except OSError:
            return
    raise KogumaError(f"--workdir {path}: another `koguma dp run` uses it; give each proxy one of its own")
