"""Answers: objects and lists in the format that a client accepts: JSON objects, tables, or metadata alone."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Final

import msgspec
from aiohttp import web
from aiohttp.payload import Payload
from multidict import CIMultiDict

from koguma.api import compression
from koguma.api.call import JSON, Call
from koguma.api.compression import ChunkedBody
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
CHUNK_SIZE: Final = 64  # objects that are joined and sent at a time


class Answers:
    """Makes the responses with objects and lists."""

    def __init__(self, encoder: KubeEncoder, clock: Callable[[], datetime]) -> None:
        self.encoder = encoder
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
        accepted = negotiation.accepted_format(call)
        call.is_compressible = not compression.may_hold_secrets(target.endpoint.kind)
        if accepted.format is AnswerFormat.OBJECT:
            return encoded_response(
                self.encoder.bytes(resource, target.endpoint, call.user), status, warnings
            )
        document = self.encoder.visible_document(resource, target.endpoint, call.user)
        return self.document(call, target.endpoint, document, status, warnings)

    def document(
        self,
        call: Call,
        endpoint: KubeEndpoint,
        document: Json,
        status: int = 200,
        warnings: Iterable[str] = (),
    ) -> web.Response:
        """One object that is not stored like this, such as that of a dry run."""
        accepted = negotiation.accepted_format(call)
        body = document
        if accepted.format is AnswerFormat.TABLE:
            meta = {"resourceVersion": document["metadata"].get("resourceVersion", "")}
            body = self.table(call, endpoint, [document], meta, accepted)
        elif accepted.format is AnswerFormat.PARTIAL:
            body = tables.partial(document, accepted.api_version)
        return encoded_response(msgspec.json.encode(body), status, warnings)

    def many(
        self,
        call: Call,
        target: RequestTarget,
        resources: Sequence[Resource],
        meta: Json,
        warnings: Iterable[str],
    ) -> web.Response:
        """A list."""
        endpoint, accepted = target.endpoint, negotiation.accepted_format(call)
        call.is_compressible = not compression.may_hold_secrets(endpoint.kind)
        if accepted.format is AnswerFormat.OBJECT:
            return encoded_response(self._list(call, endpoint, resources, meta), 200, warnings)
        documents = [self.encoder.visible_document(resource, endpoint, call.user) for resource in resources]
        if accepted.format is AnswerFormat.TABLE:
            body = self.table(call, endpoint, documents, meta, accepted)
        else:
            body = tables.partial_list(documents, meta, accepted.api_version)
        return encoded_response(msgspec.json.encode(body), 200, warnings)

    def _list(
        self, call: Call, endpoint: KubeEndpoint, resources: Sequence[Resource], meta: Json
    ) -> bytes | Payload:
        """A list, joined from encoded objects."""
        list_meta = {
            "kind": f"{endpoint.kind_name}List",
            "apiVersion": endpoint.api_version,
            "metadata": meta,
        }
        head = b'%b,"items":[' % msgspec.json.encode(list_meta)[:-1]
        items = self.encoder.many(resources, endpoint, call.user)
        if endpoint.strategic:
            items = _untyped(items, endpoint)
        if not items:
            return head + b"]}"
        items[0] = head + items[0]
        items[-1] += b"]}"
        return b",".join(items) if len(items) <= CHUNK_SIZE else ChunkedBody(items, b",", CHUNK_SIZE, JSON)

    def table(
        self,
        call: Call,
        endpoint: KubeEndpoint,
        documents: Sequence[Json],
        meta: Json,
        accepted: AcceptedFormat,
        *,
        with_columns: bool = True,
    ) -> Json:
        """Objects as rows."""
        return tables.table(
            documents,
            endpoint,
            self._clock(),
            negotiation.include_object(call),
            meta,
            with_columns=with_columns,
            version=accepted.api_version,
        )


def _untyped(items: Sequence[bytes], endpoint: KubeEndpoint) -> list[bytes]:
    """Objects without `apiVersion` and `kind`, as they are in lists of Kubernetes' own kinds."""
    type_ = {"apiVersion": endpoint.api_version, "kind": endpoint.kind_name}
    start = len(msgspec.json.encode(type_))  # with a closing brace, where the objects have a comma
    return [b"{" + item[start:] for item in items]


def encoded_response(
    body: bytes | Payload, status: int = 200, warnings: Iterable[str] = (), content_type: str = JSON
) -> web.Response:
    """A response of encoded bytes, with Warning headers."""
    headers: CIMultiDict[str] = CIMultiDict(
        {"Content-Type": content_type, "Cache-Control": "no-cache, private"}
    )
    for text in truncated_texts(dict.fromkeys(warnings)):
        headers.add("Warning", f'299 - "{_quoted(text)}"')
    return web.Response(body=body, status=status, headers=headers)


def _quoted(text: str) -> str:
    clean = "".join(c if c.isprintable() else " " for c in text[:_WARNING_LENGTH_MAX])
    return clean.replace("\\", "\\\\").replace('"', '\\"')
