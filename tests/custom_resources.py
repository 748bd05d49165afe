"""Definitions of custom resources for tests."""

import itertools
from typing import Any

from tests.control_plane import LocalControlPlane
from tests.kube_client import KubeClient, accepted

DEFINITIONS = "apiextensions.k8s.io/v1"
_numbers = itertools.count(1)

WIDGET = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 100},
                "color": {"type": "string", "default": "red", "enum": ["red", "green"]},
                "replicas": {"type": "integer", "default": 1},
                "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        },
        "status": {
            "type": "object",
            "properties": {
                "phase": {"type": "string"},
                "replicas": {"type": "integer"},
                "selector": {"type": "string"},
            },
        },
    },
}
SCALE = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}


def version(name: str = "v1", *, storage: bool = True, schema: Any = None, **fields: Any) -> dict[str, Any]:
    """A version of a definition."""
    described = {"openAPIV3Schema": WIDGET if schema is None else schema}
    return {"name": name, "served": True, "storage": storage, "schema": described, **fields}


def definition_spec(
    *versions: Any, kind: str = "Widget", group: str = "example.com", **fields: Any
) -> dict[str, Any]:
    """The spec of a definition; of widgets with one version by default."""
    names = {"kind": kind, "plural": f"{kind.lower()}s", **fields.pop("names", {})}
    return {
        "group": group,
        "names": names,
        "scope": "Namespaced",
        "versions": list(versions or [version(subresources={"status": {}, "scale": SCALE})]),
        **fields,
    }


def definitions_of(plane: LocalControlPlane) -> KubeClient:
    """A client for definitions."""
    return KubeClient(plane, "", DEFINITIONS, "CustomResourceDefinition")


def defined(plane: LocalControlPlane, *versions: Any, namespace: str = "custom", **fields: Any) -> KubeClient:
    """A new definition in a group of its own; a client for its objects in its first version."""
    group = fields.pop("group", f"g{next(_numbers)}.example.com")
    spec = definition_spec(*versions, group=group, **fields)
    accepted(definitions_of(plane).create(f"{spec['names']['plural']}.{group}", spec=spec))
    return KubeClient(plane, namespace, f"{group}/{spec['versions'][0]['name']}", spec["names"]["kind"])
