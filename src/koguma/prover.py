"""Prover: lets a process of its own compile everything from scratch now and then, and compares.

Every peer that keeps what it computed has served something stale one day. Where that happens here, it is an
alarm with the proxy's name, and the engine begins anew.
"""

import asyncio
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Final

import msgspec
import structlog

from koguma import proof
from koguma.control import Control
from koguma.model.place import Place
from koguma.model.resource import Key
from koguma.proof import Claim, Difference

_SECONDS_MAX: Final = 600.0

_log = structlog.get_logger("koguma.proof")


class Prover:
    """Checks the engine against a compile from scratch."""

    def __init__(
        self,
        control: Control,
        place: Place,
        envoy: str,
        proxies: Callable[[], frozenset[Key]],
        clock: Callable[[], datetime],
        renewed: Callable[[], None] = lambda: None,
    ) -> None:
        self.runs = 0
        self.mismatches = 0
        self.failures = 0  # of the check itself
        self.alarm = ""  # what was wrong last, and when
        self._control = control
        self._place = place
        self._envoy = envoy
        self._proxies = proxies
        self._clock = clock
        self._renewed = renewed

    async def run(self, every_seconds: float) -> None:
        """Check again and again, until cancelled."""
        while True:
            await asyncio.sleep(every_seconds)
            if self._proxies():
                await self.check()

    async def check(self) -> list[Difference]:
        """Check once; gives the proxies whose configuration was not what it should be."""
        wanted = self._proxies()
        made, revision = await self._control.beside(
            lambda db: proof.claim(db, self._place, self._envoy, wanted)
        )
        found = await self._disproved(made)
        if found is None:
            self.failures += 1
            return []
        self.runs += 1
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

    async def _disproved(self, made: Claim) -> list[Difference] | None:
        """What a process of its own finds; None where it cannot tell."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "koguma.proof"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(_SECONDS_MAX):
                out, said = await process.communicate(msgspec.msgpack.encode(made))
            if process.returncode:
                _log.warning("the proof could not be made", reason=said.decode(errors="replace")[-1000:])
                return None
            return msgspec.json.decode(out, type=list[Difference])
        except TimeoutError:
            _log.warning("the proof took too long", limit_seconds=_SECONDS_MAX)
            return None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
