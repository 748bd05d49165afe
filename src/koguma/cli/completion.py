"""`koguma completion`: scripts that let a shell complete commands, options, kinds, names and files."""

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a completion script for a shell.

    It completes commands, options, kinds, fields and files; names of objects and meshes come from the server,
    where it answers at once. Load it in the shell's start file.
    """
    completion_class = get_completion_class(shell)
    assert completion_class is not None, f"click completes {shell}"
    print(completion_class(ctx.find_root().command, {}, "koguma", "_KOGUMA_COMPLETE").source())
