"""DNS server: names of the mesh are answered here, all else is handed on as it is, and nothing breaks it."""

import asyncio
import contextlib
import ipaddress
import socket
import struct
from collections.abc import AsyncIterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from koguma.dp import dns, dns_message
from koguma.dp.dns import DnsServer

A, NS, TXT, AAAA, HTTPS = 1, 2, 16, 28, 65
NAME = "backend.svc.mesh.local"
RECORDS = {NAME: ("241.0.0.1", "fd00::1"), "V4.mesh.local.": ("241.0.0.2",), "v6.mesh.local": ("fd00::2",)}
OPT = b"\x00" + struct.pack("!HHIH", 41, 1400, 0, 0)


def asked(name: str, type_: int = A, id_: int = 7, flags: int = 0x0100, edns: bytes = b"", class_: int = 1):
    """A query, as a resolver sends it."""
    header = struct.pack("!6H", id_, flags, 1, 0, 0, 1 if edns else 0)
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.rstrip(".").split(".") if label)
    return header + labels + b"\x00" + struct.pack("!HH", type_, class_) + edns


class Reply:
    """An answer, taken apart."""

    def __init__(self, packet: bytes) -> None:
        self.packet = packet
        self.id, self.flags, questions, n_answers, _, self.n_additional = struct.unpack_from("!6H", packet)
        at = 12
        if questions:
            while packet[at]:
                at += 1 + packet[at]
            at += 5
        self.code = self.flags & 15
        self.truncated = bool(self.flags & 0x0200)
        self.addresses, self.ttls = [], []
        for _ in range(n_answers):
            _, _, _, ttl, length = struct.unpack_from("!HHHIH", packet, at)
            at += 12
            self.addresses.append(str(ipaddress.ip_address(packet[at : at + length])))
            self.ttls.append(ttl)
            at += length


class Client(asyncio.DatagramProtocol):
    """Sends packets to a server and keeps what comes back."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[bytes] = asyncio.Queue()

    def datagram_received(self, data, _addr):
        self.received.put_nowait(data)


@contextlib.asynccontextmanager
async def client(port: int):
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(Client, remote_addr=("127.0.0.1", port))
    try:
        yield transport, protocol.received
    finally:
        transport.close()


async def udp(port: int, packet: bytes) -> Reply:
    async with client(port) as (transport, received), asyncio.timeout(60):
        transport.sendto(packet)
        return Reply(await received.get())


async def tcp(port: int, *packets: bytes) -> list[Reply]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(60):
            writer.write(b"".join(len(packet).to_bytes(2) + packet for packet in packets))
            return [
                Reply(await reader.readexactly(int.from_bytes(await reader.readexactly(2)))) for _ in packets
            ]
    finally:
        writer.close()
        await writer.wait_closed()


@contextlib.asynccontextmanager
async def serving(*upstreams: int, records=RECORDS, ttl=30, seconds=0.3) -> AsyncIterator[int]:
    server = DnsServer([("127.0.0.1", port) for port in upstreams], upstream_seconds=seconds)
    server.set_records(records, ttl)
    port = await server.start("127.0.0.1", 0)
    try:
        yield port
    finally:
        await server.stop()


def refused_port() -> int:
    """A port where nobody is, over UDP and TCP."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.parametrize(
    ("name", "type_", "addresses"),
    [
        (NAME, A, ["241.0.0.1"]),
        (NAME, AAAA, ["fd00::1"]),
        (NAME.upper(), A, ["241.0.0.1"]),
        ("BackEnd.Svc.mesh.LOCAL", AAAA, ["fd00::1"]),
        ("v4.mesh.local", A, ["241.0.0.2"]),  # recorded in another spelling
        ("v4.mesh.local", AAAA, []),
        ("v6.mesh.local", A, []),
        (NAME, TXT, []),
        (NAME, HTTPS, []),
        (NAME, NS, []),
    ],
)
async def test_names_of_the_mesh_are_answered(name, type_, addresses):
    async with serving() as port:  # there is nobody whom it could ask
        packet = asked(name, type_, id_=4711)
        for reply in (await udp(port, packet), *(await tcp(port, packet))):
            assert (reply.id, reply.code, reply.addresses) == (4711, 0, addresses)
            assert reply.flags & 0x8580 == 0x8580, "an answer, authoritative, as recursive as was asked"
            assert packet[12:] in reply.packet, "the question comes back as it was spelt"


async def test_answers_are_kept_no_longer_than_was_said():
    async with serving(ttl=5) as port:
        assert (await udp(port, asked(NAME))).ttls == [5]


