"""Conversions of custom objects between their versions, by the webhook that their definition names.

Without a webhook versions differ in `apiVersion` alone, and nothing is to be done. What a webhook made of a
stored object is kept, since objects are read more often than written. A webhook may change labels,
annotations and what stands beside the metadata, and nothing else.
"""

import uuid
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from koguma.kube.custom.version import ConversionWebhook
from koguma.kube.kinds import parts
from koguma.kube.registry import KubeEndpoint
from koguma.model.errors import KogumaError
from koguma.model.resource import Resource
from koguma.model.schema import Json
from koguma.runtime.outgoing_calls import CallFailed, OutgoingCalls

BATCH_SIZE: Final = 100  # objects in one request
SECONDS_MAX: Final = 10.0
_KEPT_MAX: Final = 10_000
_REVIEW: Final = "apiextensions.k8s.io/v1"
_REASON_MAX: Final = 300
_SAME: Final = ("name", "namespace", "uid")
_OBJECT: Final = ("apiVersion", "kind", "metadata")


class Conversions:
    """Converts objects, and keeps what webhooks made of them."""

    def __init__(self, calls: OutgoingCalls) -> None:
        self._calls = calls
        self._kept: OrderedDict[tuple[str, int, str, int], Resource] = OrderedDict()

    async def shown(self, resources: Sequence[Resource], endpoint: KubeEndpoint) -> list[Resource]:
        """Stored objects in the version of an endpoint."""
        custom, version = endpoint.custom, endpoint.api_version
        if custom is None or custom.webhook is None:
            return list(resources) if custom is None else [_marked(each, version) for each in resources]
        keys = [_key(resource, version, custom.definition_revision) for resource in resources]
        converted = [
            resource if resource.stored_version == version else self._kept.get(key)
            for resource, key in zip(resources, keys, strict=True)
        ]
        missing = [index for index, resource in enumerate(converted) if resource is None]
        for start in range(0, len(missing), BATCH_SIZE):
            batch = missing[start : start + BATCH_SIZE]
            made = await self._converted([resources[i] for i in batch], custom.webhook, endpoint, version)
            for index, resource in zip(batch, made, strict=True):
                converted[index] = resource
                self._keep(keys[index], resource)
        return [resource for resource in converted if resource is not None]

    async def converted(self, resource: Resource, endpoint: KubeEndpoint) -> Resource:
        """An object that is not stored as it is, in the version of an endpoint; nothing is kept of it."""
        custom, version = endpoint.custom, endpoint.api_version
        if custom is None or custom.webhook is None or resource.stored_version == version:
            return resource if custom is None else _marked(resource, version)
        return (await self._converted([resource], custom.webhook, endpoint, version))[0]

    async def to_store(self, resource: Resource, endpoint: KubeEndpoint) -> Resource:
        """An object in the storage version of the custom resource that an endpoint serves."""
        custom, version = endpoint.custom, endpoint.set.version
        if custom is None or custom.webhook is None or resource.stored_version == version:
            return _marked(resource, version)
        return (await self._converted([resource], custom.webhook, endpoint, version))[0]

    def kept(self, resource: Resource, endpoint: KubeEndpoint) -> Resource:
        """An object in the version of an endpoint if it was converted before, else as it is stored."""
        custom = endpoint.custom
        if custom is None or custom.webhook is None:
            return resource
        return self._kept.get(_key(resource, endpoint.api_version, custom.definition_revision), resource)

    def _keep(self, key: tuple[str, int, str, int], resource: Resource) -> None:
        self._kept[key] = resource
        if len(self._kept) > _KEPT_MAX:
            self._kept.popitem(last=False)

    async def _converted(
        self, resources: Sequence[Resource], webhook: ConversionWebhook, endpoint: KubeEndpoint, version: str
    ) -> list[Resource]:
        documents = [_document(resource, endpoint) for resource in resources]
        uid = str(uuid.uuid4())
        request = {"uid": uid, "desiredAPIVersion": version, "objects": documents}
        review = {"apiVersion": _REVIEW, "kind": "ConversionReview", "request": request}
        try:
            answer = await self._calls.post_json(
                webhook.url,
                msgspec.json.encode(review),
                ca_bundle=parts.payload(webhook.ca_bundle) or b"",
                timeout_seconds=SECONDS_MAX,
            )
            found = list(_objects(msgspec.json.decode(answer), uid, len(documents)))
            return [
                _replaced(resource, document, new, version)
                for resource, document, new in zip(resources, documents, found, strict=True)
            ]
        except (CallFailed, ValueError) as error:  # a response that is no JSON is a ValueError, too
            what = f"conversion webhook for {endpoint.group}/{endpoint.version}, Kind={endpoint.kind_name}"
            raise KogumaError(f"{what} failed: {str(error)[:_REASON_MAX]}") from None


def _marked(resource: Resource, version: str) -> Resource:
    if resource.stored_version == version:
        return resource
    return msgspec.structs.replace(resource, stored_version=version)


def _key(resource: Resource, version: str, definition: int) -> tuple[str, int, str, int]:
    return resource.uid, resource.revision, version, definition


def _document(resource: Resource, endpoint: KubeEndpoint) -> dict[str, Json]:
    metadata: dict[str, Json] = {"name": resource.name, "uid": resource.uid}
    if endpoint.namespaced:
        metadata["namespace"] = resource.namespace
    metadata |= {"labels": dict(resource.labels), "annotations": dict(resource.annotations)}
    if resource.creation_time:
        metadata |= {"creationTimestamp": resource.creation_time, "generation": resource.generation}
    fields = dict(resource.spec) if isinstance(resource.spec, dict) else {}
    if resource.status is not None:
        fields["status"] = resource.status
    version = resource.stored_version or endpoint.set.version
    return {**fields, "apiVersion": version, "kind": endpoint.kind_name, "metadata": metadata}


def _objects(answer: Json, uid: str, n_objects: int) -> Iterable[Json]:
    """The converted objects of a response; ValueError where it has none."""
    response = parts.as_map(parts.as_map(answer).get("response"))
    result = parts.as_map(response.get("result"))
    if response.get("uid") != uid:
        raise ValueError("the response is for another request")
    if result.get("status") != "Success":
        raise ValueError(str(result.get("message") or "it says no reason"))
    found = response.get("convertedObjects")
    if not isinstance(found, list) or len(found) != n_objects:
        raise ValueError(f"{n_objects} objects were to be converted, and the response has another number")
    return found


def _replaced(resource: Resource, document: Json, new: Json, version: str) -> Resource:
    """The object with what the webhook made of it; ValueError where it changed what it may not."""
    if not isinstance(new, dict) or new.get("apiVersion") != version or new.get("kind") != document["kind"]:
        raise ValueError(f"{resource.name} was not converted to {version}")
    before, after = document["metadata"], parts.as_map(new.get("metadata"))
    for name in _SAME:
        if (after.get(name) or "") != (before.get(name) or ""):
            raise ValueError(f"metadata.{name} of {resource.name} was changed")
    labels, annotations = (_texts(after.get(name), name) for name in ("labels", "annotations"))
    fields = {name: value for name, value in new.items() if name not in _OBJECT}
    status = fields.pop("status", None) if resource.status is not None else None
    return msgspec.structs.replace(
        resource,
        spec=fields,
        status=status,
        labels=labels,
        annotations=annotations,
        stored_version=version,
    )


def _texts(value: Json, name: str) -> dict[str, str]:
    found = {} if value is None else value
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise ValueError(f"metadata.{name} are no texts")
    return found
