"""The `koguma` command: a client of the control plane's API, and the way to start one.

Each command is a module of its own and is imported only when it is called, so that `koguma version` and
`koguma --help` cost nothing but click.

Exit codes: 0 fine; 1 the server or a check said no; 2 wrong usage; 3 the server cannot be reached;
4 not authenticated, or not allowed. `koguma diff` differs in one: 1 means that something is different,
and what would be 1 elsewhere is 2.
"""

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and give its exit code."""
    from koguma.cli import root  # noqa: PLC0415 - a module of this package does not pay for click

    return root.run(argv)
