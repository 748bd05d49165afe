"""Client: requests to the control plane over the standard library's HTTP, which is quick to import.

An answer that is an error becomes Refused, with the fields that the server names; a server that does not
answer becomes Unreachable, with what to try. Redirects are not followed, so a token goes nowhere else.

On the control plane's own machine its owner comes over the socket in the data directory, if the control plane
that listens there is the one of the address.
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
from koguma.cli.failures import Failure, Field, Refused, Unreachable
from koguma.cli.target import HTTPS_PORT, Target
from koguma.runtime import data_directory

Json = Any
Query = Sequence[tuple[str, str]]

_CONNECT_SECONDS: Final = 10.0
_ANSWER_SECONDS: Final = 120.0
_WATCH_SECONDS: Final = 45.0  # the server sends a bookmark every 15
_PAGE_SIZE: Final = 1_000
_ERRORS_FROM: Final = 400
_GATEWAY_ERRORS: Final = (500, 502, 503, 504)  # a load balancer's words for the control plane behind it


class Answer(NamedTuple):
    """What the server said to a request; `value` is the JSON of the body, or its text."""

    status: int
    headers: http.client.HTTPMessage
    value: Json
    request: str
    target: Target

    @property
    def object(self) -> dict[str, Json]:
        """The JSON object that a control plane answers with."""
        if not isinstance(self.value, dict):
            raise self.stranger()
        return self.value

    def part(self, name: str) -> Json:
        """A part of the JSON object that every control plane's answer to this request has."""
        if name not in self.object:
            raise self.stranger()
        return self.object[name]

    def stranger(self) -> Refused:
        """The failure for an answer that no control plane gives: another server has the address."""
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
        return Refused(self.status, message, "", (Field("", hint),))

    @property
    def etag(self) -> str:
        """The version of the object in it."""
        return str(self.headers.get("ETag", ""))


