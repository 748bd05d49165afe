"""API client: requests to the control plane over the standard library's HTTP, which is quick to import.

An error response becomes ApiError, with the fields that the server names; a server that does not answer
becomes ServerUnreachable, with what to try. Redirects are not followed, so that a token is sent to no other
server.

On the control plane's own machine its owner connects over the socket in the data directory, if the control
plane that listens there is the one of the address.
"""

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

from koguma import __version__
from koguma.cli.failures import ApiError, CommandFailure, InvalidParameter, ServerUnreachable
from koguma.cli.target import HTTPS_PORT, ServerTarget
from koguma.runtime import data_directory

Json = Any
Query = Sequence[tuple[str, str]]

_CONNECT_SECONDS: Final = 10.0
_ANSWER_SECONDS: Final = 120.0
_WATCH_SECONDS: Final = 45.0  # the server sends a bookmark every 15
_PAGE_SIZE: Final = 1_000
_ERRORS_FROM: Final = 400
_GATEWAY_ERRORS: Final = (500, 502, 503, 504)  # a load balancer may answer them for the control plane


class ApiResponse(NamedTuple):
    """The response to a request; `value` is the JSON of the body, or its text."""

    status: int
    headers: http.client.HTTPMessage
    value: Json
    request: str
    target: ServerTarget

    @property
    def object(self) -> dict[str, Json]:
        """The JSON object of the body; an error where it is not one."""
        if not isinstance(self.value, dict):
            raise self.not_koguma()
        return self.value

    def field(self, name: str) -> Json:
        """A required field of the JSON object."""
        if name not in self.object:
            raise self.not_koguma()
        return self.object[name]

    def not_koguma(self) -> ApiError:
        """The error for a response that no control plane gives: another server has the address."""
        answered = f"{self.status} {self.headers.get_content_type()}"
        by = f' of "{self.headers["Server"][:80]}"' if self.headers.get("Server") else ""
        to = f", to {self.headers['Location'][:200]}" if self.headers.get("Location") else ""
        message = (
            f"the server at {self.target.address} (from {self.target.origin}) is not a Koguma control plane:"
            f" it answered {self.request} with {answered}{by}{to}"
        )
        hint = (
            "name the control plane with --address, KOGUMA_ADDRESS or --context; `koguma cp run` prints its"
            f" addresses, usually http on port 5681 and https on port {HTTPS_PORT}"
        )
        return ApiError(self.status, message, "", (InvalidParameter("", hint),))

    @property
    def etag(self) -> str:
        """The version of the object in the body."""
        return str(self.headers.get("ETag", ""))


