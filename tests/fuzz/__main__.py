"""Fuzz targets with coverage as the guide: `python -m tests.fuzz yaml kri --seconds 60`.

A finding is written to tests/fuzz/cases/<target>/, where `make test` runs it from then on. Targets run one
after the other, each in a process forked from this one, since to watch the package's coverage takes longer to
set up than a short search; a line `<target> ended with <exit code of libFuzzer>` stands at the end of each.
The exit code is 0 where nothing was found.
"""

import os
import sys
import tempfile
from pathlib import Path

import atheris
import click


@click.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--seconds", default=60, show_default=True, help="How long each.")
@click.option("--runs", default=-1, help="How many inputs each at the most.")
def main(names: tuple[str, ...], seconds: int, runs: int) -> None:
    """Fuzz the targets NAMES."""
    with atheris.instrument_imports(include=["koguma"], enable_loader_override=False):
        from tests.fuzz import targets  # noqa: F401 - so that every child has it
    found = False
    for name in names:
        child = os.fork()
        if not child:
            fuzz(name, seconds, runs)
        exit_code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        click.echo(f"{name} ended with {exit_code}", err=True)
        found = found or exit_code != 0
    sys.exit(found)


def fuzz(name: str, seconds: int, runs: int) -> None:
    """Fuzz one target; libFuzzer ends the process."""
    from tests.fuzz import targets

    target = targets.TARGETS[name]
    kept = targets.CASES / name
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as corpus:
        for number, seed in enumerate((*target.seeds, *(case.read_bytes() for case in targets.cases(name)))):
            (Path(corpus) / str(number)).write_bytes(seed)
        options = (
            *(
                "-print_final_stats=1",
                "-verbosity=0",
                "-timeout=10",
                "-rss_limit_mb=2048",
                "-close_fd_mask=0",
            ),
            *(f"-max_total_time={seconds}", f"-runs={runs}", f"-max_len={targets.SIZE_MAX}", "-seed=7"),
            f"-artifact_prefix={kept}/",
        )
        atheris.Setup([sys.argv[0], *options, corpus], target.run)
        atheris.Fuzz()


main()
