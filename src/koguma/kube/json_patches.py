"""JSON patches as Kubernetes takes them: JSON merge patch (RFC 7396), and a lenient JSON patch (RFC 6902).

The plain form takes the RFC's own JSON patch, with the same limits. In the Kubernetes form two rules are
looser than the RFC, because clients rely on them: `replace` of a member that an object does not have adds it,
and `test` for null holds where the member is missing. A patch that is well-formed and does not fit the object
is invalid; what is no patch at all is a bad request.
"""

import copy
from typing import Any, Final

import jsonpatch
import jsonpointer
import msgspec

from koguma.model import documents
from koguma.model.errors import BadRequest, Invalid, TooLarge
from koguma.model.schema import Json
from koguma.model.violation import Violation

MERGE: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
OPERATIONS_MAX: Final = 10_000
# Copies can double an object with each operation, so what they add together is limited.
COPIED_BYTES_MAX: Final = 1024 * 1024

_FAILURES: Final = (
    jsonpatch.JsonPatchException,
    jsonpointer.JsonPointerException,
    TypeError,
    RecursionError,
)


def merged(value: Json, patch: Json) -> Json:
    """RFC 7396 for objects: members merge, null removes, everything else replaces."""
    if not isinstance(patch, dict):
        raise BadRequest("a JSON merge patch is an object with the fields to change")
    return _merged(value, patch)


def _merged(value: Json, patch: dict[str, Json]) -> Json:
    result = dict(value) if isinstance(value, dict) else {}
    for name, change in patch.items():
        if change is None:
            result.pop(name, None)
        elif isinstance(change, dict):
            result[name] = _merged(result.get(name), change)
        else:
            result[name] = change
    return result


def json_patched(value: Json, patch: Json, *, is_lenient: bool = True) -> Json:
    """The value after all operations of a JSON patch, each on the result of the one before."""
    if not isinstance(patch, list) or not all(isinstance(operation, dict) for operation in patch):
        raise BadRequest("a JSON patch is a list of operations, each an object")
    if len(patch) > OPERATIONS_MAX:
        raise TooLarge(f"a JSON patch has at most {OPERATIONS_MAX} operations, this one {len(patch)}")
    result = copy.deepcopy(value)  # once, and then in place: a copy for each operation would be quadratic
    copied = 0
    for index, operation in enumerate(copy.deepcopy(patch)):
        try:
            copied += _copied(result, operation)
            if copied > COPIED_BYTES_MAX:
                raise TooLarge(f"the copies of a JSON patch add at most {COPIED_BYTES_MAX} bytes")
            result = _applied(result, operation, is_lenient=is_lenient)
        except _FAILURES as error:
            raise _unfit(index, operation, error) from None
    try:
        documents.check_depth(result)
    except documents.BadDocument as error:
        raise Invalid([Violation("", error.problem, "depth")], "the patched object is too deep") from None
    return result


def _applied(value: Json, operation: dict[str, Any], *, is_lenient: bool) -> Json:
    word, path = operation.get("op"), operation.get("path")
    if isinstance(path, str) and path.count("/") > documents.DEPTH_MAX:
        raise jsonpointer.JsonPointerException(f"a path has at most {documents.DEPTH_MAX} parts")
    is_loose = is_lenient and word in ("replace", "test")
    if is_loose and isinstance(path, str) and _is_missing_member(value, path):
        if word == "test" and operation.get("value", ...) is None:
            return value
        if word == "replace":
            operation = {**operation, "op": "add"}
    return jsonpatch.JsonPatch([operation]).apply(value, in_place=True)


def _is_missing_member(value: Json, path: str) -> bool:
    """Whether the path leads to an object and names a member that it does not have."""
    try:
        parent, name = jsonpointer.JsonPointer(path).to_last(value)
    except jsonpointer.JsonPointerException:
        return False
    return name is not None and isinstance(parent, dict) and name not in parent


def _copied(value: Json, operation: dict[str, Any]) -> int:
    """How many bytes an operation copies."""
    source = operation.get("from")
    if operation.get("op") != "copy" or not isinstance(source, str):
        return 0
    return len(msgspec.json.encode(jsonpointer.JsonPointer(source).resolve(value, None)))


def _unfit(index: int, operation: dict[str, Any], error: Exception) -> Invalid:
    if isinstance(error, jsonpatch.JsonPatchTestFailed):
        message = f"the value at {operation['path']} is not what the test expects"
        rule = "test"
    else:
        message = f"{operation.get('op', 'an operation without a word')} cannot be done: {error}"
        rule = "patch"
    return Invalid([Violation(f"[{index}]", message, rule)], "the patch does not fit the object")
