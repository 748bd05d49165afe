"""Target: which server a command talks to, and with which credentials.

The address comes from `--address`, `KOGUMA_ADDRESS`, the context, or is http://localhost:5681. The token
comes from `--token-file`, `KOGUMA_TOKEN` or the context, the CA from `--ca-file`, `KOGUMA_CA` or the context.
A context that is named with `--context` comes before the environment, because a flag does. The credentials of
the current context are sent to its own address only.

Without a token, and on this machine, the administrator's access is taken from the data directory (of the
context, `KOGUMA_DATA_DIR`, or the default one): the socket for http; for https the token, and only where the
control plane's own CA verifies the server, so that no other process on the port gets the token. Who names a
data directory and no address means the control plane of that directory, and no other one that listens on the
default port.
"""

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from koguma.cli import contexts
from koguma.cli.contexts import CliContext
from koguma.cli.failures import CommandFailure, ExitCode
from koguma.model.redacted import Redacted
from koguma.runtime import data_directory

DEFAULT_ADDRESS: Final = "http://localhost:5681"
HTTPS_PORT: Final = 5682
_TOKEN_BYTES_MAX: Final = 64 * 1024
_DEFAULT_ORIGIN: Final = "the default"
# The names of these files in identity.files, which is slow to import.
_OWN_CA: Final = "ca.pem"
_ADMIN_TOKEN: Final = "admin-token"  # noqa: S105 - a file's name, not a token


class ConnectionOptions(NamedTuple):
    """The connection flags of a command."""

    address: str | None = None
    token_file: str | None = None
    ca_file: str | None = None
    context: str | None = None


class ServerTarget(NamedTuple):
    """A server, and the credentials for it; `origin` says where the address comes from."""

    address: str
    origin: str
    token: Redacted | None = None
    ca_file: str = ""
    token_file: str = ""  # where the token comes from, if from a file
    data_dir: str = ""  # the data directory, where the server is on this machine
    socket: str = ""  # the administrator's socket, which is tried first
    is_default: bool = False  # no address was configured
    is_socket_only: bool = False  # a data directory was named and no address: no other server is meant

    @property
    def current_token(self) -> Redacted | None:
        """The token in its file now: a command that runs for long outlives tokens."""
        if not self.token_file:
            return self.token
        try:
            return read_token(self.token_file, "the token file")
        except CommandFailure:  # it is being written; the next request reads it again
            return self.token

    @property
    def url(self) -> SplitResult:
        """The address, parsed."""
        return urlsplit(self.address)

    @property
    def host(self) -> str:
        """The server's name or IP address."""
        return self.url.hostname or ""

    @property
    def is_https(self) -> bool:
        """Whether requests are encrypted."""
        return self.url.scheme == "https"


def resolve(flags: ConnectionOptions, environment: Mapping[str, str]) -> ServerTarget:
    """The target from flags, environment and contexts, in that order."""
    context = _context(flags, environment)
    address, origin = _address(flags, environment, context)
    checked = checked_address(address, origin)
    if context is not None and flags.context is None and context.address.rstrip("/") != checked:
        context = None
    token, token_file = _token(flags, environment, context)
    ca_file = flags.ca_file or _ca_file(flags, environment, context)
    target = ServerTarget(checked, origin, token, ca_file, token_file)
    check_protected(target)
    if not is_loopback(target.host):
        return target
    is_default = origin == _DEFAULT_ORIGIN
    is_socket_only = is_default and token is None and bool(environment.get(data_directory.VARIABLE))
    return _as_owner(
        target._replace(
            data_dir=_data_dir(environment, context), is_default=is_default, is_socket_only=is_socket_only
        )
    )


def _data_dir(environment: Mapping[str, str], context: CliContext | None) -> str:
    named = (context.data_dir if context is not None else "") or environment.get(data_directory.VARIABLE, "")
    return named or str(data_directory.default(environment))


