"""Field errors in Kubernetes' words (apimachinery's `field.Error`), since clients know them.

A violation made here carries the whole sentence, beginning with the type of the error.
"""

import json
from collections.abc import Iterable
from typing import Final

from koguma.model.schema import Json
from koguma.model.violation import Violation

REDACTED: Final = "<secret contents redacted>"
IMMUTABLE: Final = "field is immutable"


def required(path: str, detail: str = "") -> Violation:
    """A field that must have a value."""
    return Violation(path, f"Required value: {detail}" if detail else "Required value", "required")


def invalid(path: str, value: Json, detail: str, rule: str = "invalid") -> Violation:
    """A value that breaks a rule."""
    return Violation(path, f"Invalid value: {shown(value)}: {detail}", rule)


def unsupported(path: str, value: Json, supported: Iterable[Json]) -> Violation:
    """A value that is not among the supported ones."""
    words = ", ".join(shown(each) for each in supported)
    return Violation(path, f"Unsupported value: {shown(value)}: supported values: {words}", "enum")


def forbidden(path: str, detail: str) -> Violation:
    """A value that may be right elsewhere, but not here and now."""
    return Violation(path, f"Forbidden: {detail}", "forbidden")


def too_long(path: str, limit: int) -> Violation:
    """A value of more bytes than are kept."""
    return Violation(path, f"Too long: may not be more than {limit} bytes", "length")


def too_many(path: str, n_items: int, limit: int) -> Violation:
    """A list or map with more items than it may have."""
    return Violation(path, f"Too many: {n_items}: must have at most {limit} items", "too-many")


def duplicate(path: str, value: Json) -> Violation:
    """A value that may stand only once."""
    return Violation(path, f"Duplicate value: {shown(value)}", "duplicate")


def at_key(path: str, name: str) -> str:
    """The path of a map's entry as Kubernetes writes it: `data[tls.crt]`."""
    return f"{path}[{name}]"


def shown(value: Json) -> str:
    """A value as messages show it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
