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
from koguma.cli.client import Answer, Client, Json
from koguma.cli.failures import ExitCode, Failure, Refused, Unreachable
from koguma.cli.target import Target, is_loopback

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


class Finding(NamedTuple):
    """One line: what was looked at, how it is, and what to do about it."""

    name: str
    status: str
    message: str
    hint: str = ""


def all_findings(client: Client, now: datetime) -> Iterator[Finding]:
    """Everything that can be found out from here, in the order in which one would look."""
    try:
        index = client.get("/")
    except Unreachable as failure:
        yield Finding(
            "reachable", ERROR, failure.message, failure.lines[0].removeprefix(" - ") if failure.lines else ""
        )
        return
    except Failure as failure:
        yield Finding("reachable", ERROR, failure.message, "look at what answers at this address")
        return
    yield from _reached(client.target, index)
    yield _clock(index, now)
    yield _ready(client)
    yield from _token(client.target, now)
    yield from _who(client)
    yield from _configured(client, now)
    yield from _of_server(client)


def _reached(target: Target, index: Answer) -> Iterator[Finding]:
    value = index.value if isinstance(index.value, dict) else {}
    yield Finding("reachable", OK, f"{target.address} answers (address from {target.origin})")
    server = str(value.get("kogumaVersion") or "")
    if not server:
        hint = "point --address at a Koguma control plane"
        yield Finding(
            "versions", WARNING, f"{value.get('product', 'something else')} answers, not Koguma", hint
        )
    elif server != __version__:
        hint = f"install koguma {server} here, or upgrade the server"
        yield Finding("versions", WARNING, f"client {__version__}, server {server}", hint)
    else:
        yield Finding("versions", OK, f"client and server {server}, mode {value.get('mode', 'unknown')}")


def _clock(index: Answer, now: datetime) -> Finding:
    try:
        there = email.utils.parsedate_to_datetime(index.headers["Date"] or "")
    except (TypeError, ValueError):
        return Finding("clock", WARNING, "the server does not say what time it is")
    skew = abs(now - there)
    if skew <= _SKEW_WARNING:
        return Finding("clock", OK, "here and at the server within 5 s")
    status = ERROR if skew > _SKEW_ERROR else WARNING
    hint = "set both clocks by NTP; tokens and certificates are dated"
    return Finding("clock", status, f"here and at the server {tables.length(skew)} apart", hint)


def _ready(client: Client) -> Finding:
    try:
        client.get("/ready")
    except Failure as failure:
        return Finding("ready", ERROR, failure.message, "wait for it, then look at the server's log")
    return Finding("ready", OK, "the server takes requests")


def _token(target: Target, now: datetime) -> Iterator[Finding]:
    if target.token is None:
        return
    try:
        ends = datetime.fromtimestamp(float(claims.decoded(target.token.reveal())[1]["exp"]), UTC)
    except (Failure, KeyError, TypeError, ValueError, OverflowError):
        yield Finding("token", WARNING, "it does not say when it ends")
        return
    hint = "issue another with `koguma token user`"
    if ends <= now:
        yield Finding("token", ERROR, f"it ended {tables.length(now - ends)} ago", hint)
    elif ends - now < _TOKEN_SOON:
        yield Finding("token", WARNING, f"it ends in {tables.length(ends - now)}", hint)
    else:
        yield Finding("token", OK, f"it holds for another {tables.length(ends - now)}")


def _who(client: Client) -> Iterator[Finding]:
    try:
        user = client.get("/who-am-i").object
    except Failure as failure:
        yield Finding("user", ERROR, failure.message, "give a token that holds: --token-file or KOGUMA_TOKEN")
        return
    groups = ", ".join(user.get("groups") or ())
    if user["name"] == _ANONYMOUS:
        hint = "give a token: --token-file, KOGUMA_TOKEN or a context"
        yield Finding("user", WARNING, f"you are nobody in particular ({groups})", hint)
    else:
        yield Finding("user", OK, f"you are {user['name']} ({groups})")


def _configured(client: Client, now: datetime) -> Iterator[Finding]:
    try:
        config = client.get("/config").object
    except Failure as failure:
        hint = "ask with an administrator's token to have store, ports and certificate checked"
        yield Finding("settings", WARNING, failure.message, hint)
        return
    yield _store(client, config)
    yield from _ports(client.target.host, config)
    yield from _certificate(client.target, config, now)
    yield _local_admin(config)