async def test_the_newest_records_count():
    server = DnsServer([])
    port = await server.start("127.0.0.1", 0)
    try:
        server.set_records({"a.mesh": ("10.0.0.1",), "b.mesh": ("10.0.0.2",)})
        assert (await udp(port, asked("a.mesh"))).addresses == ["10.0.0.1"]
        server.set_records({"a.mesh": ("10.0.0.3", "10.0.0.4")}, 30)
        assert (await udp(port, asked("a.mesh"))).addresses == ["10.0.0.3", "10.0.0.4"]
        assert (await udp(port, asked("b.mesh"))).code == dns_message.SERVFAIL
    finally:
        await server.stop()


async def test_odd_records_are_left_out_and_harm_no_others():
    long = "a" * 64 + ".mesh"
    odd = {"": ("10.0.0.1",), "a..b": ("10.0.0.1",), long: ("10.0.0.1",), "ä.mesh": ("10.0.0.1",)}
    async with serving(records={**odd, "good.mesh": ("no address", "10.0.0.9")}, ttl=-1) as port:
        reply = await udp(port, asked("good.mesh"))
        assert (reply.addresses, reply.ttls) == (["10.0.0.9"], [0])


async def test_a_label_with_a_dot_is_no_name_of_ours():
    name = b"\x0bbackend.svc\x04mesh\x05local\x00"  # two labels in one
    async with serving() as port:
        packet = asked("x").replace(b"\x01x\x00", name)
        assert (await udp(port, packet)).code == dns_message.SERVFAIL


async def test_queries_with_edns_are_answered_with_edns():
    async with serving() as port:
        reply = await udp(port, asked(NAME, edns=OPT))
        assert (reply.addresses, reply.n_additional) == (["241.0.0.1"], 1)
        assert (await udp(port, asked(NAME))).n_additional == 0


async def test_an_answer_too_long_for_udp_is_asked_for_over_tcp():
    many = [f"10.0.{number}.1" for number in range(60)]  # 16 bytes each
    async with serving(records={NAME: many}) as port:
        short = await udp(port, asked(NAME))
        assert (short.truncated, short.addresses) == (True, [])
        (whole,) = await tcp(port, asked(NAME))
        assert (whole.truncated, whole.addresses) == (False, many)
        roomy = await udp(port, asked(NAME, edns=OPT))
        assert (roomy.truncated, roomy.addresses) == (False, many)


async def test_all_else_is_handed_on_and_comes_back_as_it_is():
    other = {"other.example.com": ("192.0.2.1",)}
    async with serving(records=other, ttl=77) as upstream, serving(upstream) as port:
        for id_, reply in enumerate(
            [*[await udp(port, asked("other.example.com", id_=n)) for n in range(3)]]
        ):
            assert (reply.id, reply.addresses, reply.ttls) == (id_, ["192.0.2.1"], [77])
        replies = await tcp(port, asked("other.example.com"), asked(NAME), asked("other.example.com", id_=9))
        assert [(reply.id, reply.addresses) for reply in replies] == [
            (7, ["192.0.2.1"]),
            (7, ["241.0.0.1"]),
            (9, ["192.0.2.1"]),
        ]


class Recorder(asyncio.DatagramProtocol):
    """An upstream that says `says` to everything, and remembers what it was asked."""

    def __init__(self, says) -> None:
        self.says, self.asked = says, []

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, addr):
        self.asked.append(data)
        for answer in self.says(data):
            self.transport.sendto(answer, addr)


