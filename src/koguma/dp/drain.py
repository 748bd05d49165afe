"""Drain: let a proxy finish what it does, then say that nobody would lose anything."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from koguma.dp.admin import Admin
from koguma.dp.unix_http import Silent

_POLL_SECONDS: Final = 0.25


async def drain(admin: Admin, is_running: Callable[[], bool], limit_seconds: float, notice: float) -> bool:
    """Wait until Envoy is quiet, or until the time is over; says whether it became quiet.

    For the time of `notice` it goes on taking calls, because others need a moment to hear that it leaves.
    When it is quiet it stops listening, and must then still be quiet: a call may have come in between.
    """
    begun_at = time.monotonic()
    is_listening = True
    try:
        await admin.begin_drain()
        while is_running():
            passed = time.monotonic() - begun_at
            is_quiet = passed >= min(notice, limit_seconds) and (await admin.activity()).is_quiet
            if is_quiet and not is_listening:
                return True
            if is_quiet:
                await admin.stop_listening()
                is_listening = False
            elif passed >= limit_seconds:
                return False
            else:
                await asyncio.sleep(_POLL_SECONDS)
    except Silent:
        return False
    return True
