"""DNS messages: as much of RFC 1035 as it takes to know what is asked and to answer it.

A query is read only up to its question; whatever else is in it is passed on by whoever forwards it. Names are
compared label by label, since a label may hold a dot, and in lower case.
"""

import ipaddress
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

PORT: Final = 53
MESSAGE_BYTES_MAX: Final = 65_535

A: Final = 1
AAAA: Final = 28
IN: Final = 1

NOERROR: Final = 0
FORMERR: Final = 1
SERVFAIL: Final = 2
NOTIMP: Final = 4
REFUSED: Final = 5

_OPT: Final = 41
_HEADER: Final = struct.Struct("!6H")  # id, flags, then how many questions, answers, authorities, additionals
_OPT_HEAD: Final = struct.Struct("!BHH")  # the root's name, type, and how much the sender takes
_RECORD: Final = struct.Struct("!HHHIH")  # name, type, class, ttl, length
_QUESTION_POINTER: Final = 0xC000 | _HEADER.size  # the name that stands right after the header
_OPT_ANSWER: Final = bytes([0]) + struct.pack("!HHIH", _OPT, 1232, 0, 0)

_IS_ANSWER: Final = 0x8000
_OPCODE: Final = 0x7800
_AUTHORITATIVE: Final = 0x0400
_TRUNCATED: Final = 0x0200
_RECURSION_WANTED: Final = 0x0100
_RECURSION_AVAILABLE: Final = 0x0080
_CHECKING_DISABLED: Final = 0x0010

_LABEL_BYTES_MAX: Final = 63
_NAME_BYTES_MAX: Final = 255
_UDP_BYTES: Final = 512  # what everybody takes
_UDP_BYTES_MAX: Final = 4096
_NAMESERVERS_MAX: Final = 3  # as in resolv.conf(5)

Name = tuple[bytes, ...]  # labels in lower case
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class BadMessage(ValueError):
    """A packet that cannot be read; `answer` is what to send back, if anything."""

    def __init__(self, text: str, answer: bytes = b"") -> None:
        super().__init__(text)
        self.answer = answer


class Query(msgspec.Struct, frozen=True):
    """What a packet asks."""

    id: int
    flags: int
    name: Name
    type: int
    class_: int
    question: bytes  # as it was sent
    udp_bytes: int  # the longest answer that the sender takes over UDP
    has_edns: bool

    @property
    def is_standard(self) -> bool:
        """Whether it is a query, and no update or the like."""
        return not self.flags & _OPCODE


def query(packet: bytes) -> Query:
    """What a packet asks; BadMessage where it asks nothing that can be understood."""
    if len(packet) < _HEADER.size:
        raise BadMessage("shorter than a header")
    id_, flags, questions, answers, authorities, additionals = _HEADER.unpack_from(packet)
    if flags & _IS_ANSWER:
        raise BadMessage("an answer, which nobody asked for")
    refused = failure(packet, FORMERR)
    if questions != 1:
        raise BadMessage(f"{questions} questions", refused)
    name, end = _name(packet, _HEADER.size, refused)
    if len(packet) < end + 4:
        raise BadMessage("ends within the question", refused)
    type_, class_ = struct.unpack_from("!HH", packet, end)
    edns = None if answers or authorities or not additionals else _edns_bytes(packet[end + 4 :])
    return Query(
        id=id_,
        flags=flags,
        name=name,
        type=type_,
        class_=class_,
        question=packet[_HEADER.size : end + 4],
        udp_bytes=min(max(edns or 0, _UDP_BYTES), _UDP_BYTES_MAX),
        has_edns=edns is not None,
    )


def _name(packet: bytes, at: int, refused: bytes) -> tuple[Name, int]:
    """The name at a place, and where it ends. A question comes first, so it has nothing to point at."""
    labels, start = [], at
    while at < len(packet) and (length := packet[at]):
        if length > _LABEL_BYTES_MAX or at + 1 + length - start >= _NAME_BYTES_MAX:
            raise BadMessage("a label or name that is too long", refused)
        labels.append(packet[at + 1 : at + 1 + length].lower())
        at += 1 + length
    if at >= len(packet):
        raise BadMessage("ends within a name", refused)
    return tuple(labels), at + 1


