"""Write access: whether a user may write an object at its final key, and over the object stored there.

The plain form takes the namespace of an object from the body, the Kubernetes form from the path. Both write
through `transactions.put`, which checks here as soon as the key is known, and before it compares anything
with the stored object. So one form cannot get around a rule that holds in the other.
"""

from collections.abc import Iterator
from typing import Self

import msgspec

from koguma.access.authorizer import REST_GROUP, Attempt, denied
from koguma.access.user import User
from koguma.application.context import Context
from koguma.core.identity import Identity
from koguma.kube import namespaced_names
from koguma.kube.registry import KubeEndpoint
from koguma.model import labels
from koguma.model.errors import Forbidden
from koguma.model.kind import Kind
from koguma.model.resource import Resource


class WriteAccess(msgspec.Struct, frozen=True):
    """Who writes, through which endpoint. Without a verb it is create or update, by what is stored."""

    user: User
    group: str = REST_GROUP
    plural: str = ""  # of the endpoint, where that is not the kind's own
    verb: str = ""
    is_control_plane: bool = False  # the control plane's own writes need no rights

    @classmethod
    def through(cls, endpoint: KubeEndpoint, user: User, verb: str) -> Self:
        """For an endpoint of the Kubernetes form."""
        return cls(user, endpoint.group, endpoint.plural, verb)

    @property
    def writer(self) -> User | None:
        """The user whose rights count; None where the control plane itself writes."""
        return None if self.is_control_plane else self.user

    def check(self, context: Context, kind: Kind, identified: Identity, before: Resource | None) -> None:
        """Raise Forbidden unless the user may write at the new key and over the replaced object."""
        if self.is_control_plane:
            return
        for attempt in dict.fromkeys(self._attempts(context, kind, identified, before)):
            if context.access.allows(self.user, attempt):
                continue
            if self.group == REST_GROUP:
                context.refuse(self.user, kind, attempt)
            raise Forbidden(denied(self.user, attempt))

    def _attempts(
        self, context: Context, kind: Kind, identified: Identity, before: Resource | None
    ) -> Iterator[Attempt]:
        verb = self.verb or ("update" if before is not None else "create")
        key = identified.key
        written = Resource(
            kind=key.kind,
            mesh=key.mesh,
            zone=key.zone,
            namespace=key.namespace,
            name=key.name,
            core_name=identified.core_name if before is None else before.core_name,
            labels={labels.ORIGIN: context.control_plane.origin},
        )
        for resource in (written,) if before is None else (before, written):
            namespaced = namespaced_names.namespaced_name(resource, kind, context.control_plane)
            name = resource.core_name if self.group == REST_GROUP else namespaced.name
            plural = self.plural or kind.plural
            yield Attempt(verb, plural, name, resource.mesh, self.group, namespace=namespaced.namespace)
