"""Request target: what a path of the Kubernetes form addresses, as Kubernetes' RequestInfo says it."""

from collections.abc import Callable
from typing import Final

import msgspec

from koguma.access.authorizer import Attempt, denied
from koguma.access.user import User
from koguma.api import reasons
from koguma.application import computed_access
from koguma.application.context import Context
from koguma.kube import namespaced_names
from koguma.kube.kinds import workloads
from koguma.kube.registry import KubeEndpoint
from koguma.model.errors import Forbidden, NotAllowed
from koguma.model.resource import Resource

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
    def mesh(self) -> str:
        """The mesh whose reserved namespace it names; empty for any other."""
        return namespaced_names.mesh_of(self.where) or ""

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
            self.mesh,
            self.endpoint.group,
            namespace=self.where,
            subresource=self.subresource,
        )


def check_writable(context: Context, target: RequestTarget, verb: str) -> None:
    """Raise NotAllowed where nobody may do this to objects of an endpoint, or not on this control plane."""
    endpoint = target.endpoint
    if not namespaced_names.is_native(endpoint.kind) and endpoint.kind.read_only_at(context.control_plane):
        raise NotAllowed(reasons.read_only(endpoint.kind, context))
    if verb not in endpoint.verbs:
        why = _WHY_NOT.format(endpoint.view.instead) if endpoint.view else _empty_reason(endpoint)
        raise NotAllowed(f"the server does not allow this method on the requested resource{why}")


def check_watchable(target: RequestTarget) -> None:
    """Raise NotAllowed where objects are computed when they are read, so that no change of them is known."""
    if "watch" not in target.endpoint.verbs:
        why = reasons.unwatchable(target.endpoint.kind)
        raise NotAllowed(f"the server does not allow this method on the requested resource: {why}")


def _empty_reason(endpoint: KubeEndpoint) -> str:
    return _WHY_NOT.format(workloads.EMPTY) if endpoint.kind in workloads.EMPTY_KINDS else ""


def check_source(context: Context, user: User, target: RequestTarget, verb: str) -> None:
    """Raise Forbidden unless the user may read, through the same group, what objects are computed from.

    A list over several namespaces, or of summaries, is filtered instead: see `source_filter`.
    """
    computed = target.endpoint.kind.computed
    if computed is None:
        return
    attempt: Attempt | None = None
    if not computed.is_summary:
        is_of_one_place = target.namespace is not None or not target.endpoint.namespaced
        attempt = _source_attempt(context, target, verb, target.name) if is_of_one_place else None
    elif target.name or target.namespace is not None:
        mesh = computed_access.source_mesh(computed, target.mesh, target.name)
        attempt = _summary_attempt(context, target, mesh)
    if attempt is not None and not context.access.allows(user, attempt):
        raise Forbidden(denied(user, attempt))


def source_filter(context: Context, user: User, target: RequestTarget) -> Callable[[Resource], bool] | None:
    """Which computed objects of a list a user may see; None where they are not computed."""
    kind = target.endpoint.kind
    computed = kind.computed
    if computed is None:
        return None

    def is_visible(resource: Resource) -> bool:
        if computed.is_summary:
            mesh = computed_access.source_mesh(computed, resource.mesh, resource.name)
            return context.access.allows(user, _summary_attempt(context, target, mesh))
        namespace = namespaced_names.namespaced_name(resource, kind, context.control_plane).namespace
        place = msgspec.structs.replace(target, namespace=namespace or None)
        return context.access.allows(user, _source_attempt(context, place, "list"))

    return is_visible


def _source_attempt(context: Context, target: RequestTarget, verb: str, name: str = "") -> Attempt:
    """The attempt on what the objects of a target are computed from."""
    return msgspec.structs.replace(
        target.attempt(verb, name), resource=_source_plural(context, target), subresource=""
    )


def _summary_attempt(context: Context, target: RequestTarget, mesh: str) -> Attempt:
    """The attempt to list all of a mesh, which a summary is about."""
    return Attempt("list", _source_plural(context, target), "", mesh, target.endpoint.group)


def _source_plural(context: Context, target: RequestTarget) -> str:
    computed = target.endpoint.kind.computed
    assert computed is not None
    return context.kinds[computed.kind].plural


def check(context: Context, user: User, target: RequestTarget, verb: str, name: str | None = None) -> None:
    """Raise Forbidden, with Kubernetes' message, unless the user has the right."""
    attempt = target.attempt(verb, name)
    if not context.access.allows(user, attempt):
        raise Forbidden(denied(user, attempt))
