"""A namespace for one test, and short words for what tests do in it through the Kubernetes form."""

from typing import Any
from urllib.parse import urlencode

from tests.control_plane import LocalControlPlane, WatchStream
from tests.http_client import Response

META = "g=meta.k8s.io"
TABLE = f"application/json;as=Table;v=v1;{META}"
PARTIAL = f"application/json;as=PartialObjectMetadata;v=v1;{META}"
PARTIAL_LIST = f"application/json;as=PartialObjectMetadataList;v=v1;{META}"
STRANGER = {"X_Forwarded_For": "192.0.2.1"}  # no local user any more, and no token either


class Room:
    """ConfigMaps of one namespace, unless a plural and a group say otherwise."""

    def __init__(
        self, plane: LocalControlPlane, namespace: str, plural: str = "configmaps", root: str = "/api/v1"
    ) -> None:
        self.plane = plane
        self.namespace = namespace
        self.root = root
        self.plural = plural
        self.everywhere = f"{root}/{plural}"
        self.path = f"{root}/namespaces/{namespace}/{plural}"

    def sibling(self, plural: str, root: str = "/api/v1") -> "Room":
        """Another kind in the same namespace, or the same kind under another path."""
        return Room(self.plane, self.namespace, plural, root)

    def put(self, name: str, text: str = "", **labels: str) -> Any:
        """Write a ConfigMap, new or not; answers it as it is stored."""
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "labels": labels},
            "data": {"text": text},
        }
        return self.write(body)

    def write(self, body: dict[str, Any]) -> Any:
        """Write an object, new or not."""
        path = f"{self.path}/{body['metadata']['name']}"
        is_new = self.plane("GET", path).status == 404
        answer = self.plane("POST", self.path, body) if is_new else self.plane("PUT", path, body)
        assert answer.status in (200, 201), answer.body
        return answer.json

    def delete(self, name: str) -> None:
        assert self.plane("DELETE", f"{self.path}/{name}").status == 200

    def list(self, accept: str = "application/json", **query: Any) -> Response:
        return self.plane("GET", f"{self.path}?{urlencode(query)}", Accept=accept)

    def watch(self, accept: str = "application/json", **query: Any) -> WatchStream:
        return self.plane.watch(f"{self.path}?{urlencode({'watch': 'true', **query})}", Accept=accept)

    @property
    def revision(self) -> str:
        """The newest one."""
        return revision(self.list().json)


def revision(document: Any) -> str:
    found: str = document["metadata"]["resourceVersion"]
    return found


def names(document: Any) -> list[str]:
    """What a list lists."""
    return [item["metadata"]["name"] for item in document["items"]]


def told(events: Any) -> list[tuple[str, str]]:
    """What events say, in short."""
    return [(event["type"], event["object"]["metadata"]["name"]) for event in events]


def cause(answer: Response) -> tuple[int, str, list[str]]:
    """A refusal in short: the status, its reason, and the reasons of its causes."""
    said = answer.json
    assert (said["kind"], said["status"], said["code"]) == ("Status", "Failure", answer.status)
    causes = said.get("details", {}).get("causes", [])
    return answer.status, said["reason"], [one["reason"] for one in causes]


def ends(lines: WatchStream) -> bool:
    """Whether nothing more comes, and the stream is complete: all chunks, the last one too."""
    return lines._response.readline() == b""
