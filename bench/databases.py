"""A PostgreSQL for measurements: the private server that the tests use, with its disk synced."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.processes import ROOT


@contextmanager
def postgres() -> Iterator[Any]:
    """A running server; `database()` gives the address of an empty database."""
    sys.path.append(str(ROOT / "tests"))
    server = importlib.import_module("postgres").Server()
    try:
        server.start()
        yield server
    finally:
        server.remove()
