"""Migration endpoint: `/_migrations/storage` says how far a storage migration is, and goes on with it."""

import msgspec
from aiohttp import web

from koguma.access.authorizer import Attempt
from koguma.api.call import Call, answer_json
from koguma.application import storage_migration
from koguma.application.context import Context


class StorageMigrations:
    """Handlers of `/_migrations/storage`; both need a rule for the path."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def show(self, call: Call) -> web.StreamResponse:
        """What there is to do; nothing is written."""
        self._context.access.check(call.user, Attempt("get", path="/_migrations/storage"))
        return answer_json(msgspec.to_builtins(await storage_migration.progress(self._context)))

    async def step(self, call: Call) -> web.StreamResponse:
        """Look at the next objects, and rewrite those that are outdated."""
        self._context.access.check(call.user, Attempt("post", path="/_migrations/storage"))
        progress = await storage_migration.step(self._context, call.user.name, call.query.get("after", ""))
        return answer_json(msgspec.to_builtins(progress))
