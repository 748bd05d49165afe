"""Startup: waits until a proxy is ready, and reports meanwhile what it waits for.

A proxy is ready when its Envoy is live, has accepted every listener, and, where DNS is on, names of the mesh
are answered. A metrics listener that cannot be bound is reported, but does not delay readiness: it carries no
traffic of services. The control plane lets Envoy try rejected listeners again (`koguma.fleet.retries`).
"""

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec
import structlog

from koguma.dp import addresses
from koguma.dp.admin import Admin, ListenerError
from koguma.dp.envoy import LoggedListenerError
from koguma.dp.unix_http import EnvoyUnreachable
from koguma.envoy import names

_LIVE: Final = "LIVE"
_POLL_SECONDS: Final = 0.25
_PATIENCE_SECONDS: Final = 10.0
# A rejected listener is tried again at least once a minute; an older error is about one that was removed.
_ERROR_SECONDS_MAX: Final = 75.0
_UNBOUND: Final = re.compile(r"cannot bind '(?P<host>[^']*):(?P<port>\d+)': (?P<why>[^;\n]+)")
_AGAIN: Final = "it is tried again by itself"

_log = structlog.get_logger("koguma.dp")


class _KnownError(msgspec.Struct, frozen=True):
    """The details that Envoy gives, and the message for people, which is expensive to make."""

    details: str
    text: str


class Startup:
    """Waits for one Envoy; `names_known` is set once DNS answers for the mesh, None where DNS is off.

    `logged` are the listener errors in Envoy's log, by name of the listener: the admin interface reports an
    error only until the next LDS update, which may follow at once.
    """

    def __init__(
        self,
        admin: Admin,
        logged: Mapping[str, LoggedListenerError],
        names_known: asyncio.Event | None,
        report: Callable[[str], None],
    ) -> None:
        self._admin = admin
        self._logged = logged
        self._names_known = names_known
        self._report = report
        self._errors: dict[str, _KnownError] = {}  # by name of the listener
        self._reported: set[str] = set()

    async def finish(self) -> None:
        """Return when the proxy is ready; meanwhile report what it waits for, each reason once."""
        await self._wait_live()
        begun_at, patient = time.monotonic(), True
        while True:
            errors = await self._blocking_errors()
            if not errors and (self._names_known is None or self._names_known.is_set()):
                return
            for text in errors:
                self._report_once(f"is not ready: {text}")
            if not errors and patient and time.monotonic() - begun_at > _PATIENCE_SECONDS:
                patient = False
                hint = (
                    "Envoy hands them on from the control plane, whose log says more; --no-dns does without"
                )
                _log.warning("names of the mesh are not known yet", hint=hint)
            await self._pause()

    async def _pause(self) -> None:
        """Wait for the poll interval, or until names are known."""
        if self._names_known is None or self._names_known.is_set():
            await asyncio.sleep(_POLL_SECONDS)
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._names_known.wait(), _POLL_SECONDS)

    async def _wait_live(self) -> None:
        begun_at, patient = time.monotonic(), True
        while (state := await self._admin.state()) != _LIVE:
            if patient and time.monotonic() - begun_at > _PATIENCE_SECONDS:
                patient = False
                hint = "it waits for configuration; its own lines here, or the control plane's log, say why"
                _log.warning("Envoy is not ready yet", state=state or "does not answer", hint=hint)
            await asyncio.sleep(_POLL_SECONDS)

    async def _blocking_errors(self) -> list[str]:
        """The errors of listeners that carry traffic; those of metrics listeners are reported here."""
        try:
            errors, listeners = await self._admin.listener_errors(), await self._admin.listeners()
        except EnvoyUnreachable:  # it exits; the agent's supervision handles that
            return [error.text for error in self._errors.values()]
        self._update_errors(errors, {listener.name for listener in listeners})
        for name, error in self._errors.items():
            if is_for_metrics(name):
                self._report_once(f"cannot be scraped: {error.text}")
        return [error.text for name, error in self._errors.items() if not is_for_metrics(name)]

    def _update_errors(self, errors: Iterable[ListenerError], listening: set[str]) -> None:
        now = time.monotonic()
        current = {name: (error.details, error.logged_at) for name, error in self._logged.items()}
        current |= {error.name: (error.details, now) for error in errors}
        before, self._errors = self._errors, {}
        for name, (details, at) in current.items():
            if name not in listening and now - at < _ERROR_SECONDS_MAX:
                known = before.get(name)
                is_known = known is not None and known.details == details
                text = known.text if known and is_known else message(ListenerError(name, details))
                self._errors[name] = _KnownError(details, text)

    def _report_once(self, text: str) -> None:
        if text not in self._reported:
            self._reported.add(text)
            self._report(text)


def is_for_metrics(name: str) -> bool:
    """Whether a listener serves metrics, and carries no traffic of services."""
    return name.startswith(f"{names.METRICS}_")


def message(error: ListenerError) -> str:
    """Why Envoy rejected a listener, and what to do about it."""
    unbound = _UNBOUND.search(error.details)
    if unbound is None:
        hint = "`koguma get proxies` names what it comes from"
        return f"Envoy refuses the listener {error.name}: {error.details.strip()}; {hint}"
    host, port = unbound["host"].removeprefix("[").removesuffix("]"), int(unbound["port"])
    why = unbound["why"]
    where = f"it cannot listen on {addresses.shown(host, port)}: {why}"
    match why:
        case "Address already in use":
            holder = addresses.process_listening_on(host, port)
            return f"{where}, by {holder}; stop that, or give the proxy another port or address; {_AGAIN}"
        case "Cannot assign requested address":
            return f"{where}; this machine does not have it: write an address that it has; {_AGAIN}"
        case "Permission denied":
            hint = "ports below 1024 need the capability CAP_NET_BIND_SERVICE; choose a higher one"
            return f"{where}; {hint}"
        case _:
            return f"{where}; write another address or port"
