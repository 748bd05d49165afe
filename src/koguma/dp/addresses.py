"""Addresses: what a proxy is going to listen on, and whether another process listens there already.

Envoy would find out as well, but only after its start. A check before that ends the command with an error, so
that whoever typed the port sees it.
"""

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from koguma.dp.dataplane import LOOPBACK, DataplaneProxy
from koguma.model.errors import KogumaError
from koguma.model.violation import item

_PROC: Final = Path("/proc")
_SOCKETS: Final = ("net/tcp", "net/tcp6")
_LISTENING: Final = "0A"  # TCP_LISTEN, as the kernel writes it
_WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound
_IGNORED: Final = "Ignored"
# An Envoy whose agent was killed exits a moment later; a restarted agent should not fail because of it.
_PATIENCE_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.1


class ListenAddress(msgspec.Struct, frozen=True):
    """An address that a proxy listens on; `field` of its Dataplane sets it, and `flag` of the command."""

    address: str
    port: int
    field: str
    flag: str

    @property
    def shown(self) -> str:
        """The address with its port."""
        return shown(self.address, self.port)


def shown(address: str, port: int) -> str:
    """An address with a port, as people write it."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def listen_addresses(proxy: DataplaneProxy) -> Iterator[ListenAddress]:
    """All addresses that a proxy listens on, as far as its Dataplane is known here."""
    networking = proxy.networking
    address = networking.get("address") or LOOPBACK
    if proxy.type.is_of_zone:
        yield ListenAddress(address, networking.get("port") or 0, "networking.port", "--port")
        return
    redirect = networking.get("transparentProxying") or {}
    for name, flag in (("Inbound", "--redirect-inbound-port"), ("Outbound", "--redirect-outbound-port")):
        port = redirect.get(f"redirectPort{name}") or 0
        if port:
            yield ListenAddress(
                _WILDCARDS[0], port, f"networking.transparentProxying.redirectPort{name}", flag
            )
    if not redirect.get("redirectPortInbound"):  # else the kernel redirects the ports of inbounds
        for index, inbound in enumerate(networking.get("inbound") or ()):
            if inbound.get("state") != _IGNORED:
                field = f"{item('networking.inbound', index)}.port"
                yield ListenAddress(
                    inbound.get("address") or address, inbound.get("port") or 0, field, "--port"
                )
    for index, outbound in enumerate(networking.get("outbound") or ()):
        field = f"{item('networking.outbound', index)}.port"
        yield ListenAddress(
            outbound.get("address") or LOOPBACK, outbound.get("port") or 0, field, "--outbound"
        )


async def refuse_if_taken(proxy: DataplaneProxy, patience_seconds: float = _PATIENCE_SECONDS) -> None:
    """Raise an error that names the first address on which another process listens, and that process."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_seconds
    while True:
        taken = next((each for each in listen_addresses(proxy) if is_taken(each.address, each.port)), None)
        if taken is None:
            return
        if loop.time() >= deadline:
            break
        await asyncio.sleep(_POLL_SECONDS)
    hint = f"stop it, or choose another port with {taken.flag} ({taken.field})"
    holder = process_listening_on(taken.address, taken.port)
    raise KogumaError(f"cannot listen on {taken.shown}: {holder} listens there already; {hint}")


def is_taken(address: str, port: int) -> bool:
    """Whether another process listens there, with or without SO_REUSEPORT.

    An address that this machine does not have is not taken, nor is one that we may not bind.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            # Connections in TIME_WAIT do not block the port: Envoy sets the same option.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
    except (OSError, OverflowError) as error:
        return getattr(error, "errno", None) == errno.EADDRINUSE
    return False


def process_listening_on(address: str, port: int) -> str:
    """The process that listens there, where /proc shows it to us; else the command that names it."""
    inodes = set(_listening_inodes(address, port))
    for process in _PROC.iterdir() if inodes else ():
        if process.name.isdigit() and inodes & _sockets_of(process):
            name = _read(process / "comm").strip()
            return f"{name or 'somebody'} (process {process.name})"
    return f"somebody (`ss -ltnp 'sport = :{port}'`, as root, says who)"


def _listening_inodes(address: str, port: int) -> Iterator[str]:
    """The inodes of sockets that listen on a port, on this address or on all."""
    addresses = {_normalized(address), *map(_normalized, _WILDCARDS)}
    for table in _SOCKETS:
        for line in _read(_PROC / table).splitlines()[1:]:
            words = line.split()
            packed, _, number = words[1].partition(":")
            if words[3] == _LISTENING and int(number, 16) == port and _unpacked(packed) in addresses:
                yield words[9]


def _unpacked(text: str) -> str:
    """The address that the kernel writes as words of four bytes, each in host byte order."""
    words = (bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    return _normalized(str(ipaddress.ip_address(b"".join(words))))


def _normalized(address: str) -> str:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    mapped = getattr(ip, "ipv4_mapped", None)
    return str(mapped or ip)


def _sockets_of(process: Path) -> set[str]:
    """The inodes of a process's sockets; none where we may not read them."""
    inodes = set()
    try:
        for descriptor in (process / "fd").iterdir():
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                inodes.add(target[len("socket:[") : -1])
    except OSError:  # it has exited, or belongs to another user
        return inodes
    return inodes


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
