"""Role: the policy role, which follows from a policy's namespace and targets (Kuma MADR 054).

Roles decide which proxies a policy can select, and precedence: system < producer < consumer < workload-owner.
"""

from enum import Enum

from koguma.model import target_ref
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kind
from koguma.model.schema import Json


class PolicyRole(Enum):
    """The role of a policy, in ascending precedence."""

    SYSTEM = "system"
    PRODUCER = "producer"
    CONSUMER = "consumer"
    WORKLOAD_OWNER = "workload-owner"


class MixedRoles(ValueError):
    """Some entries make the policy a producer policy, others a consumer policy."""


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
    are_producer = {_is_producer(entry.get("targetRef") or {}, namespace) for entry in to}
    if len(are_producer) > 1:
        raise MixedRoles("it's not allowed to mix producer and consumer items in the same policy")
    return PolicyRole.PRODUCER if are_producer == {True} else PolicyRole.CONSUMER


def _is_producer(ref: Json, namespace: str) -> bool:
    if ref.get("kind") not in _PRODUCER_KINDS:
        return False
    if ref.get("name"):
        return ref.get("namespace") in (None, "", namespace)
    ref_labels = ref.get("labels") or {}
    return (
        "kuma.io/display-name" in ref_labels
        and set(ref_labels) <= _PRODUCER_LABELS
        and ref_labels.get("k8s.kuma.io/namespace", namespace) == namespace
    )
