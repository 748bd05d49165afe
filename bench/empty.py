"""The empty handler: the HTTP server that Koguma uses, with ready bytes and no Koguma behind it.

`python -m bench.empty MODE FOLDER` serves, by mode:
constant  every path answers the file `body`
unchanged every path answers 304 with the ETag in the file `etag`
pages     `/0`, `/1`, ... answer the files `0`, `1`, ...
streams   every path is a chunked response that begins with the file `first`, and sends the file `event`
          each time that `/event` is asked for
"""

import asyncio
import gc
import sys
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from koguma.api.server import Handle, HttpServer

_JSON = "application/json"


def constant(folder: Path) -> Handle:
    """One answer for everything."""
    body = (folder / "body").read_bytes()

    async def handle(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=body, content_type=_JSON)

    return handle


def unchanged(folder: Path) -> Handle:
    """Nothing new, whatever is asked for."""
    etag = (folder / "etag").read_text()

    async def handle(_: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=304, headers={"ETag": etag})

    return handle


def pages(folder: Path) -> Handle:
    """An answer for each path."""
    bodies = {f"/{file.name}": file.read_bytes() for file in folder.iterdir() if file.name.isdigit()}

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=bodies[request.path], content_type=_JSON)

    return handle


def streams(folder: Path) -> Handle:
    """Responses that stay open."""
    first, event = (folder / "first").read_bytes(), (folder / "event").read_bytes()
    waiting: list[asyncio.Future[None]] = []

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/event":
            for waiter in waiting:
                if not waiter.done():  # its client is gone
                    waiter.set_result(None)
            waiting.clear()
            return web.Response(body=b"{}", content_type=_JSON)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        await response.write(first)
        while True:
            waiter = asyncio.get_running_loop().create_future()
            waiting.append(waiter)
            await waiter
            await response.write(event)

    return handle


async def serve(handle: Handle) -> None:
    """Listen on a free port until killed."""
    server = HttpServer(handle)
    await server.start()
    port = await server.listen("127.0.0.1", 0)
    gc.collect()
    gc.freeze()  # as the control plane does
    print(f"ready: http://127.0.0.1:{port}", flush=True)
    await asyncio.Event().wait()


def main(mode: str, folder: str) -> None:
    """Serve one mode on the event loop that the control plane would use."""
    with suppress(ImportError):
        import uvloop  # noqa: PLC0415 - only where it is installed

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    modes = {"constant": constant, "unchanged": unchanged, "pages": pages, "streams": streams}
    asyncio.run(serve(modes[mode](Path(folder))))


if __name__ == "__main__":
    main(*sys.argv[1:])
