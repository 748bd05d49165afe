"""User: who makes a request."""

from typing import Final

import msgspec

ADMIN_GROUP: Final = "mesh-system:admin"
AUTHENTICATED: Final = "mesh-system:authenticated"
UNAUTHENTICATED: Final = "mesh-system:unauthenticated"
# Kubernetes' words for the same groups, by which its users write bindings. Each stands for the other.
KUBE_AUTHENTICATED: Final = "system:authenticated"
KUBE_UNAUTHENTICATED: Final = "system:unauthenticated"
_TWINS: Final = {
    AUTHENTICATED: KUBE_AUTHENTICATED,
    KUBE_AUTHENTICATED: AUTHENTICATED,
    UNAUTHENTICATED: KUBE_UNAUTHENTICATED,
    KUBE_UNAUTHENTICATED: UNAUTHENTICATED,
}


class User(msgspec.Struct, frozen=True, cache_hash=True):
    """A name and the groups it is in; authenticated users are in `mesh-system:authenticated` too."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()  # what Kubernetes' clients say about a user beside it

    def __str__(self) -> str:
        return "/".join((self.name, ",".join(self.groups)))

    @property
    def all_groups(self) -> tuple[str, ...]:
        """The groups under all their names, as rules and Kubernetes' clients see them."""
        twins = (_TWINS[group] for group in self.groups if group in _TWINS)
        return tuple(dict.fromkeys((*self.groups, *twins)))


ANONYMOUS: Final = User("mesh-system:anonymous", (UNAUTHENTICATED,))
KUBE_ANONYMOUS: Final = "system:anonymous"
LOCAL_ADMIN: Final = User("mesh-system:admin", (ADMIN_GROUP, AUTHENTICATED))
# Who writes what the control plane makes by itself.
SYSTEM: Final = "mesh-system:control-plane"


def authenticated(name: str, groups: tuple[str, ...]) -> User:
    """The user of a verified token."""
    return User(name, (*groups, AUTHENTICATED) if AUTHENTICATED not in groups else groups)
