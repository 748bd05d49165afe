"""DNS messages: the part of RFC 1035 that is needed to read a query's question and to respond to it.

A query is parsed only up to its question; the rest is forwarded unread. Names are compared label by label,
because a label may contain a dot, and in lower case.
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
_OPT_HEAD: Final = struct.Struct("!BHH")  # the root's name, type, and the sender's UDP payload size
_RECORD: Final = struct.Struct("!HHHIH")  # name, type, class, ttl, length
_QUESTION_POINTER: Final = 0xC000 | _HEADER.size  # a compression pointer to the name after the header
_OPT_ANSWER: Final = bytes([0]) + struct.pack("!HHIH", _OPT, 1232, 0, 0)

_IS_RESPONSE: Final = 0x8000
_OPCODE: Final = 0x7800
_AUTHORITATIVE: Final = 0x0400
_TRUNCATED: Final = 0x0200
_RECURSION_WANTED: Final = 0x0100
_RECURSION_AVAILABLE: Final = 0x0080
_CHECKING_DISABLED: Final = 0x0010

_LABEL_BYTES_MAX: Final = 63
_NAME_BYTES_MAX: Final = 255
_UDP_BYTES: Final = 512  # what every client accepts (RFC 1035)
_UDP_BYTES_MAX: Final = 4096
_NAMESERVERS_MAX: Final = 3  # as in resolv.conf(5)

Name = tuple[bytes, ...]  # labels in lower case
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class BadMessage(ValueError):
    """A packet that cannot be parsed; `response` is the error response, empty where there is none."""

    def __init__(self, text: str, response: bytes = b"") -> None:
        super().__init__(text)
        self.response = response


class Query(msgspec.Struct, frozen=True):
    """The question of a packet, with what a response needs to repeat."""

    id: int
    flags: int
    name: Name
    type: int
    class_: int
    question: bytes  # as it was sent
    udp_bytes: int  # the longest response that the sender accepts over UDP
    has_edns: bool

    @property
    def is_standard(self) -> bool:
        """Whether its opcode is QUERY."""
        return not self.flags & _OPCODE


def query(packet: bytes) -> Query:
    """The query in a packet; raises BadMessage."""
    if len(packet) < _HEADER.size:
        raise BadMessage("shorter than a header")
    id_, flags, questions, answers, authorities, additionals = _HEADER.unpack_from(packet)
    if flags & _IS_RESPONSE:
        raise BadMessage("a response, not a query")
    format_error = failure(packet, FORMERR)
    if questions != 1:
        raise BadMessage(f"{questions} questions", format_error)
    name, end = _name(packet, _HEADER.size, format_error)
    if len(packet) < end + 4:
        raise BadMessage("ends within the question", format_error)
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


def _name(packet: bytes, at: int, format_error: bytes) -> tuple[Name, int]:
    """The name at an offset, and its end. The first name of a message cannot be compressed."""
    labels, start = [], at
    while at < len(packet) and (length := packet[at]):
        if length > _LABEL_BYTES_MAX or at + 1 + length - start >= _NAME_BYTES_MAX:
            raise BadMessage("a label or name that is too long", format_error)
        labels.append(packet[at + 1 : at + 1 + length].lower())
        at += 1 + length
    if at >= len(packet):
        raise BadMessage("ends within a name", format_error)
    return tuple(labels), at + 1


def _edns_bytes(rest: bytes) -> int | None:
    """The UDP payload size in OPT (RFC 6891), if that is the first additional record."""
    if len(rest) < _OPT_HEAD.size:
        return None
    root, type_, size = _OPT_HEAD.unpack_from(rest)
    return size if not root and type_ == _OPT else None


def response(
    query: Query, addresses: Sequence[Address], ttl: int, bytes_max: int = MESSAGE_BYTES_MAX
) -> bytes:
    """The response to a query for a name of the mesh: its addresses of the queried type."""
    ip_version = {A: 4, AAAA: 6}.get(query.type) if query.class_ == IN else None
    edns = _OPT_ANSWER if query.has_edns else b""
    if not query.is_standard:
        return _packet(query, NOTIMP, [], edns)
    records = [_record(query.type, address, ttl) for address in addresses if address.version == ip_version]
    size = _HEADER.size + len(query.question) + sum(map(len, records)) + len(edns)
    if size > bytes_max:
        return _packet(query, _TRUNCATED, [], edns)  # the client repeats the query over TCP
    return _packet(query, NOERROR, records, edns)


def _record(type_: int, address: Address, ttl: int) -> bytes:
    packed = address.packed
    return _RECORD.pack(_QUESTION_POINTER, type_, IN, ttl, len(packed)) + packed


def _packet(query: Query, flags: int, records: Sequence[bytes], edns: bytes) -> bytes:
    all_flags = _response_flags(query.flags) | _AUTHORITATIVE | flags
    header = _HEADER.pack(query.id, all_flags, 1, len(records), 0, 1 if edns else 0)
    return b"".join((header, query.question, *records, edns))


def failure(packet: bytes, code: int) -> bytes:
    """An error response to a packet, without a question."""
    id_, flags = struct.unpack_from("!HH", packet)
    return _HEADER.pack(id_, _response_flags(flags) | code, 0, 0, 0, 0)


def _response_flags(query_flags: int) -> int:
    """The flags of every response, with those that repeat the query's."""
    kept = query_flags & (_OPCODE | _RECURSION_WANTED | _CHECKING_DISABLED)
    return _IS_RESPONSE | _RECURSION_AVAILABLE | kept


def is_response(reply: bytes, packet: bytes) -> bool:
    """Whether a reply can be the response to a query: same id, and the response bit is set."""
    return len(reply) >= _HEADER.size and reply[:2] == packet[:2] and bool(reply[2] & (_IS_RESPONSE >> 8))


def is_failure(reply: bytes) -> bool:
    """Whether a name server could not or would not answer, so that another one may."""
    return reply[3] & 0x0F in (SERVFAIL, NOTIMP, REFUSED)


def records(names: Mapping[str, Iterable[str]]) -> dict[Name, tuple[Address, ...]]:
    """Addresses by name; invalid host names and addresses are left out."""
    by_labels = ((_labels(name), tuple(_addresses(texts))) for name, texts in names.items())
    return {labels: addresses for labels, addresses in by_labels if labels}


def _labels(name: str) -> Name:
    try:
        labels = tuple(name.lower().removesuffix(".").encode("ascii").split(b"."))
    except UnicodeEncodeError:
        return ()
    fits = all(0 < len(label) <= _LABEL_BYTES_MAX for label in labels) and len(name) < _NAME_BYTES_MAX
    return labels if fits else ()


def _addresses(texts: Iterable[str]) -> Iterator[Address]:
    for text in texts:
        try:
            yield ipaddress.ip_address(text)
        except ValueError:
            continue


def upstreams_of(resolv_conf: str) -> list[tuple[str, int]]:
    """The name servers of a resolv.conf, in order; 127.0.0.1 where it has none, as resolv.conf(5) says."""
    lines = (line.split() for line in resolv_conf.splitlines())
    texts = [words[1] for words in lines if len(words) > 1 and words[0] == "nameserver"]
    nameservers = [text for text in dict.fromkeys(texts) if any(_addresses([text]))]
    return [(address, PORT) for address in nameservers[:_NAMESERVERS_MAX] or ["127.0.0.1"]]
