"""A client of the Kubernetes form for tests: objects of one kind in one namespace."""

from typing import Any
from urllib.parse import urlencode

from koguma.model.protobuf_wire import bytes_field, string_field, varint_field
from tests.control_plane import LocalControlPlane, WatchStream
from tests.http_client import Response

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
YAML = "application/yaml"
KUMA, KOGUMA, CORE = "kuma.io/v1alpha1", "koguma.io/v1", "v1"
RBAC = "rbac.authorization.k8s.io/v1"
META = "g=meta.k8s.io"
TABLE = f"application/json;as=Table;v=v1;{META}"
PARTIAL = f"application/json;as=PartialObjectMetadata;v=v1;{META}"
PARTIAL_LIST = f"application/json;as=PartialObjectMetadataList;v=v1;{META}"
ANONYMOUS = {"X_Forwarded_For": "192.0.2.1"}  # no local user any more, and no token either
PLURALS = {
    "GatewayClass": "gatewayclasses",
    "Mesh": "meshes",
    "MeshProxyPatch": "meshproxypatches",
    "MeshRetry": "meshretries",
}


class KubeClient:
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
        plural = PLURALS.get(kind, kind.lower() + "s")
        self.path = f"{root}{within}/{plural}"
        self.all_namespaces_path = f"{root}/{plural}"

    def other(self, version: str = "", kind: str = "", namespace: str | None = None) -> "KubeClient":
        """The same with another API version, kind or namespace."""
        where = self.namespace if namespace is None else namespace
        return KubeClient(self.plane, where, version or self.version, kind or self.kind)

    def document(self, name: str = "", **fields: Any) -> dict[str, Any]:
        """An object; what is given as `metadata` is added to its name."""
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

    def put(self, name: str, text: str = "", **labels: str) -> Any:
        """Create or replace a ConfigMap with one text; the stored object."""
        return self.write(self.document(name, metadata={"labels": labels}, data={"text": text}))

    def write(self, document: Any) -> Any:
        """Create or replace an object; the stored one."""
        is_new = not self.exists(document["metadata"]["name"])
        return accepted(self.send("POST", "", document) if is_new else self.replace(document))

    def list(self, accept: str = "application/json", **query: Any) -> Response:
        return self.send("GET", "", query=query, Accept=accept)

    def watch(self, accept: str = "application/json", **query: Any) -> WatchStream:
        return self.plane.watch(f"{self.path}?{urlencode({'watch': 'true', **query})}", Accept=accept)

    @property
    def resource_version(self) -> str:
        """The newest one."""
        return resource_version(self.list().json)


def config_maps_in(plane: LocalControlPlane, namespace: str) -> KubeClient:
    """A client for the ConfigMaps of a namespace."""
    return KubeClient(plane, namespace, CORE, "ConfigMap")


def create_role(plane: LocalControlPlane, name: str, *rules: Any) -> None:
    """Create a ClusterRole."""
    roles = KubeClient(plane, "", RBAC, "ClusterRole")
    accepted(roles.create(name, rules=list(rules)))


def bind_role(plane: LocalControlPlane, user: str, role: str, namespace: str = "") -> None:
    """Let a user have a ClusterRole, in one namespace or everywhere, as `kubectl create rolebinding` does."""
    bindings = KubeClient(plane, namespace, RBAC, "RoleBinding" if namespace else "ClusterRoleBinding")
    ref = {"apiGroup": RBAC.partition("/")[0], "kind": "ClusterRole", "name": role}
    name = f"{user}-{role}"
    accepted(bindings.create(name, roleRef=ref, subjects=[{"kind": "User", "name": user}]))


def accepted(answer: Response) -> Any:
    """The object in the response to a successful write."""
    assert answer.status in (200, 201), answer.body
    return answer.json


def failure(answer: Response) -> tuple[int, str]:
    """The code and the reason of a Status."""
    status = answer.json
    assert (status["kind"], status["status"], status["code"]) == ("Status", "Failure", answer.status)
    return answer.status, status["reason"]


def causes(answer: Response) -> list[tuple[str, str]]:
    """The fields that a Status names, and why."""
    return [(cause["field"], cause["reason"]) for cause in answer.json["details"]["causes"]]


def failure_with_causes(answer: Response) -> tuple[int, str, list[str]]:
    """The code and the reason of a Status, and the reasons of its causes."""
    causes = answer.json.get("details", {}).get("causes", [])
    return *failure(answer), [cause["reason"] for cause in causes]


def resource_version(document: Any) -> str:
    version: str = document["metadata"]["resourceVersion"]
    return version


def revision(document: Any) -> int:
    return int(resource_version(document))


def names(document: Any) -> list[str]:
    """The names of a list's items."""
    return [item["metadata"]["name"] for item in document["items"]]


def types_and_names(events: Any) -> list[tuple[str, str]]:
    """Watch events in short."""
    return [(event["type"], event["object"]["metadata"]["name"]) for event in events]


def has_ended(stream: WatchStream) -> bool:
    """Whether nothing more comes, and the stream is complete: all chunks, the last one too."""
    return stream._response.readline() == b""


def managers(document: Any) -> dict[tuple[str, str], Any]:
    """The owned fields, by manager and operation."""
    entries = document["metadata"].get("managedFields", [])
    return {(entry["manager"], entry["operation"]): entry["fieldsV1"] for entry in entries}


def timeout_spec(idle: str = "5s", **more: str) -> dict[str, Any]:
    """A small legal spec."""
    return {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": idle, **more}}]}


def patch_spec(name: str = "x") -> dict[str, Any]:
    """A small legal spec of a MeshProxyPatch, which is a kind with a status."""
    return {
        "default": {"appendModifications": [{"cluster": {"operation": "Remove", "match": {"name": name}}}]}
    }


def wire(*fields: tuple[int, str | bytes | int]) -> bytes:
    """A small protobuf message of (number, value) pairs: a text, a number, or a message that is written."""
    encoders: Any = {int: varint_field, str: string_field, bytes: bytes_field}
    return b"".join(encoders[type(value)](number, value) for number, value in fields)


def protobuf_body(version: str, kind: str, message: bytes) -> bytes:
    """A message in the envelope of Kubernetes' clients."""
    return b"k8s\0" + wire((1, wire((1, version), (2, kind))), (2, message))
