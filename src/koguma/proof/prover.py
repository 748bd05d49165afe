"""Prover: compiles everything from scratch now and then in another process, and compares.

Control planes that keep what they computed have all served something stale at some time. Where that happens
here, it is an alarm with the proxy's name, and the engine is reset. A proof that is overdue is an alarm too.
"""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

import msgspec
import structlog

from koguma.application.live_engine import LiveEngine
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.resource import Key
from koguma.proof import from_scratch
from koguma.proof.from_scratch import Claim, Difference

_SECONDS_MAX: Final = 600.0
_OVERDUE_INTERVALS: Final = 3
_OVERDUE_SECONDS_MIN: Final = 30.0  # a proof itself takes some seconds, however short the interval is
_REASON_MAX: Final = 1000

_log = structlog.get_logger("koguma.proof")


class Prover:
    """Checks the engine against a compile from scratch."""

    def __init__(
        self,
        engine: LiveEngine,
        control_plane: ControlPlaneInfo,
        envoy: str,
        proxies: Callable[[], frozenset[Key]],
        clock: Callable[[], datetime],
        on_reset: Callable[[], None] = lambda: None,
    ) -> None:
        self.runs = 0
        self.mismatches = 0
        self.failures = 0  # to make a proof at all
        self.failure = ""  # why the last attempt failed, if it did
        self.alarm = ""  # what was wrong last, and when
        self.last_at: datetime | None = None  # when a proof was last made
        self.every_seconds = 0.0  # 0: only when asked
        self._owed_since = clock()  # since when a proof is missing
        self._engine = engine
        self._control_plane = control_plane
        self._envoy = envoy
        self._proxies = proxies
        self._clock = clock
        self._on_reset = on_reset

    async def run(self, every_seconds: float) -> None:
        """Check at intervals, until cancelled; one that fails is tried again at the next."""
        self.every_seconds = every_seconds
        self._owed_since = self._clock()
        while True:
            await asyncio.sleep(every_seconds)
            if not self._proxies():
                self._owed_since = self._clock()
                continue
            try:
                await self.check()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next proof is still needed
                self._fail(f"{type(error).__name__}: {error}", error)

    def is_overdue(self) -> bool:
        """Whether no proof was made for several intervals."""
        longest = max(_OVERDUE_INTERVALS * self.every_seconds, _OVERDUE_SECONDS_MIN)
        return self._clock() - self._owed_since > timedelta(seconds=longest)

    async def check(self) -> list[Difference]:
        """Check once; returns the proxies whose configuration was not what it should be."""
        proxies = self._proxies()
        claim, revision = await self._engine.beside(
            lambda db: from_scratch.claim(db, self._control_plane, self._envoy, proxies)
        )
        differences = await self._differences(claim)
        if differences is None:
            return []
        self.runs += 1
        self.failure = ""
        self.last_at = self._owed_since = self._clock()
        if differences:
            self._raise_alarm(differences, revision)
            await self._engine.renew()
            self._on_reset()
        return differences

    def _raise_alarm(self, differences: list[Difference], revision: int) -> None:
        self.mismatches += len(differences)
        names = ", ".join(str(each.proxy) for each in differences[:3])
        at = self._clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        self.alarm = (
            f"at {at}, revision {revision}, a compile from scratch gave something else for"
            f" {len(differences)} of the proxies: {names}; the engine began anew"
        )
        _log.error(
            "the engine was wrong", proxies=[str(each.proxy) for each in differences], revision=revision
        )

    def _fail(self, reason: str, error: Exception | None = None) -> None:
        self.failures += 1
        self.failure = reason
        _log.error("the proof could not be made", reason=reason, exc_info=error)

    async def _differences(self, claim: Claim) -> list[Difference] | None:
        """What another process finds; None where it fails."""
        try:
            process = _started()
        except OSError as error:
            self._fail(f"a process cannot be started: {error}")
            return None
        communicating = asyncio.get_running_loop().run_in_executor(
            None, process.communicate, msgspec.msgpack.encode(claim), _SECONDS_MAX
        )
        try:
            out, errors = await asyncio.shield(communicating)
            if process.returncode:
                text = errors.decode(errors="replace").strip()[-_REASON_MAX:]
                self._fail(f"its process ended with {_exit_name(process.returncode)}: {text or 'no output'}")
                return None
            return msgspec.json.decode(out, type=list[Difference])
        except subprocess.TimeoutExpired:
            self._fail(f"it took longer than {_SECONDS_MAX:g} s")
            return None
        except (OSError, msgspec.DecodeError) as error:
            self._fail(f"its process did not answer as expected: {error}", error)
            return None
        finally:
            process.kill()  # without effect where it has ended
            with contextlib.suppress(Exception):
                await communicating
            process.wait()


def _started() -> "subprocess.Popen[bytes]":
    """A process that checks a claim from its standard input.

    Not started by the event loop: uvloop forks, and a fork of a process whose threads are inside gRPC may
    abort in gRPC's fork handlers before it becomes the other program. `subprocess` uses vfork, which runs
    none of them.
    """
    return subprocess.Popen(
        (sys.executable, "-m", "koguma.proof.from_scratch"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _exit_name(code: int) -> str:
    if code >= 0:
        return f"code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
