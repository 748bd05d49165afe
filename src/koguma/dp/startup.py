"""Startup: what a proxy's Envoy still lacks before calls can go through it, in words while it does.

A proxy is ready when its Envoy is live, has every listener that it was told of, and names of the mesh are
answered where DNS is on. A port for metrics carries nobody's calls: that it could not be bound is said, and
holds nothing up. The control plane lets Envoy try refused listeners again by itself (`koguma.fleet.retries`).
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
from koguma.dp.admin import Admin, Refused
from koguma.dp.envoy import RefusedListener
from koguma.dp.unix_http import Silent
from koguma.envoy import names

_LIVE: Final = "LIVE"
_POLL_SECONDS: Final = 0.25
_PATIENCE_SECONDS: Final = 10.0
# A listener that is refused is tried again at least once a minute; one that was not is no longer wanted.
_FORGOTTEN_SECONDS: Final = 75.0
_UNBOUND: Final = re.compile(r"cannot bind '(?P<host>[^']*):(?P<port>\d+)': (?P<why>[^;\n]+)")
_AGAIN: Final = "it is tried again by itself"

_log = structlog.get_logger("koguma.dp")


class _Seen(msgspec.Struct, frozen=True):
    details: str
    text: str


class Startup:
    """Waits for one Envoy; `names_known` is set once DNS answers for the mesh, None where DNS is off.

    What Envoy logged about listeners is `logged`, by name: its admin interface tells of a refused listener
    only until Envoy hears of other ones, which may be a moment later.
    """

    def __init__(
        self,
        asked: Admin,
        logged: Mapping[str, RefusedListener],
        names_known: asyncio.Event | None,
        tell: Callable[[str], None],
    ) -> None:
        self._asked = asked
        self._logged = logged
        self._names_known = names_known
        self._tell = tell
        self._refused: dict[str, _Seen] = {}
        self._told: set[str] = set()

    async def finish(self) -> None:
        """Return when the proxy is ready; meanwhile say what it waits for, each reason once."""
        await self._until_live()
        begun_at, patient = time.monotonic(), True
        while True:
            waits = await self._refusals()
            if not waits and (self._names_known is None or self._names_known.is_set()):
                return
            for text in waits:
                self._say(f"is not ready: {text}")
            if not waits and patient and time.monotonic() - begun_at > _PATIENCE_SECONDS:
                patient = False
                hint = (
                    "Envoy hands them on from the control plane, whose log says more; --no-dns does without"
                )
                _log.warning("names of the mesh are not known yet", hint=hint)
            await self._pause()

    async def _pause(self) -> None:
        """Wait a moment, or until names are known where nothing else is missing."""
        if self._names_known is None or self._names_known.is_set():
            await asyncio.sleep(_POLL_SECONDS)
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._names_known.wait(), _POLL_SECONDS)

    async def _until_live(self) -> None:
        begun_at, patient = time.monotonic(), True
        while (state := await self._asked.state()) != _LIVE:
            if patient and time.monotonic() - begun_at > _PATIENCE_SECONDS:
                patient = False
                hint = "it waits for configuration; its own lines here, or the control plane's log, say why"
                _log.warning("Envoy is not ready yet", state=state or "does not answer", hint=hint)
            await asyncio.sleep(_POLL_SECONDS)

    async def _refusals(self) -> list[str]:
        """What is said about listeners that are refused and carry calls; of others it is said here."""
        try:
            refused, listening = await self._asked.refused(), await self._asked.listeners()
        except Silent:  # it ends; whoever runs it will know
            return [seen.text for seen in self._refused.values()]
        self._note(refused, {each.name for each in listening})
        for name, seen in self._refused.items():
            if is_for_metrics(name):
                self._say(f"cannot be scraped: {seen.text}")
        return [seen.text for name, seen in self._refused.items() if not is_for_metrics(name)]

    def _note(self, refused: Iterable[Refused], listening: set[str]) -> None:
        now = time.monotonic()
        seen = {name: (each.details, each.at) for name, each in self._logged.items()}
        seen |= {each.name: (each.details, now) for each in refused}
        before, self._refused = self._refused, {}
        for name, (details, at) in seen.items():
            if name not in listening and now - at < _FORGOTTEN_SECONDS:
                known = before.get(name)
                text = known.text if known and known.details == details else words(Refused(name, details))
                self._refused[name] = _Seen(details, text)

    def _say(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._tell(text)


def is_for_metrics(name: str) -> bool:
    """Whether a listener is there for who scrapes, and for nobody's calls."""
    return name.startswith(f"{names.METRICS}_")


def words(refused: Refused) -> str:
    """Why a listener is not there, and what to do about it."""
    found = _UNBOUND.search(refused.details)
    if found is None:
        hint = "`koguma get proxies` names what it comes from"
        return f"Envoy refuses the listener {refused.name}: {refused.details.strip()}; {hint}"
    host, port, why = found["host"].removeprefix("[").removesuffix("]"), int(found["port"]), found["why"]
    where = f"it cannot listen on {addresses.shown(host, port)}: {why}"
    match why:
        case "Address already in use":
            who = addresses.listener(host, port)
            return f"{where}, by {who}; stop that, or give the proxy another port or address; {_AGAIN}"
        case "Cannot assign requested address":
            return f"{where}; this machine does not have it: write an address that it has; {_AGAIN}"
        case "Permission denied":
            hint = "ports below 1024 need the capability CAP_NET_BIND_SERVICE; choose a higher one"
            return f"{where}; {hint}"
        case _:
            return f"{where}; write another address or port"
