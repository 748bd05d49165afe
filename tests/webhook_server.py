"""A real admission webhook for tests: an HTTPS server whose paths answer reviews as a test says."""

import base64
import json
from collections.abc import Callable
from typing import Any

from tests.https_server import Asked, HttpsServer, Reply

VERSION = "admissionregistration.k8s.io/v1"


class WebhookServer(HttpsServer):
    """Answers a review at `/path` with what `answers[path]` gives for its request; allows by default."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.answers: dict[str, Callable[[Any], Any]] = {}
        self.reply = self._reply

    def _reply(self, asked: Asked) -> Reply:
        request = asked.json["request"]
        path = asked.path.partition("?")[0].strip("/")
        answer = self.answers.get(path, lambda _request: {})(request)
        if isinstance(answer, Reply):
            return answer
        response = {"uid": request["uid"], "allowed": True, **answer}
        document = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        return Reply(json.dumps(document).encode())

    def reviews(self, path: str = "") -> list[Any]:
        """The requests of the reviews so far, at a path."""
        return [
            asked.json["request"]
            for asked in self.requests
            if not path or asked.path.partition("?")[0].strip("/") == path
        ]

    def webhook(self, path: str, *rules: Any, **more: Any) -> dict[str, Any]:
        """A webhook of a configuration, called `<path>.hooks.example`."""
        return {
            "name": f"{path}.hooks.example",
            "clientConfig": {
                "url": f"{self.url}/{path}",
                "caBundle": base64.b64encode(self.ca).decode(),
            },
            "rules": list(rules),
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            **more,
        }


def rule(
    api_version: str, *resources: str, operations: tuple[str, ...] = ("*",), **more: Any
) -> dict[str, Any]:
    """A rule about resources of one group and version."""
    group, _, version = api_version.rpartition("/")
    return {
        "apiGroups": [group],
        "apiVersions": [version],
        "resources": list(resources),
        "operations": list(operations),
        **more,
    }


def denied(message: str = "", **status: Any) -> dict[str, Any]:
    """A refusal."""
    return {"allowed": False, "status": {**({"message": message} if message else {}), **status}}


def patched(*operations: Any) -> dict[str, Any]:
    """A permission with a JSON patch."""
    patch = base64.b64encode(json.dumps(operations).encode()).decode()
    return {"patchType": "JSONPatch", "patch": patch}


def added(path: str, value: Any) -> dict[str, Any]:
    """One operation of a patch."""
    return {"op": "add", "path": path, "value": value}
