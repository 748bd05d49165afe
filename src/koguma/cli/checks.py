"""Findings: what `koguma check` looks at, and what to do where something is not fine.

Each check is a function of what was learnt before it; none stops the others.
"""

import email.utils
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from koguma import __version__
from koguma.cli import claims, tables
from koguma.cli.client import ApiClient, ApiResponse, Json
from koguma.cli.failures import ApiError, CommandFailure, ExitCode, ServerUnreachable
from koguma.cli.target import ServerTarget, is_loopback

OK: Final = "ok"
WARNING: Final = "warning"
ERROR: Final = "error"

_CONNECT_SECONDS: Final = 2.0
_SKEW_WARNING: Final = timedelta(seconds=5)  # what the server grants to the times in a token
_SKEW_ERROR: Final = timedelta(minutes=5)
_SOON: Final = timedelta(days=30)
_TOKEN_SOON: Final = timedelta(days=7)
_ANONYMOUS: Final = "mesh-system:anonymous"
_NOT_FOUND: Final = 404


class CheckResult(NamedTuple):
    """The result of one check: its name, its status, and what to do about it."""

    name: str
    status: str
    message: str
    hint: str = ""


def all_checks(client: ApiClient, now: datetime) -> Iterator[CheckResult]:
    """All checks, from the most basic on; a server that cannot be reached ends them."""
    try:
        index = client.get("/")
    except ServerUnreachable as failure:
        yield CheckResult(
            "reachable", ERROR, failure.message, failure.lines[0].removeprefix(" - ") if failure.lines else ""
        )
        return
    except CommandFailure as failure:
        yield CheckResult("reachable", ERROR, failure.message, "look at what answers at this address")
        return
    yield from _versions(client, index)
    yield _clock(index, now)
    yield _ready(client)
    yield from _token(client.target, now)
    yield from _user(client)
    yield from _settings(client, now)
    yield from _server_checks(client)


def _versions(client: ApiClient, index: ApiResponse) -> Iterator[CheckResult]:
    target = client.target
    value = index.value if isinstance(index.value, dict) else {}
    where = f"{target.address} answers (address from {target.origin})"
    if target.is_default and client.is_local:  # another server may listen on the default address
        where = f"{target.socket} answers"
    yield CheckResult("reachable", OK, where)
    server = str(value.get("kogumaVersion") or "")
    if not server:
        hint = "point --address at a Koguma control plane"
        yield CheckResult(
            "versions", WARNING, f"{value.get('product', 'something else')} answers, not Koguma", hint
        )
    elif server != __version__:
        hint = f"install koguma {server} here, or upgrade the server"
        yield CheckResult("versions", WARNING, f"client {__version__}, server {server}", hint)
    else:
        yield CheckResult("versions", OK, f"client and server {server}, mode {value.get('mode', 'unknown')}")


def _clock(index: ApiResponse, now: datetime) -> CheckResult:
    try:
        server_time = email.utils.parsedate_to_datetime(index.headers["Date"] or "")
    except (TypeError, ValueError):
        return CheckResult("clock", WARNING, "the server does not say what time it is")
    skew = abs(now - server_time)
    if skew <= _SKEW_WARNING:
        return CheckResult("clock", OK, "here and at the server within 5 s")
    status = ERROR if skew > _SKEW_ERROR else WARNING
    hint = "set both clocks by NTP; tokens and certificates are dated"
    return CheckResult("clock", status, f"here and at the server {tables.length(skew)} apart", hint)


def _ready(client: ApiClient) -> CheckResult:
    try:
        client.get("/ready")
    except CommandFailure as failure:
        return CheckResult("ready", ERROR, failure.message, "wait for it, then look at the server's log")
    return CheckResult("ready", OK, "the server takes requests")


def _token(target: ServerTarget, now: datetime) -> Iterator[CheckResult]:
    if target.token is None:
        return
    try:
        expires_at = datetime.fromtimestamp(float(claims.decoded(target.token.reveal())[1]["exp"]), UTC)
    except (CommandFailure, KeyError, TypeError, ValueError, OverflowError):
        yield CheckResult("token", WARNING, "it does not say when it ends")
        return
    hint = "issue another with `koguma token user`"
    if expires_at <= now:
        yield CheckResult("token", ERROR, f"it ended {tables.length(now - expires_at)} ago", hint)
    elif expires_at - now < _TOKEN_SOON:
        yield CheckResult("token", WARNING, f"it ends in {tables.length(expires_at - now)}", hint)
    else:
        yield CheckResult("token", OK, f"it holds for another {tables.length(expires_at - now)}")


def _user(client: ApiClient) -> Iterator[CheckResult]:
    try:
        user = client.get("/who-am-i").object
    except CommandFailure as failure:
        yield CheckResult(
            "user", ERROR, failure.message, "give a token that holds: --token-file or KOGUMA_TOKEN"
        )
        return
    groups = ", ".join(user.get("groups") or ())
    if user["name"] == _ANONYMOUS:
        hint = "give a token: --token-file, KOGUMA_TOKEN or a context"
        yield CheckResult("user", WARNING, f"you are nobody in particular ({groups})", hint)
    else:
        yield CheckResult("user", OK, f"you are {user['name']} ({groups})")


