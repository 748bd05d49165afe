"""Printer columns of custom resources: JSON paths into the object, printed by their type."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from koguma.kube import jsonpath, times
from koguma.kube.custom.version import PrinterColumn
from koguma.model.schema import Json

_TEXT_MAX: Final = 1_000
_encode = msgspec.json.Encoder(order="sorted").encode


def cell(column: PrinterColumn) -> Callable[[Json, datetime], str | int | float | bool | None]:
    """Reads what a column shows of a document; nothing where it has no such value."""

    def value(document: Json, now: datetime) -> str | int | float | bool | None:
        found = jsonpath.compiled(column.path).findall(document)
        return _printed(found, column.type, now) if found else None

    return value


def _printed(found: Sequence[Json], type_: str, now: datetime) -> str | int | float | bool | None:
    value = found[0]
    match type_:
        case "date":
            return times.age(value, now)
        case "integer" if isinstance(value, (int, float)) and not isinstance(value, bool):
            return int(value)
        case "number" if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
        case "boolean" if isinstance(value, bool):
            return value
        case "string":
            texts = [each if isinstance(each, str) else _encode(each).decode() for each in found]
            return ",".join(texts)[:_TEXT_MAX]
    return None
