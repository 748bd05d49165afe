"""Swarm wire: one HTTP/2 connection with one gRPC stream on it, a minimal client.

A swarm has thousands of these in a few processes, so that the server is what is measured. Messages are not
compressed, headers are sent as plain literals, and received headers are only checked for the end of the
stream.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, cast

DATA, HEADERS, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
_RST_STREAM: Final = 3
_ACK, _END_STREAM, _END_HEADERS, _PADDED = 1, 1, 4, 8
_INITIAL_WINDOW: Final = 4
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_WINDOW_BYTES: Final = 16 * 1024 * 1024  # Envoy's flow control window
_FRAME_MAX: Final = 16384


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def _settings(**values: int) -> bytes:
    numbers = {"initial_window": _INITIAL_WINDOW}
    return b"".join(numbers[name].to_bytes(2) + value.to_bytes(4) for name, value in values.items())


def _literal(text: str) -> bytes:
    """An HPACK string literal, not compressed."""
    data = text.encode()
    size, head = len(data), bytearray()
    if size < 0x7F:
        return bytes((size,)) + data
    head.append(0x7F)
    size -= 0x7F
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + data


def _headers(fields: Iterable[tuple[str, str]]) -> bytes:
    return b"".join(b"\0" + _literal(name) + _literal(value) for name, value in fields)


class Call(asyncio.Protocol):
    """A bidirectional gRPC stream. `on_message` gets each message, `on_end` is called once."""

    def __init__(
        self, path: str, token: str, on_message: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> None:
        self._path, self._token = path, token
        self._on_message, self._on_end = on_message, on_end
        self._buffer = bytearray()
        self._message = bytearray()
        self._unsent = bytearray()  # what the flow control windows do not allow yet
        self._window_stream = self._window_connection = self._window_initial = 65_535
        self._n_consumed = 0
        self._is_over = False
        self.bytes_received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open the stream."""
        self._transport = cast("asyncio.Transport", transport)
        fields = [
            (":method", "POST"),
            (":scheme", "https"),
            (":path", self._path),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ]
        if self._token:
            fields.append(("authorization", self._token))
        self._transport.write(
            _PREFACE
            + frame(SETTINGS, 0, 0, _settings(initial_window=_WINDOW_BYTES))
            + frame(WINDOW_UPDATE, 0, 0, (_WINDOW_BYTES - 65_535).to_bytes(4))
            + frame(HEADERS, _END_HEADERS, 1, _headers(fields))
        )

    def send(self, *messages: bytes) -> None:
        """Send messages as soon as the server's flow control windows allow it."""
        self._unsent += b"".join(b"\0" + len(message).to_bytes(4) + message for message in messages)
        self._flush()

    def close(self) -> None:
        """Abort the connection, as a killed process does."""
        self._is_over = True
        self._transport.abort()

    def _flush(self) -> None:
        frames = []
        while self._unsent and not self._is_over:
            size = min(len(self._unsent), _FRAME_MAX, self._window_stream, self._window_connection)
            if size <= 0:
                break
            frames.append(frame(DATA, 0, 1, bytes(self._unsent[:size])))
            del self._unsent[:size]
            self._window_stream -= size
            self._window_connection -= size
        if frames:
            self._transport.write(b"".join(frames))

    def data_received(self, data: bytes) -> None:
        """Handle all complete frames."""
        self.bytes_received += len(data)
        buffer = self._buffer
        buffer += data
        at, end = 0, len(buffer)
        while end - at >= 9:
            size = int.from_bytes(buffer[at : at + 3])
            if end - at - 9 < size:
                break
            kind, flags, stream = (
                buffer[at + 3],
                buffer[at + 4],
                buffer[at + 8],
            )  # ours is 1, so a byte will do
            at += 9 + size
            self._receive(kind, flags, stream, bytes(buffer[at - size : at]))
        del buffer[:at]

    def _receive(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self._receive_data(flags, payload)
        elif kind == SETTINGS and not flags & _ACK:
            self._receive_settings(payload)
        elif kind == PING and not flags & _ACK:
            self._transport.write(frame(PING, _ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            self._widen_window(stream, int.from_bytes(payload))
        elif kind in (GOAWAY, _RST_STREAM) or (kind == HEADERS and flags & _END_STREAM):
            self._end()

    def _widen_window(self, stream: int, step: int) -> None:
        if stream:
            self._window_stream += step
        else:
            self._window_connection += step
        self._flush()

    def _receive_settings(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            if int.from_bytes(payload[at : at + 2]) == _INITIAL_WINDOW:
                value = int.from_bytes(payload[at + 2 : at + 6])
                self._window_stream += value - self._window_initial
                self._window_initial = value
        self._transport.write(frame(SETTINGS, _ACK, 0))
        self._flush()

    def _receive_data(self, flags: int, payload: bytes) -> None:
        self._n_consumed += len(payload)
        if self._n_consumed > _WINDOW_BYTES // 2:
            step = self._n_consumed.to_bytes(4)
            self._transport.write(frame(WINDOW_UPDATE, 0, 0, step) + frame(WINDOW_UPDATE, 0, 1, step))
            self._n_consumed = 0
        if flags & _PADDED:
            payload = payload[1 : len(payload) - payload[0]]
        self._message += payload
        while len(self._message) >= 5:
            size = int.from_bytes(self._message[1:5])
            if len(self._message) < 5 + size:
                break
            message = bytes(self._message[5 : 5 + size])
            del self._message[: 5 + size]
            self._on_message(message)
        if flags & _END_STREAM:
            self._end()

    def connection_lost(self, _error: Exception | None) -> None:
        """The server has closed the connection."""
        self._end()

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._on_end()
            self._transport.close()
