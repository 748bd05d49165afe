"""User: who makes a request."""

from typing import Final

import msgspec

ADMIN_GROUP: Final = "mesh-system:admin"
AUTHENTICATED: Final = "mesh-system:authenticated"
UNAUTHENTICATED: Final = "mesh-system:unauthenticated"


class User(msgspec.Struct, frozen=True, cache_hash=True):
    """A name and the groups it is in; authenticated users are in `mesh-system:authenticated` too."""

    name: str
    groups: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "/".join((self.name, ",".join(self.groups)))


ANONYMOUS: Final = User("mesh-system:anonymous", (UNAUTHENTICATED,))
LOCAL_ADMIN: Final = User("mesh-system:admin", (ADMIN_GROUP, AUTHENTICATED))
# Who writes what the control plane makes by itself.
SYSTEM: Final = "mesh-system:control-plane"


def authenticated(name: str, groups: tuple[str, ...]) -> User:
    """The user of a verified token."""
    return User(name, (*groups, AUTHENTICATED) if AUTHENTICATED not in groups else groups)
