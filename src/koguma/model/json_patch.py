"""JSON Patch (RFC 6902) and JSON merge patch (RFC 7396) on plain JSON values, with limits on their cost.

Three places take JSON patches, and each differs from the RFC in what it does about missing members, because
existing clients and policies rely on it: `RFC_6902`, `KUBERNETES` and `KUMA` say how. A patch that is well
formed and does not fit the value is Invalid; what is no patch at all is a BadRequest.
"""

import copy
import itertools
import re
from collections.abc import Sequence
from typing import Any, Final

import jsonpatch
import jsonpointer
import msgspec

from koguma.model import documents
from koguma.model.errors import BadRequest, Invalid, TooLarge
from koguma.model.schema import Json
from koguma.model.violation import Violation

MERGE_PATCH_TYPE: Final = "application/merge-patch+json"
JSON_PATCH_TYPE: Final = "application/json-patch+json"
OPERATIONS_MAX: Final = 10_000
# Copies can double a value with each operation, so what they add together is limited.
COPIED_BYTES_MAX: Final = 1024 * 1024
LIST_INDEX: Final = re.compile(r"-|0|[1-9][0-9]*")  # as a JSON pointer writes it; "-" is the end of the list

_MISSING: Final = object()
_FAILURES: Final = (
    jsonpatch.JsonPatchException,
    jsonpointer.JsonPointerException,
    TypeError,
    LookupError,
    ValueError,
    RecursionError,
)


class Dialect(msgspec.Struct, frozen=True):
    """Where a JSON patch departs from RFC 6902; all off is the RFC itself."""

    replace_adds_missing_member: bool = False
    test_takes_missing_member_as_null: bool = False
    ensure_path_exists_on_add: bool = False  # the objects and lists on the way to it are created
    allow_missing_path_on_remove: bool = False
    result_bytes_max: int | None = None  # of the whole value, checked after each copy


RFC_6902: Final = Dialect()
# kubectl and client-go send patches that need these two.
KUBERNETES: Final = Dialect(replace_adds_missing_member=True, test_takes_missing_member_as_null=True)
# The options that Kuma gives to its JSON patch library (evanphx/json-patch) for MeshProxyPatch.
KUMA: Final = Dialect(
    ensure_path_exists_on_add=True, allow_missing_path_on_remove=True, result_bytes_max=1_000_000
)


class UnfitPatch(Invalid):
    """An operation that cannot be applied to the value; `index` is its position in the patch."""

    def __init__(self, index: int, message: str, rule: str) -> None:
        super().__init__([Violation(f"[{index}]", message, rule)], "the patch does not fit the object")
        self.index = index


class PatchTooLarge(TooLarge):
    """An operation whose result is over a size limit; `index` is its position in the patch."""

    def __init__(self, index: int, detail: str) -> None:
        super().__init__(detail)
        self.index = index


def merge_patched(value: Json, patch: Json) -> Json:
    """The value after a merge patch: objects merge, null removes a member, everything else replaces.

    The RFC also allows a patch that is no object, which replaces the whole value. That is never what somebody
    wants of a resource, so it is refused.
    """
    if not isinstance(patch, dict):
        raise BadRequest("a JSON merge patch is an object with the fields to change")
    return _merge_patched(value, patch)


def _merge_patched(value: Json, patch: dict[str, Json]) -> Json:
    result = dict(value) if isinstance(value, dict) else {}
    for name, change in patch.items():
        if change is None:
            result.pop(name, None)
        elif isinstance(change, dict):
            result[name] = _merge_patched(result.get(name), change)
        else:
            result[name] = change
    return result


