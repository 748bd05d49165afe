"""`koguma cp`: run a control plane. Each field of Settings is a flag."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import click
import msgspec

from koguma.cli.failures import CommandFailure, ExitCode
from koguma.model.documents import BadDocument
from koguma.model.errors import Invalid
from koguma.model.redacted import masked_url
from koguma.runtime import settings as setting
from koguma.runtime.settings import ENV_PREFIX, Settings

_FILE_ONLY = ("access",)
_EXPOSED_STORE_WARNING = (
    "warning: the password of the store is on the command line, where everybody on this machine can read it;"
    " put it into ~/.pgpass (or the file that PGPASSFILE names), or the address into KOGUMA_STORE"
)


@click.group("cp")
def command() -> None:
    """Run a control plane."""


def run(*, config_file: str | None, print_config: bool, **flags: Any) -> int:
    """Run a control plane until it is stopped.

    Each setting comes from its flag, else from its variable, else from the file, else it has its default.
    """
    try:
        settings = setting.load(config_file, os.environ, flags)
    except Invalid as error:
        lines = tuple(f" - {violation.field}: {violation.message}" for violation in error.violations)
        raise CommandFailure(error.detail, lines, ExitCode.USAGE) from None
    except BadDocument as error:
        raise CommandFailure(error.detail, (), ExitCode.USAGE) from None
    if print_config:
        from koguma.cli import output  # noqa: PLC0415 - a server does not need it

        print(output.yaml_text(msgspec.to_builtins(settings.shown())), end="")
        return ExitCode.FINE
    if masked_url(flags.get("store") or "") != (flags.get("store") or ""):
        print(_EXPOSED_STORE_WARNING, file=sys.stderr)
    # `main` assembles the control plane, so it is the top layer. It is imported by name, and only here: no
    # other command imports it, and the import contract (.importlinter) holds.
    serve: Callable[[Settings], int] = importlib.import_module("koguma.main").run
    return serve(settings)


def options() -> Iterator[click.Option]:
    """A flag for each setting."""
    yield click.Option(
        ["--config-file"],
        metavar="FILE",
        envvar="KOGUMA_CONFIG_FILE",
        help="YAML file with settings. [KOGUMA_CONFIG_FILE]",
    )
    yield click.Option(
        ["--print-config"], is_flag=True, help="Print the settings as YAML, passwords masked, and end."
    )
    hints = get_type_hints(Settings, include_extras=True)
    for field in msgspec.structs.fields(Settings):
        if field.name not in _FILE_ONLY:
            yield _option(field, hints[field.name])


def _option(field: msgspec.structs.FieldInfo, hint: Any) -> click.Option:
    base, description = _type_and_description(hint)
    flag = field.name.replace("_", "-")
    default = f"; default {_shown(field.default)}" if field.default not in ("", ()) else ""
    text = f"{description} [{ENV_PREFIX}{field.name.upper()}{default}]"
    if base is bool:
        return click.Option([f"--{flag}/--no-{flag}"], default=None, help=text)
    if get_origin(base) is Literal:
        return click.Option([f"--{flag}"], type=click.Choice(get_args(base)), help=text)
    if get_origin(base) is tuple:
        return click.Option([f"--{flag}"], multiple=True, metavar="TEXT", help=f"{text} Repeatable.")
    return click.Option([f"--{flag}"], type=int if base is int else str, help=text)


def _type_and_description(hint: Any) -> tuple[Any, str]:
    """A field's type and description: the last one, because a named type may have its own before it."""
    description = ""
    if get_origin(hint) is Annotated:
        hint, *metas = get_args(hint)
        description = next((meta.description for meta in reversed(metas) if meta.description), "")
    return hint, description


def _shown(default: Any) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


command.add_command(click.Command("run", params=list(options()), callback=run, help=run.__doc__))
