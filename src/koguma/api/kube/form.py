"""The Kubernetes form, put together: endpoints over all kinds, and who answers for them."""

from collections.abc import Callable
from datetime import datetime

import msgspec
from aiohttp import web

from koguma.api.call import Call
from koguma.api.context import Context
from koguma.api.dispatch import Route
from koguma.api.kube import bodies, negotiation, reviews, routes
from koguma.api.kube.answers import Answers, sent
from koguma.api.kube.deleting import Deleting
from koguma.api.kube.finding import Finder
from koguma.api.kube.negotiation import Shape
from koguma.api.kube.pages import Pages
from koguma.api.kube.reading import Reading
from koguma.api.kube.routes import Handlers
from koguma.api.kube.shown import KubeShown
from koguma.api.kube.target import Target, check
from koguma.api.kube.watching import Watching
from koguma.api.kube.writing import Writing
from koguma.api.user import User
from koguma.kube import clean, codec, endpoints, schemas
from koguma.kube.kinds import ALIAS_KINDS, REVIEW_KINDS
from koguma.kube.registry import Converter, Registry
from koguma.kube.schemas import Schemas
from koguma.model.errors import BadRequest, NotAcceptable
from koguma.model.kind import Kind, Kinds
from koguma.model.schema import Json

Verify = Callable[[str], User]


class KubeForm:
    """The form of one control plane; `route` leads into it."""

    def __init__(
        self,
        context: Context,
        clock: Callable[[], datetime],
        verify: Verify,
        *,
        resource_ids: bool = True,
    ) -> None:
        self._context = context
        self._verify = verify
        self.registry = registry_of(context.kinds)
        described = schemas_of(self.registry, context.kinds)
        answers = Answers(KubeShown(context.place), clock)
        finder = Finder(context)
        reading = Reading(context, finder, answers)
        self._watching = Watching(context, finder, reading, answers)
        handlers = Handlers(
            Pages(context, self.registry, described, resource_ids=resource_ids),
            reading,
            self._watching,
            Writing(context, finder, answers, described, clock),
            Deleting(context, finder, reading, answers),
            self.review,
        )
        self.route: Route = routes.kube(self.registry, handlers)

    @property
    def n_watches(self) -> int:
        """Watches that are open."""
        return self._watching.open

    async def review(self, call: Call, target: Target) -> web.StreamResponse:
        """A question about rights or about a user, which is answered and not stored."""
        check(self._context, call.user, target, "create")
        if negotiation.wanted(call).shape is not Shape.OBJECT:
            raise NotAcceptable("a review is answered as it is, not as a table")
        given = await bodies.document(call)
        if not isinstance(given, dict):
            raise BadRequest("an object is needed")
        codec.check_type(given, target.endpoint)
        given = _placed(given, target)
        answer = reviews.answer(
            target.endpoint.kind_name, given, call.user, self._context.access, self._verify
        )
        return sent(msgspec.json.encode(answer), 201)


def _placed(given: Json, target: Target) -> Json:
    """A review in the namespace of its path, whatever it says itself."""
    metadata = given.get("metadata") or {}
    if not target.endpoint.namespaced or not isinstance(metadata, dict):
        return given
    if metadata.get("namespace") not in (None, "", target.where):
        raise BadRequest(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    return {**given, "metadata": {**metadata, "namespace": target.where}}


def registry_of(kinds: Kinds) -> Registry:
    """All endpoints of a control plane with these kinds."""
    return Registry((*endpoints.native(), *endpoints.ours(kinds, _converter)))


def _converter(kind: Kind) -> Converter:
    made = clean.converter(kind)
    return msgspec.structs.replace(
        made,
        refused=lambda spec: clean.refusals(kind, spec),
        seen=lambda violations: clean.seen(kind, violations),
    )


def schemas_of(registry: Registry, kinds: Kinds) -> Schemas:
    """The schemas of everything that is served."""
    without = {(clean.VERSION, kind.name): clean.deprecated(kind) for kind in kinds}
    shapes = {(f"{kind.group}/v1", kind.name): schemas.shape_of_kind(kind) for kind in REVIEW_KINDS.values()}
    shapes |= {place: schemas.shape_of_kind(kind) for place, kind in ALIAS_KINDS.items()}
    return Schemas(registry, without, shapes)