def json_patched(value: Json, patch: Json, dialect: Dialect = RFC_6902) -> Json:
    """The value after all operations of a JSON patch, each applied to the result of the one before."""
    if not isinstance(patch, list | tuple) or not all(isinstance(operation, dict) for operation in patch):
        raise BadRequest("a JSON patch is a list of operations, each an object")
    if len(patch) > OPERATIONS_MAX:
        raise TooLarge(f"a JSON patch has at most {OPERATIONS_MAX} operations, this one {len(patch)}")
    result = copy.deepcopy(value)  # once, and then in place: a copy for each operation would be quadratic
    n_copied_bytes = 0
    for index, operation in enumerate(copy.deepcopy(patch)):
        try:
            n_copied_bytes += _n_copied_bytes(result, operation)
            if n_copied_bytes > COPIED_BYTES_MAX:
                detail = f"the copies of a JSON patch add at most {COPIED_BYTES_MAX} bytes"
                raise PatchTooLarge(index, detail)
            result = _applied(result, operation, dialect)
            _check_result_size(index, operation, result, dialect)
        except _FAILURES as error:
            raise _unfit(index, operation, error) from None
    try:
        documents.check_depth(result)
    except documents.BadDocument as error:
        raise Invalid([Violation("", error.problem, "depth")], "the patched object is too deep") from None
    return result


def _applied(value: Json, operation: dict[str, Any], dialect: Dialect) -> Json:
    path = operation.get("path")
    if not isinstance(path, str):
        return _strictly_applied(value, operation)  # the library refuses it, and says why
    if path.count("/") > documents.DEPTH_MAX:
        raise jsonpointer.JsonPointerException(f"a path has at most {documents.DEPTH_MAX} parts")
    match operation.get("op"):
        case "add" if dialect.ensure_path_exists_on_add:
            _ensure_path_exists(value, jsonpointer.JsonPointer(path).parts)
        case "remove" if dialect.allow_missing_path_on_remove and _is_missing(value, path):
            return value
        case "replace" if dialect.replace_adds_missing_member and _is_missing_member(value, path):
            operation = {**operation, "op": "add"}
        case "test" if dialect.test_takes_missing_member_as_null and _is_missing_member(value, path):
            if operation.get("value", _MISSING) is None:
                return value
    return _strictly_applied(value, operation)


def _strictly_applied(value: Json, operation: dict[str, Any]) -> Json:
    return jsonpatch.JsonPatch([operation]).apply(value, in_place=True)


def _is_missing(value: Json, path: str) -> bool:
    return jsonpointer.resolve_pointer(value, path, _MISSING) is _MISSING


def _is_missing_member(value: Json, path: str) -> bool:
    """Whether the path leads to an object and names a member that it does not have."""
    try:
        parent, name = jsonpointer.JsonPointer(path).to_last(value)
    except jsonpointer.JsonPointerException:
        return False
    return name is not None and isinstance(parent, dict) and name not in parent


def _ensure_path_exists(value: Json, parts: Sequence[str]) -> None:
    """Create the objects, or lists, that a pointer leads through and that do not exist yet."""
    for part, following in itertools.pairwise(parts):
        if isinstance(value, dict) and part not in value:
            value[part] = [] if LIST_INDEX.fullmatch(following) else {}
        if isinstance(value, list) and not part.isdecimal():
            return  # the library refuses it, and says why
        value = value[int(part)] if isinstance(value, list) else value[part]


def _n_copied_bytes(value: Json, operation: dict[str, Any]) -> int:
    """How many bytes an operation copies."""
    source = operation.get("from")
    if operation.get("op") != "copy" or not isinstance(source, str):
        return 0
    return len(msgspec.json.encode(jsonpointer.JsonPointer(source).resolve(value, None)))


def _check_result_size(index: int, operation: dict[str, Any], result: Json, dialect: Dialect) -> None:
    limit = dialect.result_bytes_max
    if limit is None or operation.get("op") != "copy":
        return
    if len(msgspec.json.encode(result)) > limit:
        raise PatchTooLarge(index, f"the copies of a JSON patch make more than {limit} bytes of the value")


def _unfit(index: int, operation: dict[str, Any], error: Exception) -> UnfitPatch:
    if isinstance(error, jsonpatch.JsonPatchTestFailed):
        return UnfitPatch(index, f"the value at {operation['path']} is not what the test expects", "test")
    message = f"{operation.get('op', 'an operation without a word')} cannot be done: {error}"
    return UnfitPatch(index, message, "patch")
