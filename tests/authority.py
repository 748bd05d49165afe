"""A CA of somebody's own, and clients whose certificates it issues, for tests that speak mTLS themselves."""

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Authority:
    """A CA of somebody's own. All have one name, so that only their keys tell them apart."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name.from_rfc4514_string("CN=own CA")
        self.certificate = self._sign(
            self.key,
            self.name,
            lambda builder: (
                builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
                .add_extension(_usage(signs=True), critical=True)
                .add_extension(
                    x509.SubjectAlternativeName([x509.UniformResourceIdentifier("spiffe://default")]),
                    critical=False,
                )
            ),
        )

    def _sign(
        self,
        key: ec.EllipticCurvePrivateKey,
        name: x509.Name,
        finish: Callable[[x509.CertificateBuilder], x509.CertificateBuilder],
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
        )
        return finish(builder).sign(self.key, hashes.SHA256())

    @property
    def pem(self) -> tuple[str, str]:
        """Certificate and key."""
        return pem_of(self.certificate), pem_of(self.key)

    def client(self, uri: str, folder: Path, *more: str) -> ssl.SSLContext:
        """TLS of a client with these identities that trusts only this CA."""
        key = ec.generate_private_key(ec.SECP256R1())
        uris = x509.SubjectAlternativeName(
            [x509.UniformResourceIdentifier(identity) for identity in (uri, *more)]
        )
        usage = _usage(signs=False)  # without one, Envoy takes no certificate for that of a SPIFFE identity
        leaf = self._sign(
            key,
            x509.Name([]),
            lambda builder: builder.add_extension(uris, critical=True).add_extension(usage, critical=True),
        )
        file = folder / f"{len(list(folder.iterdir()))}.pem"
        file.write_text(pem_of(leaf) + pem_of(key))
        context = ssl.create_default_context(cadata=self.pem[0])
        context.load_cert_chain(file)
        return context

    def server(self, folder: Path, *names: str) -> ssl.SSLContext:
        """TLS of a server with a certificate for these names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
        leaf = self._sign(
            key, x509.Name([]), lambda builder: builder.add_extension(alternatives, critical=True)
        )
        file = folder / "server.pem"
        file.write_text(pem_of(leaf) + pem_of(key))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, signs: bool) -> x509.KeyUsage:
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    never = dict.fromkeys((*others, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(digital_signature=True, key_cert_sign=signs, crl_sign=signs, **never)


def pem_of(certificate_or_key: x509.Certificate | ec.EllipticCurvePrivateKey) -> str:
    encoding = serialization.Encoding.PEM
    if isinstance(certificate_or_key, x509.Certificate):
        return certificate_or_key.public_bytes(encoding).decode()
    form = serialization.PrivateFormat.PKCS8
    return certificate_or_key.private_bytes(encoding, form, serialization.NoEncryption()).decode()
