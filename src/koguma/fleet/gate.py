"""Proxy gate: whether a token is good for a proxy, for the object that it brings and for the stored one.

Everything that admits proxies asks here: the bootstrap, xDS in both forms, and health discovery. A proxy of a
mesh has a Dataplane and a dataplane token, a zone proxy a ZoneEgress and a zone token. An object that an
operator wrote never becomes the proxy's: a proxy that brings another one under its name is refused, and one
that brings the same is admitted while the stored object stays as it is.
"""

import hashlib
from collections.abc import Callable
from datetime import datetime
from typing import Final

from koguma.access.token_keys import TokenKeys
from koguma.application import transactions
from koguma.application.context import Context, mesh_key
from koguma.core import admission
from koguma.identity import dataplane_auth, proxy_types, token_advice, tokens, zone_auth
from koguma.identity.claims import DATAPLANE, ZONE, DataplaneClaims, ZoneClaims
from koguma.identity.proxy_types import ProxyType
from koguma.identity.tokens import VerifiedToken
from koguma.model import labels
from koguma.model.errors import Forbidden, Invalid, Unauthenticated
from koguma.model.forms import Draft
from koguma.model.resource import Key, Resource
from koguma.model.violation import Violation

PROXY: Final = "proxy"
_AUTHENTICATED_MAX: Final = 1024

ProxyClaims = DataplaneClaims | ZoneClaims
ProxyToken = VerifiedToken[DataplaneClaims] | VerifiedToken[ZoneClaims]


class ProxyGate:
    """Decides which proxies may connect."""

    def __init__(
        self,
        context: Context,
        keys: TokenKeys,
        clock: Callable[[], datetime],
        *,
        identity_from_token: bool = True,
    ) -> None:
        self._context = context
        self._identity_from_token = identity_from_token
        self._keys = keys
        self._clock = clock
        # Tokens that were verified when their connection began, by hash, until the proxy behind it is known.
        self._authenticated: dict[bytes, VerifiedToken[DataplaneClaims]] = {}

    def authenticate(self, token: str) -> None:
        """Raise Unauthenticated unless a token is valid in the mesh that it names itself, or in a zone.

        That needs nothing else of a message, so it is asked before anything of one is read.
        """
        bare = dataplane_auth.without_bearer(token)
        claimed = token_advice.unverified(bare)
        if claimed is not None and claimed.purpose is ZONE:
            tokens.verify(self._keys.ring(ZONE), bare, self._clock())
            return
        mesh = claimed.mesh if claimed else ""
        if not mesh or self._context.state.get(mesh_key(mesh)) is None:
            raise Unauthenticated("the token is no dataplane token of a mesh that is here, and no zone token")
        self._authenticated[_digest(bare)] = tokens.verified_token(
            self._keys.ring(DATAPLANE, mesh), bare, self._clock()
        )
        if len(self._authenticated) > _AUTHENTICATED_MAX:
            del self._authenticated[next(iter(self._authenticated))]

    def presented(self, mesh: str, token: str) -> VerifiedToken[DataplaneClaims]:
        """A valid token of a mesh, to be verified again later; Unauthenticated where it does not hold."""
        ring, bare, now = (
            self._keys.ring(DATAPLANE, mesh),
            dataplane_auth.without_bearer(token),
            self._clock(),
        )
        verified = self._authenticated.pop(_digest(bare), None)
        if verified is not None and verified.holds(ring, now):
            return verified
        return dataplane_auth.verified_token(ring, bare, now)

    def presented_by(self, proxy_type: ProxyType, mesh: str, token: str) -> ProxyToken:
        """A valid token of a proxy of this type; Unauthenticated where it does not hold."""
        if not proxy_type.is_of_zone:
            return self.presented(mesh, token)
        ring = self._keys.ring(ZONE)
        return zone_auth.verified_token(ring, dataplane_auth.without_bearer(token), self._clock())

    def check_name(self, claims: ProxyClaims, proxy_type: ProxyType, mesh: str, name: str) -> None:
        """Raise unless a token is for a proxy of this type and name; asked before its object is known."""
        if isinstance(claims, ZoneClaims):
            zone_auth.check(claims, proxy_type.scope, self._context.control_plane.zone)
        else:
            dataplane_auth.check_name(claims, mesh, name)

    def admission(self, token: ProxyToken, proxy: Resource) -> "ProxyAdmission":
        """The right by which a proxy is connected."""
        return ProxyAdmission(self, token, proxy)

    def check_token(self, token: ProxyToken) -> None:
        """Raise Unauthenticated once a token no longer holds."""
        if isinstance(token.claims, ZoneClaims):
            token.check(self._keys.ring(ZONE), self._clock())
        else:
            token.check(self._keys.ring(DATAPLANE, token.claims.mesh), self._clock())

    def stored_now(self, key: Key) -> Resource | None:
        """The object of a proxy as it is stored now."""
        return self._context.state.get(key)

    def check_claims(self, claims: ProxyClaims, proxy: Resource) -> None:
        """Raise Forbidden or Unauthenticated unless all claims are true of a proxy's object."""
        if isinstance(claims, ZoneClaims):
            zone_auth.check(claims, proxy_types.BY_KIND[proxy.kind].scope, proxy.zone)
        else:
            dataplane_auth.check_resource(claims, proxy)

    def check_stored(self, claims: ProxyClaims, proxy: Resource) -> None:
        """Raise Forbidden or Unauthenticated unless a token is good for a proxy whose object is stored."""
        self.check_claims(claims, proxy)
        if is_registered(proxy):
            self._check_identity(claims, proxy)

    def _check_identity(self, claims: ProxyClaims, proxy: Resource) -> None:
        if isinstance(claims, DataplaneClaims) and self._identity_from_token:
            dataplane_auth.check_identity(claims, proxy)

    def check_brought(self, claims: ProxyClaims, brought: Resource, stored: Resource | None) -> None:
        """Raise unless a token is good for the object that a proxy brings, and for what it replaces."""
        self.check_claims(claims, brought)
        self._check_identity(claims, brought)
        if stored is None:
            return
        try:
            self.check_stored(claims, stored)
        except Forbidden as error:
            raise Forbidden(_not_for_stored(error, stored)) from error

    def identity_tags(self, claims: ProxyClaims, proxy: Resource) -> frozenset[str] | None:
        """The tags that may stand in a proxy's certificate; None: all that it has."""
        if isinstance(claims, ZoneClaims) or not self._identity_from_token or not is_registered(proxy):
            return None
        return frozenset(claims.tags)

    def stored(self, draft: Draft) -> Resource | None:
        """The object that is stored under the name of one that a proxy brings."""
        return transactions.replaced_object(self._context, draft)

    def check_restated(self, draft: Draft, stored: Resource) -> None:
        """Raise Invalid unless a proxy brings what an operator wrote, and nothing else."""
        if not admission.is_restated(draft, stored, self._context.control_plane):
            raise Invalid([Violation("name", _not_the_operators(stored), "operator")])


