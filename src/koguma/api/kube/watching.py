"""Watches of the Kubernetes form: changes as they happen, one JSON event per line.

Without a revision, what is there comes first, as ADDED; from a revision on, only changes after it. With
`sendInitialEvents` a BOOKMARK says where the first part ends. An object that stops to fit a selector is told
as DELETED, with what it was and the revision of the change; one that begins to fit as ADDED.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec
from aiohttp import web

from koguma.api.call import JSON, Call
from koguma.api.kube import negotiation, options, status
from koguma.api.kube.answers import Answers
from koguma.api.kube.finding import Finder
from koguma.api.kube.negotiation import AcceptedFormat, AnswerFormat
from koguma.api.kube.reading import Fits, KubeReads
from koguma.api.kube.target import RequestTarget, check
from koguma.api.open_watches import OpenWatches, life_seconds
from koguma.application.context import Context
from koguma.kube import namespaced_names, tables
from koguma.kube.registry import KubeEndpoint
from koguma.model.errors import Gone, Invalid, KogumaError
from koguma.model.resource import Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation
from koguma.store.contract import Change, Op

BOOKMARK_SECONDS: Final = 30.0
_LAST_BOOKMARK_SECONDS: Final = 1.0
_BATCH: Final = 500
_END_OF_FIRST: Final = "k8s.io/initial-events-end"
_MADE_MAX: Final = 1_000
_WORDS: Final = {Op.CREATE: "ADDED", Op.UPDATE: "MODIFIED", Op.DELETE: "DELETED"}


class KubeWatches:
    """Handler of all watches."""

    def __init__(
        self, context: Context, finder: Finder, reading: KubeReads, answers: Answers, watches: OpenWatches
    ) -> None:
        self._context = context
        self._finder = finder
        self._reading = reading
        self._answers = answers
        self._made: dict[tuple[str, int], tuple[str, bytes]] = {}  # by version and revision
        self._watches = watches

    async def watch(self, call: Call, target: RequestTarget) -> web.StreamResponse:
        """Send changes until the client leaves, its time is over, or the server stops."""
        fits = self._reading.filter(call, target)
        check(self._context, call.user, target, "watch")
        given = options.revision(call.query.get("resourceVersion"))
        sends_first = self._sends_first(call)
        wanted = negotiation.accepted_format(call)
        negotiation.include_object(call)  # refused before anything streams
        seconds = _life(call)
        if sends_first:
            await self._reading.reached(given)
        after, first, error = self._start(target, fits, given, sends_first=sends_first)
        teller = _EventEncoder(call, target, self._answers, wanted)
        response = web.StreamResponse(headers={"Content-Type": JSON, "Cache-Control": "no-cache, private"})
        response.enable_chunked_encoding()
        await response.prepare(call.request)
        if error is not None:
            await response.write(teller.error(error))
            return response
        for start in range(0, len(first), _BATCH):
            await response.write(b"".join(teller.added(r) for r in first[start : start + _BATCH]))
        if sends_first:
            await response.write(teller.bookmark(after, ends_first=True))
        bookmarks = negotiation.flag(call, "allowWatchBookmarks")
        await self._follow(response, teller, after, fits, seconds, bookmarks=bookmarks)
        return response

    async def _follow(
        self,
        response: web.StreamResponse,
        teller: "_EventEncoder",
        after: int,
        fits: Fits | None,
        seconds: float,
        *,
        bookmarks: bool,
    ) -> None:
        call, target = teller.call, teller.target
        feed = self._context.store.watch(frozenset({target.endpoint.set.stored_as}), after)
        time = asyncio.get_running_loop().time
        ends_at = time() + seconds
        marks = _BookmarkSchedule(time(), ends_at) if bookmarks else None
        may_watch = partial(check, self._context, call.user, target, "watch")
        try:
            with self._watches.opened(call, feed, may_watch) as watch:
                while (now := time()) < ends_at:
                    changes = await watch.next_batch(min(ends_at, marks.next_at if marks else ends_at) - now)
                    lines = self._told(changes, target, teller, fits)
                    # One that waits for a revision still to come has been told nothing up to it.
                    if marks and marks.due(time()) and feed.position <= self._context.state.revision:
                        lines.append(teller.bookmark(feed.position))
                    if lines:
                        await response.write(b"".join(lines))
        except KogumaError as error:  # fell too far behind, may not watch any more, or the store is away
            if not feed.is_over:  # a server that stops only ends the stream: clients then watch again
                await response.write(teller.error(error))

    def _sends_first(self, call: Call) -> bool:
        query = call.query
        match, given = query.get("resourceVersionMatch"), query.get("sendInitialEvents")
        at = "resourceVersionMatch"
        if given is None:
            if match is not None:
                text = "is forbidden for watch unless sendInitialEvents is provided"
                raise Invalid([Violation(at, text, "forbidden")])
            return False
        if match != "NotOlderThan":
            text = "must be NotOlderThan where sendInitialEvents is set on a watch"
            raise Invalid([Violation(at, text, "forbidden")])
        return negotiation.flag(call, "sendInitialEvents")

    def _start(
        self, target: RequestTarget, fits: Fits | None, given: int | None, *, sends_first: bool
    ) -> tuple[int, Sequence[Resource], KogumaError | None]:
        """From where on, what comes first, and why it cannot begin there."""
        state = self._context.state
        if not given or sends_first:
            page = self._finder.chunk(target, fits, 0, "", None)
            return page.revision, [resource for _, resource in page.objects], None
        if given < state.compacted:
            return given, (), Gone(f"too old resource version: {given} ({state.compacted})")
        return given, (), None

    def _told(
        self, changes: Sequence[Change], target: RequestTarget, teller: "_EventEncoder", fits: Fits | None
    ) -> list[bytes]:
        if fits is not None or not teller.is_whole:
            return [line for change in changes for line in self._lines(change, target, teller, fits)]
        namespace = target.namespace if target.endpoint.namespaced else None
        made = [self._line(change, target.endpoint, teller) for change in changes if not change.error]
        return [line for where, line in made if namespace is None or where == namespace]

    def _line(self, change: Change, endpoint: KubeEndpoint, teller: "_EventEncoder") -> tuple[str, bytes]:
        """In which namespace a change is, and its line: made once for all watches that tell it alike."""
        key = (endpoint.api_version, change.revision)
        made = self._made.get(key)
        if made is None:
            if len(self._made) >= _MADE_MAX:
                self._made.clear()
            spot = namespaced_names.namespaced_name(
                change.resource, endpoint.kind, self._context.control_plane
            )
            made = (spot.namespace, teller.event(_WORDS[change.op], change.resource))
            if not self._answers.encoder.holds_secrets(change.resource):
                self._made[key] = made
        return made

    def _lines(
        self, change: Change, target: RequestTarget, teller: "_EventEncoder", fits: Fits | None
    ) -> Iterator[bytes]:
        resource = change.resource
        if change.error or not self._is_there(resource, target):
            return
        if change.op is Op.DELETE:
            if fits is None or fits(resource):
                yield teller.event("DELETED", resource)
        elif fits is None:
            yield teller.event(_WORDS[change.op], resource)
        else:
            yield from self._selected(change, teller, fits)

    def _is_there(self, resource: Resource, target: RequestTarget) -> bool:
        if target.namespace is None or not target.endpoint.namespaced:
            return True
        spot = namespaced_names.namespaced_name(resource, target.endpoint.kind, self._context.control_plane)
        return spot.namespace == target.namespace

    def _selected(self, change: Change, teller: "_EventEncoder", fits: Fits) -> Iterator[bytes]:
        before = self._context.store.replaced(change.revision)
        did_fit = fits(before) if before is not None else change.op is not Op.CREATE
        if fits(change.resource):
            yield teller.event("MODIFIED" if did_fit else "ADDED", change.resource)
        elif did_fit:
            last = before if before is not None else change.resource
            yield teller.left(msgspec.structs.replace(last, revision=change.revision))


def _life(call: Call) -> float:
    text = call.query.get("timeoutSeconds") or ""
    if text and text.isascii() and text.isdigit() and int(text) > 0:
        return float(min(int(text), 24 * 3600))
    return life_seconds()


class _BookmarkSchedule:
    """When bookmarks are due: every so often, and a last time before the end."""

    def __init__(self, now: float, ends_at: float) -> None:
        self._last_at = ends_at - _LAST_BOOKMARK_SECONDS
        self.next_at = min(now + BOOKMARK_SECONDS, self._last_at)

    def due(self, now: float) -> bool:
        """Whether it is time for one; then the next is later."""
        if now < self.next_at:
            return False
        self.next_at = min(now + BOOKMARK_SECONDS, self._last_at) if now < self._last_at else math.inf
        return True


class _EventEncoder:
    """Makes the lines of one watch."""

    def __init__(self, call: Call, target: RequestTarget, answers: Answers, accepted: AcceptedFormat) -> None:
        self.call = call
        self.target = target
        self._answers = answers
        self._accepted = accepted
        self._has_columns = False
        self.is_whole = accepted.format is AnswerFormat.OBJECT
        self._show: Callable[[Resource], bytes] = self._whole if self.is_whole else self._shaped

    def added(self, resource: Resource) -> bytes:
        """An object that was there when the watch began."""
        return self.event("ADDED", resource)

    def event(self, word: str, resource: Resource) -> bytes:
        """One change."""
        return b'{"type":"%b","object":%b}\n' % (word.encode(), self._show(resource))

    def left(self, last: Resource) -> bytes:
        """An object that fits no more: what it was, with the revision of the change.

        At that revision it is stored otherwise, so these bytes are not kept for those who ask for it.
        """
        endpoint = self.target.endpoint
        shown = (
            msgspec.json.encode(self._answers.encoder.visible_document(last, endpoint, self.call.user))
            if self.is_whole
            else self._shaped(last)
        )
        return b'{"type":"DELETED","object":%b}\n' % shown

    def bookmark(self, revision: int, *, ends_first: bool = False) -> bytes:
        """Up to which revision everything was told."""
        endpoint = self.target.endpoint
        metadata: dict[str, Json] = {"resourceVersion": str(revision)}
        if ends_first:
            metadata["annotations"] = {_END_OF_FIRST: "true"}
        shown: Json = {
            "kind": endpoint.kind_name,
            "apiVersion": endpoint.api_version,
            "metadata": {**metadata, "creationTimestamp": None},
        }
        if self._accepted.format is AnswerFormat.TABLE:
            shown = self._table([shown], bookmark=True)
        elif self._accepted.format is AnswerFormat.PARTIAL:
            shown = tables.partial(shown, self._accepted.api_version)
        return b'{"type":"BOOKMARK","object":%b}\n' % msgspec.json.encode(shown)

    def error(self, error: KogumaError) -> bytes:
        """Why the watch cannot go on."""
        shown = status.refused(error, None).body
        return b'{"type":"ERROR","object":%b}\n' % msgspec.json.encode(shown)

    def _whole(self, resource: Resource) -> bytes:
        return self._answers.encoder.bytes(resource, self.target.endpoint, self.call.user)

    def _shaped(self, resource: Resource) -> bytes:
        document = self._answers.encoder.visible_document(resource, self.target.endpoint, self.call.user)
        if self._accepted.format is AnswerFormat.PARTIAL:
            return msgspec.json.encode(tables.partial(document, self._accepted.api_version))
        return msgspec.json.encode(self._table([document]))

    def _table(self, documents: Sequence[Json], *, bookmark: bool = False) -> Json:
        meta = {"resourceVersion": documents[0]["metadata"]["resourceVersion"]}
        made = self._answers.table(
            self.call,
            self.target.endpoint,
            documents,
            meta,
            self._accepted,
            with_columns=not self._has_columns,
        )
        self._has_columns = True
        if bookmark:
            made["rows"] = [{**row, "cells": []} for row in made["rows"]]
        return made
