"""Claims: what a token says about its bearer, for each of the three purposes of a token.

A user token names a person or a machine that talks to the API, a dataplane token binds a proxy, a zone
token binds what a zone runs. Names of claims, secrets and groups are Kuma's, so that its tokens and
keys keep working here.
"""

from collections.abc import Mapping
from functools import cache
from typing import Final, Generic, TypeVar

import msgspec


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """What every token says: its own id, and from when to when it holds, in seconds since 1970."""

    jti: str = ""
    iat: float = 0
    nbf: float = 0
    exp: float = 0


class UserClaims(Claims, frozen=True, kw_only=True, rename="pascal"):
    """A user of the API."""

    name: str
    groups: tuple[str, ...] = ()


class DataplaneClaims(Claims, frozen=True, kw_only=True, rename="pascal"):
    """A proxy of a mesh; what is empty is not bound."""

    mesh: str
    name: str = ""
    tags: Mapping[str, tuple[str, ...]] = {}
    type: str = ""
    workload: str = ""


class ZoneClaims(Claims, frozen=True, kw_only=True, rename="pascal"):
    """What a zone runs; an empty zone stands for any."""

    zone: str = ""
    scope: tuple[str, ...] = ()


C = TypeVar("C", bound=Claims)


class Purpose(msgspec.Struct, Generic[C], frozen=True):
    """What a kind of token is for, and the names of the secrets behind it.

    `needs` are the claims without which a token is not of this purpose.
    """

    word: str
    claims: type[C]
    needs: frozenset[str]
    is_meshed: bool = False

    @property
    def secret_kind(self) -> str:
        """The kind of the secrets that hold keys and revocations."""
        return "Secret" if self.is_meshed else "GlobalSecret"

    @property
    def own_claims(self) -> frozenset[str]:
        """The claims that this purpose has beside those of every token."""
        return claim_names(self.claims) - claim_names(Claims)

    def key_name(self, serial: int, mesh: str = "") -> str:
        """The name of the secret that holds the signing key with this serial."""
        return f"{self.key_prefix(mesh)}{serial}"

    def key_prefix(self, mesh: str = "", *, public: bool = False) -> str:
        """What names of signing keys begin with; a serial follows."""
        return f"{self.word}-token-signing-{'public-' if public else ''}key-{self._of(mesh)}"

    def revocations_name(self, mesh: str = "") -> str:
        """The name of the secret that lists revoked tokens."""
        return f"{self.word}-token-revocations-{self._of(mesh)}".removesuffix("-")

    def _of(self, mesh: str) -> str:
        assert bool(mesh) == self.is_meshed, f"a {self.word} token and mesh {mesh!r} do not go together"
        return f"{mesh}-" if mesh else ""


@cache
def claim_names(claims: type[Claims]) -> frozenset[str]:
    """The names of a type's claims as they stand in a token."""
    return frozenset(field.encode_name for field in msgspec.structs.fields(claims))


USER: Final = Purpose("user", UserClaims, needs=frozenset({"Name", "Groups"}))
DATAPLANE: Final = Purpose("dataplane", DataplaneClaims, needs=frozenset({"Mesh"}), is_meshed=True)
ZONE: Final = Purpose("zone", ZoneClaims, needs=frozenset({"Zone", "Scope"}))

PURPOSE_CLAIMS: Final = USER.own_claims | DATAPLANE.own_claims | ZONE.own_claims

ADMIN: Final = UserClaims(name="mesh-system:admin", groups=("mesh-system:admin",))
