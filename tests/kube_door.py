"""A way to write objects of one kind in one namespace through the Kubernetes form."""

import time
from typing import Any
from urllib.parse import urlencode

from tests.control_plane import LocalControlPlane
from tests.http_client import Response

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
YAML = "application/yaml"
KUMA, KOGUMA, CORE = "kuma.io/v1alpha1", "koguma.io/v1", "v1"
PLURALS = {"Mesh": "meshes", "MeshProxyPatch": "meshproxypatches"}
_PATIENCE_SECONDS = 20.0


class Door:
    """Objects of a kind in a namespace, or everywhere where the namespace is empty."""

    def __init__(
        self, plane: LocalControlPlane, namespace: str, version: str = KUMA, kind: str = "MeshTimeout"
    ) -> None:
        self.plane = plane
        self.namespace = namespace
        self.version = version
        self.kind = kind
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        within = f"/namespaces/{namespace}" if namespace else ""
        self.path = f"{root}{within}/{PLURALS.get(kind, kind.lower() + 's')}"

    def other(self, version: str = "", kind: str = "", namespace: str | None = None) -> "Door":
        """Another way into the same room."""
        where = self.namespace if namespace is None else namespace
        return Door(self.plane, where, version or self.version, kind or self.kind)

    def document(self, name: str = "", **fields: Any) -> dict[str, Any]:
        """An object; fields called `metadata` are laid over its name."""
        metadata = {**({"name": name} if name else {}), **fields.pop("metadata", {})}
        return {"apiVersion": self.version, "kind": self.kind, "metadata": metadata, **fields}

    def create(self, name: str = "", *, query: Any = (), **fields: Any) -> Response:
        return self.send("POST", "", self.document(name, **fields), query)

    def replace(self, document: Any, *, part: str = "", query: Any = (), name: str = "") -> Response:
        called = name or document["metadata"]["name"]
        return self.send("PUT", called + (f"/{part}" if part else ""), document, query)

    def patch(self, name: str, change: Any, media: str = MERGE, query: Any = (), **headers: str) -> Response:
        return self.send("PATCH", name, change, query, Content_Type=media, **headers)

    def apply(self, name: str, manager: str = "tester", *, force: bool = False, **fields: Any) -> Response:
        query = {"fieldManager": manager, **({"force": "true"} if force else {})}
        return self.patch(name, self.document(name, **fields), APPLY, query)

    def get(self, name: str) -> Any:
        answer = self.send("GET", name)
        assert answer.status == 200, answer.body
        return answer.json

    def exists(self, name: str) -> bool:
        return self.send("GET", name).status == 200

    def delete(self, name: str, options: Any = None, query: Any = (), **headers: str) -> Response:
        return self.send("DELETE", name, options, query, **headers)

    def send(self, method: str, name: str, body: Any = None, query: Any = (), **headers: str) -> Response:
        path = self.path + (f"/{name}" if name else "") + (f"?{urlencode(query)}" if query else "")
        return self.plane(method, path, body, **headers)


def made(answer: Response) -> Any:
    """The object that a write answered with."""
    assert answer.status in (200, 201), answer.body
    return answer.json


def refused(answer: Response) -> tuple[int, str]:
    """A refusal in short."""
    said = answer.json
    assert (said["kind"], said["status"], said["code"]) == ("Status", "Failure", answer.status)
    return answer.status, said["reason"]


def causes(answer: Response) -> list[tuple[str, str]]:
    """Where a refusal points, and why."""
    return [(one["field"], one["reason"]) for one in answer.json["details"]["causes"]]


def revision(document: Any) -> int:
    return int(document["metadata"]["resourceVersion"])


def managers(document: Any) -> dict[tuple[str, str], Any]:
    """Who owns what: by manager and operation."""
    entries = document["metadata"].get("managedFields", [])
    return {(one["manager"], one["operation"]): one["fieldsV1"] for one in entries}


def timeout(idle: str = "5s", **more: str) -> dict[str, Any]:
    """A small legal spec."""
    return {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": idle, **more}}]}


def patch_spec(name: str = "x") -> dict[str, Any]:
    """A small legal spec of a MeshProxyPatch, which is a kind with a status."""
    return {
        "default": {"appendModifications": [{"cluster": {"operation": "Remove", "match": {"name": name}}}]}
    }


def until(holds: Any) -> Any:
    """Wait for what housekeeping does beside us; answers what came."""
    ends_at = time.monotonic() + _PATIENCE_SECONDS
    while not (found := holds()):
        assert time.monotonic() < ends_at, "it did not happen"
        time.sleep(0.01)
    return found


def wire(*fields: tuple[int, str | bytes | int]) -> bytes:
    """A small protobuf message of (number, value) pairs: a text, a number, or a message that is written."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += bytes((number << 3, value))
            continue
        data = value.encode() if isinstance(value, str) else value
        assert len(data) < 128, "longer ones have longer lengths"
        out += bytes((number << 3 | 2, len(data))) + data
    return out


def protobuf_body(version: str, kind: str, message: bytes) -> bytes:
    """A message in the envelope of Kubernetes' clients."""
    return b"k8s\0" + wire((1, wire((1, version), (2, kind))), (2, message))
