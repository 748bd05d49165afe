"""Options in the query or body of a request: CreateOptions, PatchOptions, DeleteOptions and ListOptions."""

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
LIMIT_MAX: Final = 1 << 31


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
        raise BadRequest(f'resourceVersion: Invalid value: "{str(text)[:100]}": must be a number')
    return int(text)


def limit(call: Call) -> int:
    """The limit of a list; 0: none."""
    text = call.query.get("limit") or "0"
    if not (text.isascii() and text.isdigit()) or int(text) > LIMIT_MAX:
        raise BadRequest(f'limit: Invalid value: "{text[:100]}": must be a number')
    return int(text)