class ApiClient:
    """Sends requests to one server, over one connection at a time."""

    def __init__(
        self,
        target: ServerTarget,
        connect_seconds: float = _CONNECT_SECONDS,
        answer_seconds: float | None = None,
    ) -> None:
        self.target = target
        self._connect_seconds = connect_seconds
        self._answer_seconds = answer_seconds or _ANSWER_SECONDS
        self._connection: http.client.HTTPConnection | None = None
        self.reason = ""  # why the command writes; it is stored with the changes

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def be_patient(self, answer_seconds: float) -> None:
        """Wait so long for each answer from now on, and for a connection no longer."""
        self._answer_seconds = answer_seconds
        self._connect_seconds = min(self._connect_seconds, answer_seconds)
        if self._connection is not None and self._connection.sock is not None:
            self._connection.sock.settimeout(answer_seconds)

    def get(self, path: str, query: Query = ()) -> ApiResponse:
        """Send a GET request."""
        return self.send("GET", path, query)

    def send(
        self,
        method: str,
        path: str,
        query: Query = (),
        body: Json = None,
        headers: Mapping[str, str] | None = None,
    ) -> ApiResponse:
        """Send one request; raises ApiError for an error status."""
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        content_type = {"Content-Type": "application/json"} if content is not None else {}
        with self._converted_errors():
            response = self._request(method, path, query, content, {**content_type, **(headers or {})})
            data = response.read()
        return self._api_response(f"{method} {path}", response, data)

    def pages(self, path: str, query: Query = ()) -> Iterator[Json]:
        """The objects of a list, page by page."""
        offset = "0"
        while offset:
            paged = (*query, ("size", str(_PAGE_SIZE)), *([("offset", offset)] if offset != "0" else []))
            page = self.get(path, paged)
            yield from page.field("items")
            # Only the offset is taken from the link: its host may be known inside another network only.
            offset = parse_qs(urlsplit(page.object.get("next") or "").query).get("offset", [""])[0]

    def watch(self, path: str, query: Query = ()) -> Iterator[Json]:
        """The events of a watch, until the connection ends."""
        with self._converted_errors(), contextlib.closing(self._connect(_WATCH_SECONDS)) as connection:
            response = self._request("GET", path, (*query, ("watch", "true")), None, {}, connection)
            if response.status >= _ERRORS_FROM:
                self._api_response(f"GET {path}", response, response.read())
            while (line := response.readline()).endswith(
                b"\n"
            ):  # an incomplete line: the connection was lost
                yield json.loads(line)

    def lines(self, path: str) -> Iterator[bytes]:
        """The lines of a body of any size, as they come."""
        with self._converted_errors():
            response = self._request("GET", path, (), None, {})
            if response.status >= _ERRORS_FROM:
                self._api_response(f"GET {path}", response, response.read())
            while line := response.readline():
                yield line

    def upload(self, path: str, query: Query, content: bytes, content_type: str) -> ApiResponse:
        """Send a POST request with a body that is not JSON."""
        with self._converted_errors():
            response = self._request("POST", path, query, content, {"Content-Type": content_type})
            data = response.read()
        return self._api_response(f"POST {path}", response, data)

    def _request(
        self,
        method: str,
        path: str,
        query: Query,
        content: bytes | None,
        headers: Mapping[str, str],
        connection: http.client.HTTPConnection | None = None,
    ) -> http.client.HTTPResponse:
        connection = connection or self._shared_connection()
        url = self.target.url.path + path + (f"?{urlencode(query)}" if query else "")
        connection.request(method, url, content, {**self._headers(), **headers})
        return connection.getresponse()

    def _headers(self) -> dict[str, str | bytes]:
        headers: dict[str, str | bytes] = {
            "Accept": "application/json",
            "User-Agent": f"koguma/{__version__}",
        }
        if self.reason:
            headers["Koguma-Reason"] = self.reason.encode()
        token = self.target.current_token
        if token is not None:
            headers["Authorization"] = f"Bearer {token.reveal()}"
        return headers

    def _shared_connection(self) -> http.client.HTTPConnection:
        if self._connection is None:
            self._connection = self._connect(self._answer_seconds)
        return self._connection

    @property
    def is_local(self) -> bool:
        """Whether the socket in the data directory is what answers."""
        return isinstance(self._connection, _LocalConnection)

    def _connect(self, patience_seconds: float) -> http.client.HTTPConnection:
        if self.target.socket and self.target.token is None:
            local = self._connect_locally(patience_seconds)
            if local is not None:
                return local
        if self.target.is_socket_only:
            raise ServerUnreachable(
                f"no control plane runs with the data directory {self.target.data_dir}",
                (f" - {data_directory.VARIABLE} names it; start it, or say --address for another one",),
            )
        url = self.target.url
        if self.target.is_https:
            context = _tls_context(self.target)
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self.target.host, url.port, timeout=self._connect_seconds, context=context
            )
        else:
            connection = http.client.HTTPConnection(self.target.host, url.port, timeout=self._connect_seconds)
        connection.connect()
        connection.sock.settimeout(patience_seconds)
        return connection

    def _connect_locally(self, patience_seconds: float) -> http.client.HTTPConnection | None:
        """Connect over the socket in the data directory; None where the address is of another server."""
        connection = _LocalConnection(self.target, self._connect_seconds)
        try:
            connection.connect()
            if self.target.is_default or connection.api_port() == self.target.url.port:
                connection.sock.settimeout(patience_seconds)
                return connection
        except (OSError, ValueError, http.client.HTTPException):
            pass  # nothing listens on the socket, or it is not a control plane
        connection.close()
        return None

    def _api_response(self, request: str, response: http.client.HTTPResponse, data: bytes) -> ApiResponse:
        text = data.decode("utf-8", "replace")
        value: Json = text
        if response.headers.get_content_type() == "application/json":
            with contextlib.suppress(ValueError):
                value = json.loads(text)
        api_response = ApiResponse(response.status, response.headers, value, request, self.target)
        if response.status >= _ERRORS_FROM:
            raise self._error(api_response)
        return api_response

    def _error(self, response: ApiResponse) -> ApiError:
        """Why a request failed; a server that is not a control plane is recognised by its error."""
        request_id = response.headers.get("Koguma-Request-Id", "")
        if request_id or isinstance(response.value, dict) or response.status in _GATEWAY_ERRORS:
            return api_error(response.status, response.value, request_id)
        return self._kuma_error(response) or response.not_koguma()

    def _kuma_error(self, response: ApiResponse) -> ApiError | None:
        """The error where the server is a Kuma control plane, which does not have all that Koguma has."""
        if response.request == "GET /":
            return None
        anonymous = ApiClient(self.target._replace(token=None))
        try:
            index = anonymous.get("/").object
        except CommandFailure:
            return None
        finally:
            anonymous.close()
        if index.get("product") != "Kuma" and index.get("tagline") != "Kuma":
            return None
        message = (
            f"the server at {self.target.address} (from {self.target.origin}) is Kuma"
            f" {str(index.get('version', ''))[:40]}, not Koguma: it has no {response.request}"
        )
        hint = "use kumactl for it, or name Koguma's control plane with --address or --context"
        return ApiError(response.status, message, "", (InvalidParameter("", hint),))

    @contextlib.contextmanager
    def _converted_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise ServerUnreachable(*_unreachable(self.target, error)) from None


