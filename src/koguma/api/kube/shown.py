"""Shown: objects as bytes of an endpoint's version, made once per revision and joined as often as asked."""

from collections.abc import Iterable

import msgspec

from koguma.kube import codec
from koguma.kube.registry import Endpoint
from koguma.model.place import Place
from koguma.model.resource import Resource
from koguma.model.schema import Json

Data = bytes  # so called below, where `bytes` is a method
_KEPT_MAX = 100_000


class KubeShown:
    """The bytes of each object's newest revision that somebody asked for, by endpoint."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._made: dict[str, dict[str, tuple[int, bytes]]] = {}

    def bytes(self, resource: Resource, endpoint: Endpoint) -> bytes:
        """The object as the endpoint shows it."""
        made = self._made.get(endpoint.api_version)
        if made is None:
            made = self._made[endpoint.api_version] = {}
        found = made.get(resource.uid)
        if found is not None and found[0] == resource.revision:
            return found[1]
        data = msgspec.json.encode(self.document(resource, endpoint))
        if len(made) >= _KEPT_MAX:  # mostly of objects that are gone; those that live come back
            made.clear()
        made[resource.uid] = (resource.revision, data)
        return data

    def many(self, resources: Iterable[Resource], endpoint: Endpoint) -> list[Data]:
        """All of them, each as the endpoint shows it."""
        made = self._made.get(endpoint.api_version, {})
        shown = []
        for resource in resources:
            found = made.get(resource.uid)
            if found is not None and found[0] == resource.revision:
                shown.append(found[1])
            else:
                shown.append(self.bytes(resource, endpoint))
        return shown

    def document(self, resource: Resource, endpoint: Endpoint) -> dict[str, Json]:
        """The same as a value."""
        return codec.document(resource, endpoint, self.place)
