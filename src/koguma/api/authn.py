"""Authentication: from a request to a User, before anything of its body is read.

A bearer token wins. Without one, a request from this machine is the local admin's, but only if no web page
could have made it: the browser says nothing of another site, and the Host is ours (which stops DNS
rebinding). Everyone else is anonymous.
"""

import ipaddress
from collections.abc import Callable, Mapping
from functools import lru_cache
from urllib.parse import urlsplit

import msgspec

from koguma.api.user import ANONYMOUS, LOCAL_ADMIN, User
from koguma.model.errors import Unauthenticated

_PROXY_HEADERS = ("Forwarded", "X-Forwarded-For", "X-Real-IP")
_OWN_SITES = (None, "same-origin", "none")


class Authenticator(msgspec.Struct, frozen=True):
    """`verify` turns a token into its user, or raises Unauthenticated."""

    verify: Callable[[str], User]
    localhost_is_admin: bool = True

    def user(self, headers: Mapping[str, str], peer: str, scheme: str) -> User:
        """Who makes this request."""
        authorization = headers.get("Authorization")
        if authorization is not None:
            word, _, token = authorization.partition(" ")
            if word.lower() != "bearer" or not token:
                raise Unauthenticated('the Authorization header must be "Bearer <token>"')
            return self.verify(token.strip())
        if self.localhost_is_admin and is_local(headers, peer, scheme):
            return LOCAL_ADMIN
        return ANONYMOUS


def is_local(headers: Mapping[str, str], peer: str, scheme: str) -> bool:
    """Whether a person or program on this machine sent it, and no web page or proxy for somebody else."""
    if not is_loopback(peer) or any(name in headers for name in _PROXY_HEADERS):
        return False
    host = headers.get("Host", "")
    if not _is_own_host(host) or headers.get("Sec-Fetch-Site") not in _OWN_SITES:
        return False
    origin = headers.get("Origin")
    return origin is None or origin == f"{scheme}://{host}"


@lru_cache(maxsize=1024)
def is_loopback(address: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)


@lru_cache(maxsize=1024)
def _is_own_host(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name == "localhost" or is_loopback(name)
