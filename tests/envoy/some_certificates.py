"""Certificates for tests: a CA of its own, whoever it vouches for, and calls with such a certificate."""

import http.client
import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.envoy import real_envoy

TLS = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3."

Pair = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def certificate(uris: tuple[str, ...], issuer: Pair | None = None) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([] if issuer else [x509.NameAttribute(NameOID.COMMON_NAME, "ca")])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer[0].subject if issuer else name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if uris:
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(issuer[1] if issuer else key, hashes.SHA256()), key


def pem(pair: Pair) -> tuple[str, str]:
    key = pair[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pair[0].public_bytes(serialization.Encoding.PEM).decode(), key.decode()


def certificates(pair: Pair) -> dict[str, Any]:
    """A certificate as Envoy's CommonTlsContext has it."""
    own, key = pem(pair)
    chain = {"certificate_chain": {"inline_string": own}, "private_key": {"inline_string": key}}
    return {"tls_certificates": [chain]}


def socket_of(context: str, **fields: Any) -> dict[str, Any]:
    """A transport socket with an UpstreamTlsContext or a DownstreamTlsContext."""
    typed = {"@type": TLS + context, **fields}
    return {"transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": typed}}


def mutual(ca: Pair) -> dict[str, Any]:
    """The transport socket of an inbound that asks callers for a certificate of the CA."""
    common = {
        **certificates(certificate(("spiffe://default/backend",), ca)),
        "validation_context": {"trusted_ca": {"inline_string": pem(ca)[0]}},
    }
    return socket_of("DownstreamTlsContext", require_client_certificate=True, common_tls_context=common)


def call_as(
    caller: Pair, port: int, folder: Path, named: str = "it", path: str = "/", **headers: str
) -> real_envoy.Answer | None:
    """A call with a certificate; None where the connection was closed."""
    chain = folder / "caller.pem"
    chain.write_text("".join(pem(caller)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(chain)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname=named) as secured,
    ):
        connection = http.client.HTTPConnection("it")
        connection.sock = secured
        try:
            return real_envoy.call(port, path, headers=headers, connection=connection)
        except (http.client.RemoteDisconnected, ConnectionError, ssl.SSLError):
            return None