def _settings(client: ApiClient, now: datetime) -> Iterator[CheckResult]:
    try:
        config = client.get("/config").object
    except CommandFailure as failure:
        hint = "ask with an administrator's token to have store, ports and certificate checked"
        yield CheckResult("settings", WARNING, failure.message, hint)
        return
    yield _store(client, config)
    yield from _ports(client.target.host, config)
    yield from _certificate(client.target, config, now)
    yield _local_admin(config)


def _store(client: ApiClient, config: Json) -> CheckResult:
    kind = str(config.get("store", "")).partition(":")[0]
    try:
        revision = client.get("/meshes", [("size", "1")]).headers["Koguma-Revision"]
    except CommandFailure as failure:
        status = WARNING if failure.code is ExitCode.DENIED else ERROR
        return CheckResult("store", status, failure.message, "look at the server's log")
    if kind == "memory":
        return CheckResult(
            "store", WARNING, "memory: a restart forgets everything", "give --store or --data-dir"
        )
    return CheckResult("store", OK, f"{kind}, revision {revision}")


def _ports(host: str, config: Json) -> Iterator[CheckResult]:
    for name, status, words in (
        ("apiPort", ERROR, "API, http"),
        ("apiTlsPort", ERROR, "API, https"),
    ):
        port = config.get(name) or 0
        if not port:
            continue  # the server chose a free port, which its settings do not name
        if _listens(host, port):
            yield CheckResult("ports", OK, f"{port} ({words}) takes connections")
        else:
            hint = f"look for a firewall, and for another process on {port} in the server's log"
            yield CheckResult("ports", status, f"{port} ({words}) takes no connections", hint)


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False


def _certificate(target: ServerTarget, config: Json, now: datetime) -> Iterator[CheckResult]:
    port = (target.url.port or 443) if target.is_https else config.get("apiTlsPort") or 0
    if not port:
        return
    try:
        pem = _peer_certificate(target.host, port, "")
    except OSError as error:
        hint = "look at the server's log"
        yield CheckResult("certificate", ERROR, f"no TLS on port {port}: {error.strerror or error}", hint)
        return
    yield _expiry(pem, now)
    if not target.ca_file:
        hint = "give the control plane's ca.pem with --ca-file to have it checked"
        yield CheckResult(
            "certificate", OK if is_loopback(target.host) else WARNING, "its CA is not checked", hint
        )
        return
    try:
        _peer_certificate(target.host, port, target.ca_file)
    except OSError as error:
        words = str(getattr(error, "verify_message", "") or error.strerror or error)
        hint = "is the CA file of this control plane, and the host among its names (--hostnames)?"
        yield CheckResult("certificate", ERROR, f"not trusted by {target.ca_file}: {words}", hint)
    else:
        yield CheckResult("certificate", OK, f"trusted by {target.ca_file}")


def _peer_certificate(host: str, port: int, ca_file: str) -> str:
    """The certificate of a server, verified where a CA is given."""
    context: Any = ssl.create_default_context(cafile=ca_file or None)
    if not ca_file:  # only to read its expiry; nothing is sent
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        return ssl.DER_cert_to_PEM_cert(secured.getpeercert(binary_form=True) or b"")


def _expiry(pem: str, now: datetime) -> CheckResult:
    from koguma.identity import certificates  # noqa: PLC0415 - a slow import, for one of the last checks

    expires_at = certificates.expires_at(pem)
    hint = "restart the control plane: it renews its own; replace one that was given"
    if expires_at <= now:
        return CheckResult("certificate", ERROR, f"it ended on {expires_at:%Y-%m-%d}", hint)
    if expires_at - now < _SOON:
        return CheckResult("certificate", WARNING, f"it ends in {tables.length(expires_at - now)}", hint)
    return CheckResult("certificate", OK, f"valid until {expires_at:%Y-%m-%d}")


def _local_admin(config: Json) -> CheckResult:
    host = str(config.get("apiHost", ""))
    if not config.get("localhostIsAdmin"):
        return CheckResult("local admin", OK, "by the socket in the data directory and by token alone")
    hint = "leave out --localhost-is-admin: `koguma` finds the socket in the data directory by itself"
    where = "" if is_loopback(host) else f", and the API listens on {host}"
    text = f"every user of the server's machine, and every proxy on it, can be the admin{where}"
    return CheckResult("local admin", WARNING, text, hint)


def _server_checks(client: ApiClient) -> Iterator[CheckResult]:
    try:
        checks = client.get("/_check").object["checks"]
    except CommandFailure as failure:
        # Other servers, and older versions, have no such endpoint.
        if not isinstance(failure, ApiError) or failure.status != _NOT_FOUND:
            yield CheckResult("server", WARNING, failure.message, "ask with an administrator's token")
        return
    for check in checks:
        name, status = f"server: {check.get('name', '')}", str(check.get("status", ""))
        known_status = status if status in (OK, WARNING, ERROR) else WARNING
        yield CheckResult(name, known_status, str(check.get("message") or ""), str(check.get("hint") or ""))
