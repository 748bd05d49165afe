"""Answers: objects and lists in the format that a client accepts: whole, as tables, or metadata alone."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Final

from aiohttp import web
from aiohttp.payload import Payload
from multidict import CIMultiDict

from koguma.access.user import User
from koguma.api import compression
from koguma.api.call import JSON, Call, warning
from koguma.api.kube import negotiation
from koguma.api.kube.encoder import KubeEncoder
from koguma.api.kube.negotiation import AcceptedFormat, AnswerFormat
from koguma.api.kube.target import RequestTarget
from koguma.kube import tables
from koguma.kube.custom import scale
from koguma.kube.custom.endpoints import SCALE
from koguma.kube.registry import KubeEndpoint
from koguma.model.resource import Resource
from koguma.model.schema import Json
from koguma.model.violation import truncated_texts

PREPARED_SIZE: Final = 100  # objects, which take about 10 ms in protobuf


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
        """One object, or its Scale."""
        accepted = negotiation.accepted_format(call, target.endpoint)
        call.is_compressible = not compression.may_hold_secrets(target.endpoint.kind)
        if accepted.format is AnswerFormat.OBJECT and target.subresource != SCALE:
            media = accepted.media
            encoded = self.encoder.bytes(resource, target.endpoint, call.user, media)
            all_warnings = _all_warnings(target.endpoint, warnings)
            return encoded_response(encoded, status, all_warnings, media.content_type)
        document = self.shown(resource, target, call.user)
        return self.document(call, target.endpoint, document, status, warnings)

    def shown(self, resource: Resource, target: RequestTarget, user: User) -> dict[str, Json]:
        """The document that a target shows of an object to a user."""
        document = self.encoder.visible_document(resource, target.endpoint, user)
        custom = target.endpoint.custom
        if target.subresource == SCALE and custom is not None and custom.scale is not None:
            return scale.scale_document(document, custom.scale)
        return document

    def document(
        self,
        call: Call,
        endpoint: KubeEndpoint,
        document: Json,
        status: int = 200,
        warnings: Iterable[str] = (),
    ) -> web.Response:
        """One object that is not stored like this, such as that of a dry run."""
        accepted = negotiation.accepted_format(call, endpoint)
        body, media = document, accepted.media
        if accepted.format is AnswerFormat.TABLE:
            meta = {"resourceVersion": document["metadata"].get("resourceVersion", "")}
            body = self.table(call, endpoint, [document], meta, accepted)
        elif accepted.format is AnswerFormat.PARTIAL:
            body = tables.partial(document, accepted.api_version)
        warnings = _all_warnings(endpoint, warnings)
        return encoded_response(media.object(body), status, warnings, media.content_type)

    async def prepare(self, call: Call, target: RequestTarget, resources: Sequence[Resource]) -> None:
        """Encode the objects of a long list ahead, where that is slow, and let others run in between."""
        accepted = negotiation.accepted_format(call, target.endpoint)
        if not accepted.is_protobuf or accepted.format is not AnswerFormat.OBJECT:
            return
        for start in range(0, len(resources) - PREPARED_SIZE, PREPARED_SIZE):
            slice_ = resources[start : start + PREPARED_SIZE]
            self.encoder.many(slice_, target.endpoint, call.user, accepted.media)
            await asyncio.sleep(0)

    def many(
        self,
        call: Call,
        target: RequestTarget,
        resources: Sequence[Resource],
        meta: Json,
        warnings: Iterable[str],
    ) -> web.Response:
        """A list."""
        endpoint, accepted = target.endpoint, negotiation.accepted_format(call, target.endpoint)
        media = accepted.media
        call.is_compressible = not compression.may_hold_secrets(endpoint.kind)
        warnings = _all_warnings(endpoint, warnings)
        if accepted.format is AnswerFormat.OBJECT:
            items = self.encoder.many(resources, endpoint, call.user, media)
            return encoded_response(media.list(endpoint, meta, items), 200, warnings, media.content_type)
        documents = [self.encoder.visible_document(resource, endpoint, call.user) for resource in resources]
        if accepted.format is AnswerFormat.TABLE:
            body = self.table(call, endpoint, documents, meta, accepted)
        else:
            body = tables.partial_list(documents, meta, accepted.api_version)
        return encoded_response(media.object(body), 200, warnings, media.content_type)

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


def _all_warnings(endpoint: KubeEndpoint, warnings: Iterable[str]) -> Iterable[str]:
    """Warnings about a request, after the one for users of a deprecated version."""
    deprecation = endpoint.custom.deprecation if endpoint.custom else ""
    return (deprecation, *warnings) if deprecation else warnings


def encoded_response(
    body: bytes | Payload, status: int = 200, warnings: Iterable[str] = (), content_type: str = JSON
) -> web.Response:
    """A response of encoded bytes, with Warning headers."""
    headers: CIMultiDict[str] = CIMultiDict(
        {"Content-Type": content_type, "Cache-Control": "no-cache, private"}
    )
    for text in truncated_texts(dict.fromkeys(warnings)):
        headers.add("Warning", warning(text))
    return web.Response(body=body, status=status, headers=headers)
