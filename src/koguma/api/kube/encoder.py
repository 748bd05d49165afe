"""Encoder: objects as bytes in the version of an endpoint, cached per revision."""

from collections.abc import Iterable

from koguma.access.user import User
from koguma.api.kube.media import JSON_MEDIA, Media
from koguma.application import inline_secrets
from koguma.application.context import Context
from koguma.fleet.programmed import ArrivedObject, ProgrammedConditions
from koguma.kube import codec, programmed
from koguma.kube.registry import KubeEndpoint
from koguma.model.resource import Resource
from koguma.model.schema import Json
from koguma.store.contract import rfc3339

Data = bytes  # so called below, where `bytes` is a method
_CACHED_MAX = 100_000


class KubeEncoder:
    """Encodes objects, and caches the bytes of the newest revision of each by media and shape."""

    def __init__(self, context: Context, conditions: ProgrammedConditions) -> None:
        self._context = context
        self._conditions = conditions
        # By uid: the revision and the condition that is shown, which comes without a revision.
        self._cached: dict[tuple[Media, str], dict[str, tuple[int, ArrivedObject | None, bytes]]] = {}

    def bytes(
        self, resource: Resource, endpoint: KubeEndpoint, user: User, media: Media = JSON_MEDIA
    ) -> bytes:
        """The object as the endpoint shows it to a user. Objects with inline secrets are not cached.

        Nor are computed ones, which change without a revision.
        """
        cached = self._cached.get((media, endpoint.shape_id))
        if cached is None:
            cached = self._cached[media, endpoint.shape_id] = {}
        entry, arrived = cached.get(resource.uid), self._arrived(resource, endpoint)
        if entry is not None and entry[0] == resource.revision and entry[1] is arrived:
            return entry[2]
        if self.holds_secrets(resource):
            return media.object(self.visible_document(resource, endpoint, user))
        data = media.object(self._with_condition(self.document(resource, endpoint), resource, arrived))
        if endpoint.kind.computed is not None:
            return data
        if len(cached) >= _CACHED_MAX:  # mostly deleted objects; live ones are encoded again
            cached.clear()
        cached[resource.uid] = (resource.revision, arrived, data)
        return data

    def many(
        self, resources: Iterable[Resource], endpoint: KubeEndpoint, user: User, media: Media = JSON_MEDIA
    ) -> list[Data]:
        """All of them, each as the endpoint shows it."""
        if programmed.applies(endpoint):
            return [self.bytes(resource, endpoint, user, media) for resource in resources]
        cached = self._cached.get((media, endpoint.shape_id), {})
        encoded = []
        for resource in resources:
            entry = cached.get(resource.uid)
            if entry is not None and entry[0] == resource.revision:
                encoded.append(entry[2])
            else:
                encoded.append(self.bytes(resource, endpoint, user, media))
        return encoded

    def holds_secrets(self, resource: Resource) -> bool:
        """Whether an object has inline secrets, which not every user may see."""
        return inline_secrets.with_placeholders(self._context, resource) is not resource

    def visible_document(self, resource: Resource, endpoint: KubeEndpoint, user: User) -> dict[str, Json]:
        """The object as the endpoint shows it to a user, as a value."""
        document = self.document(inline_secrets.visible(self._context, user, resource), endpoint)
        return self._with_condition(document, resource, self._arrived(resource, endpoint))

    def _arrived(self, resource: Resource, endpoint: KubeEndpoint) -> ArrivedObject | None:
        """When the object has reached every proxy; what a dry run makes is shown with what is stored."""
        if not programmed.applies(endpoint):
            return None
        state = self._context.state
        stored = state.get(resource.key) if resource.revision > state.revision else resource
        return self._conditions.of(stored) if stored is not None else None

    @staticmethod
    def _with_condition(
        document: dict[str, Json], resource: Resource, arrived: ArrivedObject | None
    ) -> dict[str, Json]:
        if arrived is None:
            return document
        return programmed.with_condition(document, resource.generation, rfc3339(arrived.seen_at))

    def document(self, resource: Resource, endpoint: KubeEndpoint) -> dict[str, Json]:
        """The whole object in the endpoint's version, for writers; `seen` is for answers."""
        return codec.document(resource, endpoint, self._context.control_plane)
