"""Authentication: from a request to a User, before anything of its body is read.

A bearer token wins. Without one, a request over the unix socket in the data directory, which only its owner
can open, is the local admin's. A loopback address proves nothing: every user of the machine has it, every web
page in a browser there, and every client of a proxy that runs there. Where the operator accepts it all the
same (`localhost_is_admin`), the request must not come from a web page (no foreign Origin, and the Host is
ours, which stops DNS rebinding) nor through a proxy. Everyone else is anonymous. With the right to, a user
impersonates another by Kubernetes' headers.
"""

import ipaddress
from collections.abc import Callable, Iterator, Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec
from multidict import MultiMapping

from koguma.access.authorizer import Attempt, Authorizer, denied
from koguma.access.user import (
    ANONYMOUS,
    AUTHENTICATED,
    KUBE_ANONYMOUS,
    KUBE_AUTHENTICATED,
    KUBE_UNAUTHENTICATED,
    LOCAL_ADMIN,
    UNAUTHENTICATED,
    User,
)
from koguma.model.errors import BadRequest, Forbidden, Unauthenticated
from koguma.model.short_keys import is_short, kept_if_short

# Headers that proxies add to forwarded requests. nginx adds none by default, so their absence proves nothing;
# that is why `localhost_is_admin` is off by default.
_PROXY_HEADERS: Final = frozenset(
    (
        *("via", "forwarded", "x-real-ip", "x-request-id", "x-client-ip", "x-cluster-client-ip"),
        *("true-client-ip", "cf-connecting-ip", "x-original-forwarded-for"),
    )
)
_PROXY_PREFIXES: Final = ("x-forwarded-", "x-envoy-")
_BROWSER_HEADERS: Final = ("Origin", "Sec-Fetch-Site")
UNIX_SOCKET: Final = "unix"  # the peer of a request that came over the unix socket in the data directory
_OWN_SITES: Final = (None, "same-origin", "none")
_IMPERSONATE: Final = "impersonate-"
_EXTRA: Final = "impersonate-extra-"
_SERVICE_ACCOUNT: Final = ("system", "serviceaccount")
_AUTHENTICATION: Final = "authentication.k8s.io"
_LOGIN_GROUPS: Final = frozenset((AUTHENTICATED, KUBE_AUTHENTICATED, UNAUTHENTICATED, KUBE_UNAUTHENTICATED))


class Authenticator(msgspec.Struct, frozen=True):
    """`verify` turns a token into its user, or raises Unauthenticated."""

    verify: Callable[[str], User]
    localhost_is_admin: bool = False

    def user(self, headers: Mapping[str, str], peer: str, scheme: str) -> User:
        """Who makes this request."""
        authorization = headers.get("Authorization")
        if authorization is not None:
            word, _, token = authorization.partition(" ")
            if word.lower() != "bearer" or not token:
                raise Unauthenticated('the Authorization header must be "Bearer <token>"')
            return self.verify(token.strip())
        is_admins = (
            _is_owner(headers)
            if peer == UNIX_SOCKET
            else self.localhost_is_admin and is_local(headers, peer, scheme)
        )
        return LOCAL_ADMIN if is_admins and not is_passed_on(headers) else ANONYMOUS


def is_passed_on(headers: Mapping[str, str]) -> bool:
    """Whether headers show that a proxy forwarded the request."""
    lowered = (name.lower().replace("_", "-") for name in headers)
    return any(name in _PROXY_HEADERS or name.startswith(_PROXY_PREFIXES) for name in lowered)


def _is_owner(headers: Mapping[str, str]) -> bool:
    """Whether a request over the unix socket is its owner's. A browser gets there only through a proxy."""
    return not any(name in headers for name in _BROWSER_HEADERS)


def is_local(headers: Mapping[str, str], peer: str, scheme: str) -> bool:
    """Whether a program on this machine sent it, and no web page of another site."""
    if not is_loopback(peer):
        return False
    host = headers.get("Host", "")
    if not _is_own_host(host) or headers.get("Sec-Fetch-Site") not in _OWN_SITES:
        return False
    origin = headers.get("Origin")
    return origin is None or origin == f"{scheme}://{host}"


