"""Peer tokens: by which control planes of one store know each other.

They are signed with a key that all of them have out of the store, name the one that asks and the one that is
asked, and are valid for half a minute.
"""

from datetime import datetime
from typing import Any, Final

import jwt

from koguma.model.errors import Unauthenticated
from koguma.model.redacted import Redacted

VALID_SECONDS: Final = 30
LEEWAY_SECONDS: Final = 30  # the clocks of control planes differ
TOKEN_BYTES_MAX: Final = 2048
_ALGORITHM: Final = "HS256"
_REQUIRED: Final = ("iss", "aud", "exp", "iat")


def issue(key: Redacted, asking: str, asked: str, now: datetime) -> Redacted:
    """A token with which one control plane asks another."""
    at = int(now.timestamp())
    claims = {"iss": asking, "aud": asked, "iat": at, "exp": at + VALID_SECONDS}
    return Redacted(jwt.encode(claims, key.reveal(), algorithm=_ALGORITHM))


def asking(key: Redacted, token: str, asked: str, now: datetime) -> str:
    """The control plane that asks `asked` with a token; Unauthenticated where the token is not valid."""
    if len(token) > TOKEN_BYTES_MAX:
        raise Unauthenticated("the token is too long")
    # The times are compared here, with a clock that is an argument.
    options: Any = {"require": list(_REQUIRED), "verify_exp": False, "verify_iat": False}
    try:
        claims = jwt.decode(token, key.reveal(), algorithms=[_ALGORITHM], audience=asked, options=options)
        issued_at, ends_at = float(claims["iat"]), float(claims["exp"])
    except (jwt.PyJWTError, TypeError, ValueError) as error:
        raise Unauthenticated(
            "the token is not one of a control plane of this store, for this one"
        ) from error
    at = now.timestamp()
    if not issued_at - LEEWAY_SECONDS <= at < ends_at + LEEWAY_SECONDS or ends_at - issued_at > VALID_SECONDS:
        raise Unauthenticated("the token is expired; compare the clocks of the control planes")
    return str(claims["iss"])
