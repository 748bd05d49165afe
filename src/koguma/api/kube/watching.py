"""Watches of the Kubernetes form: changes as they happen, one event after the other.

Without a revision, existing objects come first, as ADDED; from a revision on, only changes after it. With
`sendInitialEvents` a BOOKMARK marks the end of the existing objects. An object that no longer matches the
selector is sent as DELETED, as it was before and with the revision of the change; one that begins to match as
ADDED.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec
from aiohttp import web

from koguma.access.user import User
from koguma.api.call import Call
from koguma.api.kube import negotiation, options, status
from koguma.api.kube.answers import Answers
from koguma.api.kube.awaited_conditions import AwaitedConditions
from koguma.api.kube.finding import Finder
from koguma.api.kube.media import Media
from koguma.api.kube.negotiation import AcceptedFormat, AnswerFormat
from koguma.api.kube.reading import KubeReads, ResourceFilter
from koguma.api.kube.target import RequestTarget, check, check_watchable
from koguma.api.open_watches import OpenWatches, life_seconds
from koguma.application.context import Context
from koguma.fleet.programmed import ProgrammedConditions
from koguma.kube import namespaced_names, programmed, tables
from koguma.kube.registry import KubeEndpoint
from koguma.model.errors import Gone, Invalid, KogumaError
from koguma.model.resource import Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation
from koguma.store.contract import Change, Op

BOOKMARK_SECONDS: Final = 30.0
_LAST_BOOKMARK_SECONDS: Final = 1.0
_BATCH: Final = 500
_INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"
_CACHED_LINES_MAX: Final = 1_000
_EVENT_TYPES: Final = {Op.CREATE: "ADDED", Op.UPDATE: "MODIFIED", Op.DELETE: "DELETED"}


class KubeWatches:
    """Handler of all watches."""

    def __init__(
        self,
        context: Context,
        finder: Finder,
        reading: KubeReads,
        answers: Answers,
        watches: OpenWatches,
        conditions: ProgrammedConditions,
    ) -> None:
        self._context = context
        self._finder = finder
        self._reading = reading
        self._answers = answers
        # By media, version and revision.
        self._cached_lines: dict[tuple[Media, str, int], tuple[str, bytes]] = {}
        self._watches = watches
        self._conditions = conditions

    async def watch(self, call: Call, target: RequestTarget) -> web.StreamResponse:
        """Send changes until the client disconnects, the timeout ends, or the server stops."""
        matches = self._reading.filter(call, target)
        check(self._context, call.user, target, "watch")
        check_watchable(target)
        revision = options.revision(call.query.get("resourceVersion"))
        sends_initial_events = self._sends_initial_events(call)
        accepted = negotiation.accepted_format(call, target.endpoint)
        negotiation.include_object(call)  # refused before anything streams
        seconds = _watch_seconds(call)
        if sends_initial_events:
            await self._reading.wait_for_revision(revision)
        await self._reading.convert_for_selectors(call, target)
        after, initial, error = self._start(
            target, matches, revision, sends_initial_events=sends_initial_events
        )
        initial = await self._context.conversions.shown(initial, target.endpoint)
        encoder = _EventEncoder(call, target, self._answers, accepted)
        stream_type = accepted.media.stream_type
        response = web.StreamResponse(
            headers={"Content-Type": stream_type, "Cache-Control": "no-cache, private"}
        )
        response.enable_chunked_encoding()
        await response.prepare(call.request)
        if error is not None:
            await response.write(encoder.error(error))
            return response
        for start in range(0, len(initial), _BATCH):
            await response.write(b"".join(encoder.added(r) for r in initial[start : start + _BATCH]))
        if sends_initial_events:
            await response.write(encoder.bookmark(after, ends_initial_events=True))
        bookmarks = negotiation.flag(call, "allowWatchBookmarks")
        await self._follow(response, encoder, after, matches, seconds, bookmarks=bookmarks)
        return response

    async def _follow(
        self,
        response: web.StreamResponse,
        encoder: "_EventEncoder",
        after: int,
        matches: ResourceFilter | None,
        seconds: float,
        *,
        bookmarks: bool,
    ) -> None:
        call, target = encoder.call, encoder.target
        feed = self._context.store.watch(frozenset({target.endpoint.set.stored_as}), after)
        time = asyncio.get_running_loop().time
        ends_at = time() + seconds
        bookmark_schedule = _BookmarkSchedule(time(), ends_at) if bookmarks else None
        may_watch = partial(self._check_open, call.user, target)
        awaited = self._awaited(target, matches)
        try:
            with self._watches.opened(call, feed, may_watch) as watch:
                while (now := time()) < ends_at:
                    seconds = min(ends_at, bookmark_schedule.next_at if bookmark_schedule else ends_at) - now
                    changes = await watch.next_batch(min(seconds, awaited.seconds or seconds))
                    changes = await self._converted(changes, target.endpoint)
                    lines = self._encoded_changes(changes, target, encoder, matches)
                    if programmed.applies(target.endpoint):
                        awaited.note(changes)
                    arrived = [each for each in awaited.arrived() if self._is_watched(each, target, matches)]
                    if arrived:
                        watch.check()
                        lines += [encoder.event("MODIFIED", resource) for resource in arrived]
                    # A watch from a future revision has no events up to it, so no bookmark either.
                    if (
                        bookmark_schedule
                        and bookmark_schedule.due(time())
                        and feed.position <= self._context.state.revision
                    ):
                        lines.append(encoder.bookmark(feed.position))
                    if lines:
                        await response.write(b"".join(lines))
        except KogumaError as error:  # too far behind, the right is gone, or the store is unreachable
            if not feed.is_over:  # on shutdown the stream just ends, and clients watch again
                await response.write(encoder.error(error))

    def _awaited(self, target: RequestTarget, matches: ResourceFilter | None) -> AwaitedConditions:
        """The objects that the client has, or is about to get, without the condition of all proxies."""
        context, endpoint = self._context, target.endpoint
        awaited = AwaitedConditions(self._conditions, lambda: context.state)
        if programmed.applies(endpoint):
            listed = context.state.listed(endpoint.set.stored_as)
            awaited.start(each for each in listed if self._is_watched(each, target, matches))
        return awaited

    def _is_watched(self, resource: Resource, target: RequestTarget, matches: ResourceFilter | None) -> bool:
        return self._is_in_namespace(resource, target) and (matches is None or matches(resource))

    def _check_open(self, user: User, target: RequestTarget) -> None:
        """Raise unless a watch may go on: by right, and with the definition that it began with."""
        check(self._context, user, target, "watch")
        endpoint = target.endpoint
        if endpoint.custom is None:
            return
        now = self._context.catalog.registry.find(endpoint.group, endpoint.version, endpoint.plural)
        if now is None or now is endpoint:  # where it is gone, nothing more comes
            return
        if now.custom is None or not now.custom.shows_as(endpoint.custom):
            raise Gone(f"the definition of {endpoint.qualified} has changed; list and watch again")

    async def _converted(self, changes: list[Change], endpoint: KubeEndpoint) -> list[Change]:
        """The changes of custom objects in the version that is watched."""
        if endpoint.custom is None or endpoint.custom.webhook is None:
            return changes
        readable = [change for change in changes if not change.error]
        resources = await self._context.conversions.shown([each.resource for each in readable], endpoint)
        return [
            msgspec.structs.replace(change, resource=resource)
            for change, resource in zip(readable, resources, strict=True)
        ]

    def _sends_initial_events(self, call: Call) -> bool:
        query = call.query
        match, send_initial_events = query.get("resourceVersionMatch"), query.get("sendInitialEvents")
        field = "resourceVersionMatch"
        if send_initial_events is None:
            if match is not None:
                text = "is forbidden for watch unless sendInitialEvents is provided"
                raise Invalid([Violation(field, text, "forbidden")])
            return False
        if match != "NotOlderThan":
            text = "must be NotOlderThan where sendInitialEvents is set on a watch"
            raise Invalid([Violation(field, text, "forbidden")])
        return negotiation.flag(call, "sendInitialEvents")

    def _start(
        self,
        target: RequestTarget,
        matches: ResourceFilter | None,
        revision: int | None,
        *,
        sends_initial_events: bool,
    ) -> tuple[int, Sequence[Resource], KogumaError | None]:
        """The revision to watch from, the initial objects, and an error where it cannot start there."""
        state = self._context.state
        if not revision or sends_initial_events:
            chunk = self._finder.chunk(target, matches, 0, "", None)
            return chunk.revision, [resource for _, resource in chunk.objects], None
        if revision < state.compacted:
            return revision, (), Gone(f"too old resource version: {revision} ({state.compacted})")
        return revision, (), None

    def _encoded_changes(
        self,
        changes: Sequence[Change],
        target: RequestTarget,
        encoder: "_EventEncoder",
        matches: ResourceFilter | None,
    ) -> list[bytes]:
        if matches is not None or not encoder.is_whole:
            return [line for change in changes for line in self._lines(change, target, encoder, matches)]
        namespace = target.namespace if target.endpoint.namespaced else None
        lines = [self._line(change, target.endpoint, encoder) for change in changes if not change.error]
        return [line for line_namespace, line in lines if namespace is None or line_namespace == namespace]

    def _line(self, change: Change, endpoint: KubeEndpoint, encoder: "_EventEncoder") -> tuple[str, bytes]:
        """The namespace of a change and its encoded line, which is cached for all watches of one format."""
        key = (encoder.media, endpoint.shape_id, change.revision)
        line = self._cached_lines.get(key)
        if line is None:
            if len(self._cached_lines) >= _CACHED_LINES_MAX:
                self._cached_lines.clear()
            namespaced = namespaced_names.namespaced_name(
                change.resource, endpoint.kind, self._context.control_plane
            )
            line = (namespaced.namespace, encoder.event(_EVENT_TYPES[change.op], change.resource))
            if not self._answers.encoder.holds_secrets(change.resource):
                self._cached_lines[key] = line
        return line

    def _lines(
        self, change: Change, target: RequestTarget, encoder: "_EventEncoder", matches: ResourceFilter | None
    ) -> Iterator[bytes]:
        resource = change.resource
        if change.error or not self._is_in_namespace(resource, target):
            return
        if change.op is Op.DELETE:
            if matches is None or matches(resource):
                yield encoder.event("DELETED", resource)
        elif matches is None:
            yield encoder.event(_EVENT_TYPES[change.op], resource)
        else:
            yield from self._selected(change, encoder, matches)

    def _is_in_namespace(self, resource: Resource, target: RequestTarget) -> bool:
        if target.namespace is None or not target.endpoint.namespaced:
            return True
        namespaced = namespaced_names.namespaced_name(
            resource, target.endpoint.kind, self._context.control_plane
        )
        return namespaced.namespace == target.namespace

    def _selected(self, change: Change, encoder: "_EventEncoder", matches: ResourceFilter) -> Iterator[bytes]:
        before = self._context.store.replaced(change.revision)
        did_match = matches(before) if before is not None else change.op is not Op.CREATE
        if matches(change.resource):
            yield encoder.event("MODIFIED" if did_match else "ADDED", change.resource)
        elif did_match:
            last = before if before is not None else change.resource
            yield encoder.no_longer_matching(msgspec.structs.replace(last, revision=change.revision))


def _watch_seconds(call: Call) -> float:
    seconds = options.integer(call, "timeoutSeconds") or 0
    return float(min(seconds, 24 * 3600)) if seconds > 0 else life_seconds()


class _BookmarkSchedule:
    """When bookmarks are due: at intervals, and once shortly before the watch ends."""

    def __init__(self, now: float, ends_at: float) -> None:
        self._last_at = ends_at - _LAST_BOOKMARK_SECONDS
        self.next_at = min(now + BOOKMARK_SECONDS, self._last_at)

    def due(self, now: float) -> bool:
        """Whether a bookmark is due; if so, the next one is scheduled."""
        if now < self.next_at:
            return False
        self.next_at = min(now + BOOKMARK_SECONDS, self._last_at) if now < self._last_at else math.inf
        return True


class _EventEncoder:
    """Encodes the events of one watch."""

    def __init__(self, call: Call, target: RequestTarget, answers: Answers, accepted: AcceptedFormat) -> None:
        self.call = call
        self.target = target
        self._answers = answers
        self._accepted = accepted
        self.media = accepted.media
        self._has_columns = False
        self.is_whole = accepted.format is AnswerFormat.OBJECT
        self._show: Callable[[Resource], bytes] = self._whole if self.is_whole else self._shaped

    def added(self, resource: Resource) -> bytes:
        """An object that existed when the watch began."""
        return self.event("ADDED", resource)

    def event(self, type_: str, resource: Resource) -> bytes:
        """One change."""
        return self.media.event(type_, self._show(resource))

    def no_longer_matching(self, last: Resource) -> bytes:
        """An object that no longer matches the selector: as it was, with the revision of the change.

        At that revision another content is stored, so these bytes must not be cached.
        """
        endpoint = self.target.endpoint
        encoded = (
            self.media.object(self._answers.encoder.visible_document(last, endpoint, self.call.user))
            if self.is_whole
            else self._shaped(last)
        )
        return self.media.event("DELETED", encoded)

    def bookmark(self, revision: int, *, ends_initial_events: bool = False) -> bytes:
        """The revision up to which all events were sent."""
        endpoint = self.target.endpoint
        metadata: dict[str, Json] = {"resourceVersion": str(revision)}
        if ends_initial_events:
            metadata["annotations"] = {_INITIAL_EVENTS_END: "true"}
        bookmark: Json = {
            "kind": endpoint.kind_name,
            "apiVersion": endpoint.api_version,
            "metadata": {**metadata, "creationTimestamp": None},
        }
        if self._accepted.format is AnswerFormat.TABLE:
            bookmark = self._table([bookmark], bookmark=True)
        elif self._accepted.format is AnswerFormat.PARTIAL:
            bookmark = tables.partial(bookmark, self._accepted.api_version)
        return self.media.event("BOOKMARK", self.media.object(bookmark))

    def error(self, error: KogumaError) -> bytes:
        """Why the watch cannot go on."""
        return self.media.event("ERROR", self.media.object(status.error_status(error, None).body))

    def _whole(self, resource: Resource) -> bytes:
        return self._answers.encoder.bytes(resource, self.target.endpoint, self.call.user, self.media)

    def _shaped(self, resource: Resource) -> bytes:
        document = self._answers.encoder.visible_document(resource, self.target.endpoint, self.call.user)
        if self._accepted.format is AnswerFormat.PARTIAL:
            return self.media.object(tables.partial(document, self._accepted.api_version))
        return self.media.object(self._table([document]))

    def _table(self, documents: Sequence[Json], *, bookmark: bool = False) -> Json:
        meta = {"resourceVersion": documents[0]["metadata"]["resourceVersion"]}
        table = self._answers.table(
            self.call,
            self.target.endpoint,
            documents,
            meta,
            self._accepted,
            with_columns=not self._has_columns,
        )
        self._has_columns = True
        if bookmark:
            table["rows"] = [{**row, "cells": []} for row in table["rows"]]
        return table
