"""Addresses: what a proxy is going to listen on, and whether somebody else listens there already.

Envoy would find out as well. Before it starts there is still a person to tell, who typed the port.
"""

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from koguma.dp.dataplane import LOOPBACK, Proxy
from koguma.model.errors import KogumaError
from koguma.model.violation import item

_PROC: Final = Path("/proc")
_SOCKETS: Final = ("net/tcp", "net/tcp6")
_LISTENING: Final = "0A"  # TCP_LISTEN, as the kernel writes it
_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - an address that is looked for
_IGNORED: Final = "Ignored"
# An Envoy whose agent was killed is gone a moment later; its successor should not fail because of it.
_ENDING_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.1


class Place(msgspec.Struct, frozen=True):
    """An address that a proxy listens on; `field` is where its Dataplane says so, `flag` how it is chosen."""

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


def places(proxy: Proxy) -> Iterator[Place]:
    """All that a proxy listens on, as far as its Dataplane is known here."""
    networking = proxy.networking
    address = networking.get("address") or LOOPBACK
    redirect = networking.get("transparentProxying") or {}
    for name, flag in (("Inbound", "--redirect-inbound-port"), ("Outbound", "--redirect-outbound-port")):
        port = redirect.get(f"redirectPort{name}") or 0
        if port:
            yield Place(_EVERYWHERE[0], port, f"networking.transparentProxying.redirectPort{name}", flag)
    if not redirect.get("redirectPortInbound"):  # else the kernel hands over what arrives at other ports
        for index, inbound in enumerate(networking.get("inbound") or ()):
            if inbound.get("state") != _IGNORED:
                field = f"{item('networking.inbound', index)}.port"
                yield Place(inbound.get("address") or address, inbound.get("port") or 0, field, "--port")
    for index, outbound in enumerate(networking.get("outbound") or ()):
        field = f"{item('networking.outbound', index)}.port"
        yield Place(outbound.get("address") or LOOPBACK, outbound.get("port") or 0, field, "--outbound")


async def refuse_if_taken(proxy: Proxy, patience_seconds: float = _ENDING_SECONDS) -> None:
    """Raise an error that names the first address on which somebody else listens, and who it is."""
    loop = asyncio.get_running_loop()
    patient_until = loop.time() + patience_seconds
    while True:
        found = next((place for place in places(proxy) if is_taken(place.address, place.port)), None)
        if found is None:
            return
        if loop.time() >= patient_until:
            break
        await asyncio.sleep(_POLL_SECONDS)
    hint = f"stop it, or choose another port with {found.flag} ({found.field})"
    text = (
        f"cannot listen on {found.shown}: {listener(found.address, found.port)} listens there already; {hint}"
    )
    raise KogumaError(text)


def is_taken(address: str, port: int) -> bool:
    """Whether somebody listens there, also with SO_REUSEPORT, as another Envoy may.

    An address that this machine does not have is not taken, nor one that we may not bind.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            # Connections that have ended a moment ago are in nobody's way; Envoy sets the same option.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
    except (OSError, OverflowError) as error:
        return getattr(error, "errno", None) == errno.EADDRINUSE
    return False


def listener(address: str, port: int) -> str:
    """Who listens there, as far as the machine tells us; else how to find out."""
    inodes = set(_listening_inodes(address, port))
    for process in _PROC.iterdir() if inodes else ():
        if process.name.isdigit() and inodes & _sockets_of(process):
            name = _read(process / "comm").strip()
            return f"{name or 'somebody'} (process {process.name})"
    return f"somebody (`ss -ltnp 'sport = :{port}'`, as root, says who)"


def _listening_inodes(address: str, port: int) -> Iterator[str]:
    """The sockets that listen on a port, on this address or on all."""
    wanted = {_normal(address), *map(_normal, _EVERYWHERE)}
    for table in _SOCKETS:
        for line in _read(_PROC / table).splitlines()[1:]:
            words = line.split()
            packed, _, number = words[1].partition(":")
            if words[3] == _LISTENING and int(number, 16) == port and _unpacked(packed) in wanted:
                yield words[9]


def _unpacked(text: str) -> str:
    """An address as the kernel writes it: words of four bytes, each in the machine's own order."""
    words = (bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    return _normal(str(ipaddress.ip_address(b"".join(words))))


def _normal(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)


def _sockets_of(process: Path) -> set[str]:
    """The inodes of the sockets that a process has; none where we may not look."""
    found = set()
    try:
        for descriptor in (process / "fd").iterdir():
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                found.add(target[len("socket:[") : -1])
    except OSError:  # it has ended, or is somebody else's
        return found
    return found


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
