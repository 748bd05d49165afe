"""The bare xDS server: the gRPC server that Koguma uses, with ready bytes and no Koguma behind it.

    python -m bench.swarm_bare FOLDER [CERTIFICATE KEY]

It sends the messages of the file `first` to whoever connects, and those of the file `change` to everybody
when it gets the signal USR1. A file holds one message a line, in base64.
"""

import asyncio
import base64
import gc
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc

from koguma.runtime import garbage_collection
from koguma.xds.limits import XdsLimits, grpc_options
from koguma.xds.server import SERVICE


class Bare:
    """Streams that wait for a push."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._first = self._messages("first")
        self._waiting: list[asyncio.Future[list[bytes]]] = []

    def _messages(self, name: str) -> list[bytes]:
        return [base64.b64decode(line) for line in (self._folder / name).read_bytes().splitlines()]

    async def serve(self, _requests: object, context: Any) -> None:
        """One stream."""
        await context.read()
        for message in self._first:
            await context.write(message)
        pushing = asyncio.create_task(self._push(context))
        while await context.read() is not grpc.aio.EOF:
            pass
        pushing.cancel()

    async def _push(self, context: Any) -> None:
        while True:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            for message in await future:
                await context.write(message)

    def send(self) -> None:
        """Push the change to all streams."""
        messages = self._messages("change")
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(messages)


async def run(folder: Path, pair: tuple[bytes, bytes] | None) -> None:
    """Listen on a free port until killed."""
    garbage_collection.release_large_blocks()
    bare = Bare(folder)
    server = grpc.aio.server(options=grpc_options(XdsLimits()))
    handler = grpc.stream_stream_rpc_method_handler(bare.serve)
    handlers = grpc.method_handlers_generic_handler(SERVICE, {"DeltaAggregatedResources": handler})
    server.add_generic_rpc_handlers((handlers,))
    if pair:
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, bare.send)
    gc.collect()
    gc.freeze()  # as the control plane does
    print(f"ready: http://127.0.0.1:{port}", flush=True)
    # This as well: what streams need is compared, not what is left over.
    await asyncio.gather(garbage_collection.return_free_memory(), asyncio.Event().wait())


def main(folder: str, certificate: str = "", key: str = "") -> None:
    """Serve on the event loop that the control plane would use."""
    with suppress(ImportError):
        import uvloop  # noqa: PLC0415 - only where it is installed

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    pair = (Path(key).read_bytes(), Path(certificate).read_bytes()) if certificate else None
    asyncio.run(run(Path(folder), pair))


if __name__ == "__main__":
    main(*sys.argv[1:])
