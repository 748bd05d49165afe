"""Native page: an object of Kubernetes' own kinds as `kubectl get -o yaml` prints it, to find lines in it."""

from collections.abc import Mapping

from koguma.model.resource import Resource
from koguma.model.schema import Json

_VERSION = "v1"


def document(resource: Resource) -> Json:
    """The document, with keys in alphabetical order as kubectl has them."""
    name, _, group = resource.kind.partition(".")
    metadata = {
        "annotations": {key: _block(value) for key, value in resource.annotations.items()},
        "creationTimestamp": resource.creation_time,
        "generation": resource.generation,
        "labels": dict(resource.labels),
        "name": resource.name,
        "namespace": resource.namespace,
        "resourceVersion": str(resource.revision),
        "uid": resource.uid,
    }
    return _sorted(
        {
            "apiVersion": f"{group}/{_VERSION}" if group != "core" else _VERSION,
            "kind": name,
            "metadata": {key: value for key, value in metadata.items() if value},
            "spec": resource.spec,
            **({"status": resource.status} if resource.status else {}),
        }
    )


def _block(text: str) -> Json:
    """A text as high as kubectl prints it: one that ends with a line break has a line of its own."""
    return {"|": ""} if text.endswith("\n") else "…"


def _sorted(value: Json) -> Json:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_sorted(each) for each in value]
    return value
