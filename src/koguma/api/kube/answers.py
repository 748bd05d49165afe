"""Answers: objects as the bytes that a client asked for."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Final

import msgspec
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from multidict import CIMultiDict

from koguma.api.call import JSON, Call
from koguma.api.kube import negotiation
from koguma.api.kube.encoder import KubeEncoder
from koguma.api.kube.negotiation import AcceptedFormat, AnswerFormat
from koguma.api.kube.target import RequestTarget
from koguma.kube import tables
from koguma.kube.registry import KubeEndpoint
from koguma.model.resource import Resource
from koguma.model.schema import Json
from koguma.model.violation import truncated_texts

_WARNING_LENGTH_MAX: Final = 500
PIECE: Final = 64  # objects that are sent together


class Answers:
    """Renders objects and lists for one request after another."""

    def __init__(self, shown: KubeEncoder, clock: Callable[[], datetime]) -> None:
        self.shown = shown
        self._clock = clock

    def one(
        self,
        call: Call,
        target: RequestTarget,
        resource: Resource,
        status: int = 200,
        warnings: Iterable[str] = (),
    ) -> web.Response:
        """One object."""
        wanted = negotiation.wanted(call)
        if wanted.shape is AnswerFormat.OBJECT:
            return sent(self.shown.bytes(resource, target.endpoint, call.user), status, warnings)
        document = self.shown.seen(resource, target.endpoint, call.user)
        return self.document(call, target.endpoint, document, status, warnings)

    def document(
        self,
        call: Call,
        endpoint: KubeEndpoint,
        document: Json,
        status: int = 200,
        warnings: Iterable[str] = (),
    ) -> web.Response:
        """One object that is not as it is stored, such as that of a dry run."""
        wanted = negotiation.wanted(call)
        body = document
        if wanted.shape is AnswerFormat.TABLE:
            meta = {"resourceVersion": document["metadata"].get("resourceVersion", "")}
            body = self.table(call, endpoint, [document], meta, wanted)
        elif wanted.shape is AnswerFormat.PARTIAL:
            body = tables.partial(document, wanted.api_version)
        return sent(msgspec.json.encode(body), status, warnings)

    def many(
        self,
        call: Call,
        target: RequestTarget,
        resources: Sequence[Resource],
        meta: Json,
        warnings: Iterable[str],
    ) -> web.Response:
        """A list."""
        endpoint, wanted = target.endpoint, negotiation.wanted(call)
        if wanted.shape is AnswerFormat.OBJECT:
            return sent(self._list(call, endpoint, resources, meta), 200, warnings)
        documents = [self.shown.seen(resource, endpoint, call.user) for resource in resources]
        if wanted.shape is AnswerFormat.TABLE:
            body = self.table(call, endpoint, documents, meta, wanted)
        else:
            body = tables.partial_list(documents, meta, wanted.api_version)
        return sent(msgspec.json.encode(body), 200, warnings)

    def _list(
        self, call: Call, endpoint: KubeEndpoint, resources: Sequence[Resource], meta: Json
    ) -> bytes | Payload:
        """Put together from ready bytes."""
        said = {"kind": f"{endpoint.kind_name}List", "apiVersion": endpoint.api_version, "metadata": meta}
        head = b'%b,"items":[' % msgspec.json.encode(said)[:-1]
        items = self.shown.many(resources, endpoint, call.user)
        if not items:
            return head + b"]}"
        items[0] = head + items[0]
        items[-1] += b"]}"
        return b",".join(items) if len(items) <= PIECE else Pieces(items)

    def table(
        self,
        call: Call,
        endpoint: KubeEndpoint,
        documents: Sequence[Json],
        meta: Json,
        wanted: AcceptedFormat,
        *,
        with_columns: bool = True,
    ) -> Json:
        """Objects as rows."""
        return tables.table(
            documents,
            endpoint,
            self._clock(),
            negotiation.include(call),
            meta,
            with_columns=with_columns,
            version=wanted.api_version,
        )


class Pieces(Payload):
    """Items that are joined as they are sent: the memory for a large body costs more than all else does."""

    def __init__(self, items: Sequence[bytes]) -> None:
        super().__init__(items, content_type=JSON)
        self._items = items
        self._size = sum(map(len, items)) + len(items) - 1

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """All of it as text."""
        return b",".join(self._items).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send a piece whenever there is room for one."""
        for start in range(0, len(self._items), PIECE):
            piece = b",".join(self._items[start : start + PIECE])
            await writer.write(b"," + piece if start else piece)


def sent(
    body: bytes | Payload, status: int = 200, warnings: Iterable[str] = (), content_type: str = JSON
) -> web.Response:
    """An answer made of ready bytes, with what the writer should hear."""
    headers: CIMultiDict[str] = CIMultiDict(
        {"Content-Type": content_type, "Cache-Control": "no-cache, private"}
    )
    for text in truncated_texts(dict.fromkeys(warnings)):
        headers.add("Warning", f'299 - "{_quoted(text)}"')
    return web.Response(body=body, status=status, headers=headers)


def _quoted(text: str) -> str:
    clean = "".join(c if c.isprintable() else " " for c in text[:_WARNING_LENGTH_MAX])
    return clean.replace("\\", "\\\\").replace('"', '\\"')
