"""Options that many commands share."""

import contextlib
import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:  # `--help` does not need HTTP
    from koguma.cli.client import ApiClient

VERBOSE: Final = "koguma.verbose"
_REASON_MAX: Final = 1_000

Function = Callable[..., Any]


def _note_verbose(ctx: click.Context, _param: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click calls it
    if value:
        ctx.meta[VERBOSE] = True


_CONNECTION = (
    click.option(
        "--address", metavar="URL", help="The control plane: http://HOST:PORT or https://HOST:PORT."
    ),
    click.option("--token-file", metavar="FILE", help="File with the token to send."),
    click.option("--ca-file", metavar="FILE", help="CA (PEM) that the server's certificate must come from."),
    click.option("--context", metavar="NAME", help="Context to use instead of the current one."),
    click.option(
        "-v",
        "--verbose",
        is_flag=True,
        expose_value=False,
        callback=_note_verbose,
        help="Also show request ids with errors.",
    ),
)


def connected(function: Function) -> Function:
    """Add the connection options, and call the command with a client as its first argument."""

    @functools.wraps(function)
    def command(*args: Any, **kwargs: Any) -> Any:
        flags = {name: kwargs.pop(name) for name in ("address", "token_file", "ca_file", "context")}
        with contextlib.closing(client(**flags)) as api_client:
            return function(api_client, *args, **kwargs)

    return connection(command)


def connection(function: Function) -> Function:
    """Add the connection options."""
    for option in reversed(_CONNECTION):
        function = option(function)
    return function


def client(
    address: str | None = None,
    token_file: str | None = None,
    ca_file: str | None = None,
    context: str | None = None,
) -> "ApiClient":
    """A client of the server that these options, the environment and the contexts name."""
    from koguma.cli.client import ApiClient  # noqa: PLC0415 - `--help` does not need HTTP
    from koguma.cli.target import ConnectionOptions, resolve  # noqa: PLC0415 - the same

    return ApiClient(resolve(ConnectionOptions(address, token_file, ca_file, context), os.environ))


def impatient_client(
    flags: Mapping[str, str | None], connect_seconds: float, answer_seconds: float | None = None
) -> "contextlib.closing[ApiClient]":
    """The same with its own timeouts, for a request that is not worth waiting for."""
    from koguma.cli.client import ApiClient  # noqa: PLC0415 - `--help` does not need HTTP
    from koguma.cli.target import ConnectionOptions, resolve  # noqa: PLC0415 - the same

    target = resolve(ConnectionOptions(**flags), os.environ)
    return contextlib.closing(ApiClient(target, connect_seconds, answer_seconds))


mesh = click.option("-m", "--mesh", default="default", show_default=True, help="Mesh of the objects.")
files = click.option(
    "-f",
    "--file",
    "files",
    multiple=True,
    metavar="PATH",
    help="File, folder (all .yaml, .yml and .json in it) or - for standard input; repeatable.",
)


def _checked_reason(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str:
    text = (value or "").strip()
    if len(text) > _REASON_MAX or not text.isprintable():
        raise click.BadParameter(f"must be one line of at most {_REASON_MAX} characters")
    return text


reason = click.option(
    "--reason", metavar="TEXT", callback=_checked_reason, help="Why; `koguma history` shows it."
)
at = click.option(
    "--at",
    metavar="REVISION|TIME|2h",
    help="As of a past revision, a time (RFC 3339), or how long ago; `koguma history` has the revisions.",
)


def at_query(moment: str | None) -> list[tuple[str, str]]:
    """The query of a request about the past."""
    return [("at", moment)] if moment is not None else []


class ReadsFiles(click.Command):
    """A command without arguments; a file that is given without -f is answered with the right command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, but with the right command line in the error about arguments."""
        ctx.allow_extra_args = True
        super().parse_args(ctx, args)
        if ctx.args and not ctx.resilient_parsing:
            from koguma.cli import usage_hints  # noqa: PLC0415 - only for an error

            files = [*(ctx.params.get("files") or ()), *ctx.args]
            ctx.fail(usage_hints.file_advice(ctx.command_path, files))
        return []


def output(*choices: str) -> Callable[[Function], Function]:
    """The option `-o` with these choices; without it a command prints for humans."""
    return click.option("-o", "--output", type=click.Choice(choices), help="Another form than the default.")
