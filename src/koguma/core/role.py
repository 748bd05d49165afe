"""Policy role: what a policy's namespace and targets make of it (Kuma MADR 054).

Roles decide whom a policy reaches and which of two wins: system < producer < consumer < workload-owner.
"""

from enum import Enum

from koguma.model import target_ref
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kind
from koguma.model.schema import Json


class PolicyRole(Enum):
    """Ascending precedence."""

    SYSTEM = "system"
    PRODUCER = "producer"
    CONSUMER = "consumer"
    WORKLOAD_OWNER = "workload-owner"


class MixedRoles(ValueError):
    """Some targets make the policy a producer's, others a consumer's."""


_PRODUCER_KINDS = ("MeshService", *target_ref.ROUTES)
_PRODUCER_LABELS = {"kuma.io/display-name", "k8s.kuma.io/namespace"}


def of(kind: Kind, spec: Json, namespace: str, control_plane: ControlPlaneInfo) -> PolicyRole:
    """The role of a policy that fits its schema."""
    if kind.policy is None or namespace in ("", control_plane.system_namespace):
        return PolicyRole.SYSTEM
    to = spec.get("to") or ()
    if to and spec.get("from"):
        raise MixedRoles("it's not allowed to mix 'to' and 'from' arrays in the same policy")
    if not to:
        return PolicyRole.WORKLOAD_OWNER
    producing = {_is_producer(entry.get("targetRef") or {}, namespace) for entry in to}
    if len(producing) > 1:
        raise MixedRoles("it's not allowed to mix producer and consumer items in the same policy")
    return PolicyRole.PRODUCER if producing == {True} else PolicyRole.CONSUMER


def _is_producer(ref: Json, namespace: str) -> bool:
    if ref.get("kind") not in _PRODUCER_KINDS:
        return False
    if ref.get("name"):
        return ref.get("namespace") in (None, "", namespace)
    wanted = ref.get("labels") or {}
    return (
        "kuma.io/display-name" in wanted
        and set(wanted) <= _PRODUCER_LABELS
        and wanted.get("k8s.kuma.io/namespace", namespace) == namespace
    )
