"""Runs a control plane in this process."""

import asyncio
import contextlib
import os
import signal
import sys
from typing import Final

import structlog

from koguma import __version__, kinds, plugins
from koguma.control_plane.control_plane import ControlPlane
from koguma.model.errors import Invalid, KogumaError
from koguma.model.kind import Kinds
from koguma.model.redacted import masked_url
from koguma.runtime import garbage_collection, logs
from koguma.runtime.settings import Settings

# The compile works beside the loop. Whoever waits for Python gets it after this long, and with 5 ms, which is
# usual, thousands of small waits of the loop add up to seconds.
SWITCH_SECONDS: Final = 0.0005

_log = structlog.get_logger("koguma")


def all_kinds() -> Kinds:
    """Built-in kinds, and the policies of every installed package that offers the entry point."""
    return plugins.load(kinds.KINDS, plugins.installed(), _warn_in_log).kinds


def _warn_in_log(text: str) -> None:
    _log.warning("plugin", warning=text)


async def serve(settings: Settings) -> int:
    """Run until a signal says stop."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    plane = ControlPlane(settings)
    try:
        await plane.start()
        host = settings.api_host if settings.api_host != "0.0.0.0" else "localhost"  # noqa: S104 - for people
        print(  # noqa: T201 - the one line that says it is ready
            f"koguma {__version__} is ready: http://{host}:{plane.ports['api']}"
            f" https://{host}:{plane.ports['api-tls']} ({masked_url(settings.store_url)})"
            f"{plane.proxy_address}",
            flush=True,
        )
        _log.info("control plane started", mode=settings.mode, pid=os.getpid(), **plane.ports)
        await stopping.wait()
        _log.info("control plane stops")
    finally:
        await plane.stop()
    return 0


def run(settings: Settings) -> int:
    """Run a control plane in this process; the exit code says how it ended."""
    logs.configure(settings.log_level, settings.log_format)
    garbage_collection.defer()
    garbage_collection.release_large_blocks()
    sys.setswitchinterval(SWITCH_SECONDS)
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415 - only where it is installed

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    try:
        return asyncio.run(serve(settings))
    except Invalid as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the command's own answer
    except KogumaError as error:
        print(f"error: {error.detail}", file=sys.stderr)  # noqa: T201
    return 1
