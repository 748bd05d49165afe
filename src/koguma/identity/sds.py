"""SDS: what a proxy with mTLS gets as secrets, its own certificate and the CAs of its mesh.

They never come inside a listener or cluster, so that they change without touching a connection.
"""

from collections.abc import Iterator

import msgspec

from koguma.envoy.proto_json import Data
from koguma.identity.leaves import Leaf
from koguma.model.kri import SecretName
from koguma.model.redacted import Redacted


class Secret(msgspec.Struct, frozen=True):
    """What a proxy gets under one name: with a key it is a certificate, without one it is CAs."""

    name: str
    version: str
    pem: str
    key: Redacted | None = None

    def data(self) -> Data:
        """The secret as plain Envoy data; it shows the key, so it is for the encoder alone."""
        pem = {"inline_string": self.pem}
        if self.key is None:
            return {"name": self.name, "validation_context": {"trusted_ca": pem}}
        pair = {"certificate_chain": pem, "private_key": {"inline_string": self.key.reveal()}}
        return {"name": self.name, "tls_certificate": pair}


class Secrets(msgspec.Struct, frozen=True):
    """What a proxy of a mesh with mTLS gets; a part is None as long as no CA can give it."""

    trust: Secret | None
    identity: Secret | None = None
    leaf: Leaf | None = None

    def __iter__(self) -> Iterator[Secret]:
        return iter([each for each in (self.trust, self.identity) if each is not None])


def identity_name(mesh: str) -> str:
    """The name under which a proxy gets its certificate."""
    return str(SecretName("identity_cert", "secret", mesh))


def trust_name(mesh: str) -> str:
    """The name under which a proxy gets the CAs of its mesh."""
    return str(SecretName("mesh_ca", "secret", mesh))
