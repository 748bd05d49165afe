"""Processes of a demo: each is a `koguma` that ends with the demo, whatever ends that."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from examples.lifeline import LEFT_BEHIND

KOGUMA = str(Path(sys.executable).with_name("koguma"))
KOGUMA_BOUND = (sys.executable, "-m", "examples.lifeline")
ROOT = Path(__file__).parent.parent
READY_WORDS = "is ready"
PORTS = {"API": "5681", "API_TLS": "5682", "DP": "5678", "XDS": "5679"}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


class Processes:
    """What the demo started, ended in reverse."""

    def __init__(self, folder: Path) -> None:
        self._environment = {**os.environ, "KOGUMA_DATA_DIR": str(folder), LEFT_BEHIND: str(folder)}
        self._planes: list[subprocess.Popen[str]] = []
        self._proxies: list[subprocess.Popen[str]] = []

    def start(self, words: Sequence[str], **variables: str) -> "subprocess.Popen[str]":
        """Start a `koguma` whose output is read here; Ctrl-C is for the demo alone."""
        process = subprocess.Popen(
            [*KOGUMA_BOUND, *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
            text=True,
            env={**self._environment, **variables},
            start_new_session=True,
        )
        (self._planes if words[0] == "cp" else self._proxies).append(process)
        return process

    def end(self) -> None:
        """Ask all to end, the control planes last."""
        for group in (self._proxies, self._planes[::-1]):
            for process in group:
                process.terminate()
            for process in group:
                try:
                    process.wait(timeout=15)
                except subprocess.TimeoutExpired:
                    process.kill()


def ready_line(process: "subprocess.Popen[str]") -> str:
    """The line in which a process says that it is ready; empty where it ends before."""
    assert process.stdout is not None
    for line in process.stdout:
        if READY_WORDS in line:
            threading.Thread(target=_drain, args=(process,), daemon=True).start()
            return line.strip()
    return ""


def _drain(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    for _ in process.stdout:
        pass


def run(demo: Callable[[Path, Processes], int]) -> int:
    """Run a demo in a folder of its own until it ends, or until Ctrl-C; leaves nothing behind."""
    folder = Path(tempfile.mkdtemp(prefix="koguma-demo-"))
    processes = Processes(folder)
    for number in (signal.SIGTERM, signal.SIGHUP):  # as when its terminal is closed
        signal.signal(number, _interrupt)
    try:
        return demo(folder, processes)
    except KeyboardInterrupt:
        print("\nEnding: proxies leave the mesh first, then the control plane stops.", flush=True)
        return 0
    finally:
        processes.end()
        shutil.rmtree(folder, ignore_errors=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def ports(usual: Mapping[str, str] = PORTS) -> dict[str, str]:
    """The usual ports of a control plane, where its variables do not say others."""
    return {name: os.environ.get(f"KOGUMA_{name}_PORT", port) for name, port in usual.items()}


def port_flags(chosen: Mapping[str, str | int]) -> list[str]:
    """The flags that say which ports a control plane listens on."""
    return [f"--{name.lower().replace('_', '-')}-port={port}" for name, port in chosen.items()]


def proxy_flags(door: str, token: Path) -> tuple[str, ...]:
    """The flags of every proxy of a demo."""
    # In a container there may be nobody else but root.
    user = ("--user", "root") if os.geteuid() == 0 else ()
    return (
        *("--cp-address", door, "--dataplane-token-file", str(token)),
        *("--concurrency", "1", "--drain-time", "1s", "--log-level", "warning", "--envoy-log-level", "error"),
        *user,
    )


def save_token(file: Path, environment: Mapping[str, str], *words: str) -> Path:
    """Make a token for a day, and keep it in a file."""
    command = [KOGUMA, "token", *words, "--valid-for", "24h"]
    file.touch(0o600)
    file.write_text(
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    )
    return file
