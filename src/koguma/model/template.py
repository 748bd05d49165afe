"""Template: the part of Go's templates that names are made with.

Text, fields (`{{ .Name }}`) and labels (`{{ label "team" }}`), nothing else: a name that needs a loop is
no name. Parsing is strict about fields, since Go finds a misspelt one only when it is too late to refuse it.
"""

import re
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

HOSTNAME_FIELDS: Final = ("Name", "DisplayName", "Namespace", "Mesh", "Zone")  # of a service

_OPEN: Final = "{{"
_CLOSE: Final = "}}"
_ACTION = re.compile(
    r"""\{\{\s*(?:\.(?P<field>\w+)|label\s*(?:"(?P<quoted>[^"\\\n]*)"|`(?P<raw>[^`]*)`))\s*\}\}"""
)


class TemplateError(ValueError):
    """A template that cannot be read, or not be filled in; the text says why."""


class Text(msgspec.Struct, frozen=True):
    """Text that stays as it is."""

    text: str


class Field(msgspec.Struct, frozen=True):
    """A property of the object."""

    name: str


class Label(msgspec.Struct, frozen=True):
    """The value of one of the object's labels."""

    key: str


class Template(msgspec.Struct, frozen=True):
    """A template that was read."""

    pieces: tuple[Text | Field | Label, ...]


def parse(text: str, fields: Collection[str]) -> Template:
    """The template that `text` writes, where `fields` are known; TemplateError where it is none."""
    pieces: list[Text | Field | Label] = []
    at = 0
    while (start := text.find(_OPEN, at)) >= 0:
        if start > at:
            pieces.append(Text(text[at:start]))
        action = _ACTION.match(text, start)
        if action is None:
            raise TemplateError(_unreadable(text[start:], fields))
        pieces.append(_piece(action, fields))
        at = action.end()
    if at < len(text):
        pieces.append(Text(text[at:]))
    return Template(tuple(pieces))


def _piece(action: re.Match[str], fields: Collection[str]) -> Field | Label:
    field, quoted, raw = action["field"], action["quoted"], action["raw"]
    if field is None:
        return Label(raw if quoted is None else quoted)
    if field not in fields:
        raise TemplateError(f'unknown field in "{action[0]}"; known are {_known(fields)}')
    return Field(field)


def _unreadable(rest: str, fields: Collection[str]) -> str:
    end = rest.find(_CLOSE)
    if end < 0:
        return f'unclosed action "{rest}"; it ends with "{_CLOSE}"'
    return f'unexpected "{rest[: end + len(_CLOSE)]}"; use {_known(fields)} or label "key"'


def _known(fields: Collection[str]) -> str:
    return ", ".join(f".{field}" for field in sorted(fields))


def render(template: Template, values: Mapping[str, str], labels: Mapping[str, str]) -> str:
    """The text that a template gives for one object; TemplateError where a label is missing."""
    return "".join(_value(piece, values, labels) for piece in template.pieces)


def _value(piece: Text | Field | Label, values: Mapping[str, str], labels: Mapping[str, str]) -> str:
    match piece:
        case Text(text):
            return text
        case Field(name):
            return values.get(name, "")
        case Label(key):
            if key not in labels:
                raise TemplateError(f'label "{key}" is missing')
            return labels[key]
