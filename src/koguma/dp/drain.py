"""Drain: let active requests finish before Envoy is stopped."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from koguma.dp.admin import Admin
from koguma.dp.unix_http import EnvoyUnreachable

_POLL_SECONDS: Final = 0.25


async def drain(admin: Admin, is_running: Callable[[], bool], limit_seconds: float, notice: float) -> bool:
    """Drain Envoy until it is idle, or until the time limit; returns whether it became idle.

    For `notice` seconds it still accepts connections, because other proxies need a moment to learn that this
    endpoint is gone. Once idle it stops listening, and must then still be idle: a connection may have come in
    between.
    """
    begun_at = time.monotonic()
    is_listening = True
    try:
        await admin.begin_drain()
        while is_running():
            passed = time.monotonic() - begun_at
            is_idle = passed >= min(notice, limit_seconds) and (await admin.activity()).is_idle
            if is_idle and not is_listening:
                return True
            if is_idle:
                await admin.stop_listening()
                is_listening = False
            elif passed >= limit_seconds:
                return False
            else:
                await asyncio.sleep(_POLL_SECONDS)
    except EnvoyUnreachable:
        return False
    return True
