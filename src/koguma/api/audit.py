"""Audit: one event for each request to the API: who asked for what, through which form, and what came of it.

An event has neither bodies nor queries nor headers, since all of these may hold secrets. Of a refusal it has
the reason. On the level `writes` there are requests that may change something, and every one that was
refused because of who asked; on `all` there are reads too.
"""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final, Literal

from koguma.access.user import User
from koguma.api.call import Call
from koguma.api.kube.target import RequestTarget
from koguma.model.errors import Forbidden, KogumaError, Unauthenticated
from koguma.runtime.audit_log import AuditLog

AuditLevel = Literal["writes", "all"]

DISCONNECTED: Final = 499  # the client did not wait for the answer; the work may have been done
_READS: Final = ("GET", "HEAD", "OPTIONS")
_REFUSED: Final = (Unauthenticated.status, Forbidden.status)
_TEXT_MAX: Final = 1_000
_VERBS: Final = {"PUT": "update", "POST": "create", "PATCH": "patch", "DELETE": "delete"}


class Audit:
    """Writes the events of requests to the audit log."""

    def __init__(self, log: AuditLog, level: AuditLevel) -> None:
        self._log = log
        self._has_reads = level == "all"

    def record(
        self,
        call: Call,
        parts: tuple[Any, ...],
        peer: str,
        code: int,
        error: KogumaError | None,
        seconds: float,
    ) -> None:
        """Note a request that was answered, or whose client has gone."""
        if not (self._has_reads or call.request.method not in _READS or code in _REFUSED):
            return
        refusal = error.detail[:_TEXT_MAX] if error is not None and code in _REFUSED else ""
        self._log.add(dict(_event(call, parts, peer, code, refusal, seconds)))


def _event(
    call: Call, parts: tuple[Any, ...], peer: str, code: int, refusal: str, seconds: float
) -> Iterator[tuple[str, Any]]:
    request = call.request
    yield "time", datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
    yield "request", call.id
    yield from _who("", call.user)
    if call.impersonator is not None:
        yield from _who("impersonator", call.impersonator)
    yield "from", peer
    yield from _what(call, parts)
    yield "method", request.method[:_TEXT_MAX]
    yield "path", request.path[:_TEXT_MAX]
    yield "code", code
    yield "allowed", code not in _REFUSED
    if refusal:
        yield "refusal", refusal
    if call.has_query and call.query.get("dryRun", "false") not in ("false", "0"):
        yield "dryRun", True
    yield "ms", round(seconds * 1000, 2)


def _who(prefix: str, user: User) -> Iterator[tuple[str, Any]]:
    yield prefix or "user", user.name
    yield f"{prefix}Groups" if prefix else "groups", list(user.groups)


def _what(call: Call, parts: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """The verb and the object, in the words of access rules, as far as the path says them."""
    target = next((part for part in parts if isinstance(part, RequestTarget)), None)
    if target is not None:
        name, subresource = target.name, target.subresource
        place = {"group": target.endpoint.group, "resource": target.endpoint.plural}
        place |= {"mesh": target.mesh, "namespace": target.where}
    else:
        resource, mesh, name, subresource = _plain_path(call.request.path)
        place = {"resource": resource, "mesh": mesh}
    yield "verb", _verb(call, is_named=bool(name))
    yield from (
        (word, text[:_TEXT_MAX])
        for word, text in (place | {"name": name, "subresource": subresource}).items()
        if text
    )


def _verb(call: Call, *, is_named: bool) -> str:
    method = call.request.method
    if method in ("GET", "HEAD"):
        is_watch = call.has_query and call.query.get("watch") in ("true", "1")
        return "watch" if is_watch else "get" if is_named else "list"
    return _VERBS.get(method, method.lower()[:_TEXT_MAX])


def _plain_path(path: str) -> tuple[str, str, str, str]:
    """Resource, mesh, name and what is below it, of a path of the plain form; empty for other paths."""
    segments = tuple(part for part in path.split("/") if part)
    match segments:
        case ("meshes", mesh, plural, *rest) if not plural.startswith("_"):
            return plural, mesh, rest[0] if rest else "", "/".join(rest[1:])
        case (plural, *rest) if not plural.startswith("_") and plural not in ("api", "apis"):
            return plural, "", rest[0] if rest else "", "/".join(rest[1:])
        case _:
            return "", "", "", ""
