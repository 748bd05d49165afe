"""Proxy gate: whether a token is good for a proxy, for the Dataplane that it brings and for the stored one.

Everything that admits proxies asks here: the bootstrap, xDS in both forms, and health discovery. A Dataplane
that an operator wrote never becomes the proxy's: a proxy that brings another one under its name is refused,
and one that brings the same is admitted while the stored object stays as it is.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from koguma.access.token_keys import TokenKeys
from koguma.application import transactions
from koguma.application.context import Context, mesh_key
from koguma.core import admission
from koguma.identity import dataplane_auth, token_advice, tokens
from koguma.identity.claims import DATAPLANE, DataplaneClaims
from koguma.identity.tokens import VerifiedToken
from koguma.model import labels
from koguma.model.errors import Forbidden, Invalid, Unauthenticated
from koguma.model.forms import Draft
from koguma.model.resource import Key, Resource
from koguma.model.violation import Violation

PROXY: Final = "proxy"


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

    def authenticate(self, token: str) -> None:
        """Raise Unauthenticated unless a token is valid in the mesh that it names itself.

        That needs nothing else of a message, so it is asked before anything of one is read.
        """
        bare = dataplane_auth.without_bearer(token)
        claimed = token_advice.unverified(bare)
        mesh = claimed.mesh if claimed else ""
        if not mesh or self._context.state.get(mesh_key(mesh)) is None:
            raise Unauthenticated("the token is no dataplane token of a mesh that is here")
        tokens.verify(self._keys.ring(DATAPLANE, mesh), bare, self._clock())

    def claims(self, mesh: str, token: str) -> DataplaneClaims:
        """What a valid token of a mesh says; Unauthenticated with the next step where it does not hold."""
        return self.presented(mesh, token).claims

    def presented(self, mesh: str, token: str) -> VerifiedToken[DataplaneClaims]:
        """A valid token of a mesh, to be verified again later; Unauthenticated where it does not hold."""
        ring = self._keys.ring(DATAPLANE, mesh)
        return dataplane_auth.verified_token(ring, dataplane_auth.without_bearer(token), self._clock())

    def admission(self, token: VerifiedToken[DataplaneClaims], proxy: Resource) -> "ProxyAdmission":
        """The right by which a proxy is connected."""
        return ProxyAdmission(self, token, proxy)

    def check_token(self, token: VerifiedToken[DataplaneClaims]) -> None:
        """Raise Unauthenticated once a token no longer holds."""
        token.check(self._keys.ring(DATAPLANE, token.claims.mesh), self._clock())

    def stored_dataplane(self, key: Key) -> Resource | None:
        """The Dataplane that is stored now."""
        return self._context.state.get(key)

    def check_stored(self, claims: DataplaneClaims, proxy: Resource) -> None:
        """Raise Forbidden or Unauthenticated unless a token is good for a Dataplane that is stored."""
        dataplane_auth.check_resource(claims, proxy)
        if self._identity_from_token and is_registered(proxy):
            dataplane_auth.check_identity(claims, proxy)

    def check_brought(self, claims: DataplaneClaims, brought: Resource, stored: Resource | None) -> None:
        """Raise unless a token is good for the Dataplane that a proxy brings, and for what it replaces."""
        dataplane_auth.check_resource(claims, brought)
        if self._identity_from_token:
            dataplane_auth.check_identity(claims, brought)
        if stored is None:
            return
        try:
            self.check_stored(claims, stored)
        except Forbidden as error:
            raise Forbidden(_not_for_stored(error, stored)) from error

    def identity_tags(self, claims: DataplaneClaims, proxy: Resource) -> frozenset[str] | None:
        """The tags that may stand in a proxy's certificate; None: all that its Dataplane has."""
        if not self._identity_from_token or not is_registered(proxy):
            return None
        return frozenset(claims.tags)

    def stored(self, draft: Draft) -> Resource | None:
        """The Dataplane that is stored under the name of one that a proxy brings."""
        return transactions.replaced_object(self._context, draft)

    def check_restated(self, draft: Draft, stored: Resource) -> None:
        """Raise Invalid unless a proxy brings what an operator wrote, and nothing else."""
        if not admission.is_restated(draft, stored, self._context.control_plane):
            raise Invalid([Violation("name", _not_the_operators(stored), "operator")])


class ProxyAdmission:
    """The right by which one proxy is connected: a token that holds and is good for its Dataplane.

    A stream stays open for months, so what was checked when it began is checked again.
    """

    __slots__ = ("_gate", "_proxy", "_token")

    def __init__(self, gate: ProxyGate, token: VerifiedToken[DataplaneClaims], proxy: Resource) -> None:
        self._gate = gate
        self._token = token
        self._proxy = proxy  # for which it was valid last

    @property
    def claims(self) -> DataplaneClaims:
        """The claims of the token."""
        return self._token.claims

    def check(self) -> None:
        """Raise Unauthenticated or Forbidden once the proxy may not stay."""
        self._gate.check_token(self._token)
        now = self._gate.stored_dataplane(self._proxy.key)
        if now is not None and now is not self._proxy:
            self._gate.check_stored(self.claims, now)
            self._proxy = now


def is_registered(resource: Resource) -> bool:
    """Whether a proxy brought this Dataplane; one that an operator wrote has no such label."""
    return resource.labels.get(labels.REGISTERED_BY) == PROXY


def _not_the_operators(stored: Resource) -> str:
    name, mesh = stored.core_name, stored.mesh
    return (
        f'an operator wrote the Dataplane "{name}" of mesh "{mesh}", and the proxy brings another one under'
        f" its name; start the proxy with --name {name} alone, so that it takes the stored one, or give it a"
        f" name of its own, or delete the stored one: koguma delete dataplane {name} -m {mesh}"
    )


def _not_for_stored(error: Forbidden, stored: Resource) -> str:
    name, mesh = stored.core_name, stored.mesh
    what = f'the Dataplane "{name}" that is stored in mesh "{mesh}" belongs to another'
    return (
        f"{what}: {error.detail}; give the proxy a name of its own, or a token that is good for both."
        f" What a proxy that has gone left behind is deleted with: koguma delete dataplane {name} -m {mesh}"
    )
