"""The bare side of `bench.sync`: the same messages over the same gRPC library, into a bare SQLite table.

    python -m bench.sync_bare send FILE CERTIFICATE KEY     says `http://host:port` when it is ready
    python -m bench.sync_bare receive PORT CA DATABASE      ends when it has everything

The sender has the messages ready, and as many of them on their way as Global would have. The receiver decodes
each, writes its objects as rows, commits as our store does (WAL, full sync), and answers.
"""

import asyncio
import sqlite3
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from koguma.sync import stream_service
from koguma.sync.protocol import messages
from koguma.sync.protocol.messages import Objects
from koguma.sync.protocol.publisher import BATCH_BYTES, WINDOW_BYTES

_ON_THE_WAY = WINDOW_BYTES // BATCH_BYTES
_LENGTH_BYTES = 4


def write_messages(file: Path, encoded: list[bytes]) -> None:
    """Write messages to a file, each after its length."""
    file.write_bytes(b"".join(len(each).to_bytes(_LENGTH_BYTES, "big") + each for each in encoded))


def read_messages(file: Path) -> list[bytes]:
    """The messages in a file."""
    data, found, at = file.read_bytes(), [], 0
    while at < len(data):
        end = at + _LENGTH_BYTES + int.from_bytes(data[at : at + _LENGTH_BYTES], "big")
        found.append(data[at + _LENGTH_BYTES : end])
        at = end
    return found


async def send(ready: list[bytes], pair: tuple[bytes, bytes]) -> None:
    """Send the messages to whoever connects."""

    async def serve(_requests: object, context: Any) -> None:
        on_the_way = 0
        for message in ready:
            if on_the_way == _ON_THE_WAY:
                await context.read()
                on_the_way -= 1
            await context.write(message)
            on_the_way += 1
        for _ in range(on_the_way):
            await context.read()

    server = grpc.aio.server(options=stream_service.OPTIONS)
    handler = grpc.stream_stream_rpc_method_handler(serve)
    handlers = grpc.method_handlers_generic_handler(stream_service.SERVICE, {stream_service.METHOD: handler})
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    await server.start()
    print(f"ready: http://127.0.0.1:{port}", flush=True)
    await asyncio.Event().wait()


async def receive(port: str, ca: bytes, database: str) -> None:
    """Write everything into a table; prints when it began and ended, and its CPU time between."""
    table = sqlite3.connect(database, isolation_level=None)
    table.execute("PRAGMA journal_mode = WAL")
    table.execute("PRAGMA synchronous = FULL")
    table.execute("CREATE TABLE bare (name TEXT PRIMARY KEY, body BLOB NOT NULL)")
    began_at, cpu = time.monotonic(), time.process_time()
    credentials = grpc.ssl_channel_credentials(ca)
    options = stream_service.OPTIONS
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials, options=options) as channel:
        method: Any = channel.stream_stream(stream_service.PATH)
        call = method()
        while isinstance(data := await call.read(), bytes):
            message = messages.decoded(data)
            assert isinstance(message, Objects)
            table.execute("BEGIN")
            rows = ((str(each.key), each.content) for each in message.objects)
            table.executemany("INSERT INTO bare VALUES (?, ?)", rows)
            table.execute("COMMIT")
            await call.write(messages.encoded(messages.Ack(message.number)))
        print(began_at, time.monotonic(), time.process_time() - cpu)
    table.close()


def main(what: str, *words: str) -> None:
    """Send or receive on the event loop that the control plane would use."""
    with suppress(ImportError):
        import uvloop  # noqa: PLC0415 - only where it is installed

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    if what == "send":
        messages_file, certificate, key = (Path(word) for word in words)
        pair = key.read_bytes(), certificate.read_bytes()
        asyncio.run(send(read_messages(messages_file), pair))
    else:
        port, ca, database = words
        asyncio.run(receive(port, Path(ca).read_bytes(), database))


if __name__ == "__main__":
    main(*sys.argv[1:])