class ProxyAdmission:
    """The right by which one proxy is connected: a token that holds and is good for its object.

    A stream stays open for months, so what was checked when it began is checked again.
    """

    __slots__ = ("_gate", "_proxy", "_token")

    def __init__(self, gate: ProxyGate, token: ProxyToken, proxy: Resource) -> None:
        self._gate = gate
        self._token = token
        self._proxy = proxy  # for which it was valid last

    @property
    def claims(self) -> ProxyClaims:
        """The claims of the token."""
        return self._token.claims

    def check(self) -> None:
        """Raise Unauthenticated or Forbidden once the proxy may not stay."""
        self._gate.check_token(self._token)
        now = self._gate.stored_now(self._proxy.key)
        if now is not None and now is not self._proxy:
            self._gate.check_stored(self.claims, now)
            self._proxy = now


def is_registered(resource: Resource) -> bool:
    """Whether a proxy brought this object; one that an operator wrote has no such label."""
    return resource.labels.get(labels.REGISTERED_BY) == PROXY


def _not_the_operators(stored: Resource) -> str:
    name = stored.core_name
    return (
        f"an operator wrote {_shown(stored)}, and the proxy brings another one under"
        f" its name; start the proxy with --name {name} alone, so that it takes the stored one, or give it a"
        f" name of its own, or delete the stored one: {_deletion(stored)}"
    )


def _not_for_stored(error: Forbidden, stored: Resource) -> str:
    where = f'the {stored.kind} "{stored.core_name}" that is stored'
    what = f'{where} in mesh "{stored.mesh}" belongs' if stored.mesh else f"{where} belongs"
    return (
        f"{what} to another: {error.detail}; give the proxy a name of its own, or a token that is good for"
        f" both. What a proxy that has gone left behind is deleted with: {_deletion(stored)}"
    )


def _shown(stored: Resource) -> str:
    mesh = f' of mesh "{stored.mesh}"' if stored.mesh else ""
    return f'the {stored.kind} "{stored.core_name}"{mesh}'


def _deletion(stored: Resource) -> str:
    mesh = f" -m {stored.mesh}" if stored.mesh else ""
    return f"koguma delete {stored.kind.lower()} {stored.core_name}{mesh}"


def _digest(token: str) -> bytes:
    return hashlib.blake2b(token.encode(errors="surrogatepass"), digest_size=32).digest()
