"""Ports for what a test starts: free ones, outside of those that the system gives to outgoing connections.

A port of the system's own choice may be somebody's connection a moment later, before it is listened on.
"""

import os
import random
import socket
from pathlib import Path

_FIRST = 10_000
_WIDTH = 5_000  # for each process that runs tests at the same time
_given: set[int] = set()


def free_port() -> int:
    """A port where nobody listens, each time another one."""
    while True:
        port = random.randrange(*_range())
        if port not in _given and _is_free(port):
            _given.add(port)
            return port


def _range() -> tuple[int, int]:
    chosen = Path("/proc/sys/net/ipv4/ip_local_port_range")
    end = int(chosen.read_text().split()[0]) if chosen.exists() else 32_768
    n_processes = max((end - _FIRST) // _WIDTH, 1)
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % n_processes
    return _FIRST + worker * _WIDTH, _FIRST + (worker + 1) * _WIDTH


def _is_free(port: int) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(type=kind) as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                return False
    return True
