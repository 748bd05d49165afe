"""The history endpoints: who changed what, and what differs between two revisions.

`GET /_history` lists changes, newest first, and so does `_history` below an object; `GET /_differences` shows
the objects that differ between two revisions.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from aiohttp import web

from koguma.access.authorizer import READ_VERBS
from koguma.access.user import SYSTEM, User
from koguma.api import lists
from koguma.api.call import Call, answer_json
from koguma.application import (
    history,
    inline_secrets,
    moments,
    touched_proxies,
)
from koguma.application.context import Context
from koguma.application.touched_proxies import TooManyToCount, Touched
from koguma.model import forms
from koguma.model.errors import Gone, Invalid, NotAllowed
from koguma.model.kind import Kind, unknown_kind
from koguma.model.resource import Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation
from koguma.runtime.clock import now
from koguma.store.contract import Change, Op
from koguma.store.past_queries import ChangeFilter

_ACTIONS: Final = {Op.CREATE: "created", Op.UPDATE: "changed", Op.DELETE: "deleted"}


class History:
    """Handlers of `_history` and `/_differences`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def list(self, call: Call) -> web.StreamResponse:
        """A page of all changes that the user may see."""
        self._context.access.check_any(call.user, READ_VERBS)
        mesh = call.query.get("mesh")
        chosen = ChangeFilter(
            kind=self._kind_word(call.query.get("kind", "")),
            mesh=None if mesh else mesh,  # an empty one is for the objects of no mesh
            of_mesh=mesh or "",
            core_name=call.query.get("name", ""),
        )
        return await self._page(call, chosen)

    def _kind_word(self, word: str) -> str:
        """The stored word of a kind that a query names."""
        if not word or word in self._context.kinds.by_name:
            return word
        if self._context.catalog.kind(word) is not None:
            return word
        raise Invalid([Violation("kind", unknown_kind(word, self._context.kinds), "kind")])

    async def of_object(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """A page of the changes of one object, also where it was deleted."""
        context = self._context
        if kind.computed is not None:
            raise NotAllowed(f"{kind.name} is computed from what is there now, and has no history")
        context.check(call.user, "get", kind, mesh, name)
        return await self._page(call, ChangeFilter(kind=kind.name, mesh=mesh, core_name=name))

    async def _page(self, call: Call, chosen: ChangeFilter) -> web.StreamResponse:
        context, query = self._context, call.query
        size = lists.page(query).size
        since = moments.time_of(query["since"], "since", now()) if "since" in query else None
        author = history.author_named(query.get("by", ""))
        hidden = (SYSTEM,) if call.flag("people") and author != SYSTEM else ()
        chosen = msgspec.structs.replace(chosen, author=author, without_authors=hidden)
        before = revision_in(query.get("before"), "before", context.store.state.revision + 1)
        page = await history.page(context, call.user, chosen, before, since, size)
        items = [item(context, change) for change in page.changes]
        answer: dict[str, Json] = {"items": items, "oldest": (await context.store.history_bounds()).oldest}
        if page.next_before:
            answer["next"] = lists.next_link(call.request, page.next_before, "before")
        if call.flag("proxies") and page.changes:
            answer |= await self._with_proxies(call, items)
        return answer_json(answer, headers={"Koguma-Revision": str(context.store.state.revision)})

    async def _with_proxies(self, call: Call, items: Sequence[dict[str, Json]]) -> dict[str, Json]:
        """Say of each item how many proxies its transaction touched, of those that the user may list."""
        context = self._context
        revisions = [item["revision"] for item in items]
        try:
            touched = await touched_proxies.by_transaction(context, min(revisions), max(revisions))
        except (TooManyToCount, Gone) as error:
            return {"warning": error.detail}
        for item in items:
            item["proxies"] = self._visible(call, touched, item["transaction"])
        return {}

    def _visible(self, call: Call, touched: Touched, transaction: str) -> int:
        context = self._context
        return sum(
            count
            for (kind, mesh), count in touched.get(transaction, {}).items()
            if context.access.allows_on(call.user, "list", context.kinds[kind].plural, "", mesh)
        )

    async def differences(self, call: Call) -> web.StreamResponse:
        """The objects that differ between two revisions, before and after."""
        context = self._context
        context.access.check_any(call.user, READ_VERBS)
        low, high = [
            await moments.revision_of(context, call.query.get(name) or default, name)
            for name, default in (("from", ""), ("to", str(context.store.state.revision)))
        ]
        newest = context.store.state.revision
        if max(low, high) > newest:
            text = f"there is no revision {max(low, high)}; the newest is {newest}"
            raise Invalid([Violation("from" if low > newest else "to", text, "range")])
        found = await history.differences(context, call.user, min(low, high), max(low, high))
        pairs = [(key, after, before) if low > high else (key, before, after) for key, before, after in found]
        items = [difference(context, call.user, before, after) for _, before, after in pairs]
        return answer_json({"from": low, "to": high, "items": items})


def item(context: Context, change: Change) -> dict[str, Json]:
    """A change as people and programs see it."""
    resource = change.resource
    kind = context.kinds.by_name.get(resource.kind)
    served = kind or context.catalog.kind(resource.kind)
    return {
        "revision": change.revision,
        "time": change.time,
        "author": change.author,
        "isControlPlane": change.author == SYSTEM,
        "action": _ACTIONS[change.op],
        "type": served.name if served else resource.kind,
        "name": resource.core_name,
        **({"mesh": resource.mesh} if resource.mesh else {}),
        **({"namespace": resource.namespace} if resource.namespace else {}),
        "reason": change.reason,
        "transaction": change.transaction,
    }


def difference(context: Context, user: User, before: Resource | None, after: Resource | None) -> Json:
    """An object before and after, as a user may see it; None where it was not there."""
    resource = after or before
    assert resource is not None
    kind = context.kinds.by_name.get(resource.kind)
    served = kind or context.catalog.kind(resource.kind)
    action = "created" if before is None else "deleted" if after is None else "changed"
    return {
        "type": served.name if served else resource.kind,
        "name": resource.core_name,
        **({"mesh": resource.mesh} if resource.mesh else {}),
        **({"namespace": resource.namespace} if resource.namespace else {}),
        "action": action,
        "before": _document(context, user, before),
        "after": _document(context, user, after),
    }


def _document(context: Context, user: User, resource: Resource | None) -> Json:
    """An object as the user may see it: in the plain form, or labels and spec of one that has none."""
    if resource is None:
        return None
    kind = context.kinds.by_name.get(resource.kind)
    if kind is None:
        return {"labels": dict(resource.labels), "spec": resource.spec}
    shown = inline_secrets.visible(context, user, resource)
    return forms.plain(shown, kind)


def revision_in(text: str | None, field: str, default: int | None = None) -> int:
    """The revision in a query parameter; `default` where it is left out, unless that is None."""
    if text is None and default is not None:
        return default
    if text is None or not moments.is_revision(text):
        raise Invalid([Violation(field, "must be the number of a revision", "format")])
    return int(text)
