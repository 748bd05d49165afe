"""Traffic: a request, and the connection on which it arrives at a listener."""

import re
from typing import Final

import msgspec

CONNECT: Final = "CONNECT"
METHOD_WORDS: Final = "must be a method such as GET: letters, digits and !#$%&'*+-.^_`|~"
# Those that Envoy takes over HTTP/1.1; over HTTP/2 any.
HTTP_1_METHODS: Final = frozenset(
    (
        *("ACL", "BIND", "CHECKOUT", "CONNECT", "COPY", "DELETE", "GET", "HEAD"),
        *("LINK", "LOCK", "MERGE", "MKACTIVITY", "MKCALENDAR", "MKCOL", "MOVE", "MSEARCH"),
        *("NOTIFY", "OPTIONS", "PATCH", "POST", "PROPFIND", "PROPPATCH", "PURGE", "PUT"),
        *("REBIND", "REPORT", "SEARCH", "SOURCE", "SUBSCRIBE", "TRACE", "UNBIND", "UNLINK"),
        *("UNLOCK", "UNSUBSCRIBE"),
    )
)
_FORWARDED_CERTIFICATE: Final = "x-forwarded-client-cert"
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, section 5.6.2


def is_method(text: str) -> bool:
    """Whether a text can be the method of a request: others never reach a proxy's routes."""
    return _TOKEN.fullmatch(text) is not None


class PeerIdentity(msgspec.Struct, frozen=True):
    """The certificate of one end of a connection."""

    uris: tuple[str, ...] = ()
    ca: str = ""  # the name of the secret with the CA that issued it


class ClientConnection(msgspec.Struct, frozen=True):
    """A connection as the listener sees it that accepts it."""

    address: str = ""  # of the listener
    port: int = 0
    is_tls: bool = False
    server_name: str = ""
    protocols: tuple[str, ...] = ()  # ALPN
    identity: PeerIdentity | None = None  # of the client, where it shows a certificate
    expected: tuple[str, ...] | None = (
        None  # URIs of which the client requires one in the server's certificate
    )
    trusted: str = ""  # the secret with the CA by which the client verifies the server


class SimulatedRequest(msgspec.Struct, frozen=True):
    """An HTTP request; names of headers are lower case, and the path has the query."""

    method: str = "GET"
    path: str = "/"
    host: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    scheme: str = ""  # as the first proxy sees it, which tells the others

    def header(self, name: str) -> str | None:
        """The value of a header, or of a pseudo header; several values are one text, as Envoy joins them."""
        match name:
            case ":method":
                return self.method
            case ":path":
                return self.path
            case ":authority" | "host":
                return self.host
            case ":scheme":
                return self.scheme or "http"
        values = [value for header, value in self.headers if header == name]
        return ",".join(values) if values else None

    def values(self, name: str) -> tuple[str, ...]:
        """The values of a header, each by itself."""
        values = tuple(value for header, value in self.headers if header == name)
        return values or ((joined,) if (joined := self.header(name)) is not None else ())

    @property
    def bare_path(self) -> str:
        """The path without query and fragment."""
        return self.path.partition("#")[0].partition("?")[0]

    @property
    def query(self) -> tuple[tuple[str, str], ...]:
        """The query parameters in order; Envoy compares them as they are written, without decoding."""
        text = self.path.partition("#")[0].partition("?")[2]
        pairs = (part.partition("=") for part in text.split("&") if part)
        return tuple((name, value) for name, _, value in pairs)

    @property
    def is_grpc(self) -> bool:
        """Whether its content type is that of gRPC."""
        kind = self.header("content-type") or ""
        return kind == "application/grpc" or kind.startswith("application/grpc+")

    def without(self, *names: str) -> "SimulatedRequest":
        """The request without some headers."""
        kept = tuple(pair for pair in self.headers if pair[0] not in names)
        return msgspec.structs.replace(self, headers=kept)

    def with_header(self, name: str, value: str) -> "SimulatedRequest":
        """The request with one more header."""
        return msgspec.structs.replace(self, headers=(*self.headers, (name, value)))

    def certified(self, identity: PeerIdentity | None) -> "SimulatedRequest":
        """The request with the header that tells services who calls; one of the caller is removed."""
        clean = self.without(_FORWARDED_CERTIFICATE)
        if identity is None:
            return clean
        return clean.with_header(_FORWARDED_CERTIFICATE, ";".join(f"URI={uri}" for uri in identity.uris))


class Undecidable(Exception):
    """Something decides that the simulation cannot judge; the text says what."""
