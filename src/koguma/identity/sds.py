"""Secret discovery (SDS): the certificate of a proxy with mTLS, and the CAs of its mesh.

They are never inside a listener or cluster, so that they can change without draining connections.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from koguma.envoy.proto_json import Data
from koguma.identity.proxy_certificates import ProxyCertificate
from koguma.model.kri import SecretName
from koguma.model.redacted import Redacted

_TRUST: Final = "mesh_ca:secret:"


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
    """The mesh whose CAs are in the Secret of that name; empty where it holds something else."""
    return name.removeprefix(_TRUST) if name.startswith(_TRUST) else ""
