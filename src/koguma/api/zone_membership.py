"""Zone membership: `POST /_zone/join` and `POST /_zone/leave` prepare the store of a zone for that.

Both need a rule for their path, as restoring a backup does. They change stored objects; with which Global the
control plane runs is a setting, and takes a restart. What Global would send is in the body: the command line
asks Global, since a control plane connects to nothing that a request names.
"""

from typing import Final

import msgspec
from aiohttp import web

from koguma.access.authorizer import Attempt
from koguma.api.backup import BYTES_MAX, CONTENT_TYPE, SECONDS_MAX
from koguma.api.call import Call, answer_json, read_beside
from koguma.api.plain import PlainObjects, dry_run
from koguma.application.context import Context
from koguma.model.errors import BadRequest, Conflict, NotAllowed, UnsupportedMedia
from koguma.model.resource import Resource
from koguma.sync import leaving, mapping
from koguma.sync.joining import Joining
from koguma.sync.leaving import Choice

JOIN: Final = "/_zone/join"
LEAVE: Final = "/_zone/leave"
_BYTES_ON_LOOP: Final = 256 * 1024


class JoinRequest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The first line of the body: which Global a zone is to join. What it would send follows, a line each."""

    global_id: str
    global_version: str
    take_global: bool = False  # instead of the zone's own objects of Global's kinds that differ


class LeaveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of what came from Global."""

    objects: Choice


class ZoneMembership:
    """Handlers of these paths."""

    def __init__(self, context: Context, objects: PlainObjects) -> None:
        self._context = context
        self._objects = objects

    async def join(self, call: Call) -> web.StreamResponse:
        """Hand over to Global what is Global's to write; refused while Global lacks some, or has another."""
        self._check(call, JOIN)
        if self._context.control_plane.federated:
            raise NotAllowed("this zone takes part in a Global already; `koguma check` says in which")
        if call.media_type != CONTENT_TYPE:
            raise UnsupportedMedia(f'content type "{call.media_type}" is not read here; send {CONTENT_TYPE}')
        body = await call.body(BYTES_MAX, SECONDS_MAX)
        asked, sent = await read_beside(_join_request, body, _BYTES_ON_LOOP)
        joining = Joining(self._context, asked.global_id, asked.global_version, sent)
        plan, operations = joining.plan(takes_global=asked.take_global)
        if plan.blocking and not dry_run(call):
            raise Conflict(
                f"{len(plan.blocking)} objects of this zone are not on Global, or differ there;"
                " `koguma zone join --dry-run` names them and says what to do"
            )
        if operations and not plan.blocking:
            await self._objects.commit(call, operations)
        return answer_json(plan)

    async def leave(self, call: Call) -> web.StreamResponse:
        """Keep what came from Global as the zone's own, or remove it."""
        self._check(call, LEAVE)
        try:
            asked = msgspec.json.decode(await call.body(), type=LeaveRequest)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise BadRequest(f"the body cannot be read: {error}") from None
        plan, operations = leaving.plan(self._context, asked.objects)
        if plan.is_connected and not dry_run(call):
            raise Conflict(
                "this control plane still takes part in Global; start it without --global-address first"
            )
        if operations and not plan.is_connected:
            await self._objects.commit(call, operations)
        return answer_json(plan)

    def _check(self, call: Call, path: str) -> None:
        self._context.access.check(call.user, Attempt("post", path=path))
        if self._context.control_plane.is_global:
            raise NotAllowed("this is Global; ask the control plane of the zone")


def _join_request(body: bytes) -> tuple[JoinRequest, list[Resource]]:
    first, _, rest = body.partition(b"\n")
    try:
        asked = msgspec.json.decode(first, type=JoinRequest)
        return asked, [mapping.received(line) for line in rest.splitlines() if line]
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadRequest(f"the body cannot be read: {error}") from None
