"""Token advice: what kind of token was rejected, and which command issues the right one.

The token is not verified, so nothing of this is trustworthy: it is used in messages and in no decision. A
message says only what its bearer could read in the token, never which keys or meshes exist.
"""

import base64
import re
from typing import Any, Final, NamedTuple

import msgspec

from koguma.identity.claims import DATAPLANE, SERVICE_ACCOUNT, USER, ZONE, Purpose
from koguma.model.errors import Unauthenticated

_PURPOSES: Final = (
    SERVICE_ACCOUNT,
    DATAPLANE,
    ZONE,
    USER,
)  # the claims of a user token are the least specific
_MESH = re.compile(r"[0-9a-z][0-9a-z.-]{0,62}")
_PARTS: Final = 3
_LENGTH_MAX: Final = 8 * 1024
_COMMANDS: Final = {
    USER.name: "koguma token user --name NAME --valid-for 24h",
    DATAPLANE.name: "koguma token dataplane --mesh {mesh} --name NAME --service SERVICE",
    ZONE.name: "koguma token zone --zone ZONE",
    SERVICE_ACCOUNT.name: "kubectl create token NAME --namespace NAMESPACE",
}


class UnverifiedToken(NamedTuple):
    """The kind of a token according to its unverified claims; no purpose if it is none of ours."""

    purpose: Purpose[Any] | None = None
    mesh: str = ""

    def __str__(self) -> str:
        if self.purpose is None:
            return "a token of another system"
        return f"a {self.purpose.name} token" + (f' for mesh "{self.mesh}"' if self.mesh else "")


def unverified(token: str) -> UnverifiedToken | None:
    """The kind of a token, without verifying it; None if it cannot be read."""
    parts = token.split(".")
    if len(parts) != _PARTS or len(token) > _LENGTH_MAX:
        return None
    try:
        body = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        claims = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    purpose = next((each for each in _PURPOSES if each.required_claims <= claims.keys()), None)
    mesh = claims.get("Mesh")
    is_name = purpose is DATAPLANE and isinstance(mesh, str) and _MESH.fullmatch(mesh)
    return UnverifiedToken(purpose, str(mesh) if is_name else "")


def advised(error: Unauthenticated, token: str, purpose: Purpose[Any], mesh: str = "") -> Unauthenticated:
    """The error of a rejected token where one of this purpose is needed, with the next step."""
    command = f"`{_COMMANDS[purpose.name].format(mesh=mesh)}`"
    actual = unverified(token)
    if actual is None:
        hint = f"{command} issues a {purpose.name} token"
    elif actual.purpose is not purpose:
        claim = f"the token says that it is {actual}"
        hint = f"{claim}, and a {purpose.name} token is needed here: {command} issues one"
    elif actual.mesh != mesh:
        claim = f"the token says that it is {actual}"
        hint = f'{claim}, and one for mesh "{mesh}" is needed here: {command} issues one'
    else:
        hint = f"{command} issues a new one"
    return Unauthenticated(f"{error.detail}; {hint}", violations=error.violations)
