"""Kubernetes' own (native) kinds: what the server adds to their objects, and the rules of their names."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from koguma.kube import field_errors, namespaced_names
from koguma.kube.kinds import apiregistration, coordination, core, events, parts, rbac
from koguma.kube.kinds.gateway_api import gateways
from koguma.model.kind import Kind
from koguma.model.schema import Json
from koguma.model.violation import Violation

STANDARD_FINALIZERS: Final = (core.FINALIZER, "orphan", "foregroundDeletion")
_RBAC: Final = (rbac.ROLE, rbac.CLUSTER_ROLE, rbac.ROLE_BINDING, rbac.CLUSTER_ROLE_BINDING)
_Messages = Callable[[str], Iterator[str]]
_NAMES: Final[Mapping[str, _Messages]] = {
    core.NAMESPACE.stored_as: parts.label_messages,
    apiregistration.API_SERVICE.stored_as: parts.segment_messages,
    **{kind.stored_as: parts.segment_messages for kind in _RBAC},
}
_BEFORE_ANY: Final = "1970-01-01T00:00:00Z"


def _waiting(*types: str) -> Json:
    """Conditions of which nobody has said anything yet."""
    unknown = {"status": "Unknown", "reason": "Pending", "message": "No controller has looked at it yet."}
    return {"conditions": [{"type": each, **unknown, "lastTransitionTime": _BEFORE_ANY} for each in types]}


_FIRST_STATUSES: Final[Mapping[str, Json]] = {
    core.NAMESPACE.stored_as: {"phase": core.ACTIVE},
    gateways.GATEWAY_CLASS.stored_as: _waiting("Accepted"),
    gateways.GATEWAY.stored_as: _waiting("Accepted", "Programmed"),
    gateways.LISTENER_SET.stored_as: _waiting("Accepted", "Programmed"),
}
_MADE_BY_UPDATE: Final = frozenset(kind.stored_as for kind in (coordination.LEASE, events.EVENT, *_RBAC))


def stored_spec(kind: Kind, spec: Json, stored: Json = None) -> Json:
    """The spec to store for the one that was written; `stored` is the one that it replaces.

    Our own kinds are stored as they were written. The finalizers in a namespace's spec change only through
    its subresource `finalize`, which does not come here.
    """
    if not namespaced_names.is_native(kind):
        return spec
    read = kind.clean(spec)
    if kind.stored_as != core.NAMESPACE.stored_as or not isinstance(read, dict):
        return read
    if stored is not None:
        return stored
    held = read.get("finalizers") or []
    if not isinstance(held, list) or core.FINALIZER in held:
        return read
    return {**read, "finalizers": [*held, core.FINALIZER]}


def added_labels(kind: Kind, name: str) -> Mapping[str, str]:
    """Labels that the server keeps on an object: a namespace can be selected by its own name."""
    return {core.NAME_LABEL: name} if kind.stored_as == core.NAMESPACE.stored_as else {}


def made_by_update(kind: Kind) -> bool:
    """Whether an update of an object that is not there makes it, as Kubernetes has it for a few kinds."""
    return kind.stored_as in _MADE_BY_UPDATE


def first_status(kind: Kind) -> Json:
    """The status with which an object begins."""
    return _FIRST_STATUSES.get(kind.stored_as)


def name_violations(kind: Kind, name: str) -> Iterator[Violation]:
    """What is wrong with the name of an object of one of Kubernetes' own kinds."""
    at = "metadata.name"
    if not name:
        yield field_errors.required(at, "name or generateName is required")
        return
    for message in _NAMES.get(kind.stored_as, parts.subdomain_messages)(name):
        yield field_errors.invalid(at, name, message, "name")
