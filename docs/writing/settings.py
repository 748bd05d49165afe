"""Settings: the page with every setting of a control plane."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec
from msgspec import inspect as shape

from docs.writing import fields, tables
from koguma.model import schema
from koguma.model.access import Binding, Role, Rule
from koguma.runtime.settings import ENV_PREFIX, Settings

_FILE_ONLY: Final = ("access",)  # structured, so neither a flag nor a variable could say it


def page() -> str:
    """The page."""
    return tables.page("src/koguma/runtime/settings.py", _settings_lines())


def _settings_lines() -> Iterator[str]:
    yield "# Settings of a control plane"
    yield ""
    yield "How they are found, and which one wins: [settings](../settings.md)."
    yield ""
    header = ("Key in the file", "Flag", "Variable", "Default", "What it is")
    yield from tables.table(header, (_setting(field) for field in msgspec.structs.fields(Settings)))
    yield "The file itself: `--config-file FILE` or `KOGUMA_CONFIG_FILE`. Without a data directory it is"
    yield "`$XDG_DATA_HOME/koguma`, else `~/.local/share/koguma`; without a store it is `koguma.db` in there."
    yield ""
    yield "## Access rules"
    yield ""
    yield "Only in the file, under `access`; examples in [access](../access.md)."
    yield ""
    for title, type_ in (("roles[]", Role), ("roles[].rules[]", Rule), ("bindings[]", Binding)):
        yield f"### `access.{title}`"
        yield ""
        yield from tables.table(("Field", "Type", "Required", "Description"), _access_rows(type_))


def _setting(field: msgspec.structs.FieldInfo) -> tuple[str, ...]:
    hint = get_type_hints(Settings, include_extras=True)[field.name]
    words = _last_words(hint)
    choices = next(schema.literals(hint), ())
    if choices:
        words += f" One of {', '.join(tables.code(choice) for choice in choices)}."
    default = field.default if isinstance(field.default, str | int) else ""
    key, shown = tables.code(field.encode_name), tables.code(fields.shown(default)) if default != "" else ""
    if field.name in _FILE_ONLY:
        return key, "", "", shown, tables.text(words)
    flag = field.name.replace("_", "-")
    flags = f"--{flag}, --no-{flag}" if isinstance(field.default, bool) else f"--{flag}"
    return key, tables.code(flags), tables.code(ENV_PREFIX + field.name.upper()), shown, tables.text(words)


def _last_words(hint: Any) -> str:
    metas = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((meta.description for meta in reversed(metas) if meta.description), "")


def _access_rows(type_: type[msgspec.Struct]) -> Iterator[Sequence[str]]:
    info = shape.type_info(type_)
    assert isinstance(info, shape.StructType)
    for field in info.fields:
        required, words = "yes" if field.required else "", tables.text(fields.description(field.type))
        yield tables.code(field.encode_name), fields.type_words(field.type), required, words
