"""Reserved Secrets: what the control plane keeps for itself, by name: token keys, revocations, builtin CAs.

Who has a signing key can be any proxy, who has a CA's key can be any service. So nothing may refer to one of
these: a write that does is refused, and one that is stored all the same delivers nothing.
"""

import re
from typing import Final

# identity/claims.py and identity/authority.py make these names; a test holds them together.
_TOKENS: Final = re.compile(
    r"(user|zone|dataplane|service-account)-token-(signing-(public-)?key|revocations)(-.*)?"
)
_AUTHORITY: Final = re.compile(r".*\.ca-builtin-(cert|key)-.*")
MESSAGE: Final = (
    "is a key, a CA or a list that the control plane keeps for itself, to which nothing can refer;"
    " write a Secret of your own"
)


def is_reserved(name: str) -> bool:
    """Whether a Secret of this name is the control plane's own."""
    return is_authority(name) or _TOKENS.fullmatch(name) is not None


def is_authority(name: str) -> bool:
    """Whether it is a part of a builtin CA.

    A Mesh may name its own as one that is provided, as Kuma's export writes it: it stays a CA, and its key
    stays here.
    """
    return _AUTHORITY.fullmatch(name) is not None
