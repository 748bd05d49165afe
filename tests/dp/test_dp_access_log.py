"""Access log lines that the agent forwards: from the pipe to TCP collectors, reachable or not."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import pytest

from koguma.dp import access_log
from koguma.dp.access_log import AccessLogForwarder, LineQueue

pytestmark = pytest.mark.slow


class Collector:
    """A server that keeps the lines that it hears; `greedy` ones close after the first of them."""

    def __init__(self, *, is_greedy: bool = False) -> None:
        self.lines: list[bytes] = []
        self.port = 0
        self._is_greedy = is_greedy
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._hear, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                self.lines.append(line)
                if self._is_greedy:
                    break
        writer.close()
        self._open.discard(writer)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._open):
            writer.close()
        await self._server.wait_closed()

    async def hears(self, count: int) -> list[bytes]:
        async with asyncio.timeout(60):
            while len(self.lines) < count:  # noqa: ASYNC110 - lines come from a callback of a server
                await asyncio.sleep(0.01)
        return self.lines


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    started = Collector()
    await started.start()
    yield started
    await started.stop()


@pytest.fixture
async def log(tmp_path) -> AsyncIterator[AccessLogForwarder]:
    started = AccessLogForwarder()
    started.start(tmp_path / "pipe")
    yield started
    await started.stop()


def write(tmp_path, *lines: bytes) -> None:
    pipe = os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK)
    for line in lines:
        os.write(pipe, line)
    os.close(pipe)


def pipe_line(collector: Collector, message: bytes) -> bytes:
    return b'{"address":"127.0.0.1:%d","message":%s}\n' % (collector.port, message)


async def test_texts_are_sent_without_quotes_and_objects_as_json(log, collector, tmp_path) -> None:
    write(tmp_path, pipe_line(collector, b'"a \\"line\\" \xc3\xa4"'), pipe_line(collector, b'{"status":200}'))
    assert await collector.hears(2) == ['a "line" ä\n'.encode(), b'{"status":200}\n']


async def test_a_text_that_ends_its_line_gets_no_second_end(log, collector, tmp_path) -> None:
    write(tmp_path, pipe_line(collector, b'"a\\n"'), pipe_line(collector, b'"b"'))
    assert await collector.hears(2) == [b"a\n", b"b\n"]


async def test_a_line_may_come_in_pieces_and_what_is_none_is_counted(log, collector, tmp_path) -> None:
    whole = pipe_line(collector, b'"whole"')
    write(tmp_path, b"no line\n", b'{"address":5,"message":""}\n', whole[:10], whole[10:])
    assert await collector.hears(1) == [b"whole\n"]
    assert log.unreadable == 2


async def test_the_pipe_outlives_whoever_writes_to_it(log, collector, tmp_path) -> None:
    for count in (1, 2, 3):
        write(tmp_path, pipe_line(collector, b'"again"'))
        assert len(await collector.hears(count)) == count


async def test_lines_wait_for_a_collector_that_is_away(log, collector, tmp_path, monkeypatch) -> None:
    await collector.stop()
    write(tmp_path, *(pipe_line(collector, b'"%d"' % number) for number in range(100)))
    await asyncio.sleep(0.1)
    await collector.start()
    assert await collector.hears(100) == [b"%d\n" % number for number in range(100)]
    (sender,) = log.senders.values()
    assert (sender.sent, sender.queue.dropped) == (100, 0)
    assert list(log.samples()) == [
        ("koguma_access_log_sent_total", sender.address, 100),
        ("koguma_access_log_dropped_total", sender.address, 0),
    ]


async def test_a_collector_that_closes_is_connected_to_again(log, tmp_path) -> None:
    greedy = Collector(is_greedy=True)
    await greedy.start()
    for count in (1, 2, 3):
        write(tmp_path, pipe_line(greedy, b'"one"'))
        assert len(await greedy.hears(count)) == count
    await greedy.stop()


async def test_an_address_that_makes_no_sense_harms_no_other(log, collector, tmp_path) -> None:
    write(tmp_path, b'{"address":"nowhere","message":"lost"}\n', pipe_line(collector, b'"found"'))
    assert await collector.hears(1) == [b"found\n"]


async def test_what_is_left_at_the_end_is_sent(collector, tmp_path) -> None:
    log = AccessLogForwarder()
    log.start(tmp_path / "pipe")
    write(tmp_path, *(pipe_line(collector, b'"last"') for _ in range(50)))
    await log.stop()
    assert len(await collector.hears(50)) == 50


async def test_the_end_does_not_wait_for_a_collector_that_is_away(collector, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(access_log, "_FLUSH_SECONDS", 0.1)
    await collector.stop()
    log = AccessLogForwarder()
    log.start(tmp_path / "pipe")
    write(tmp_path, pipe_line(collector, b'"lost"'))
    async with asyncio.timeout(60):
        await log.stop()
    await collector.start()


async def test_the_oldest_lines_are_dropped_and_counted() -> None:
    lines = LineQueue(bytes_max=10)
    for number in range(10):
        lines.add(b"%d\n" % number)
    assert (lines.take(), lines.dropped) == ([b"5\n", b"6\n", b"7\n", b"8\n", b"9\n"], 5)
    lines.put_back([b"8\n", b"9\n"])
    assert lines.take() == [b"8\n", b"9\n"]
    assert not lines.not_empty.is_set()
