"""Token advice: what a token that was refused says it is, and which command issues one that fits.

The signature does not hold, so nothing of this is true for certain: it goes into words for the bearer and
decides nothing. It says only what the bearer could read in the token, never which keys or meshes there are.
"""

import base64
import re
from typing import Any, Final, NamedTuple

import msgspec

from koguma.identity.claims import DATAPLANE, USER, ZONE, Purpose
from koguma.model.errors import Unauthenticated

_PURPOSES: Final = (DATAPLANE, ZONE, USER)  # a user's claims are the weakest mark
_MESH = re.compile(r"[0-9a-z][0-9a-z.-]{0,62}")
_PARTS: Final = 3
_LENGTH_MAX: Final = 8 * 1024
_COMMANDS: Final = {
    USER.word: "koguma token user --name NAME --valid-for 24h",
    DATAPLANE.word: "koguma token dataplane --mesh {mesh} --name NAME --service SERVICE",
    ZONE.word: "koguma token zone --zone ZONE",
}


class Claimed(NamedTuple):
    """What a token says that it is; no purpose where it is none of ours."""

    purpose: Purpose[Any] | None = None
    mesh: str = ""

    def __str__(self) -> str:
        if self.purpose is None:
            return "a token of another system"
        return f"a {self.purpose.word} token" + (f' for mesh "{self.mesh}"' if self.mesh else "")


def claimed(token: str) -> Claimed | None:
    """What a token says that it is, without asking whether that is true; None where it cannot be read."""
    parts = token.split(".")
    if len(parts) != _PARTS or len(token) > _LENGTH_MAX:
        return None
    try:
        body = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        said = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    purpose = next((one for one in _PURPOSES if one.needs <= said.keys()), None)
    mesh = said.get("Mesh")
    is_name = purpose is DATAPLANE and isinstance(mesh, str) and _MESH.fullmatch(mesh)
    return Claimed(purpose, str(mesh) if is_name else "")


def advised(error: Unauthenticated, token: str, purpose: Purpose[Any], mesh: str = "") -> Unauthenticated:
    """The refusal of a token where one of this purpose is needed, with the next step after its words."""
    command = f"`{_COMMANDS[purpose.word].format(mesh=mesh)}`"
    found = claimed(token)
    if found is None:
        hint = f"{command} issues a {purpose.word} token"
    elif found.purpose is not purpose:
        said = f"the token says that it is {found}"
        hint = f"{said}, and a {purpose.word} token is needed here: {command} issues one"
    elif found.mesh != mesh:
        said = f"the token says that it is {found}"
        hint = f'{said}, and one for mesh "{mesh}" is needed here: {command} issues one'
    else:
        hint = f"{command} issues a new one"
    return Unauthenticated(f"{error.detail}; {hint}", violations=error.violations)
