"""Records: the names that the control plane wants answered, taken from Envoy and given to the DNS server.

Envoy gets them with the rest of its configuration, and hands them on through a socket in the proxy's
directory. They are asked for every second, by version, so that an unchanged answer is empty; more often until
they come for the first time.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog

from koguma.dp import unix_http
from koguma.dp.dns import DnsServer
from koguma.dp.unix_http import Silent

_POLL_SECONDS: Final = 1.0
_QUICK_POLL_SECONDS: Final = 0.05
_QUICK_POLLS_MAX: Final = 400
_OK: Final = 200

_log = structlog.get_logger("koguma.dp")


class _Record(msgspec.Struct, frozen=True):
    name: str
    ips: tuple[str, ...] = ()


class Records(msgspec.Struct, frozen=True):
    """What `/dns` says."""

    records: tuple[_Record, ...] = ()
    ttl: int = 30

    @property
    def by_name(self) -> Mapping[str, tuple[str, ...]]:
        """Addresses by name."""
        return {record.name: record.ips for record in self.records}


def read(text: str) -> Records:
    """The records in an answer; ValueError where it is none."""
    return msgspec.json.decode(text, type=Records)


async def follow(socket: Path, server: DnsServer, known: asyncio.Event) -> None:
    """Keep the server's records as the control plane wants them, for as long as this runs.

    `known` is set when there are records for the first time. Until then they are asked for often, because the
    proxy is not ready without them, but not for ever.
    """
    etag, n_quick = "", _QUICK_POLLS_MAX
    while True:
        etag = await _step(socket, server, etag)
        if server.is_filled:
            known.set()
        n_quick = 0 if server.is_filled else max(0, n_quick - 1)
        await asyncio.sleep(_QUICK_POLL_SECONDS if n_quick else _POLL_SECONDS)


async def _step(socket: Path, server: DnsServer, etag: str) -> str:
    try:
        answer = await unix_http.ask(socket, "/dns", etag=etag)
    except Silent:  # Envoy starts, or the control plane has nothing for us; what is known stays known
        return etag
    if answer.status != _OK:
        return etag
    try:
        found = read(answer.text)
    except ValueError as error:
        _log.warning("records for DNS cannot be read", why=str(error))
        return answer.etag
    server.set_records(found.by_name, found.ttl)
    _log.debug("records for DNS", names=len(found.records))
    return answer.etag