@contextlib.asynccontextmanager
async def recorder(says):
    """An upstream over UDP and TCP."""
    upstream = Recorder(says)

    async def serve(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                packet = await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
                upstream.asked.append(packet)
                for answer in says(packet):
                    writer.write(len(answer).to_bytes(2) + answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()  # a port that is free for TCP is mostly free for UDP too
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: upstream, local_addr=address
    )
    try:
        yield address[1], upstream.asked
    finally:
        transport.close()
        server.close()
        await asyncio.sleep(0)


def reply_with(flags: int, rest: bytes = b"whatever it says"):
    return lambda packet: [packet[:2] + struct.pack("!H", flags) + packet[4:] + rest]


def silent(_):
    return []


@pytest.mark.parametrize(
    "packet",
    [
        asked("other.example.com", TXT, id_=513, edns=OPT),
        asked("Other.Example.Com", 99, class_=3),
        asked("other.example.com", flags=0x2000),  # a NOTIFY
        asked("other.example.com") + b"and more",
        asked("."),
    ],
)
async def test_queries_and_answers_are_not_touched(packet):
    async with recorder(reply_with(0x8380)) as (upstream, received), serving(upstream) as port:  # truncated
        (expected,) = reply_with(0x8380)(packet)
        async with client(port) as (transport, answers), asyncio.timeout(60):
            transport.sendto(packet)
            assert await answers.get() == expected
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(len(packet).to_bytes(2) + packet)
        assert await reader.readexactly(len(expected) + 2) == len(expected).to_bytes(2) + expected
        writer.close()
        await writer.wait_closed()
    assert received == [packet, packet]


@pytest.mark.parametrize("type_", [A, AAAA, TXT, HTTPS, 255])
async def test_no_upstream_hears_a_name_of_the_mesh(type_):
    async with recorder(reply_with(0x8180)) as (upstream, received), serving(upstream) as port:
        for packet in (asked(NAME, type_), asked(NAME, type_, class_=255), asked(NAME, type_, flags=0x2800)):
            await udp(port, packet)
            await tcp(port, packet)
        two = bytearray(asked("other.example.com"))
        two[5] = 2
        await udp(port, bytes(two) + asked(NAME)[12:])
    assert received == []


async def test_an_update_of_a_name_of_ours_is_not_for_us():
    async with serving() as port:
        reply = await udp(port, asked(NAME, flags=0x2800))
        assert (reply.code, reply.addresses) == (dns_message.NOTIMP, [])


@pytest.mark.parametrize("ask", [udp, tcp])
async def test_the_next_upstream_is_asked_where_one_does_not_answer(ask):
    records = {"other.example.com": ("192.0.2.1",)}
    async with (
        recorder(silent) as (mute, unanswered),
        recorder(reply_with(0x8185, b"")) as (refusing, refused),
        serving(records=records) as upstream,
        serving(refused_port(), mute, refusing, upstream) as port,
    ):
        answered = await ask(port, asked("other.example.com"))
        (reply,) = answered if isinstance(answered, list) else [answered]
        assert reply.addresses == ["192.0.2.1"]
        assert (len(unanswered), len(refused)) == (1, 1)


@pytest.mark.parametrize("ask", [udp, tcp])
async def test_nobody_who_answers_is_a_failure_with_the_same_number(ask):
    async with recorder(silent) as (mute, _), serving(refused_port(), mute, seconds=0.05) as port:
        answered = await ask(port, asked("other.example.com", id_=99))
        (reply,) = answered if isinstance(answered, list) else [answered]
        assert (reply.id, reply.code) == (99, dns_message.SERVFAIL)


async def test_the_refusal_of_the_last_upstream_is_passed_on():
    async with recorder(reply_with(0x8185, b"")) as (refusing, _), serving(refusing) as port:
        assert (await udp(port, asked("other.example.com"))).code == dns_message.REFUSED


async def test_an_answer_to_something_else_is_not_believed():
    def forged(packet):
        number = int.from_bytes(packet[:2])
        return [
            (number ^ 1).to_bytes(2) + b"\x81\x80" + packet[4:] + b"forged",
            packet,  # a query again
            b"\x00",
            *reply_with(0x8180, b"true")(packet),
        ]

    async with recorder(forged) as (upstream, _), serving(upstream) as port:
        assert (await udp(port, asked("other.example.com"))).packet.endswith(b"true")


async def test_a_server_that_is_its_own_upstream_does_not_ask_itself():
    port = refused_port()
    server = DnsServer([("127.0.0.1", port)], upstream_seconds=600)
    assert await server.start("127.0.0.1", port) == port
    try:
        async with asyncio.timeout(60):
            assert (await udp(port, asked("other.example.com"))).code == dns_message.SERVFAIL
    finally:
        await server.stop()


async def test_more_queries_than_can_wait_are_refused_and_ours_are_answered():
    async with (
        recorder(silent) as (mute, received),
        serving(mute, seconds=1.0) as port,
        client(port) as (transport, answers),
        asyncio.timeout(60),
    ):
        for number in range(dns.FORWARDED_MAX + 10):
            transport.sendto(asked("other.example.com", id_=number))
            if not number % 50:
                await asyncio.sleep(0.01)
        refused = [Reply(await answers.get()) for _ in range(10)]
        assert {reply.code for reply in refused} == {dns_message.SERVFAIL}
        assert len(received) <= dns.FORWARDED_MAX
        assert (await udp(port, asked(NAME))).addresses == ["241.0.0.1"]


async def test_a_server_that_stops_leaves_nothing_behind():
    async with recorder(silent) as (mute, received):
        server = DnsServer([("127.0.0.1", mute)], upstream_seconds=60)
        port = await server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(len(asked("x")).to_bytes(2) + asked("x"))
        async with client(port) as (transport, _), asyncio.timeout(60):
            transport.sendto(asked("x"))
            while len(received) < 2:  # noqa: ASYNC110 - another's list
                await asyncio.sleep(0.01)
            await server.stop()
            assert await reader.read() == b""
        writer.close()
        again = DnsServer([])
        assert await again.start("127.0.0.1", port) == port
        await again.stop()


async def test_a_port_that_is_taken_is_said_so():
    async with serving() as port:
        with pytest.raises(OSError, match="address already in use"):
            await DnsServer([]).start("127.0.0.1", port)


@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (b"", None),
        (b"\x00" * 11, None),
        (b"\x00" * 12, dns_message.FORMERR),  # no question
        (asked(NAME, flags=0x8180), None),  # an answer; answering it could go on for ever
        (asked(NAME)[:-1], dns_message.FORMERR),
        (asked(NAME)[:20], dns_message.FORMERR),
        (asked("x").replace(b"\x01x\x00", b"\xc0\x0c"), dns_message.FORMERR),  # a name that points at itself
        (asked("x").replace(b"\x01x\x00", b"\x40" + b"x" * 64 + b"\x00"), dns_message.FORMERR),
        (asked(".".join(["a" * 63] * 4)), dns_message.FORMERR),  # 257 bytes
    ],
)
def test_what_cannot_be_read_is_dropped_or_refused(packet, code):
    with pytest.raises(dns_message.BadMessage) as bad:
        dns_message.query(packet)
    assert (Reply(bad.value.response).code if bad.value.response else None) == code


