"""Address history: which virtual addresses were allocated before, so that none leads to another service soon.

A program may keep what DNS answered, and a proxy may be about to remove a listener: an address that was just
freed would send calls for the old service to a new one. So addresses that were never used come first. Only
when a range has none left, those are allocated again that were freed at least `REUSE_AFTER` ago, the one that
was freed first before others.

Two things are known. `used` is the highest address of each range that was ever allocated. It is stored, and
stored before an address above it is allocated, so it survives deletions, restarts and other control planes.
When addresses were freed is only known since this control plane follows the store; what was freed earlier
counts as freed at that moment, which errs on the safe side.
"""

import ipaddress
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

import msgspec

from koguma.model.schema import Json

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
UsedAddresses = Mapping[str, str]  # by range: the highest address that was ever allocated

REUSE_AFTER: Final = timedelta(hours=24)


class Range(msgspec.Struct, frozen=True, cache_hash=True):
    """The addresses of one kind; `setting` is the name of the setting for it.

    With `twins`, an IPv6 network, every IPv4 address has an IPv6 address there, which ends in its 32 bits.
    """

    network: Network
    setting: str
    twins: ipaddress.IPv6Network | None = None

    @property
    def last(self) -> int:
        """The offset of the last usable address; that of the first is 1."""
        return self.network.num_addresses - 2

    def at(self, offset: int) -> str:
        """The address at an offset."""
        return str(self.network.network_address + offset)

    def offset(self, address: str) -> int | None:
        """The offset of an address; None where it is not in this range."""
        number = _number(address, self.network.version)
        offset = -1 if number is None else number - int(self.network.network_address)
        return offset if 1 <= offset <= self.last else None

    def twin(self, address: str) -> str | None:
        """The IPv6 address of an IPv4 address."""
        number = _number(address, 4)
        return None if self.twins is None or number is None else str(self.twins.network_address + number)

    def used_offset(self, used: UsedAddresses) -> int:
        """The offset up to which addresses may have been used, also as part of another, overlapping range."""
        first = int(self.network.network_address)
        offsets = [0]
        for text, address in used.items():
            network, number = _network(text), _number(address, self.network.version)
            if network is None or number is None or network.version != self.network.version:
                continue
            if int(network.network_address) <= first + self.last and number >= first:
                offsets.append(min(number - first, self.last))
        return max(offsets)


@lru_cache(maxsize=1 << 16)
def _number(address: str, version: int) -> int | None:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return None
    return int(parsed) if parsed.version == version else None


@lru_cache(maxsize=64)
def _network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None


def stored_form(used: UsedAddresses) -> str:
    """The highest addresses as text for the store."""
    return json.dumps(dict(sorted(used.items())))


def from_store(text: str) -> UsedAddresses:
    """The highest addresses that a text says; whatever is no address is left out."""
    try:
        entries: Json = json.loads(text)
    except ValueError:
        return {}
    pairs = entries.items() if isinstance(entries, dict) else ()
    return {name: address for name, address in pairs if isinstance(address, str) and _network(name)}


class AddressHistory(msgspec.Struct, frozen=True):
    """What a control plane knows of addresses that were used before."""

    since: datetime  # from when on it has seen every address that was freed
    used: UsedAddresses = {}
    freed_at: Mapping[str, datetime] = {}

    def freed(self, addresses: Iterable[str], now: datetime) -> "AddressHistory":
        """The history after these addresses were freed; what was freed long ago need not be kept."""
        recent = {address: at for address, at in self.freed_at.items() if now < at + REUSE_AFTER}
        return msgspec.structs.replace(self, freed_at=recent | dict.fromkeys(addresses, now))

    def candidates(self, of: Range, now: datetime) -> Iterator[str]:
        """The addresses that may be allocated, best first, whether or not somebody has them."""
        top = of.used_offset(self.used)
        for offset in range(top + 1, of.last + 1):
            if self._may_be_reused(of.at(offset), now, never_used=True):
                yield of.at(offset)
        if now >= self.since + REUSE_AFTER:
            yield from (of.at(n) for n in range(1, top + 1) if of.at(n) not in self.freed_at)
        freed = sorted((at, of.offset(address) or 0) for address, at in self.freed_at.items())
        for _, offset in freed:
            if 0 < offset <= top and self._may_be_reused(of.at(offset), now):
                yield of.at(offset)

    def _may_be_reused(self, address: str, now: datetime, *, never_used: bool = False) -> bool:
        at = self.freed_at.get(address)
        return never_used if at is None else now >= at + REUSE_AFTER
