"""Target: which server a command talks to, and with which credentials.

The address: `--address`, `KOGUMA_ADDRESS`, the context, http://localhost:5681. The token: `--token-file`,
`KOGUMA_TOKEN`, the context; the CA: `--ca-file`, `KOGUMA_CA`, the context. `--context` is a flag, so what the
context that it names says comes before the environment. What the current context holds is for its own
address and is not sent to another.

Without a token, and to this machine, the administrator's way in is looked for in the data directory (that of
the context, `KOGUMA_DATA_DIR`, the default): its socket over http; over https its token, and only where its
own CA vouches for the server, so that nobody who took the port meanwhile gets it.
"""

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from koguma.cli import contexts
from koguma.cli.contexts import Context
from koguma.cli.failures import ExitCode, Failure
from koguma.model.redacted import Redacted
from koguma.runtime import data_directory

DEFAULT_ADDRESS: Final = "http://localhost:5681"
HTTPS_PORT: Final = 5682
_TOKEN_BYTES_MAX: Final = 64 * 1024
_DEFAULT_ORIGIN: Final = "the default"
# Names that identity.files gives them; that module is slow to import.
_OWN_CA: Final = "ca.pem"
_ADMIN_TOKEN: Final = "admin-token"  # noqa: S105 - a file's name, not a token


class Given(NamedTuple):
    """What the command line says."""

    address: str | None = None
    token_file: str | None = None
    ca_file: str | None = None
    context: str | None = None


class Target(NamedTuple):
    """Where to send requests; `origin` says where the address comes from."""

    address: str
    origin: str
    token: Redacted | None = None
    ca_file: str = ""
    token_file: str = ""  # where the token comes from, if from a file
    data_dir: str = ""  # where a control plane on this machine would keep its files, if it is one
    socket: str = ""  # the administrator's own way to it, tried first
    is_default: bool = False  # nobody named an address

    @property
    def token_now(self) -> Redacted | None:
        """The token as its file has it now: a command that runs for long outlives tokens."""
        if not self.token_file:
            return self.token
        try:
            return read_token(self.token_file, "the token file")
        except Failure:  # it is being written; the next request reads it again
            return self.token

    @property
    def url(self) -> SplitResult:
        """The address in its parts."""
        return urlsplit(self.address)

    @property
    def host(self) -> str:
        """The server's name or IP address."""
        return self.url.hostname or ""

    @property
    def is_https(self) -> bool:
        """Whether requests are encrypted."""
        return self.url.scheme == "https"


def resolve(given: Given, environment: Mapping[str, str]) -> Target:
    """The target that flags, environment and contexts make, in that order."""
    context = _context(given, environment)
    address, origin = _address(given, environment, context)
    checked = checked_address(address, origin)
    if context is not None and given.context is None and context.address.rstrip("/") != checked:
        context = None
    token, token_file = _token(given, environment, context)
    ca_file = given.ca_file or _ca_file(given, environment, context)
    target = Target(checked, origin, token, ca_file, token_file)
    check_protected(target)
    if not is_loopback(target.host):
        return target
    is_default = origin == _DEFAULT_ORIGIN
    return _as_owner(target._replace(data_dir=_data_dir(environment, context), is_default=is_default))


def _data_dir(environment: Mapping[str, str], context: Context | None) -> str:
    named = (context.data_dir if context is not None else "") or environment.get(data_directory.VARIABLE, "")
    return named or str(data_directory.default(environment))


def _as_owner(target: Target) -> Target:
    """The same with the administrator's way in, where no token is given and the data directory is ours."""
    if target.token is not None:
        return target
    home = Path(target.data_dir).expanduser()
    if not target.is_https:
        path = home / data_directory.ADMIN_SOCKET
        return target._replace(socket=str(path)) if os.access(path, os.W_OK) else target
    authority, token_file = home / _OWN_CA, home / _ADMIN_TOKEN
    if target.ca_file not in ("", str(authority)) or not all(
        os.access(file, os.R_OK) for file in (authority, token_file)
    ):
        return target
    token = read_token(str(token_file), "the administrator's token")
    return target._replace(token=token, token_file=str(token_file), ca_file=str(authority))


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, so that nobody else hears."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def _context(given: Given, environment: Mapping[str, str]) -> Context | None:
    config = contexts.load(contexts.path(environment))
    if given.context is not None:
        return config.named(given.context)
    return config.named(config.current) if config.current else None


def _address(given: Given, environment: Mapping[str, str], context: Context | None) -> tuple[str, str]:
    if given.address:
        return given.address, "--address"
    if given.context is None and environment.get("KOGUMA_ADDRESS"):
        return environment["KOGUMA_ADDRESS"], "KOGUMA_ADDRESS"
    if context is not None:
        return context.address, f'context "{context.name}"'
    return DEFAULT_ADDRESS, _DEFAULT_ORIGIN


def checked_address(address: str, origin: str) -> str:
    """An address that can be one, without a slash at its end."""
    try:
        parts = urlsplit(address)
        fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        fits = False
    if not fits or parts.username is not None or parts.query or parts.fragment:
        raise Failure(
            f'{origin}: "{address}" is no address of a control plane; write http://HOST:PORT or https://HOST:PORT',
            code=ExitCode.USAGE,
        )
    return address.rstrip("/")


def _token(
    given: Given, environment: Mapping[str, str], context: Context | None
) -> tuple[Redacted | None, str]:
    """The token, and the file that it is from."""
    if given.token_file:
        return read_token(given.token_file, "--token-file"), given.token_file
    variable = Redacted(environment["KOGUMA_TOKEN"].strip()) if environment.get("KOGUMA_TOKEN") else None
    if context is not None and (given.context is not None or variable is None):
        if context.token_file:
            return read_token(context.token_file, f'context "{context.name}"'), context.token_file
        return context.token or variable, ""
    return variable, ""


def _ca_file(given: Given, environment: Mapping[str, str], context: Context | None) -> str:
    kept, variable = context.ca_file if context else "", environment.get("KOGUMA_CA", "")
    return (kept or variable) if given.context is not None else (variable or kept)


def read_token(file: str, origin: str) -> Redacted:
    """The token in a file."""
    try:
        with Path(file).expanduser().open(encoding="ascii") as stream:
            text = stream.read(_TOKEN_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is no token"
        raise Failure(f"{origin}: {file}: {why}", code=ExitCode.USAGE) from None
    if not text or any(c.isspace() for c in text):
        raise Failure(f"{origin}: {file}: must contain one token", code=ExitCode.USAGE)
    return Redacted(text)


def check_protected(target: Target) -> None:
    """Refuse to send a token where others on the network could read it."""
    if target.token is None or target.is_https or is_loopback(target.host):
        return
    host = f"[{target.host}]" if ":" in target.host else target.host
    raise Failure(
        f"the token would cross the network unprotected to {target.address}; use the https port:"
        f" --address https://{host}:{HTTPS_PORT} with --ca-file FILE (the control plane keeps ca.pem in its"
        " data directory)",
        code=ExitCode.USAGE,
    )
