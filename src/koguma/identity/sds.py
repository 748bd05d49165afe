"""Secret discovery (SDS): the certificate of a proxy with mTLS, and the CAs of its mesh.

They are never inside a listener or cluster, so that they can change without draining connections.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from koguma.envoy import proto_json
from koguma.envoy.proto_json import Data
from koguma.identity.proxy_certificates import ProxyCertificate
from koguma.model.kri import ALL_MESHES, SecretName
from koguma.model.redacted import Redacted

_TRUST: Final = "mesh_ca:secret:"
ALL_TRUST: Final = f"{_TRUST}{ALL_MESHES}"  # the name of the Secret with the CAs of all meshes
_SPIFFE: Final = "envoy.tls.cert_validator.spiffe"
_SPIFFE_TYPE: Final = "envoy.extensions.transport_sockets.tls.v3.SPIFFECertValidatorConfig"


class SdsSecret(msgspec.Struct, frozen=True):
    """An Envoy Secret: with a key a TLS certificate, without one a validation context (CAs)."""

    name: str
    version: str
    pem: str
    key: Redacted | None = None

    def data(self) -> Data:
        """The Secret as plain Envoy data. It contains the key, so it is for the encoder only."""
        pem = {"inline_string": self.pem}
        if self.key is None:
            return {"name": self.name, "validation_context": {"trusted_ca": pem}}
        pair = {"certificate_chain": pem, "private_key": {"inline_string": self.key.reveal()}}
        return {"name": self.name, "tls_certificate": pair}


class TrustDomains(msgspec.Struct, frozen=True):
    """An Envoy Secret with the CAs of several meshes, each trusted for identities of its own mesh alone."""

    version: str
    bundles: tuple[tuple[str, str, str], ...]  # mesh, version and PEM of each

    @property
    def name(self) -> str:
        """The name of the Secret."""
        return ALL_TRUST

    def data(self) -> Data:
        """The Secret as plain Envoy data; the first URI of a certificate says whose CAs it needs."""
        domains = [{"name": mesh, "trust_bundle": {"inline_string": pem}} for mesh, _, pem in self.bundles]
        validator = proto_json.extension(_SPIFFE, _SPIFFE_TYPE, trust_domains=domains)
        return {"name": self.name, "validation_context": {"custom_validator_config": validator}}


def trust_domains(trusted: Iterable[tuple[str, SdsSecret]]) -> TrustDomains:
    """The CAs of several meshes as one Secret."""
    bundles = tuple(sorted((mesh, secret.version, secret.pem) for mesh, secret in trusted))
    texts = msgspec.json.encode([(mesh, version) for mesh, version, _ in bundles])
    return TrustDomains(hashlib.blake2b(texts, digest_size=12).hexdigest(), bundles)


class SdsSecrets(msgspec.Struct, frozen=True):
    """The Secrets of a proxy with mTLS; one is None as long as no CA can provide it."""

    trust: SdsSecret | None
    identity: SdsSecret | None = None
    leaf: ProxyCertificate | None = None

    def __iter__(self) -> Iterator[SdsSecret]:
        return iter([secret for secret in (self.trust, self.identity) if secret is not None])


def identity_name(mesh: str) -> str:
    """The name of the Secret with a proxy's certificate."""
    return str(SecretName("identity_cert", "secret", mesh))


def trust_name(mesh: str) -> str:
    """The name of the Secret with the CAs of a mesh."""
    return f"{_TRUST}{mesh}"


def trusted_mesh(name: str) -> str:
    """The mesh, or `ALL_MESHES`, whose CAs are in the Secret of that name; empty where it holds none."""
    return name.removeprefix(_TRUST) if name.startswith(_TRUST) else ""
