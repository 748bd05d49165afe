"""Compression: large answers as gzip, for clients that accept it.

As in Kubernetes, from 128 KiB on and at the fastest level: near clients would wait longer for a better one
than for the bytes that it saves. Watches are never compressed. Nor is an answer that may hold secrets, or one
to a request that a web page of another site made: who can choose parts of an answer could learn the rest from
its length (the attack called BREACH).
"""

import asyncio
import zlib
from collections.abc import Callable, Sequence
from typing import Final

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

from koguma.api.call import Call
from koguma.application import inline_secrets
from koguma.model.kind import Kind

SIZE_MIN: Final = 128 * 1024
LEVEL: Final = 1
_GZIP_WINDOW: Final = zlib.MAX_WBITS | 16  # 16: a gzip header and trailer
_OWN_SITES: Final = ("none", "same-origin")


def may_hold_secrets(kind: Kind) -> bool:
    """Whether answers with objects of a kind are never compressed."""
    return kind.admin_only or inline_secrets.may_hold(kind)


async def compressed(call: Call, response: web.StreamResponse) -> web.StreamResponse:
    """The same response, compressed where its handler allows it, the client accepts it and it is large."""
    if not call.is_compressible or not isinstance(response, web.Response) or call.request.method != "GET":
        return response
    body = response.body
    size = body.size if isinstance(body, Payload) else len(body or b"")
    if size is None or size < SIZE_MIN or response.status != 200:  # noqa: PLR2004 - OK
        return response
    varies = response.headers.get("Vary")
    response.headers["Vary"] = f"{varies}, Accept-Encoding" if varies else "Accept-Encoding"
    if not _accepts_gzip(call.header("Accept-Encoding") or "") or _is_for_another_site(call):
        return response
    if isinstance(body, ChunkedBody):
        response.body = GzippedBody(body)
    elif isinstance(body, bytes):
        response.body = await _beside(_gzip, body)
    else:
        return response
    response.headers["Content-Encoding"] = "gzip"
    return response


def _accepts_gzip(accept: str) -> bool:
    for entry in accept.lower().split(","):
        coding, *parameters = (part.strip() for part in entry.split(";"))
        if coding == "gzip":
            return not any(
                part.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000") for part in parameters
            )
    return False


def _is_for_another_site(call: Call) -> bool:
    """Whether a web page asks; scripts and tools send none of these headers."""
    return call.header("Origin") is not None or call.header("Sec-Fetch-Site") not in (None, *_OWN_SITES)


def _gzip(data: bytes) -> bytes:
    compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    return compressor.compress(data) + compressor.flush()


async def _beside(compress: Callable[[bytes], bytes], data: bytes) -> bytes:
    """Compress in a thread, where zlib does not keep the event loop waiting."""
    return await asyncio.get_running_loop().run_in_executor(None, compress, data)


class ChunkedBody(Payload):
    """A body of parts that are joined in chunks as they are sent: allocating one large body is expensive."""

    def __init__(
        self, parts: Sequence[bytes], separator: bytes, parts_per_chunk: int, content_type: str
    ) -> None:
        super().__init__(parts, content_type=content_type)
        self._parts = parts
        self._separator = separator
        self._parts_per_chunk = parts_per_chunk
        self._size = sum(map(len, parts)) + len(separator) * (len(parts) - 1)

    @property
    def n_chunks(self) -> int:
        """How many chunks it has."""
        return -(-len(self._parts) // self._parts_per_chunk)

    def chunk(self, index: int) -> bytes:
        """One chunk, with the separator that comes before it."""
        start = index * self._parts_per_chunk
        chunk = self._separator.join(self._parts[start : start + self._parts_per_chunk])
        return self._separator + chunk if index else chunk

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """All of it as text."""
        return self._separator.join(self._parts).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send chunk by chunk, waiting for the client."""
        for index in range(self.n_chunks):
            await writer.write(self.chunk(index))


class GzippedBody(Payload):
    """A chunked body, compressed as it is sent; its length is not known before."""

    def __init__(self, body: ChunkedBody) -> None:
        super().__init__(body, content_type=body.content_type)
        self._body = body

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """All of it as text, before compression."""
        return self._body.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send chunk by chunk, waiting for the client."""
        compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
        for index in range(self._body.n_chunks):
            data = await _beside(compressor.compress, self._body.chunk(index))
            if data:
                await writer.write(data)
        await writer.write(compressor.flush())
