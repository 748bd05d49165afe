"""Zone credentials: the CA that a zone trusts and the token that it shows, looked at before gRPC gets them.

gRPC says of what it cannot use that the other side is away, and prints lines of its own beside the log.
"""

import re
from typing import Final

from koguma.model.errors import BadRequest

_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
_TOKEN: Final = re.compile(r"[!-~]+")


def ca(content: bytes, name: str) -> bytes:
    """The CA in a file of this name; BadRequest where it has none."""
    if _CERTIFICATE not in content:
        raise BadRequest(f"{name} has no certificate in PEM form")
    return content


def token(content: bytes, name: str) -> str:
    """The token in a file of this name; BadRequest where it has none."""
    text = content.decode(errors="replace").strip()
    if not _TOKEN.fullmatch(text):
        raise BadRequest(f"{name} has no token; `koguma token zone --zone ZONE --scope cp` issues one")
    return text
