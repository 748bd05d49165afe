"""JSON paths as kubectl writes them (`.status.conditions[?(@.type=="Ready")].status`), read by a library.

The dialect is looser than the standard: the `$` and even the first dot may be left out, and a dot within a
name is escaped.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import jsonpath
from jsonpath import JSONPath

from koguma.model.schema import Json

LENGTH_MAX: Final = 1_000
_SIMPLE: Final = re.compile(r"(\.[a-zA-Z_][a-zA-Z0-9_-]*)+")
_STEP: Final = re.compile(
    r"\.?(?P<name>(?:\\.|[^.\[\]\\'\"(){}\s])+)|(?P<bracket>\[(?:[^\[\]'\"]|'[^']*'|\"[^\"]*\")*\])"
)


def is_simple(path: str) -> bool:
    """Whether a path only goes down by names: `.spec.replicas`."""
    return len(path) <= LENGTH_MAX and _SIMPLE.fullmatch(path) is not None


@lru_cache(maxsize=2048)
def compiled(path: str) -> JSONPath:
    """The path as the library has it; ValueError where it is none."""
    if len(path) > LENGTH_MAX:
        raise ValueError(f"a path may have {LENGTH_MAX} characters")
    try:
        found = jsonpath.compile(_standard(path))
    except jsonpath.JSONPathError as error:
        raise ValueError(str(error).partition("\n")[0]) from None
    if not isinstance(found, JSONPath):
        raise ValueError("several paths in one are not supported")  # noqa: TRY004 - it is no type of ours
    return found


def _standard(path: str) -> str:
    """A path as the standard writes it."""
    text, steps, position = path.strip().removeprefix("$"), ["$"], 0
    while position < len(text):
        if text.startswith("..", position):
            steps.append("..")
            position += 2
            name = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*|\*").match(text, position)
            if name:
                steps.append(name[0])
                position = name.end()
            continue
        step = _STEP.match(text, position)
        if step is None:
            raise ValueError(f'"{text[position:]}" is no step of a path')
        if step["bracket"]:
            steps.append(step["bracket"])
        else:
            name_text = re.sub(r"\\(.)", r"\1", step["name"])
            quoted = name_text.replace("'", "\\'")
            steps.append("[*]" if name_text == "*" else f"['{quoted}']")
        position = step.end()
    return "".join(steps)


def first(document: Json, path: str) -> Json:
    """The first value at a path; None where there is none."""
    match = compiled(path).match(document)
    return None if match is None else match.obj


def getter(path: str) -> Callable[[Json], Json]:
    """Reads a simple path of a document; None where there is nothing."""
    names = path.split(".")[1:]

    def value(document: Json) -> Json:
        for name in names:
            document = document.get(name) if isinstance(document, dict) else None
        return document

    return value