def _edns_bytes(rest: bytes) -> int | None:
    """How much the sender takes over UDP, if it says so (RFC 6891); resolvers put that first."""
    if len(rest) < _OPT_HEAD.size:
        return None
    root, type_, size = _OPT_HEAD.unpack_from(rest)
    return size if not root and type_ == _OPT else None


def response(
    asked: Query, addresses: Sequence[Address], ttl: int, bytes_max: int = MESSAGE_BYTES_MAX
) -> bytes:
    """The answer to a query for a name that is ours: those addresses that are of the asked type."""
    wanted = {A: 4, AAAA: 6}.get(asked.type) if asked.class_ == IN else None
    edns = _OPT_ANSWER if asked.has_edns else b""
    if not asked.is_standard:
        return _packet(asked, NOTIMP, [], edns)
    records = [_record(asked.type, address, ttl) for address in addresses if address.version == wanted]
    size = _HEADER.size + len(asked.question) + sum(map(len, records)) + len(edns)
    if size > bytes_max:
        return _packet(asked, _TRUNCATED, [], edns)  # the sender asks again, over TCP
    return _packet(asked, NOERROR, records, edns)


def _record(type_: int, address: Address, ttl: int) -> bytes:
    packed = address.packed
    return _RECORD.pack(_QUESTION_POINTER, type_, IN, ttl, len(packed)) + packed


def _packet(asked: Query, flags: int, records: Sequence[bytes], edns: bytes) -> bytes:
    said = _kept(asked.flags) | _AUTHORITATIVE | flags
    header = _HEADER.pack(asked.id, said, 1, len(records), 0, 1 if edns else 0)
    return b"".join((header, asked.question, *records, edns))


def failure(packet: bytes, code: int) -> bytes:
    """The answer that says only what went wrong with a packet."""
    id_, flags = struct.unpack_from("!HH", packet)
    return _HEADER.pack(id_, _kept(flags) | code, 0, 0, 0, 0)


def _kept(flags: int) -> int:
    kept = flags & (_OPCODE | _RECURSION_WANTED | _CHECKING_DISABLED)
    return _IS_ANSWER | _RECURSION_AVAILABLE | kept


def answers(reply: bytes, packet: bytes) -> bool:
    """Whether a reply can be the answer to a packet."""
    return len(reply) >= _HEADER.size and reply[:2] == packet[:2] and bool(reply[2] & (_IS_ANSWER >> 8))


def is_refusal(reply: bytes) -> bool:
    """Whether a server says that it could not or would not answer, so that another one may."""
    return reply[3] & 0x0F in (SERVFAIL, NOTIMP, REFUSED)


def records(names: Mapping[str, Iterable[str]]) -> dict[Name, tuple[Address, ...]]:
    """Addresses by name; what is no host name or no address is left out."""
    found = ((_labels(name), tuple(_addresses(given))) for name, given in names.items())
    return {name: addresses for name, addresses in found if name}


def _labels(name: str) -> Name:
    try:
        labels = tuple(name.lower().removesuffix(".").encode("ascii").split(b"."))
    except UnicodeEncodeError:
        return ()
    fits = all(0 < len(label) <= _LABEL_BYTES_MAX for label in labels) and len(name) < _NAME_BYTES_MAX
    return labels if fits else ()


def _addresses(given: Iterable[str]) -> Iterator[Address]:
    for text in given:
        try:
            yield ipaddress.ip_address(text)
        except ValueError:
            continue


def upstreams_of(resolv_conf: str) -> list[tuple[str, int]]:
    """The name servers of a resolv.conf, in order; the machine's own where it names none."""
    words = (line.split() for line in resolv_conf.splitlines())
    given = [line[1] for line in words if len(line) > 1 and line[0] == "nameserver"]
    found = [text for text in dict.fromkeys(given) if any(_addresses([text]))]
    return [(text, PORT) for text in found[:_NAMESERVERS_MAX] or ["127.0.0.1"]]
