"""Call: one request of the API with its user, and helpers to read its body and to answer it."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Final, TypeVar

import msgspec
from aiohttp import web
from multidict import MultiMapping

from koguma.access.user import User
from koguma.model import documents
from koguma.model.errors import BadRequest, TooLarge, TooSlow, UnsupportedMedia
from koguma.model.schema import Json

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
BODY_SECONDS_MAX: Final = 30.0  # for the whole body
# Larger bodies are parsed in a thread, so that the event loop does not wait; these take about 10 ms.
JSON_BYTES_ON_LOOP: Final = 256 * 1024
YAML_BYTES_ON_LOOP: Final = 16 * 1024
JSON: Final = "application/json"
_YAML_TYPES: Final = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")


T = TypeVar("T")

# One thread: many large bodies at once take no more CPU than one.
_reader = ThreadPoolExecutor(1, thread_name_prefix="koguma-bodies")


async def read_beside(read: Callable[[bytes], T], data: bytes, bytes_on_loop: int) -> T:
    """Parse a body; a large one in a thread."""
    if len(data) <= bytes_on_loop:
        return read(data)
    return await asyncio.get_running_loop().run_in_executor(_reader, read, data)


_WARNING_LENGTH_MAX: Final = 500


class Call:
    """A request and its user; the body is read only when a handler asks for it."""

    __slots__ = (
        "__dict__",
        "id",
        "identify",
        "impersonator",
        "is_compressible",
        "is_trial",
        "request",
        "user",
    )

    def __init__(self, request: web.BaseRequest, user: User, request_id: str) -> None:
        self.request = request
        self.user = user
        self.impersonator: User | None = None  # who impersonates that user, if anybody
        self.identify: Callable[[], User] = lambda: user  # authenticates again, by current keys; may raise
        self.id = request_id
        self.is_trial = False  # whether nothing is to be written, whatever the query says; a handler says so
        self.is_compressible = False  # whether the answer may be compressed; a handler says so

    @cached_property
    def query(self) -> MultiMapping[str]:
        """The query parameters; look-ups give the first value where one is repeated."""
        return self.request.rel_url.query

    @property
    def has_query(self) -> bool:
        """Whether there are query parameters at all, without reading them."""
        return "?" in self.request.path_qs

    def header(self, name: str) -> str | None:
        """A header's value."""
        return self.request.headers.get(name)

    @property
    def media_type(self) -> str:
        """The body's content type without parameters, in lower case; errors name it, so it is always text."""
        text = (self.header("Content-Type") or "").encode(errors="replace").decode()
        return text.partition(";")[0].strip().lower()

    def flag(self, name: str, words: tuple[str, ...] = ("true", "1")) -> bool:
        """Whether a query parameter is on: one of `words` says yes; false, 0 or nothing says no."""
        value = self.query.get(name, "false")
        if value in words:
            return True
        if value in ("false", "0"):
            return False
        choices = ", ".join((*words, "false"))
        raise BadRequest(f'query parameter "{name}" must be one of {choices}, not "{value[:100]}"')

    async def body(self, size_max: int = BODY_BYTES_MAX, seconds_max: float | None = None) -> bytes:
        """The whole body, refused as soon as it is known to be too large."""
        seconds_max = seconds_max or BODY_SECONDS_MAX
        encoding = self.header("Content-Encoding") or "identity"
        if encoding.lower() != "identity":  # Kubernetes reads no compressed bodies either
            raise UnsupportedMedia(
                f'content encoding "{encoding[:100]}" is not read here; send it uncompressed'
            )
        too_large = TooLarge(f"the body is larger than {size_max} bytes")
        if (self.request.content_length or 0) > size_max:
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(seconds_max):
                async for part in self.request.content.iter_any():
                    size += len(part)
                    if size > size_max:
                        raise too_large
                    parts.append(part)
        except TimeoutError:
            text = f"the body did not come within {seconds_max:g} s, only {size} bytes of it; send it again"
            raise TooSlow(text) from None
        return b"".join(parts)

    async def documents(self) -> list[Json]:
        """The values in a JSON or YAML body."""
        data = await self.body()
        media = self.media_type
        if media in _YAML_TYPES:
            loaded = await read_beside(documents.load, data, YAML_BYTES_ON_LOOP)
            return [document.value for document in loaded]
        if media in (JSON, "") or media.endswith("+json") or self._is_curls_default(media):
            return [await read_beside(documents.load_json, data, JSON_BYTES_ON_LOOP)]
        raise UnsupportedMedia(f'content type "{media}" is not read here; send {JSON} or {_YAML_TYPES[0]}')

    def _is_curls_default(self, media: str) -> bool:
        # `curl -X PUT -d` calls everything a form. A web page cannot send a PUT by a form, only a POST.
        return media == "application/x-www-form-urlencoded" and self.request.method == "PUT"

    async def document(self) -> Json:
        """The one value in the body."""
        documents = await self.documents()
        if len(documents) != 1:
            raise BadRequest(f"one document is needed, the body has {len(documents)}")
        return documents[0]


def answer(
    body: bytes, status: int = 200, headers: Mapping[str, str] | None = None, content_type: str = JSON
) -> web.Response:
    """An answer made of ready bytes."""
    return web.Response(body=body, status=status, headers={"Content-Type": content_type, **(headers or {})})


def answer_json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """An answer made of a value."""
    return answer(msgspec.json.encode(value), status, headers)


def warning(text: str) -> str:
    """The value of a Warning header, as Kubernetes' clients read it."""
    clean = "".join(c if c.isprintable() else " " for c in text[:_WARNING_LENGTH_MAX])
    quoted = clean.replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{quoted}"'


def stale_headers(problem: str) -> dict[str, str]:
    """The headers of an answer that may be old, with the reason; none where there is no reason."""
    return {"Warning": warning(problem)} if problem else {}
