"""Encoder: objects as bytes in the version of an endpoint, cached per revision."""

from collections.abc import Iterable

from koguma.access.user import User
from koguma.api.kube.media import JSON_MEDIA, Media
from koguma.application import inline_secrets
from koguma.application.context import Context
from koguma.kube import codec
from koguma.kube.registry import KubeEndpoint
from koguma.model.resource import Resource
from koguma.model.schema import Json

Data = bytes  # so called below, where `bytes` is a method
_CACHED_MAX = 100_000


class KubeEncoder:
    """Encodes objects, and caches the bytes of the newest revision of each by media and shape."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cached: dict[tuple[Media, str], dict[str, tuple[int, bytes]]] = {}

    def bytes(
        self, resource: Resource, endpoint: KubeEndpoint, user: User, media: Media = JSON_MEDIA
    ) -> bytes:
        """The object as the endpoint shows it to a user. Objects with inline secrets are not cached.

        Nor are computed ones, which change without a revision.
        """
        cached = self._cached.get((media, endpoint.shape_id))
        if cached is None:
            cached = self._cached[media, endpoint.shape_id] = {}
        entry = cached.get(resource.uid)
        if entry is not None and entry[0] == resource.revision:
            return entry[1]
        if self.holds_secrets(resource):
            return media.object(self.visible_document(resource, endpoint, user))
        data = media.object(self.document(resource, endpoint))
        if endpoint.kind.computed is not None:
            return data
        if len(cached) >= _CACHED_MAX:  # mostly deleted objects; live ones are encoded again
            cached.clear()
        cached[resource.uid] = (resource.revision, data)
        return data

    def many(
        self, resources: Iterable[Resource], endpoint: KubeEndpoint, user: User, media: Media = JSON_MEDIA
    ) -> list[Data]:
        """All of them, each as the endpoint shows it."""
        cached = self._cached.get((media, endpoint.shape_id), {})
        encoded = []
        for resource in resources:
            entry = cached.get(resource.uid)
            if entry is not None and entry[0] == resource.revision:
                encoded.append(entry[1])
            else:
                encoded.append(self.bytes(resource, endpoint, user, media))
        return encoded

    def holds_secrets(self, resource: Resource) -> bool:
        """Whether an object has inline secrets, which not every user may see."""
        return inline_secrets.with_placeholders(self._context, resource) is not resource

    def visible_document(self, resource: Resource, endpoint: KubeEndpoint, user: User) -> dict[str, Json]:
        """The object as the endpoint shows it to a user, as a value."""
        return self.document(inline_secrets.visible(self._context, user, resource), endpoint)

    def document(self, resource: Resource, endpoint: KubeEndpoint) -> dict[str, Json]:
        """The whole object in the endpoint's version, for writers; `seen` is for answers."""
        return codec.document(resource, endpoint, self._context.control_plane)
