"""The `koguma` command: a client of the control plane's API; it also runs control planes and proxies.

Each command is a module of its own and is imported only when it is called, so that `koguma version` and
`koguma --help` import little more than click.

Exit codes: 0 success; 1 the server refused or a check failed; 2 wrong usage; 3 the server cannot be reached;
4 not authenticated, or not allowed. `koguma diff` has its own: 1 means that something differs, and what is 1
for other commands is 2.
"""

import os
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC's own lines are no lines of our log
    from koguma.cli import root  # noqa: PLC0415 - importing a module of this package does not import click

    return root.run(argv)
