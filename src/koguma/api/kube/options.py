"""Options in the query or body of a request: CreateOptions, PatchOptions, DeleteOptions and ListOptions."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from koguma.api.call import Call
from koguma.core.admission import FieldValidation
from koguma.model.errors import BadRequest, Invalid
from koguma.model.schema import Json
from koguma.model.violation import Violation

_POLICIES: Final = ("Background", "Foreground", "Orphan")
MANAGER_LENGTH_MAX: Final = 128
_INTEGER: Final = re.compile(r"[-+]?[0-9]+", re.ASCII)
_DIGITS_MAX: Final = 40
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+", re.ASCII)
_UNIT: Final = re.compile(r"[^0-9.]+")
_UNITS: Final = frozenset({"ns", "us", "\u00b5s", "\u03bcs", "ms", "s", "m", "h"})


class WriteOptions(msgspec.Struct, frozen=True):
    """The options of a write."""

    is_dry: bool
    manager: str
    validation: FieldValidation
    force: bool = False


def of_write(call: Call, *, applies: bool = False) -> WriteOptions:
    """The options of a create, an update or a patch."""
    query = call.query
    manager = query.get("fieldManager", "")
    if len(manager) > MANAGER_LENGTH_MAX or not manager.isprintable():
        text = f"may not be more than {MANAGER_LENGTH_MAX} printable characters"
        raise Invalid([Violation("fieldManager", text, "length")])
    if applies and not manager:
        raise Invalid([Violation("fieldManager", "is required for apply patch", "required")])
    force = query.get("force")
    if force is not None and not applies:
        raise Invalid([Violation("force", "may not be specified for non-apply patch", "forbidden")])
    return WriteOptions(
        dry_run(query.getall("dryRun", [])),
        manager or _agent(call),
        _validation(query.get("fieldValidation") or FieldValidation.WARN.value),
        force is not None and force.lower() not in ("0", "false"),
    )


def dry_run(words: list[str]) -> bool:
    """Whether the write is a dry run."""
    for word in words:
        if word != "All":
            text = f'Unsupported value: "{word[:100]}": supported values: "All"'
            raise Invalid([Violation("dryRun", text, "enum")])
    return bool(words)


def _agent(call: Call) -> str:
    agent = (call.header("User-Agent") or "unknown").partition("/")[0]
    return "".join(c for c in agent if c.isprintable())[:MANAGER_LENGTH_MAX] or "unknown"


def _validation(word: str) -> FieldValidation:
    try:
        return FieldValidation(word)
    except ValueError:
        text = f'Unsupported value: "{word[:100]}": supported values: "Ignore", "Strict", "Warn"'
        raise Invalid([Violation("fieldValidation", text, "enum")]) from None


class DeleteOptions(msgspec.Struct, frozen=True):
    """The options of a deletion. `policy` is the propagation policy for dependents."""

    is_dry: bool = False
    policy: str = ""
    uid: str = ""
    revision: int | None = None


def of_delete(call: Call, body: Json) -> DeleteOptions:
    """The options of a deletion: those of the body before those of the query."""
    query = call.query
    integer(call, "gracePeriodSeconds")  # nothing here takes time to end
    words = body.get("dryRun") or query.getall("dryRun", [])
    preconditions = body.get("preconditions") or {}
    if not isinstance(words, list) or not isinstance(preconditions, dict):
        raise BadRequest("the delete options cannot be read: dryRun is a list, preconditions an object")
    policy = body.get("propagationPolicy") or query.get("propagationPolicy") or ""
    if policy and policy not in _POLICIES:
        text = f'Unsupported value: "{policy}": supported values: "Background", "Foreground", "Orphan"'
        raise Invalid([Violation("propagationPolicy", text, "enum")])
    return DeleteOptions(
        dry_run([str(word) for word in words]),
        _with_older_form(policy, body, query),
        str(preconditions.get("uid") or ""),
        revision(preconditions.get("resourceVersion")),
    )


def _with_older_form(policy: str, body: Json, query: Mapping[str, str]) -> str:
    orphan = body.get("orphanDependents", query.get("orphanDependents"))
    if orphan is None:
        return policy
    if policy:
        text = "orphanDependents and propagationPolicy cannot be both set"
        raise Invalid([Violation("propagationPolicy", text, "forbidden")])
    is_no = orphan is False or (isinstance(orphan, str) and orphan.lower() in ("0", "false"))
    return "Background" if is_no else "Orphan"


def revision(text: Json) -> int | None:
    """A resourceVersion; None where none is given."""
    if text in (None, ""):
        return None
    if not isinstance(text, str) or not (text.isascii() and text.isdigit()) or len(text) > 18:  # noqa: PLR2004 - int64
        shown = str(text)[:100]
        raise BadRequest(
            f'resourceVersion: Invalid value: "{shown}": strconv.ParseUint: parsing "{shown}": invalid syntax'
        )
    return int(text)


def limit(call: Call) -> int:
    """The limit of a list; 0: none."""
    return max(0, integer(call, "limit") or 0)


def integer(call: Call, name: str) -> int | None:
    """A whole number in the query, with the errors of Go's parser, as Kubernetes gives them."""
    text = call.query.get(name)
    if not text:
        return None
    if not _INTEGER.fullmatch(text):
        raise BadRequest(f'strconv.ParseInt: parsing "{text[:100]}": invalid syntax')
    if len(text) > _DIGITS_MAX or not -(1 << 63) <= int(text) < 1 << 63:
        raise BadRequest(f'strconv.ParseInt: parsing "{text[:100]}": value out of range')
    return int(text)


def check_timeout(call: Call) -> None:
    """Raise where the query has a `timeout` that is no duration of Go's. Our answers come sooner than any."""
    text = call.query.get("timeout")
    problem = _duration_problem(text) if text else ""
    if problem:
        raise BadRequest(f"invalid timeout specified in the request URL - time: {problem}")


def _duration_problem(text: str) -> str:
    """What Go's parser of durations would say; empty where it takes the text."""
    quoted, left = f'"{text[:100]}"', text.lstrip("+-") if text[:2] not in ("++", "--", "+-", "-+") else text
    if left == "0":
        return ""
    position = 0
    while position < len(left):
        number = _NUMBER.match(left, position)
        if number is None:
            return f"invalid duration {quoted}"
        unit = _UNIT.match(left, number.end())
        if unit is None:
            return f"missing unit in duration {quoted}"
        if unit[0] not in _UNITS:
            return f'unknown unit "{unit[0][:100]}" in duration {quoted}'
        position = unit.end()
    return "" if position else f"invalid duration {quoted}"
