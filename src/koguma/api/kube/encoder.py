"""Shown: objects as bytes of an endpoint's version, made once per revision and joined as often as asked."""

from collections.abc import Iterable

import msgspec

from koguma.access.user import User
from koguma.application import inline_secrets
from koguma.application.context import Context
from koguma.kube import codec
from koguma.kube.registry import KubeEndpoint
from koguma.model.resource import Resource
from koguma.model.schema import Json

Data = bytes  # so called below, where `bytes` is a method
_KEPT_MAX = 100_000


class KubeEncoder:
    """The bytes of each object's newest revision that somebody asked for, by endpoint."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._made: dict[str, dict[str, tuple[int, bytes]]] = {}

    def bytes(self, resource: Resource, endpoint: KubeEndpoint, user: User) -> bytes:
        """The object as the endpoint shows it to a user. What holds secrets is not kept."""
        made = self._made.get(endpoint.api_version)
        if made is None:
            made = self._made[endpoint.api_version] = {}
        found = made.get(resource.uid)
        if found is not None and found[0] == resource.revision:
            return found[1]
        if self.holds_secrets(resource):
            return msgspec.json.encode(self.visible_document(resource, endpoint, user))
        data = msgspec.json.encode(self.document(resource, endpoint))
        if len(made) >= _KEPT_MAX:  # mostly of objects that are gone; those that live come back
            made.clear()
        made[resource.uid] = (resource.revision, data)
        return data

    def many(self, resources: Iterable[Resource], endpoint: KubeEndpoint, user: User) -> list[Data]:
        """All of them, each as the endpoint shows it."""
        made = self._made.get(endpoint.api_version, {})
        shown = []
        for resource in resources:
            found = made.get(resource.uid)
            if found is not None and found[0] == resource.revision:
                shown.append(found[1])
            else:
                shown.append(self.bytes(resource, endpoint, user))
        return shown

    def holds_secrets(self, resource: Resource) -> bool:
        """Whether an object holds secrets, so that not everybody sees the same of it."""
        return inline_secrets.with_placeholders(self._context, resource) is not resource

    def visible_document(self, resource: Resource, endpoint: KubeEndpoint, user: User) -> dict[str, Json]:
        """The object as the endpoint shows it to a user, as a value."""
        return self.document(inline_secrets.visible(self._context, user, resource), endpoint)

    def document(self, resource: Resource, endpoint: KubeEndpoint) -> dict[str, Json]:
        """The whole object in the endpoint's version, for writers; `seen` is for answers."""
        return codec.document(resource, endpoint, self._context.control_plane)