def _as_owner(target: ServerTarget) -> ServerTarget:
    """The same with the administrator's access, where there is no token and the data directory is ours."""
    if target.token is not None:
        return target
    home = Path(target.data_dir).expanduser()
    if not target.is_https:
        path = home / data_directory.ADMIN_SOCKET
        if os.access(path, os.W_OK):
            return target._replace(socket=str(path))
        is_foreign = path.exists() if os.access(home, os.X_OK) else home.exists()
        return target._replace(is_socket_only=target.is_socket_only and not is_foreign)
    authority, token_file = home / _OWN_CA, home / _ADMIN_TOKEN
    if target.ca_file not in ("", str(authority)) or not all(
        os.access(file, os.R_OK) for file in (authority, token_file)
    ):
        return target
    token = read_token(str(token_file), "the administrator's token")
    return target._replace(token=token, token_file=str(token_file), ca_file=str(authority))


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, so that nothing crosses the network."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def _context(flags: ConnectionOptions, environment: Mapping[str, str]) -> CliContext | None:
    config = contexts.load(contexts.path(environment))
    if flags.context is not None:
        return config.named(flags.context)
    return config.named(config.current) if config.current else None


def _address(
    flags: ConnectionOptions, environment: Mapping[str, str], context: CliContext | None
) -> tuple[str, str]:
    if flags.address:
        return flags.address, "--address"
    if flags.context is None and environment.get("KOGUMA_ADDRESS"):
        return environment["KOGUMA_ADDRESS"], "KOGUMA_ADDRESS"
    if context is not None:
        return context.address, f'context "{context.name}"'
    return DEFAULT_ADDRESS, _DEFAULT_ORIGIN


def checked_address(address: str, origin: str) -> str:
    """A valid address, without a trailing slash."""
    try:
        parts = urlsplit(address)
        fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        fits = False
    if not fits or parts.username is not None or parts.query or parts.fragment:
        raise CommandFailure(
            f'{origin}: "{address}" is no address of a control plane; write http://HOST:PORT or https://HOST:PORT',
            code=ExitCode.USAGE,
        )
    return address.rstrip("/")


def _token(
    flags: ConnectionOptions, environment: Mapping[str, str], context: CliContext | None
) -> tuple[Redacted | None, str]:
    """The token, and the file that it is from."""
    if flags.token_file:
        return read_token(flags.token_file, "--token-file"), flags.token_file
    variable = Redacted(environment["KOGUMA_TOKEN"].strip()) if environment.get("KOGUMA_TOKEN") else None
    if context is not None and (flags.context is not None or variable is None):
        if context.token_file:
            return read_token(context.token_file, f'context "{context.name}"'), context.token_file
        return context.token or variable, ""
    return variable, ""


def _ca_file(flags: ConnectionOptions, environment: Mapping[str, str], context: CliContext | None) -> str:
    kept, variable = context.ca_file if context else "", environment.get("KOGUMA_CA", "")
    return (kept or variable) if flags.context is not None else (variable or kept)


def read_token(file: str, origin: str) -> Redacted:
    """The token in a file."""
    try:
        with Path(file).expanduser().open(encoding="ascii") as stream:
            text = stream.read(_TOKEN_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is no token"
        raise CommandFailure(f"{origin}: {file}: {why}", code=ExitCode.USAGE) from None
    if not text or any(c.isspace() for c in text):
        raise CommandFailure(f"{origin}: {file}: must contain one token", code=ExitCode.USAGE)
    return Redacted(text)


def check_protected(target: ServerTarget) -> None:
    """Refuse to send a token unencrypted over the network."""
    if target.token is None or target.is_https or is_loopback(target.host):
        return
    host = f"[{target.host}]" if ":" in target.host else target.host
    raise CommandFailure(
        f"the token would cross the network unprotected to {target.address}; use the https port:"
        f" --address https://{host}:{HTTPS_PORT} with --ca-file FILE (the control plane keeps ca.pem in its"
        " data directory)",
        code=ExitCode.USAGE,
    )
