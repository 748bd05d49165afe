"""Workloads: the Workloads that follow from the Dataplanes of this zone, and the writes that create them.

A Dataplane belongs to the workload that its label `kuma.io/workload` names, or an annotation of that name
where it has no such label. Each workload is one object, with the counts of its proxies in its status. A
generated one is deleted with its last Dataplane; one that a user wrote stays, and is counted as well.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from koguma.core import world
from koguma.core.incremental import Db, question
from koguma.core.inputs import Index
from koguma.core.services import CreateObject, DeleteObject, ReconcileProblem
from koguma.model import labels, names
from koguma.model.resource import Key, Resource

GENERATOR: Final = "workload-generator"  # the value of the label kuma.io/managed-by
KIND: Final = "Workload"


class DesiredWorkloads(msgspec.Struct, frozen=True):
    """The workloads that Dataplanes name, by the key that each has, in order."""

    workloads: tuple[Key, ...] = ()
    problems: tuple[ReconcileProblem, ...] = ()


def named(dataplane: Resource) -> str:
    """The name of a Dataplane's workload; empty where it has none."""
    return dataplane.labels.get(labels.WORKLOAD) or dataplane.annotations.get(labels.WORKLOAD) or ""


def _workload(key: Key, resource: Resource) -> Key | None:
    name = named(resource) if key.kind == "Dataplane" else ""
    return Key(KIND, key.mesh, key.zone, key.namespace, name) if name else None


def _of_mesh(key: Key, resource: Resource) -> list[str]:
    return [key.mesh] if _workload(key, resource) else []


def _of_workload(key: Key, resource: Resource) -> list[Key]:
    workload = _workload(key, resource)
    return [workload] if workload else []


_MEMBERS = Index(world.RESOURCES, _of_mesh)  # Dataplanes that have a workload, by mesh
_MEMBERS_BY_WORKLOAD = Index(world.RESOURCES, _of_workload)


@question
def desired(db: Db, mesh: str) -> DesiredWorkloads:
    """The Workloads to generate. One more Dataplane of a known workload does not change the answer."""
    here = world.control_plane(db)
    if here.is_global:
        return DesiredWorkloads()
    by_workload: dict[Key, Key] = {}
    for key in _MEMBERS.keys(db, mesh):
        workload = _workload_of(db, key) if key.zone == here.zone else None
        if workload is not None:
            by_workload.setdefault(workload, key)
    legal = [workload for workload in sorted(by_workload) if names.is_dns1035_label(workload.name)]
    problems = [
        _bad_name(key, workload) for workload, key in sorted(by_workload.items()) if workload not in legal
    ]
    return DesiredWorkloads(tuple(legal), tuple(problems))


@question
def _workload_of(db: Db, dataplane: Key) -> Key | None:
    resource = world.RESOURCES.get(db, dataplane)
    return _workload(dataplane, resource) if resource else None


def _bad_name(dataplane: Key, workload: Key) -> ReconcileProblem:
    message = f'no Workload is made of {labels.WORKLOAD} "{workload.name}"; change the name'
    return ReconcileProblem(dataplane, "workload-name", f"{message}: {names.DNS1035_MESSAGE}")


def members(db: Db, workload: Key) -> tuple[Key, ...]:
    """The Dataplanes of a workload, in key order."""
    return _MEMBERS_BY_WORKLOAD.keys(db, workload)


def stored(db: Db, mesh: str) -> tuple[Resource, ...]:
    """All Workloads of a mesh, generated or not, in key order."""
    return tuple(resource for _, resource in world.BY_KIND.items(db, (KIND, mesh)))


def plan(
    desired: DesiredWorkloads, existing: Iterable[Resource], zone: str
) -> tuple[CreateObject | DeleteObject, ...]:
    """The changes that lead from the stored Workloads to the desired ones; none where they agree."""
    stored_by_key = {resource.key: resource for resource in existing}
    core_names = {resource.core_name for resource in stored_by_key.values()}
    new = [CreateObject(key, _document(key)) for key in desired.workloads if key not in stored_by_key]
    deleted = [
        DeleteObject(resource)
        for key, resource in stored_by_key.items()
        if key.zone == zone and is_generated(resource) and key not in desired.workloads
    ]
    return (*(each for each in new if each.document["name"] not in core_names), *deleted)


def is_generated(workload: Resource) -> bool:
    """Whether a Workload was generated from Dataplanes, and is deleted with them."""
    return workload.labels.get(labels.MANAGED_BY) == GENERATOR


def _document(key: Key) -> dict[str, object]:
    own_labels = {
        labels.MANAGED_BY: GENERATOR,
        **({labels.NAMESPACE: key.namespace} if key.namespace else {}),
    }
    name = f"{key.name}.{key.namespace}" if key.namespace else key.name
    return {"type": KIND, "mesh": key.mesh, "name": name, "labels": own_labels, "spec": {}}
