"""A service that answers at once; run as `python -m tests.traffic.quick_server NAME`, it says its port."""

import asyncio
import sys


class Quick(asyncio.Protocol):
    """Answers each request with the service's name."""

    def __init__(self, name: bytes) -> None:
        self._answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(name), name)
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        while b"\r\n\r\n" in self._read:
            _, _, self._read = self._read.partition(b"\r\n\r\n")
            self._transport.write(self._answer)


async def main(name: str) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Quick(name.encode()), "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
