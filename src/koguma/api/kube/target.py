"""Request target: what a path of the Kubernetes form addresses, as Kubernetes' RequestInfo says it."""

from typing import Final

import msgspec

from koguma.access.authorizer import Attempt, denied
from koguma.access.user import User
from koguma.api import plain
from koguma.application.context import Context
from koguma.kube import namespaced_names
from koguma.kube.kinds import workloads
from koguma.kube.registry import KubeEndpoint
from koguma.model.errors import Forbidden, NotAllowed

_WHY_NOT: Final = ": {}"


class RequestTarget(msgspec.Struct, frozen=True):
    """An endpoint with a namespace (None: all of them), a name and a subresource."""

    endpoint: KubeEndpoint
    namespace: str | None = None
    name: str = ""
    subresource: str = ""

    @property
    def where(self) -> str:
        """The namespace as text: empty for all of them, and for objects without one."""
        return self.namespace or ""

    @property
    def object_name(self) -> tuple[str, str, str]:
        """The same for one object, through whichever endpoint it is addressed."""
        return self.endpoint.set.stored_as, self.where, self.name

    def attempt(self, verb: str, name: str | None = None) -> Attempt:
        """The attempt that access rules are asked about."""
        return Attempt(
            verb,
            self.endpoint.plural,
            self.name if name is None else name,
            namespaced_names.mesh_of(self.where) or "",
            self.endpoint.group,
            namespace=self.where,
            subresource=self.subresource,
        )


def check_writable(context: Context, target: RequestTarget, verb: str) -> None:
    """Raise NotAllowed where nobody may do this to objects of an endpoint, or not on this control plane."""
    endpoint = target.endpoint
    if not namespaced_names.is_native(endpoint.kind) and endpoint.kind.read_only_at(context.control_plane):
        raise NotAllowed(plain.read_only_reason(endpoint.kind, context))
    if verb not in endpoint.verbs:
        why = _WHY_NOT.format(endpoint.view.instead) if endpoint.view else _empty_reason(endpoint)
        raise NotAllowed(f"the server does not allow this method on the requested resource{why}")


def _empty_reason(endpoint: KubeEndpoint) -> str:
    return _WHY_NOT.format(workloads.EMPTY) if endpoint.kind in workloads.EMPTY_KINDS else ""


def check(context: Context, user: User, target: RequestTarget, verb: str, name: str | None = None) -> None:
    """Raise Forbidden, with Kubernetes' message, unless the user has the right."""
    attempt = target.attempt(verb, name)
    if not context.access.allows(user, attempt):
        raise Forbidden(denied(user, attempt))
