"""Backup endpoints: `GET /_export` sends every stored object, `POST /_import` restores them.

Both need a rule for their path: the one shows every Secret, the other writes every key, so whoever has it is
an administrator.
"""

from collections import Counter
from typing import Final

from aiohttp import web

from koguma.access.authorizer import Attempt
from koguma.api.call import Call, answer_json, read_beside
from koguma.api.plain import PlainObjects
from koguma.application import backup
from koguma.application.context import Context
from koguma.model.errors import UnsupportedMedia
from koguma.store.contract import Op

CONTENT_TYPE: Final = "application/x-ndjson"
BYTES_MAX: Final = 512 * 1024 * 1024
SECONDS_MAX: Final = 600.0
_BYTES_ON_LOOP: Final = 256 * 1024
_BATCH_BYTES: Final = 256 * 1024
_WORDS: Final = {
    Op.CREATE: "created",
    Op.UPDATE: "configured",
    Op.DELETE: "deleted",
    Op.UNCHANGED: "unchanged",
}


class Backup:
    """Handlers of `/_export` and `/_import`."""

    def __init__(self, context: Context, objects: PlainObjects) -> None:
        self._context = context
        self._objects = objects

    async def export(self, call: Call) -> web.StreamResponse:
        """Send all objects of the current revision."""
        self._context.access.check(call.user, Attempt("get", path="/_export"))
        lines = backup.lines(self._context)
        response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})
        await response.prepare(call.request)
        pending = bytearray()
        for line in lines:
            pending += line
            if len(pending) >= _BATCH_BYTES:
                await response.write(bytes(pending))
                pending.clear()
        await response.write(bytes(pending))
        return response

    async def restore(self, call: Call) -> web.StreamResponse:
        """Restore all objects of a backup in one transaction."""
        self._context.access.check(call.user, Attempt("post", path="/_import"))
        if call.media_type != CONTENT_TYPE:
            raise UnsupportedMedia(f'content type "{call.media_type}" is not read here; send {CONTENT_TYPE}')
        data = await call.body(BYTES_MAX, SECONDS_MAX)
        resources = await read_beside(backup.read, data, _BYTES_ON_LOOP)
        prune = call.flag("prune")
        operations = backup.restoring(self._context, resources, prune=prune)
        changes = await self._objects.commit(call, operations)
        counts = Counter(_WORDS[change.op] for change in changes)
        return answer_json({word: counts[word] for word in _WORDS.values()})
