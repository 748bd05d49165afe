"""`koguma config`: the contexts, which are named control planes with credentials."""

import os
import sys
from pathlib import Path

import click

from koguma.cli import contexts, tables, target
from koguma.cli.contexts import CliContext, Config
from koguma.cli.failures import CommandFailure, ExitCode
from koguma.cli.target import ServerTarget
from koguma.model.redacted import Redacted


@click.group("config")
def command() -> None:
    """Keep the control planes that you talk to, with address, token and CA, as contexts."""


@command.command("contexts")
def list_contexts() -> None:
    """List the contexts; the current one is marked."""
    config = _load()
    rows = [
        (
            "*" if context.name == config.current else "",
            context.name,
            context.address,
            _token_origin(context),
            context.ca_file,
        )
        for context in config.contexts
    ]
    for line in tables.lines(("CURRENT", "NAME", "ADDRESS", "TOKEN", "CA"), rows):
        print(line)


@command.command("add")
@click.argument("name")
@click.option("--address", required=True, metavar="URL", help="http://HOST:PORT or https://HOST:PORT.")
@click.option("--token-file", metavar="FILE", help="File that holds the token; it is read at every use.")
@click.option("--token", metavar="-", help="Only -: read the token from standard input and keep it.")
@click.option("--ca-file", metavar="FILE", help="CA (PEM) that the server's certificate must come from.")
@click.option(
    "--data-dir", metavar="DIR", help="Its data directory, on this machine: its owner needs no token."
)
@click.option("--use/--no-use", default=False, help="Also make it the current one; the first always is.")
def add(
    name: str,
    *,
    address: str,
    token_file: str | None,
    token: str | None,
    ca_file: str | None,
    data_dir: str | None,
    use: bool,
) -> None:
    """Add a context, or replace the one of that name."""
    if token is not None and token_file is not None:
        raise click.UsageError("--token and --token-file exclude each other")
    checked = target.checked_address(address, "--address")
    stored_token = _read_token(token)
    used_token = target.read_token(token_file, "--token-file") if token_file else stored_token
    server = ServerTarget(checked, "--address", used_token)
    target.check_protected(server)  # fail now rather than at every use
    if data_dir is not None and not target.is_loopback(server.host):
        raise click.UsageError("--data-dir is for a control plane on this machine, at a loopback address")
    context = CliContext(
        name, checked, stored_token, _absolute(token_file), _absolute(ca_file), _absolute(data_dir)
    )
    config = _load().with_context(context)
    _save(config._replace(current=name) if use else config)
    print(f'context "{name}" added' + (", and current" if use or config.current == name else ""))


@command.command("use")
@click.argument("name")
def use_context(name: str) -> None:
    """Make a context the current one."""
    config = _load()
    _save(config._replace(current=config.named(name).name))
    print(f'context "{name}" is current')


@command.command("remove")
@click.argument("name")
def remove(name: str) -> None:
    """Remove a context."""
    config = _load().without(name)
    _save(config)
    print(f'context "{name}" removed' + ("" if config.current else "; none is current now"))


@command.command("view")
def view() -> None:
    """Print the file, tokens masked."""
    from koguma.cli import output  # noqa: PLC0415 - the other commands do not need it

    print(f"# {contexts.path(os.environ)}")
    print(output.yaml_text(_load().document(masked=True)), end="")


def _load() -> Config:
    return contexts.load(contexts.path(os.environ))


def _save(config: Config) -> None:
    contexts.save(contexts.path(os.environ), config)


def _absolute(file: str | None) -> str:
    return str(Path(file).expanduser().absolute()) if file else ""


def _read_token(option: str | None) -> Redacted | None:
    if option is None:
        return None
    if option != "-":
        raise click.UsageError(
            "a token on the command line is seen by everybody on this machine; give --token - and write it to"
            " standard input, or use --token-file"
        )
    text = sys.stdin.read().strip()
    if not text or any(c.isspace() for c in text):
        raise CommandFailure("standard input must hold one token", code=ExitCode.USAGE)
    return Redacted(text)


def _token_origin(context: CliContext) -> str:
    if context.token_file or context.data_dir:
        return context.token_file or f"of {context.data_dir}"
    return "kept here" if context.token else ""
