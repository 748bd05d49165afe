"""Watch: changes as they happen, one JSON object a line, in revision order, with bookmarks.

`GET <list>?watch=true` first sends what is there (ADDED each, then a BOOKMARK), then every change.
`&revision=N` goes on after revision N instead; a revision that is compacted away answers 410. A BOOKMARK
carries the revision to go on from, and comes regularly, so that a quiet watch is known to be alive.
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

    def __init__(self, context: Context, watches: OpenWatches, shown: PlainEncoder) -> None:
        self._context = context
        self._shown = shown
        self._watches = watches

    async def watch(self, call: Call, kind: Kind, mesh: str | None) -> web.StreamResponse:
        """Send changes of a kind until the client leaves, may not watch any more, or the server stops."""
        context = self._context
        check = partial(context.check, call.user, "watch", kind, mesh or "")
        check()
        if mesh is not None and kind.is_mesh_scoped:
            context.check_mesh(call.user, mesh)
        fits = self._filter(call, mesh)
        after, first = self._start(call, kind, mesh, fits)
        feed = context.store.watch(frozenset({kind.name}), after)
        response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})
        await response.prepare(call.request)
        ends_at = asyncio.get_running_loop().time() + open_watches.life_seconds()
        try:
            for start in range(0, len(first), _BATCH):
                await response.write(b"".join(self._added(call, r) for r in first[start : start + _BATCH]))
            await response.write(_bookmark(after))
            with self._watches.opened(call, feed, check) as watch:
                while asyncio.get_running_loop().time() < ends_at:
                    changes = await watch.next_batch(BOOKMARK_SECONDS)
                    lines = [self._line(call, change) for change in changes if fits(change.resource)]
                    await response.write(b"".join(lines) if lines else _bookmark(feed.position))
        except KogumaError as error:  # fell too far behind, may not watch any more, or the server stops
            await response.write(_error(error))
        return response

    def _filter(self, call: Call, mesh: str | None) -> Callable[[Resource], bool]:
        wanted = lists.wanted(call.query, call.request.path, mesh)
        return lambda resource: (
            (mesh is None or resource.mesh == mesh) and (wanted is None or wanted(resource))
        )

    def _start(
        self, call: Call, kind: Kind, mesh: str | None, fits: Callable[[Resource], bool]
    ) -> tuple[int, Sequence[Resource]]:
        state, text = self._context.state, call.query.get("revision")
        if text is None:
            return state.revision, [r for r in state.listed(kind.name, mesh) if fits(r)]
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
        return _event(b"ADDED", resource.revision, self._shown.bytes(resource, call.user))

    def _line(self, call: Call, change: Change) -> bytes:
        shown = self._shown.bytes(change.resource, call.user)
        return _event(_TYPES[change.op], change.revision, shown)


def _event(word: bytes, revision: int, shown: bytes) -> bytes:
    return b'{"type":"%b","revision":%d,"object":%b}\n' % (word, revision, shown)


def _bookmark(revision: int) -> bytes:
    return b'{"type":"BOOKMARK","revision":%d}\n' % revision


def _error(error: KogumaError) -> bytes:
    shown = {"type": "ERROR", "status": error.status, "title": error.title, "detail": error.detail}
    return msgspec.json.encode(shown) + b"\n"
