"""Reads of the Kubernetes form: one object, and lists with selectors, pages and revisions."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from aiohttp import web

from koguma.api.call import Call
from koguma.api.kube import options
from koguma.api.kube.answers import Answers
from koguma.api.kube.finding import Finder
from koguma.api.kube.target import RequestTarget, check, check_source, source_filter
from koguma.application.context import Context
from koguma.kube import namespaced_names, selectable_fields, selectors
from koguma.kube.registry import KubeEndpoint
from koguma.kube.selectors import FieldSelector, Term
from koguma.model.errors import BadRequest, Invalid, TooNew
from koguma.model.resource import Resource
from koguma.model.violation import Violation

ResourceFilter = Callable[[Resource], bool]

_WAIT_SECONDS: Final = 3.0
_LOOK_SECONDS: Final = 0.02


class KubeReads:
    """Handlers of get and list."""

    def __init__(self, context: Context, finder: Finder, answers: Answers) -> None:
        self._context = context
        self._finder = finder
        self._answers = answers

    async def get(self, call: Call, target: RequestTarget) -> web.StreamResponse:
        """One object."""
        check(self._context, call.user, target, "get")
        check_source(self._context, call.user, target, "get")
        if call.has_query:
            await self.wait_for_revision(options.revision(call.query.get("resourceVersion")))
        await self._context.prepare(target.endpoint.kind, target.mesh or target.name)
        found = await self._context.conversions.shown([self._finder.get(target)], target.endpoint)
        problem = self._context.problem_of(target.endpoint.kind)
        return self._answers.one(call, target, found[0], warnings=(problem,) if problem else ())

    async def list(self, call: Call, target: RequestTarget) -> web.StreamResponse:
        """A list, or a part of it."""
        matches = self.filter(call, target)
        check(self._context, call.user, target, "list")
        check_source(self._context, call.user, target, "list")
        matches = self._of_visible(call, target, matches)
        query = call.query
        if "sendInitialEvents" in query:
            raise Invalid([Violation("sendInitialEvents", "is forbidden for list", "forbidden")])
        token = query.get("continue") or ""
        revision = options.revision(query.get("resourceVersion"))
        limit = options.limit(call)
        options.integer(call, "timeoutSeconds")  # of watches; a list is answered at once
        exact = self._exact(query.get("resourceVersionMatch"), revision, limit, token)
        await self.wait_for_revision(revision)
        await self.convert_for_selectors(call, target)
        await self._context.prepare(target.endpoint.kind, target.mesh or None)
        chunk = self._finder.chunk(target, matches, limit, token, exact)
        meta: dict[str, str | int] = {"resourceVersion": str(chunk.revision)}
        if chunk.token:
            meta["continue"] = chunk.token
        if chunk.n_left is not None:
            meta["remainingItemCount"] = chunk.n_left
        listed = [resource for _, resource in chunk.objects]
        resources = await self._context.filled(target.endpoint.kind, listed)
        resources = await self._context.conversions.shown(resources, target.endpoint)
        return self._answers.many(call, target, resources, meta, self._list_warnings(target.endpoint))

    def _of_visible(
        self, call: Call, target: RequestTarget, matches: ResourceFilter | None
    ) -> ResourceFilter | None:
        """A filter that also leaves out computed objects of what the user may not list."""
        is_visible = source_filter(self._context, call.user, target)
        if is_visible is None or matches is None:
            return is_visible or matches
        return lambda resource: is_visible(resource) and matches(resource)

    def _exact(self, match: str | None, revision: int | None, limit: int, token: str) -> int | None:
        """The exact revision that a list asks for, if it does."""
        if match is None:
            if token and revision:
                raise BadRequest("specifying resource version is not allowed when using continue")
            return revision if revision and limit else None
        at = "resourceVersionMatch"
        if token:
            raise Invalid([Violation(at, "is forbidden for continue", "forbidden")])
        if revision is None:
            raise Invalid([Violation(at, "is forbidden unless resourceVersion is provided", "forbidden")])
        if match == "NotOlderThan":
            return None
        if match != "Exact":
            text = f'Unsupported value: "{match[:100]}": supported values: "Exact", "NotOlderThan"'
            raise Invalid([Violation(at, text, "enum")])
        if revision == 0:
            raise Invalid([Violation(at, '"Exact" is forbidden for resourceVersion "0"', "forbidden")])
        return revision

    async def wait_for_revision(self, revision: int | None) -> None:
        """Wait until this control plane has a revision; another one may just have written it."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + _WAIT_SECONDS
        while revision and revision > self._context.state.revision:
            if loop.time() > ends_at:
                newest = self._context.state.revision
                raise TooNew(
                    f"Too large resource version: {revision}, current: {newest}",
                    violations=[Violation("", "Too large resource version", "too-new")],
                )
            await asyncio.sleep(_LOOK_SECONDS)

    async def convert_for_selectors(self, call: Call, target: RequestTarget) -> None:
        """Convert all objects of a custom resource where a field selector asks about their fields."""
        endpoint = target.endpoint
        if (
            endpoint.custom is not None
            and endpoint.custom.webhook is not None
            and "fieldSelector" in call.query
        ):
            stored = [resource for _, resource in self._finder.snapshot(endpoint).objects]
            await self._context.conversions.shown(stored, endpoint)

    def filter(self, call: Call, target: RequestTarget) -> ResourceFilter | None:
        """The filter of the label and field selectors; None where they select everything."""
        query = call.query
        labels = selectors.labels(query.get("labelSelector") or "")
        endpoint = target.endpoint
        fields = selectors.fields(query.get("fieldSelector") or "", selectable_fields.fields(endpoint))
        if target.name:  # a watch of one object, in the deprecated path
            fields = FieldSelector((*fields.terms, Term(selectors.NAME, is_equal=True, value=target.name)))
        if labels.is_everything and fields.is_everything:
            return None
        reads_spec, control_plane = selectable_fields.reads_spec(fields), self._context.control_plane

        def matches(resource: Resource) -> bool:
            if not labels.matches(resource.labels):
                return False
            if fields.is_everything:
                return True
            if reads_spec:
                known = self._context.conversions.kept(resource, endpoint)
                document = self._answers.encoder.document(known, endpoint)
                return fields.matches(selectable_fields.value_of(document))
            spot = namespaced_names.namespaced_name(resource, endpoint.kind, control_plane)
            names = {"metadata.name": spot.name, "metadata.namespace": spot.namespace}
            return fields.matches(names.__getitem__)

        return matches

    def _list_warnings(self, endpoint: KubeEndpoint) -> Iterator[str]:
        """Warnings about objects that a list leaves out since they cannot be decoded, or that may be old."""
        problem = self._context.problem_of(endpoint.kind)
        if problem:
            yield problem
        for unreadable in self._finder.unreadable(endpoint):
            yield f"{unreadable.key} is not in this list: {unreadable.error}"
