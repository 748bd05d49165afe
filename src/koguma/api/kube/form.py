"""The Kubernetes form, put together: endpoints over all kinds, and who answers for them."""

from collections.abc import Callable, Mapping
from datetime import datetime

from aiohttp import web

from koguma.api.call import Call
from koguma.api.dispatch import Route
from koguma.api.kube import bodies, negotiation, reviews, routes
from koguma.api.kube.account_tokens import AccountTokens
from koguma.api.kube.answers import Answers, encoded_response
from koguma.api.kube.deleting import KubeDeletes
from koguma.api.kube.encoder import KubeEncoder
from koguma.api.kube.finding import Finder
from koguma.api.kube.negotiation import AnswerFormat
from koguma.api.kube.pages import Pages
from koguma.api.kube.probes import Probes, Problem
from koguma.api.kube.reading import KubeReads
from koguma.api.kube.remote import RemoteRequests
from koguma.api.kube.routes import Handlers
from koguma.api.kube.target import RequestTarget, check
from koguma.api.kube.watching import KubeWatches
from koguma.api.kube.writing import KubeWrites
from koguma.api.open_watches import OpenWatches
from koguma.application.context import Context
from koguma.fleet.programmed import ProgrammedConditions
from koguma.kube import codec
from koguma.model.errors import BadRequest, NotAcceptable
from koguma.model.schema import Json
from koguma.reconcile.aggregated_servers import AggregatedServers


class KubeForm:
    """The Kubernetes form of one control plane: all its handlers and their route."""

    def __init__(  # noqa: PLR0913 - what the other packages have for it
        self,
        context: Context,
        clock: Callable[[], datetime],
        tokens: AccountTokens,
        watches: OpenWatches,
        readiness: Mapping[str, Problem],
        servers: AggregatedServers,
        programmed: ProgrammedConditions,
        *,
        resource_ids: bool = True,
    ) -> None:
        self._context = context
        self._verify = tokens.verify
        self._resource_ids = resource_ids
        self._servers = servers
        self._pages = Pages(context, context.catalog, servers.remotes, resource_ids=resource_ids)
        answers = Answers(KubeEncoder(context, programmed), clock)
        finder = Finder(context)
        reading = KubeReads(context, finder, answers)
        watching = KubeWatches(context, finder, reading, answers, watches, programmed)
        handlers = Handlers(
            self.current_pages,
            reading,
            watching,
            KubeWrites(context, finder, answers, clock),
            KubeDeletes(context, finder, reading, answers),
            self.review,
            Probes(readiness),
            tokens,
        )
        self.routes: tuple[Route, ...] = (
            routes.remote(servers.find, RemoteRequests(context)),
            routes.kube(lambda: context.catalog.registry, handlers),
        )

    def current_pages(self) -> Pages:
        """The pages that describe what is served now."""
        current, remotes = self._context.catalog, self._servers.remotes
        if self._pages.catalog is not current or self._pages.remotes is not remotes:
            self._pages = Pages(
                self._context, current, remotes, resource_ids=self._resource_ids, before=self._pages
            )
        return self._pages

    async def review(self, call: Call, target: RequestTarget) -> web.StreamResponse:
        """A question about rights or about a user, which is answered and not stored."""
        check(self._context, call.user, target, "create")
        accepted = negotiation.accepted_format(call, target.endpoint)
        if accepted.format is not AnswerFormat.OBJECT:
            raise NotAcceptable("a review is answered as it is, not as a table")
        document = codec.typed((await bodies.document(call)).value, target.endpoint)
        document = _in_path_namespace(document, target)
        answer = reviews.answer(
            target.endpoint.kind_name, document, call.user, self._context.access, self._verify
        )
        media = accepted.media
        return encoded_response(media.object(answer), 201, content_type=media.content_type)


def _in_path_namespace(document: Json, target: RequestTarget) -> Json:
    """A review in the namespace of its path, whatever it says itself."""
    metadata = document.get("metadata") or {}
    if not target.endpoint.namespaced or not isinstance(metadata, dict):
        return document
    if metadata.get("namespace") not in (None, "", target.where):
        raise BadRequest(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    return {**document, "metadata": {**metadata, "namespace": target.where}}
