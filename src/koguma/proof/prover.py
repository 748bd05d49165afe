"""Prover: lets a process of its own compile everything from scratch now and then, and compares.

Every peer that keeps what it computed has served something stale one day. Where that happens here, it is an
alarm with the proxy's name, and the engine begins anew. That no proof was made for a while is an alarm too.
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
        control: LiveEngine,
        control_plane: ControlPlaneInfo,
        envoy: str,
        proxies: Callable[[], frozenset[Key]],
        clock: Callable[[], datetime],
        renewed: Callable[[], None] = lambda: None,
    ) -> None:
        self.runs = 0
        self.mismatches = 0
        self.failures = 0  # of the check itself
        self.failure = ""  # of the last attempt, if it was one
        self.alarm = ""  # what was wrong last, and when
        self.last_at: datetime | None = None  # when something was last proved or disproved
        self.every_seconds = 0.0  # 0: only when asked
        self._owed_since = clock()  # since when proxies wait for a proof
        self._control = control
        self._place = control_plane
        self._envoy = envoy
        self._proxies = proxies
        self._clock = clock
        self._renewed = renewed

    async def run(self, every_seconds: float) -> None:
        """Check again and again, until cancelled; a check that fails is one that is tried again."""
        self.every_seconds = every_seconds
        self._owed_since = self._clock()
        while True:
            await asyncio.sleep(every_seconds)
            if not self._proxies():
                self._owed_since = self._clock()
                continue
            try:
                await self.check()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next proof is still wanted
                self._fail(f"{type(error).__name__}: {error}", error)

    def is_overdue(self) -> bool:
        """Whether there was no proof for so long that something must be wrong with the making of them."""
        longest = max(_OVERDUE_INTERVALS * self.every_seconds, _OVERDUE_SECONDS_MIN)
        return self._clock() - self._owed_since > timedelta(seconds=longest)

    async def check(self) -> list[Difference]:
        """Check once; gives the proxies whose configuration was not what it should be."""
        wanted = self._proxies()
        made, revision = await self._control.beside(
            lambda db: from_scratch.claim(db, self._place, self._envoy, wanted)
        )
        found = await self._disproved(made)
        if found is None:
            return []
        self.runs += 1
        self.failure = ""
        self.last_at = self._owed_since = self._clock()
        if found:
            self._sound(found, revision)
            await self._control.renew()
            self._renewed()
        return found

    def _sound(self, found: list[Difference], revision: int) -> None:
        self.mismatches += len(found)
        named = ", ".join(str(each.proxy) for each in found[:3])
        at = self._clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        self.alarm = (
            f"at {at}, revision {revision}, a compile from scratch gave something else for"
            f" {len(found)} of the proxies: {named}; the engine began anew"
        )
        _log.error("the engine was wrong", proxies=[str(each.proxy) for each in found], revision=revision)

    def _fail(self, reason: str, error: Exception | None = None) -> None:
        self.failures += 1
        self.failure = reason
        _log.error("the proof could not be made", reason=reason, exc_info=error)

    async def _disproved(self, made: Claim) -> list[Difference] | None:
        """What a process of its own finds; None where it cannot tell."""
        try:
            process = _started()
        except OSError as error:
            self._fail(f"a process cannot be started: {error}")
            return None
        talking = asyncio.get_running_loop().run_in_executor(
            None, process.communicate, msgspec.msgpack.encode(made), _SECONDS_MAX
        )
        try:
            out, said = await asyncio.shield(talking)
            if process.returncode:
                text = said.decode(errors="replace").strip()[-_REASON_MAX:]
                self._fail(f"its process ended with {_named(process.returncode)}: {text or 'no words'}")
                return None
            return msgspec.json.decode(out, type=list[Difference])
        except subprocess.TimeoutExpired:
            self._fail(f"it took longer than {_SECONDS_MAX:g} s")
            return None
        except (OSError, msgspec.DecodeError) as error:
            self._fail(f"its process could not be talked to: {error}", error)
            return None
        finally:
            process.kill()  # nothing happens to one that has ended
            with contextlib.suppress(Exception):
                await talking
            process.wait()


def _started() -> "subprocess.Popen[bytes]":
    """A process that proves what it is told.

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


def _named(code: int) -> str:
    if code >= 0:
        return f"code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
