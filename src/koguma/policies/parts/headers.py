"""Headers: what policies write into requests or answers of Envoy's own, as its list of changes.

A value with commas is several values, each written as a header of its own.
"""

from collections.abc import Iterator
from typing import Final

from koguma.envoy.proto_json import Data
from koguma.model.schema import Json

_REPLACE: Final = "OVERWRITE_IF_EXISTS_OR_ADD"
_BESIDE: Final = "APPEND_IF_EXISTS_OR_ADD"


def added(values: Json) -> list[Data]:
    """The headers of `set`, which replace what is there, and of `add`, which stand beside it."""
    return list(_changes(values))


def _changes(values: Json) -> Iterator[Data]:
    for each in values.get("set") or ():
        first, *more = each["value"].split(",")
        yield _change(each["name"], first, _REPLACE)
        for value in more:
            yield _change(each["name"], value, _BESIDE)
    for each in values.get("add") or ():
        for value in each["value"].split(","):
            yield _change(each["name"], value, _BESIDE)


def _change(name: str, value: str, action: str) -> Data:
    # A percent sign would begin one of Envoy's own formats.
    header = {"key": name, "value": value.strip().replace("%", "%%")}
    return {"header": header, "append_action": action}
