"""Real servers on loopback, and one Envoy that calls them: what an external service meets."""

import contextlib
import http.client
import ipaddress
import json
import socket
import ssl
import subprocess
import threading
import time
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

SECONDS = 60
_WHY = "x-why"


class Pair(NamedTuple):
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def key_pem(self) -> str:
        form, secrecy = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return self.key.private_bytes(serialization.Encoding.PEM, form, secrecy).decode()


def made(
    name: str, names: tuple[str, ...] = (), authority: Pair | None = None, *, is_expired: bool = False
) -> Pair:
    """A certificate for some names; without an authority it is one itself."""
    now, key = datetime.now(UTC), ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder(subject_name=subject, public_key=key.public_key())
        .issuer_name(authority.certificate.subject if authority else subject)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(minutes=-1 if is_expired else 60 * 24))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
    )
    if names:
        sans = x509.SubjectAlternativeName([_general(each) for each in names])
        builder = builder.add_extension(sans, critical=False)
    return Pair(builder.sign(authority.key if authority else key, hashes.SHA256()), key)


def _general(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(name))
    return x509.DNSName(name)


AUTHORITY, STRANGER = made("authority"), made("stranger")


class Serving(NamedTuple):
    """What a server is; without names it speaks no TLS."""

    names: tuple[str, ...] = ()
    authority: Pair = AUTHORITY
    asks: bool = False  # for a certificate
    version: ssl.TLSVersion | None = None  # the only one
    is_unix: bool = False


class Server:
    """Answers every request with what it saw of the caller."""

    def __init__(self, directory: Path, name: str, serving: Serving) -> None:
        self._name, self._asked = name, None
        self._context = self._made(directory / f"{name}.pem", serving) if serving.names else None
        path = directory / f"{name}.sock"
        self._socket = socket.socket(socket.AF_UNIX if serving.is_unix else socket.AF_INET)
        self._socket.bind(str(path) if serving.is_unix else ("127.0.0.1", 0))
        self._socket.listen()
        self.address = f"unix://{path}" if serving.is_unix else "127.0.0.1"
        self.port = None if serving.is_unix else self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _made(self, file: Path, serving: Serving) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        pair = made(self._name, serving.names, serving.authority)
        file.write_text(pair.pem + pair.key_pem)
        context.load_cert_chain(file)
        context.sni_callback = self._remember
        context.set_alpn_protocols(["h2", "http/1.1"])
        if serving.asks:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=AUTHORITY.pem)
        if serving.version:
            with warnings.catch_warnings(action="ignore"):  # Python calls the old ones deprecated
                context.minimum_version = context.maximum_version = serving.version
            context.set_ciphers("ALL:@SECLEVEL=0")
        return context

    def _remember(self, _socket, name, _context) -> None:
        self._asked = name

    def _serve(self) -> None:
        while True:
            try:
                plain, _ = self._socket.accept()
            except OSError:
                return  # closed
            with contextlib.suppress(OSError), plain:
                plain.settimeout(SECONDS)
                self._answer(plain)

    def _answer(self, plain: socket.socket) -> None:
        if self._context is None:
            self._say(plain, {})
            return
        self._asked = None
        with self._context.wrap_socket(plain, server_side=True) as secure:
            client = dict(part[0] for part in (secure.getpeercert() or {}).get("subject", ()))
            seen = {"sni": self._asked, "client": client.get("commonName"), "version": secure.version()}
            spoken = secure.selected_alpn_protocol()
            say = self._say_over_http2 if spoken == "h2" else self._say
            say(secure, {**seen, "alpn": spoken})

    def _say(self, connection: socket.socket, seen: dict[str, Any]) -> None:
        lines = connection.recv(65536).decode().split("\r\n")
        hosts = [line.removeprefix("host: ") for line in lines if line.startswith("host: ")]
        body = json.dumps({"server": self._name, "host": hosts[0], **seen})
        head = f"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall((head + body).encode())

    def _say_over_http2(self, connection: socket.socket, seen: dict[str, Any]) -> None:
        """As little of HTTP/2 as one answer needs: settings, 200, body, as soon as the request is there."""
        stream = connection.makefile("rb")
        stream.read(len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
        while (head := stream.read(9)) and head[3] != _HEADERS:
            stream.read(int.from_bytes(head[:3]))
        body = json.dumps({"server": self._name, **seen}).encode()
        frames = (_frame(_SETTINGS, 0, 0), _frame(_HEADERS, 4, 1, b"\x88"), _frame(_DATA, 1, 1, body))
        connection.sendall(b"".join(frames))
        stream.read()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(SECONDS)


_DATA, _HEADERS, _SETTINGS = 0, 1, 4


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


class Envoy:
    """An Envoy that calls clusters; each is called by its name in the path."""

    def __init__(
        self, binary: Path, directory: Path, clusters: Mapping[str, Any], secrets: list[Any]
    ) -> None:
        self._directory = directory
        file = directory / "envoy.json"
        file.write_text(json.dumps(_bootstrap(directory, clusters, secrets)))
        self._log = (directory / "envoy.log").open("w+")
        self._process = subprocess.Popen(
            [str(binary), "-c", str(file), "--concurrency", "1", "--disable-hot-restart", "-l", "warning"],
            stdout=self._log,
            stderr=self._log,
        )

    def wait(self) -> None:
        """Until it serves."""
        ends = time.monotonic() + SECONDS
        while time.monotonic() < ends and self._process.poll() is None:
            with contextlib.suppress(OSError):
                if self._fetched("admin.sock", "/ready")[0] == http.HTTPStatus.OK:
                    return
            time.sleep(0.02)
        raise AssertionError((self._directory / "envoy.log").read_text())

    def call(self, name: str) -> tuple[int, Any]:
        """The status, and what the server saw, or else why Envoy did not get there."""
        status, body, why = self._fetched("in.sock", f"/{name}/")
        return status, json.loads(body) if status == http.HTTPStatus.OK else why

    def _fetched(self, door: str, target: str) -> tuple[int, bytes, str]:
        connection = http.client.HTTPConnection("caller", timeout=SECONDS)
        with contextlib.closing(connection):
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(SECONDS)
            connection.sock.connect(str(self._directory / door))
            connection.request("GET", target)
            response = connection.getresponse()
            return response.status, response.read(), response.getheader(_WHY, "")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(SECONDS)
        self._log.close()


def _bootstrap(directory: Path, clusters: Mapping[str, Any], secrets: list[Any]) -> Any:
    routes = [
        {"match": {"prefix": f"/{name}/"}, "route": {"cluster": data["name"], "auto_host_rewrite": True}}
        for name, data in clusters.items()
    ]
    why = {"header": {"key": _WHY, "value": "%UPSTREAM_TRANSPORT_FAILURE_REASON%"}}
    everything = {"name": "all", "domains": ["*"], "routes": routes, "response_headers_to_add": [why]}
    router = {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network"
        ".http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "route_config": {"virtual_hosts": [everything]},
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": router}],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    return {
        "admin": {"address": {"pipe": {"path": str(directory / "admin.sock")}}},
        "static_resources": {
            "listeners": [
                {
                    "name": "in",
                    "address": {"pipe": {"path": str(directory / "in.sock")}},
                    "filter_chains": [chain],
                }
            ],
            "clusters": _beside(list(clusters.values())),
            "secrets": secrets,
        },
    }


def _beside(data: Any) -> Any:
    """Secrets stand in the same file, since nobody serves them here."""
    if isinstance(data, dict):
        return {name: _beside(value) for name, value in data.items() if name != "sds_config"}
    return [_beside(each) for each in data] if isinstance(data, list) else data
