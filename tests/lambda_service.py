"""A stand-in for the endpoint of AWS Lambda: it verifies signatures (SigV4) and runs small functions.

Signatures are computed from AWS's description of the algorithm, and not by Envoy's code or ours.
"""

import base64
import contextlib
import hashlib
import hmac
import json
import re
import ssl
import threading
import time
from calendar import timegm
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

Event = Any
Function = Callable[[Event], tuple[int, Any]]
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<scope>[^,]+), SignedHeaders=(?P<signed>[^,]+),"
    r" Signature=(?P<signature>[0-9a-f]{64})"
)
_PATH = re.compile(r"/2015-03-31/functions/(arn:aws:lambda:[^/]+)/invocations")


class LambdaService:
    """Serves functions by ARN to whoever signs with one of the given keys."""

    def __init__(
        self,
        keys: Mapping[str, str],
        tls: ssl.SSLContext | None = None,
        address: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        self.keys = dict(keys)
        self.functions: dict[str, Function] = {}
        self.calls: list[dict[str, Any]] = []  # that were signed rightly
        self.refused: list[str] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                status, headers, answer = service._answer(self, body)
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(answer))}.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # a proxy may have stopped waiting
                    self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(address, Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, dict[str, str], bytes]:
        problem = self._problem(request, body)
        if problem:
            self.refused.append(problem)
            return 403, {"content-type": "application/json"}, json.dumps({"message": problem}).encode()
        match = _PATH.fullmatch(request.path)
        function = self.functions.get(match[1]) if match else None
        if function is None:
            return 404, {}, b'{"message": "Function not found"}'
        mode = request.headers["x-amz-invocation-type"]
        event = json.loads(body) if body else None
        self.calls.append({"event": event, "mode": mode, "headers": request.headers.items()})
        if mode == "Event":
            return 202, {}, b""
        status, result = function(event)
        headers = {"x-amz-function-error": "Unhandled"} if status == 299 else {}
        return 200 if status == 299 else status, headers, json.dumps(result).encode()

    def _problem(self, request: BaseHTTPRequestHandler, body: bytes) -> str:
        """Why a request is refused, as AWS does it; empty where it is signed rightly."""
        written = request.headers.get_all("authorization") or []
        match = _AUTHORIZATION.fullmatch(written[0]) if len(written) == 1 else None
        if match is None:
            return f"{len(written)} authorizations: {written}"
        secret = self.keys.get(match["key"])
        if secret is None:
            return "The security token included in the request is invalid."
        signed = match["signed"].split(";")
        if not {"host", "x-amz-date"} <= set(signed):
            return f"too little is signed: {signed}"
        if abs(time.time() - _seconds(request.headers["x-amz-date"])) > 300:
            return "Signature expired"
        content = hashlib.sha256(body).hexdigest()
        if request.headers["x-amz-content-sha256"] != content:
            return "x-amz-content-sha256 is not that of the body"
        if expected_signature(request, signed, content, match["scope"], secret) != match["signature"]:
            return "The request signature we calculated does not match the signature you provided."
        return ""


def _seconds(date: str) -> float:
    return timegm(time.strptime(date, "%Y%m%dT%H%M%SZ"))


def expected_signature(
    request: BaseHTTPRequestHandler, signed: list[str], content: str, scope: str, secret: str
) -> str:
    """The signature of a request by AWS's description: canonical request, text to sign, derived key."""
    path = "/".join(quote(part, safe="~") for part in request.path.split("/"))
    headers = "".join(
        f"{name}:{','.join(each.strip() for each in request.headers.get_all(name) or [])}\n"
        for name in signed
    )
    canonical = "\n".join((request.command, path, "", headers, ";".join(signed), content))
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join(("AWS4-HMAC-SHA256", request.headers["x-amz-date"], scope, hashed))
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, text.encode(), "sha256").hex()


def body_of(event: Event) -> bytes:
    """The body of the request that an event is about."""
    text = event["body"]
    return base64.b64decode(text) if event["is_base64_encoded"] else text.encode()
