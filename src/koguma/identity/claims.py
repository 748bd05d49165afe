"""Claims of the four kinds of tokens.

A user token names a user of the API, a dataplane token binds a proxy, a zone token binds what a zone runs.
The names of their claims, Secrets and groups are Kuma's, so that its tokens and keys work here. The token of
a service account has the claims that Kubernetes gives it.
"""

from collections.abc import Mapping
from functools import cache
from typing import Final, Generic, TypeVar

import msgspec


class TokenClaims(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of every token: its id, and from when to when it is valid, in seconds since 1970."""

    jti: str = ""
    iat: float = 0
    nbf: float = 0
    exp: float = 0


class UserClaims(TokenClaims, frozen=True, kw_only=True, rename="pascal"):
    """A user of the API."""

    name: str
    groups: tuple[str, ...] = ()


class DataplaneClaims(TokenClaims, frozen=True, kw_only=True, rename="pascal"):
    """A proxy of a mesh; empty claims do not restrict it."""

    mesh: str
    name: str = ""
    tags: Mapping[str, tuple[str, ...]] = {}
    type: str = ""
    workload: str = ""


class ZoneClaims(TokenClaims, frozen=True, kw_only=True, rename="pascal"):
    """What a zone runs; an empty zone means any zone."""

    zone: str = ""
    scope: tuple[str, ...] = ()


class ClaimedObject(msgspec.Struct, frozen=True):
    """An object that a token is bound to; one of the same name with another uid is another one."""

    name: str
    uid: str


class ServiceAccountClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """The service account of a token, and the Secret that the token ends with, if it is bound to one."""

    namespace: str
    serviceaccount: ClaimedObject
    secret: ClaimedObject | None = None


class ServiceAccountClaims(TokenClaims, frozen=True, kw_only=True):
    """A service account, and for whom its token is."""

    aud: tuple[str, ...]
    iss: str = ""
    sub: str
    account: ServiceAccountClaim = msgspec.field(name="kubernetes.io")


C = TypeVar("C", bound=TokenClaims)


class Purpose(msgspec.Struct, Generic[C], frozen=True):
    """The purpose of a token, and the names of the Secrets that hold its keys.

    A token without all `required_claims` is not of this purpose.
    """

    name: str
    claims: type[C]
    required_claims: frozenset[str]
    is_per_mesh: bool = False

    @property
    def secret_kind(self) -> str:
        """The kind of the Secrets with keys and revocations."""
        return "Secret" if self.is_per_mesh else "GlobalSecret"

    @property
    def own_claims(self) -> frozenset[str]:
        """The claims of this purpose that other tokens do not have."""
        return claim_names(self.claims) - claim_names(TokenClaims)

    def key_name(self, serial: int, mesh: str = "") -> str:
        """The name of the Secret with the signing key of this serial."""
        return f"{self.key_prefix(mesh)}{serial}"

    def key_prefix(self, mesh: str = "", *, public: bool = False) -> str:
        """The prefix of the names of signing keys; a serial follows."""
        return f"{self.name}-token-signing-{'public-' if public else ''}key-{self._mesh_part(mesh)}"

    def revocations_name(self, mesh: str = "") -> str:
        """The name of the Secret with the revoked tokens."""
        return f"{self.name}-token-revocations-{self._mesh_part(mesh)}".removesuffix("-")

    def _mesh_part(self, mesh: str) -> str:
        assert bool(mesh) == self.is_per_mesh, f"a {self.name} token and mesh {mesh!r} do not go together"
        return f"{mesh}-" if mesh else ""


@cache
def claim_names(claims: type[TokenClaims]) -> frozenset[str]:
    """The names of claims in a token."""
    return frozenset(field.encode_name for field in msgspec.structs.fields(claims))


USER: Final = Purpose("user", UserClaims, required_claims=frozenset({"Name", "Groups"}))
DATAPLANE: Final = Purpose(
    "dataplane", DataplaneClaims, required_claims=frozenset({"Mesh"}), is_per_mesh=True
)
ZONE: Final = Purpose("zone", ZoneClaims, required_claims=frozenset({"Zone", "Scope"}))
SERVICE_ACCOUNT: Final = Purpose(
    "service-account", ServiceAccountClaims, required_claims=frozenset({"aud", "kubernetes.io", "sub"})
)

# Claims of which a token has those of one purpose only. Any token may have `aud`, `iss` and `sub` (RFC 7519).
PURPOSE_CLAIMS: Final = USER.own_claims | DATAPLANE.own_claims | ZONE.own_claims | {"kubernetes.io"}

ADMIN: Final = UserClaims(name="mesh-system:admin", groups=("mesh-system:admin",))
