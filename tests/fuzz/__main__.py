"""Fuzz one target with coverage as the guide: `python -m tests.fuzz yaml --seconds 60`.

A finding is written to tests/fuzz/cases/<target>/, where `make test` runs it from then on. The exit code is
that of libFuzzer: not 0 where something was found.
"""

import sys
import tempfile
from pathlib import Path

import atheris
import click


@click.command()
@click.argument("name")
@click.option("--seconds", default=60, show_default=True, help="How long.")
@click.option("--runs", default=-1, help="How many inputs at the most.")
def main(name: str, seconds: int, runs: int) -> None:
    """Fuzz the target NAME."""
    with atheris.instrument_imports(include=["koguma"], enable_loader_override=False):
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
