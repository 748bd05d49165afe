"""Watches of the plain form: changes as they happen, one JSON object per line, in revision order.

`GET <list>?watch=true` first sends every existing object as ADDED, then a BOOKMARK, then every change.
`&revision=N` resumes after revision N instead; a compacted revision answers 410. A BOOKMARK carries the
revision to resume from. It is sent regularly, so that clients can tell a quiet watch from a dead one.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec
from aiohttp import web

from koguma.api import lists, open_watches
from koguma.api.call import Call
from koguma.api.open_watches import OpenWatches
from koguma.api.plain_encoder import PlainEncoder
from koguma.application.context import Context
from koguma.model.errors import BadRequest, Gone, KogumaError
from koguma.model.kind import Kind
from koguma.model.resource import Resource
from koguma.store.contract import Change, Op

BOOKMARK_SECONDS: Final = 15.0
CONTENT_TYPE: Final = "application/x-ndjson"
_TYPES: Final = {Op.CREATE: b"ADDED", Op.UPDATE: b"MODIFIED", Op.DELETE: b"DELETED"}
_BATCH = 500


class Watches:
    """Handler of all watches."""

    def __init__(self, context: Context, watches: OpenWatches, encoder: PlainEncoder) -> None:
        self._context = context
        self._encoder = encoder
        self._watches = watches

    async def watch(self, call: Call, kind: Kind, mesh: str | None) -> web.StreamResponse:
        """Send changes of a kind until the client disconnects, loses the right, or the server stops."""
        context = self._context
        check = partial(context.check, call.user, "watch", kind, mesh or "")
        check()
        if mesh is not None and kind.is_mesh_scoped:
            context.check_mesh(call.user, mesh)
        matches = self._filter(call, mesh)
        after, initial = self._start(call, kind, mesh, matches)
        feed = context.store.watch(frozenset({kind.name}), after)
        response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})
        await response.prepare(call.request)
        ends_at = asyncio.get_running_loop().time() + open_watches.life_seconds()
        try:
            for start in range(0, len(initial), _BATCH):
                await response.write(b"".join(self._added(call, r) for r in initial[start : start + _BATCH]))
            await response.write(_bookmark(after))
            with self._watches.opened(call, feed, check) as watch:
                while asyncio.get_running_loop().time() < ends_at:
                    changes = await watch.next_batch(BOOKMARK_SECONDS)
                    lines = [self._line(call, change) for change in changes if matches(change.resource)]
                    await response.write(b"".join(lines) if lines else _bookmark(feed.position))
        except KogumaError as error:  # too far behind, the right is gone, or the server stops
            await response.write(_error(error))
        return response

    def _filter(self, call: Call, mesh: str | None) -> Callable[[Resource], bool]:
        matches = lists.resource_filter(call.query, call.request.path, mesh)
        return lambda resource: (
            (mesh is None or resource.mesh == mesh) and (matches is None or matches(resource))
        )

    def _start(
        self, call: Call, kind: Kind, mesh: str | None, matches: Callable[[Resource], bool]
    ) -> tuple[int, Sequence[Resource]]:
        state, text = self._context.state, call.query.get("revision")
        if text is None:
            return state.revision, [r for r in state.listed(kind.name, mesh) if matches(r)]
        if not text.isascii() or not text.isdigit() or len(text) > 18:  # noqa: PLR2004 - int64
            raise BadRequest(f'query parameter "revision" must be a number, not "{text}"')
        after = int(text)
        if after > state.revision:
            raise BadRequest(f"revision {after} is not written yet; the newest is {state.revision}")
        if after < state.compacted:
            raise Gone(
                f"revision {after} is too old: history begins at {state.compacted}; list again, then watch"
                " from the list's revision"
            )
        return after, ()

    def _added(self, call: Call, resource: Resource) -> bytes:
        return _event(b"ADDED", resource.revision, self._encoder.bytes(resource, call.user))

    def _line(self, call: Call, change: Change) -> bytes:
        shown = self._encoder.bytes(change.resource, call.user)
        return _event(_TYPES[change.op], change.revision, shown)


def _event(type_: bytes, revision: int, encoded: bytes) -> bytes:
    return b'{"type":"%b","revision":%d,"object":%b}\n' % (type_, revision, encoded)


def _bookmark(revision: int) -> bytes:
    return b'{"type":"BOOKMARK","revision":%d}\n' % revision


def _error(error: KogumaError) -> bytes:
    event = {"type": "ERROR", "status": error.status, "title": error.title, "detail": error.detail}
    return msgspec.json.encode(event) + b"\n"
