"""`koguma completion`: scripts that let a shell complete commands, options and kinds."""

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print a completion script for a shell."""
    found = get_completion_class(shell)
    assert found is not None, f"click completes {shell}"
    print(found(ctx.find_root().command, {}, "koguma", "_KOGUMA_COMPLETE").source())
