"""DNS records of the mesh: read from Envoy's dynamic configuration listener, given to the DNS server.

The agent polls them every second, with If-None-Match, so that unchanged records cost an empty response. Until
the first records arrive it polls more often, because the proxy is not ready without them.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog

from koguma.dp import unix_http
from koguma.dp.dns import DnsServer
from koguma.dp.unix_http import EnvoyUnreachable

_POLL_SECONDS: Final = 1.0
_QUICK_POLL_SECONDS: Final = 0.05
_QUICK_POLLS_MAX: Final = 400
_OK: Final = 200

_log = structlog.get_logger("koguma.dp")


class _DnsRecord(msgspec.Struct, frozen=True):
    name: str
    ips: tuple[str, ...] = ()


class DnsRecords(msgspec.Struct, frozen=True):
    """The response of `/dns`, as Kuma's agent reads it too."""

    records: tuple[_DnsRecord, ...] = ()
    ttl: int = 30

    @property
    def by_name(self) -> Mapping[str, tuple[str, ...]]:
        """Addresses by name."""
        return {record.name: record.ips for record in self.records}


def read(text: str) -> DnsRecords:
    """The records in a response body; ValueError where it cannot be decoded."""
    return msgspec.json.decode(text, type=DnsRecords)


async def follow(socket: Path, server: DnsServer, known: asyncio.Event) -> None:
    """Keep the DNS server's records current, until cancelled.

    `known` is set with the first records. The number of quick polls before that is limited.
    """
    etag, n_quick = "", _QUICK_POLLS_MAX
    while True:
        etag = await _poll(socket, server, etag)
        if server.has_records:
            known.set()
        n_quick = 0 if server.has_records else max(0, n_quick - 1)
        await asyncio.sleep(_QUICK_POLL_SECONDS if n_quick else _POLL_SECONDS)


async def _poll(socket: Path, server: DnsServer, etag: str) -> str:
    try:
        response = await unix_http.request(socket, "/dns", etag=etag)
    except EnvoyUnreachable:  # Envoy starts, or has no records for us; the last known records stay
        return etag
    if response.status != _OK:
        return etag
    try:
        dns_records = read(response.text)
    except ValueError as error:
        _log.warning("DNS records cannot be read", why=str(error))
        return response.etag
    server.set_records(dns_records.by_name, dns_records.ttl)
    _log.debug("DNS records updated", names=len(dns_records.records))
    return response.etag
