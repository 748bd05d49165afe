"""`python -m bench [PART ...] [--quick] [--json]`: run measurements and print them."""

import argparse
import asyncio
import importlib
import os
import platform
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from bench.figures import Figure, table

PARTS = ("store", "database", "api", "policies", "lists", "watches", "kube", "gateway", "latency", "startup")


def main() -> int:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Koguma.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="a short round; its figures mean nothing")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}; use {', '.join(PARTS)}")
    with suppress(ImportError):  # as the control plane does
        import uvloop  # noqa: PLC0415 - only where it is installed

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    results = {}
    for part in options.parts or PARTS:
        results[part] = _measured(part, quick=options.quick, silent=options.json)
    if options.json:
        sys.stdout.buffer.write(msgspec.json.encode({"machine": machine(), "parts": results}) + b"\n")
    return 0


def machine() -> dict[str, Any]:
    """The machine of this run."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load": os.getloadavg(),
    }


def _measured(part: str, *, quick: bool, silent: bool) -> list[Figure]:
    module = importlib.import_module(f"bench.{part}")
    neighbours = _busy(0.05 if quick else 2.0)
    figures: list[Figure] = asyncio.run(module.measured(quick=quick))
    if not silent:
        print(f"## {part}: {module.ABOUT}\n\nOthers used {neighbours:.0%} of the machine before.\n")
        print(f"{table(figures)}\n", flush=True)
    return figures


def _busy(seconds: float) -> float:
    """The share of all cores that is used while we do nothing, so that a reader knows of neighbours."""
    before = _ticks()
    time.sleep(seconds)
    used, idle = (after - start for after, start in zip(_ticks(), before, strict=True))
    return used / max(used + idle, 1)


def _ticks() -> tuple[int, int]:
    """Used and idle time of all cores since the machine started; waiting for a disk is idle."""
    user, nice, system, idle, waiting, *rest = map(int, Path("/proc/stat").read_text().split()[1:9])
    return user + nice + system + sum(rest), idle + waiting


if __name__ == "__main__":
    sys.exit(main())