class Client:
    """Talks to one server, over one connection at a time."""

    def __init__(
        self,
        target: Target,
        connect_seconds: float = _CONNECT_SECONDS,
        answer_seconds: float | None = None,
    ) -> None:
        self.target = target
        self._connect_seconds = connect_seconds
        self._answer_seconds = answer_seconds or _ANSWER_SECONDS
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Give the connection back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(self, path: str, query: Query = ()) -> Answer:
        """Read."""
        return self.send("GET", path, query)

    def send(
        self,
        method: str,
        path: str,
        query: Query = (),
        body: Json = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request; Refused where the answer is an error."""
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        typed = {"Content-Type": "application/json"} if content is not None else {}
        with self._trouble():
            response = self._request(method, path, query, content, {**typed, **(headers or {})})
            data = response.read()
        return self._answer(f"{method} {path}", response, data)

    def pages(self, path: str, query: Query = ()) -> Iterator[Json]:
        """The objects of a list, page by page."""
        offset = "0"
        while offset:
            sent = (*query, ("size", str(_PAGE_SIZE)), *([("offset", offset)] if offset != "0" else []))
            answer = self.get(path, sent)
            page = answer.object
            yield from answer.part("items")
            # Only the offset is taken from the link: its host may be one that is known inside a network.
            offset = parse_qs(urlsplit(page.get("next") or "").query).get("offset", [""])[0]

    def watch(self, path: str, query: Query = ()) -> Iterator[Json]:
        """Events of a list, until the connection ends."""
        with self._trouble(), contextlib.closing(self._opened(_WATCH_SECONDS)) as connection:
            response = self._request("GET", path, (*query, ("watch", "true")), None, {}, connection)
            if response.status >= _ERRORS_FROM:
                self._answer(f"GET {path}", response, response.read())
            while (line := response.readline()).endswith(b"\n"):  # half a line is a lost connection
                yield json.loads(line)

    def _request(
        self,
        method: str,
        path: str,
        query: Query,
        content: bytes | None,
        headers: Mapping[str, str],
        connection: http.client.HTTPConnection | None = None,
    ) -> http.client.HTTPResponse:
        connection = connection or self._connected()
        where = self.target.url.path + path + (f"?{urlencode(query)}" if query else "")
        connection.request(method, where, content, {**self._headers(), **headers})
        return connection.getresponse()

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": f"koguma/{__version__}"}
        token = self.target.token_now
        if token is not None:
            headers["Authorization"] = f"Bearer {token.reveal()}"
        return headers

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            self._connection = self._opened(self._answer_seconds)
        return self._connection

    def _opened(self, patience_seconds: float) -> http.client.HTTPConnection:
        if self.target.socket and self.target.token is None:
            local = self._opened_locally(patience_seconds)
            if local is not None:
                return local
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

    def _opened_locally(self, patience_seconds: float) -> http.client.HTTPConnection | None:
        """A connection over the socket in the data directory; None where the address is another server's."""
        connection = _LocalConnection(self.target, self._connect_seconds)
        try:
            connection.connect()
            if self.target.is_default or connection.port_of_api() == self.target.url.port:
                connection.sock.settimeout(patience_seconds)
                return connection
        except (OSError, ValueError, http.client.HTTPException):
            pass  # nobody listens there any more, or no control plane does
        connection.close()
        return None

    def _answer(self, request: str, response: http.client.HTTPResponse, data: bytes) -> Answer:
        text = data.decode("utf-8", "replace")
        value: Json = text
        if response.headers.get_content_type() == "application/json":
            with contextlib.suppress(ValueError):
                value = json.loads(text)
        answer = Answer(response.status, response.headers, value, request, self.target)
        if response.status >= _ERRORS_FROM:
            raise self._refusal(answer)
        return answer

    def _refusal(self, answer: Answer) -> Refused:
        """Why a request failed; a server that is no control plane says so in its own way, or in HTML."""
        request_id = answer.headers.get("Koguma-Request-Id", "")
        if request_id or isinstance(answer.value, dict) or answer.status in _GATEWAY_ERRORS:
            return refused(answer.status, answer.value, request_id)
        return self._kuma(answer) or answer.stranger()

    def _kuma(self, answer: Answer) -> Refused | None:
        """The failure where it is a Kuma control plane, which does not have all that Koguma has."""
        if answer.request == "GET /":
            return None
        asking = Client(self.target._replace(token=None))
        try:
            about = asking.get("/").object
        except Failure:
            return None
        finally:
            asking.close()
        if about.get("product") != "Kuma" and about.get("tagline") != "Kuma":
            return None
        message = (
            f"the server at {self.target.address} (from {self.target.origin}) is Kuma"
            f" {str(about.get('version', ''))[:40]}, not Koguma: it has no {answer.request}"
        )
        hint = "use kumactl for it, or name Koguma's control plane with --address or --context"
        return Refused(answer.status, message, "", (Field("", hint),))

    @contextlib.contextmanager
    def _trouble(self) -> Iterator[None]:
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable(*_trouble(self.target, error)) from None


class _LocalConnection(http.client.HTTPConnection):
    """HTTP over the socket in a data directory."""

    def __init__(self, target: Target, timeout_seconds: float) -> None:
        super().__init__(target.host, target.url.port, timeout=timeout_seconds)
        self._path, self._seconds = Path(target.socket), timeout_seconds

    def connect(self) -> None:
        """Connect to the socket instead of the address."""
        self.sock = data_directory.connected(self._path, self._seconds)

    def port_of_api(self) -> int | None:
        """The http port of the control plane that listens here."""
        self.request("GET", "/config")
        found = json.loads(self.getresponse().read())
        return found.get("apiPort") if isinstance(found, dict) else None


def _tls_context(target: Target) -> Any:
    import ssl  # noqa: PLC0415 - plain http on the same machine does not pay for it

    try:
        return ssl.create_default_context(cafile=target.ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise Unreachable(f"the CA file {target.ca_file} cannot be used: {error.strerror or error}") from None


def _trouble(target: Target, error: Exception) -> tuple[str, tuple[str, ...]]:
    """Why there is no answer, and what to try."""
    where = f"{target.address} (from {target.origin})"
    words = _words(error)
    if type(error).__name__ == "SSLCertVerificationError":
        return f"the certificate of {where} is not trusted: {words}", (
            " - give the control plane's CA with --ca-file; it keeps ca.pem in its data directory",
        )
    if isinstance(error, http.client.HTTPException) or type(error).__name__ == "SSLError":
        return f"{where} does not answer as {target.url.scheme}: {words}", (
            f" - http is usually on port 5681, https on port {HTTPS_PORT}",
        )
    return f"cannot reach the control plane at {where}: {words}", (
        " - start one with `koguma cp run`, or name another with --address, KOGUMA_ADDRESS or --context",
    )


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, socket.gaierror):
        return "the host name is not known"
    if type(error).__name__ == "SSLCertVerificationError":
        return str(getattr(error, "verify_message", error))
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def refused(status: int, value: Json, request_id: str = "") -> Refused:
    """The failure that an error body describes, whoever wrote it."""
    if not isinstance(value, dict):
        first = str(value or "").strip().splitlines()[:1]
        return Refused(
            status, f"the server answered {status}", first[0][:500] if first else "", (), request_id
        )
    fields = tuple(
        Field(str(entry.get("field", "")), str(entry.get("reason", "")))
        for entry in value.get("invalid_parameters") or ()
    )
    instance = str(value.get("instance") or request_id)
    title, detail = str(value.get("title") or ""), str(value.get("detail") or value.get("reason") or "")
    return Refused(status, title, detail, fields, instance)