@kept_if_short(maxsize=1024)
def is_loopback(address: str) -> bool:
    """Whether an address is a loopback address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)


@kept_if_short(maxsize=1024)
def _is_own_host(host: str) -> bool:
    if not is_short(host):  # urlsplit would keep it; no name of this machine is that long
        return False
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name == "localhost" or is_loopback(name)


class _Impersonation(msgspec.Struct, frozen=True):
    """The user that a request impersonates."""

    name: str
    groups: tuple[str, ...]
    uid: str
    extra: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def account(self) -> tuple[str, str] | None:
        """Namespace and name, where it is a service account."""
        parts = self.name.split(":")
        is_account = tuple(parts[:2]) == _SERVICE_ACCOUNT and len(parts) == 4 and all(parts)  # noqa: PLR2004 - the four words of such a name
        return (parts[2], parts[3]) if is_account else None

    def attempts(self) -> Iterator[Attempt]:
        """The rights that this needs: one for each part, as Kubernetes asks for them."""
        if self.account is not None:
            namespace, name = self.account
            yield Attempt("impersonate", "serviceaccounts", name, group="", namespace=namespace)
        else:
            yield Attempt("impersonate", "users", self.name, group="")
        for group in self.groups:
            yield Attempt("impersonate", "groups", group, group="")
        for key, values in self.extra:
            for value in values:
                yield Attempt("impersonate", "userextras", value, group=_AUTHENTICATION, subresource=key)
        if self.uid:
            yield Attempt("impersonate", "uids", self.uid, group=_AUTHENTICATION)

    def user(self) -> User:
        """The impersonated user, in the groups of the headers and in the one for (un)authenticated users."""
        groups = self.groups
        if not groups and self.account is not None:
            groups = ("system:serviceaccounts", f"system:serviceaccounts:{self.account[0]}")
        if _LOGIN_GROUPS.isdisjoint(groups):
            is_anonymous = self.name in (ANONYMOUS.name, KUBE_ANONYMOUS)
            groups = (*groups, UNAUTHENTICATED if is_anonymous else AUTHENTICATED)
        return User(self.name, groups, self.uid, self.extra)


def impersonated(user: User, headers: MultiMapping[str], access: Authorizer) -> User:
    """The user that the request acts as: `user`, or the one that its headers impersonate."""
    impersonation = (
        _impersonation(headers) if any(name[:12].lower() == _IMPERSONATE for name in headers) else None
    )
    if impersonation is None:
        return user
    for attempt in impersonation.attempts():
        if not access.allows(user, attempt):
            raise Forbidden(denied(user, attempt))
    return impersonation.user()


def _impersonation(headers: MultiMapping[str]) -> _Impersonation | None:
    _check_text(headers)
    name, groups = headers.get("Impersonate-User", ""), tuple(headers.getall("Impersonate-Group", ()))
    uid, extra = headers.get("Impersonate-Uid", ""), _extra(headers)
    if name:
        return _Impersonation(name, groups, uid, extra)
    if groups or uid or extra:
        raise BadRequest(
            "groups, a uid or extras are to be impersonated without a user; send Impersonate-User"
        )
    return None


def _check_text(headers: MultiMapping[str]) -> None:
    """Raise BadRequest where a header is no UTF-8: such a text can be neither answered nor logged."""
    for name, value in headers.items():
        if name[:12].lower() == _IMPERSONATE and not _is_utf8(name + value):
            raise BadRequest(f"the header {name.encode(errors='replace').decode()} must be UTF-8")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes that were none stand as surrogates
        return False
    return True


def _extra(headers: MultiMapping[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    values_by_key: dict[str, list[str]] = {}
    for name, value in headers.items():
        lowered = name.lower()
        if lowered.startswith(_EXTRA):
            values_by_key.setdefault(unquote(lowered.removeprefix(_EXTRA)), []).append(value)
    return tuple((key, tuple(values)) for key, values in sorted(values_by_key.items()))
