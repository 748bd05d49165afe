"""CEL (Common Expression Language): expressions that are compiled once and evaluated on values.

The library is the C++ implementation of the language. What Kubernetes adds to it (quantities, addresses,
URLs) is not there, and an expression that needs it does not compile.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_encoders, ext_math, ext_optional, ext_strings

from koguma.model.schema import Json

BOOL: Final = "BOOL"
STRING: Final = "STRING"
_DYN: Final = "DYN"
_MESSAGE_MAX: Final = 300
_KEY: Final = re.compile(r'Key not found in map : "([^"]*)"')
# Names of Kubernetes' own libraries, which an author may expect.
_MISSING: Final = (
    "quantity",
    "isQuantity",
    "url",
    "isURL",
    "ip",
    "isIP",
    "cidr",
    "isCIDR",
    "semver",
    "authorizer",
    "sets",
)


# What variables are: any lists and maps, and at the end a scalar. Numbers are `dyn`, since they may be
# compared with those of the other type.
CelShape = tuple[str, ...]
_SCALARS: Final = {
    "dyn": cel.Type.DYN,
    "string": cel.Type.STRING,
    "bool": cel.Type.BOOL,
    "timestamp": cel.Type.TIMESTAMP,
    "duration": cel.Type.DURATION,
}


class CelError(ValueError):
    """An expression that does not compile, or cannot be evaluated on a value."""


class CelProgram:
    """A compiled expression."""

    def __init__(self, expression: Any, type_: str) -> None:
        self._expression = expression
        self._type = type_

    def __call__(self, variables: Mapping[str, Json]) -> Json:
        """Its value; CelError where it has none, or one of another type."""
        try:
            result = self._expression.eval(data=dict(variables))
            name = result.type().name()
            if name == "ERROR":
                raise CelError(_short(str(result.value())))
            if name != self._type:
                raise CelError(f"it gives a value of type {name.lower()}, and {self._type.lower()} is needed")
            return result.value()
        except (TypeError, ValueError, RuntimeError) as error:
            raise CelError(_short(str(error))) from None


@lru_cache(maxsize=64)
def _environment(names: tuple[str, ...], shape: CelShape) -> Any:
    extensions = [
        ext_bindings.ExtBindings(),
        ext_encoders.ExtEncoders(),
        ext_math.ExtMath(),
        ext_optional.ExtOptional(),
        ext_strings.ExtStrings(),
    ]
    return cel.NewEnv(variables=dict.fromkeys(names, _type(shape)), extensions=extensions)


def _type(shape: CelShape) -> Any:
    first, *rest = shape
    match first:
        case "list":
            return cel.Type.List(_type(tuple(rest)))
        case "map":
            return cel.Type.Map(cel.Type.STRING, _type(tuple(rest)))
        case _:
            return _SCALARS[first]


def compiled(text: str, names: tuple[str, ...], type_: str = BOOL, shape: CelShape = ("dyn",)) -> CelProgram:
    """An expression over some variables of one shape that must give a value of a type."""
    try:
        expression = _environment(names, shape).compile(text)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CelError(_hinted(str(error))) from None
    found = expression.return_type().name()
    if found not in (type_, _DYN):
        raise CelError(f"it gives a value of type {found.lower()}, and {type_.lower()} is needed")
    return CelProgram(expression, type_)


def _hinted(text: str) -> str:
    short = _short(text)
    for name in _MISSING:
        if f"undeclared reference to '{name}'" in text:
            return f"{short}; {name} is of Kubernetes' own libraries, which are not available here"
    return short


def _short(text: str) -> str:
    first = text.partition("\n | ")[0].replace("\n", " ").removesuffix(" [INVALID_ARGUMENT]")
    code, _, rest = first.partition(": ")
    return _KEY.sub(r"no such key: \1", rest if code.isupper() else first)[:_MESSAGE_MAX]