class _LocalConnection(http.client.HTTPConnection):
    """HTTP over the socket in a data directory."""

    def __init__(self, target: ServerTarget, timeout_seconds: float) -> None:
        super().__init__(target.host, target.url.port, timeout=timeout_seconds)
        self._path, self._seconds = Path(target.socket), timeout_seconds

    def connect(self) -> None:
        """Connect to the socket instead of the address."""
        self.sock = data_directory.connected(self._path, self._seconds)

    def api_port(self) -> int | None:
        """The http port of the control plane that listens on the socket."""
        self.request("GET", "/config")
        config = json.loads(self.getresponse().read())
        return config.get("apiPort") if isinstance(config, dict) else None


def _tls_context(target: ServerTarget) -> Any:
    import ssl  # noqa: PLC0415 - plain http does not import it

    try:
        return ssl.create_default_context(cafile=target.ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise ServerUnreachable(
            f"the CA file {target.ca_file} cannot be used: {error.strerror or error}"
        ) from None


def _unreachable(target: ServerTarget, error: Exception) -> tuple[str, tuple[str, ...]]:
    """Why the server does not answer, and what to try."""
    server = f"{target.address} (from {target.origin})"
    reason = _reason(error)
    if type(error).__name__ == "SSLCertVerificationError":
        return f"the certificate of {server} is not trusted: {reason}", (
            " - give the control plane's CA with --ca-file; it keeps ca.pem in its data directory",
        )
    if isinstance(error, http.client.HTTPException) or type(error).__name__ == "SSLError":
        return f"{server} does not answer as {target.url.scheme}: {reason}", (
            f" - http is usually on port 5681, https on port {HTTPS_PORT}",
        )
    return f"cannot reach the control plane at {server}: {reason}", (
        " - start one with `koguma cp run`, or name another with --address, KOGUMA_ADDRESS or --context",
    )


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, socket.gaierror):
        return "the host name is not known"
    if type(error).__name__ == "SSLCertVerificationError":
        return str(getattr(error, "verify_message", error))
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def api_error(status: int, value: Json, request_id: str = "") -> ApiError:
    """The error in a response body, in Koguma's or Kuma's format."""
    if not isinstance(value, dict):
        first = str(value or "").strip().splitlines()[:1]
        return ApiError(
            status, f"the server answered {status}", first[0][:500] if first else "", (), request_id
        )
    fields = tuple(
        InvalidParameter(str(entry.get("field", "")), str(entry.get("reason", "")))
        for entry in value.get("invalid_parameters") or ()
    )
    instance = str(value.get("instance") or request_id)
    title, detail = str(value.get("title") or ""), str(value.get("detail") or value.get("reason") or "")
    return ApiError(status, title, detail, fields, instance)
