"""Load from a process of its own: keep-alive connections, and a new connection for every request, at once.

Run as `python -m tests.traffic.load_generator PORT AT_LEAST [ADDRESS HOST]`; after SIGTERM it ends, once it
has made so many requests, and prints how often each answer came.
"""

import asyncio
import json
import signal
import sys
from collections import Counter

KEPT = 4
NEW = 2
PAUSE_SECONDS = 0.0005
ADDRESS, HOST = sys.argv[3:5] or ("127.0.0.1", "backend")
REQUEST = f"GET /load HTTP/1.1\r\nhost: {HOST}\r\n\r\n".encode()
LAST = f"GET /load HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n\r\n".encode()


async def answer(reader: asyncio.StreamReader) -> tuple[str, bool]:
    """What came, and whether Envoy ends the connection after it."""
    head = await reader.readuntil(b"\r\n\r\n")
    status, is_last = head.split(b" ", 2)[1].decode(), b"\r\nconnection: close\r\n" in head.lower()
    length = next(
        (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0"
    )
    await reader.readexactly(int(length.partition(b":")[2]))
    if status != "200":
        details = [line.decode() for line in head.split(b"\r\n") if line.lower().startswith(b"x-")]
        return f"{status} {details}", is_last
    return status, is_last


async def kept(port: int, counts: Counter[str]) -> None:
    """One connection for many requests; Envoy may end it between two of them, in order."""
    while True:
        reader, writer = await asyncio.open_connection(ADDRESS, port)
        fresh = True
        try:
            while True:
                writer.write(REQUEST)
                try:
                    found, is_last = await answer(reader)
                except asyncio.IncompleteReadError as end:
                    if fresh or end.partial:
                        raise
                    break  # it was closed before this request was read: a client asks again
                counts[found] += 1
                if is_last:
                    break
                fresh = False
                await asyncio.sleep(PAUSE_SECONDS)
        except OSError as error:
            counts[f"kept {type(error).__name__}: {error}"] += 1
        except asyncio.IncompleteReadError as error:
            counts[f"kept {error}"] += 1
        finally:
            writer.close()


async def new(port: int, counts: Counter[str]) -> None:
    """A connection for each request."""
    while True:
        try:
            reader, writer = await asyncio.open_connection(ADDRESS, port)
            writer.write(LAST)
            counts[(await answer(reader))[0]] += 1
            writer.close()
        except (OSError, asyncio.IncompleteReadError) as error:
            counts[f"new {type(error).__name__}: {error}"] += 1
        await asyncio.sleep(PAUSE_SECONDS)


async def main(port: int, at_least: int) -> None:
    counts: Counter[str] = Counter()
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    tasks = [asyncio.create_task(kept(port, counts)) for _ in range(KEPT)]
    tasks += [asyncio.create_task(new(port, counts)) for _ in range(NEW)]
    await stopping.wait()
    while sum(counts.values()) < at_least:  # noqa: ASYNC110 - nobody needs to be woken
        await asyncio.sleep(0.05)
    done = dict(counts)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    sys.stdout.write(json.dumps(done))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
