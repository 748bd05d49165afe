"""Kinds of a cluster that runs programs. Koguma runs none, so they are always empty, and only read.

Tools ask for them without being told to, and stop where they are missing: `kubectl apply --prune` for each of
its default kinds, `kubectl get all` and `kubectl cluster-info dump` for what runs.
"""

from typing import Final

from koguma.model.kind import Kind, Scope
from koguma.model.schema import Spec

EMPTY: Final = "Koguma runs no programs, so there are none, and none can be created."


class EmptySpec(Spec):
    """Nothing: there are no such objects."""


def _kind(group: str, name: str, plural: str, *, namespaced: bool = True) -> Kind:
    return Kind(
        name=name,
        plural=plural,
        set_name=f"{name}.{group or 'core'}",
        group=group,
        doc=EMPTY,
        spec=EmptySpec,
        scope=Scope.GLOBAL,
        namespaced=namespaced,
    )


CRON_JOB: Final = _kind("batch", "CronJob", "cronjobs")
INGRESS: Final = _kind("networking.k8s.io", "Ingress", "ingresses")

EMPTY_KINDS: Final[tuple[Kind, ...]] = (
    _kind("", "Endpoints", "endpoints"),
    _kind("", "Node", "nodes", namespaced=False),
    _kind("", "PersistentVolume", "persistentvolumes", namespaced=False),
    _kind("", "PersistentVolumeClaim", "persistentvolumeclaims"),
    _kind("", "Pod", "pods"),
    _kind("", "ReplicationController", "replicationcontrollers"),
    _kind("apps", "DaemonSet", "daemonsets"),
    _kind("apps", "Deployment", "deployments"),
    _kind("apps", "ReplicaSet", "replicasets"),
    _kind("apps", "StatefulSet", "statefulsets"),
    CRON_JOB,
    _kind("batch", "Job", "jobs"),
    INGRESS,
)

# What kubectl up to 1.20 asks for: the same kinds in older versions.
OLDER_VERSIONS: Final = (("batch", "v1beta1", CRON_JOB), ("extensions", "v1beta1", INGRESS))