def _store(client: Client, config: Json) -> Finding:
    kind = str(config.get("store", "")).partition(":")[0]
    try:
        revision = client.get("/meshes", [("size", "1")]).headers["Koguma-Revision"]
    except Failure as failure:
        status = WARNING if failure.code is ExitCode.DENIED else ERROR
        return Finding("store", status, failure.message, "look at the server's log")
    if kind == "memory":
        return Finding("store", WARNING, "memory: a restart forgets everything", "give --store or --data-dir")
    return Finding("store", OK, f"{kind}, revision {revision}")


def _ports(host: str, config: Json) -> Iterator[Finding]:
    for name, status, words in (
        ("apiPort", ERROR, "API, http"),
        ("apiTlsPort", ERROR, "API, https"),
    ):
        port = config.get(name) or 0
        if not port:
            continue  # a free one was taken, and the settings do not say which
        if _listens(host, port):
            yield Finding("ports", OK, f"{port} ({words}) takes connections")
        else:
            hint = f"look for a firewall, and for another process on {port} in the server's log"
            yield Finding("ports", status, f"{port} ({words}) takes no connections", hint)


def _listens(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False


def _certificate(target: Target, config: Json, now: datetime) -> Iterator[Finding]:
    port = (target.url.port or 443) if target.is_https else config.get("apiTlsPort") or 0
    if not port:
        return
    try:
        pem = _peer_certificate(target.host, port, "")
    except OSError as error:
        hint = "look at the server's log"
        yield Finding("certificate", ERROR, f"no TLS on port {port}: {error.strerror or error}", hint)
        return
    yield _expiry(pem, now)
    if not target.ca_file:
        hint = "give the control plane's ca.pem with --ca-file to have it checked"
        yield Finding(
            "certificate", OK if is_loopback(target.host) else WARNING, "its CA is not checked", hint
        )
        return
    try:
        _peer_certificate(target.host, port, target.ca_file)
    except OSError as error:
        words = str(getattr(error, "verify_message", "") or error.strerror or error)
        hint = "is the CA file of this control plane, and the host among its names (--hostnames)?"
        yield Finding("certificate", ERROR, f"not trusted by {target.ca_file}: {words}", hint)
    else:
        yield Finding("certificate", OK, f"trusted by {target.ca_file}")


def _peer_certificate(host: str, port: int, ca_file: str) -> str:
    """The certificate that a server shows, checked where a CA is given."""
    context: Any = ssl.create_default_context(cafile=ca_file or None)
    if not ca_file:  # only to read its dates; nothing is sent
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((host, port), timeout=_CONNECT_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        return ssl.DER_cert_to_PEM_cert(secured.getpeercert(binary_form=True) or b"")


def _expiry(pem: str, now: datetime) -> Finding:
    from koguma.identity import certificates  # noqa: PLC0415 - the slowest import, and the last check

    ends = certificates.expires_at(pem)
    hint = "restart the control plane: it renews its own; replace one that was given"
    if ends <= now:
        return Finding("certificate", ERROR, f"it ended on {ends:%Y-%m-%d}", hint)
    if ends - now < _SOON:
        return Finding("certificate", WARNING, f"it ends in {tables.length(ends - now)}", hint)
    return Finding("certificate", OK, f"valid until {ends:%Y-%m-%d}")


def _local_admin(config: Json) -> Finding:
    host = str(config.get("apiHost", ""))
    if not config.get("localhostIsAdmin"):
        return Finding("local admin", OK, "by the socket in the data directory and by token alone")
    hint = "leave out --localhost-is-admin: `koguma` finds the socket in the data directory by itself"
    where = "" if is_loopback(host) else f", and the API listens on {host}"
    text = f"every user of the server's machine, and every proxy on it, can be the admin{where}"
    return Finding("local admin", WARNING, text, hint)


def _of_server(client: Client) -> Iterator[Finding]:
    try:
        checks = client.get("/_check").object["checks"]
    except Failure as failure:
        # Other servers, and those of an older version, have no such page.
        if not isinstance(failure, Refused) or failure.status != _NOT_FOUND:
            yield Finding("server", WARNING, failure.message, "ask with an administrator's token")
        return
    for check in checks:
        name, status = f"server: {check.get('name', '')}", str(check.get("status", ""))
        fits = status if status in (OK, WARNING, ERROR) else WARNING
        yield Finding(name, fits, str(check.get("message") or ""), str(check.get("hint") or ""))