def test_the_longest_name_is_read():
    longest = ".".join(["a" * 63] * 3 + ["a" * 61])
    assert sum(map(len, dns_message.query(asked(longest)).name)) == 250


def damaged(packets):
    """Queries with some bytes changed, cut off or added: nearer to the truth than noise."""
    return st.tuples(
        st.sampled_from(packets),
        st.lists(st.tuples(st.integers(0, 80), st.integers(0, 255)), max_size=6),
        st.integers(0, 80),
        st.binary(max_size=20),
    ).map(lambda parts: _damaged(*parts))


def _damaged(packet, changes, end, more):
    changed = bytearray(packet)
    for at, value in changes:
        if at < len(changed):
            changed[at] = value
    return bytes(changed[:end]) + more


PACKETS = st.binary(max_size=100) | damaged([asked(NAME), asked(NAME, edns=OPT), asked("other.example.com")])


@pytest.mark.property
@given(PACKETS)
@example(asked(NAME))
def test_every_packet_is_read_or_refused(packet):
    query, refusal = None, b""
    try:
        query = dns_message.query(packet)
    except dns_message.BadMessage as error:
        refusal = error.response
    if query is None:
        assert refusal == b"" or (refusal[:2] == packet[:2] and Reply(refusal).code == dns_message.FORMERR)
        return
    assert packet[12:].startswith(query.question)
    reply = dns_message.response(query, [ipaddress.ip_address("10.0.0.1")], 30, query.udp_bytes)
    assert dns_message.is_response(reply, packet)
    assert len(reply) <= query.udp_bytes


@pytest.mark.property
@settings(max_examples=15)
@given(st.lists(PACKETS, max_size=30))
def test_no_packet_stops_the_server(packets):
    async def bombard():
        async with serving(seconds=0.01) as port:
            async with client(port) as (transport, _):
                for packet in packets:
                    transport.sendto(packet)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(ConnectionError):
                writer.write(b"".join(packets))
                await writer.drain()
            writer.close()
            del reader
            assert (await udp(port, asked(NAME))).addresses == ["241.0.0.1"]
            assert (await tcp(port, asked(NAME)))[0].addresses == ["241.0.0.1"]

    asyncio.run(bombard())


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("nameserver 10.0.0.2\nnameserver 10.0.0.3\n", ["10.0.0.2", "10.0.0.3"]),
        ("# nameserver 1.1.1.1\n;nameserver 1.1.1.1\nsearch a.b\n nameserver\t9.9.9.9 # ours\n", ["9.9.9.9"]),
        ("nameserver fe80::1%eth0\nnameserver ::1\n", ["fe80::1%eth0", "::1"]),
        ("nameserver dns.example.com\nnameserver\nnameserver 1.1.1.1\nnameserver 1.1.1.1", ["1.1.1.1"]),
        ("\n".join(f"nameserver 10.0.0.{n}" for n in range(1, 6)), ["10.0.0.1", "10.0.0.2", "10.0.0.3"]),
        ("options edns0\n", ["127.0.0.1"]),
        ("", ["127.0.0.1"]),
    ],
)
def test_upstreams_are_those_of_the_machine(text, servers):
    assert dns.upstreams_of(text) == [(server, 53) for server in servers]
