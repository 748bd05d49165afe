"""Consequences: the objects that a control plane writes by itself once a change is stored.

MeshServices follow from Dataplanes (`services`), also where somebody deletes or changes a generated one, and
services get virtual addresses (`vips`), without which nobody can call them. Both are part of a plan: whoever
adds a service wants to see who can call it.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta

import msgspec

from koguma.core import admission, loading, services, statuses, vips, world
from koguma.core.address_history import AddressHistory
from koguma.core.incremental import Db
from koguma.core.vips import Ranges
from koguma.model import forms, labels
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json

_MOVES_SERVICES = frozenset({"Dataplane", "Mesh", "MeshService"})


Written = tuple[tuple[Resource, ...], tuple[Key, ...]]  # objects that are written, and keys of those gone


def steps(changed: Iterable[Key], ranges: Ranges, now: datetime) -> Iterator[Callable[[Db], Written]]:
    """What a control plane does after these objects have changed, step by step.

    Each step says what it writes into a database that has the change and all steps before.
    """
    keys = tuple(changed)
    meshes = sorted({key.mesh or key.name for key in keys if key.kind in _MOVES_SERVICES})
    written: dict[Key, None] = dict.fromkeys(keys)

    def write_services(db: Db) -> Written:
        changes = [change for mesh in meshes for change in _service_changes(db, mesh, now)]
        gone = tuple(each.resource.key for each in changes if isinstance(each, services.DeleteObject))
        resources = tuple(
            _written(db, each) for each in changes if not isinstance(each, services.DeleteObject)
        )
        written.update(dict.fromkeys(resource.key for resource in resources))
        return resources, gone

    def allocate_addresses(db: Db) -> Written:
        destinations = [key for key in written if key.kind in world.DESTINATION_KINDS]
        return tuple(_with_addresses(db, destinations, ranges, now)), ()

    yield write_services
    yield allocate_addresses


def follow(db: Db, changed: Iterable[Key], now: datetime, ranges: Ranges = vips.DEFAULT) -> None:
    """Take what a control plane writes by itself after these objects have changed."""
    for step in steps(changed, ranges, now):
        loading.take(db, *step(db))


def _service_changes(db: Db, mesh: str, now: datetime) -> tuple[services.ServiceChange, ...]:
    here = world.control_plane(db)
    if here.is_global or world.RESOURCES.get(db, Key("Mesh", "", "", "", mesh)) is None:
        return ()
    return services.plan(services.desired(db, mesh), services.stored(db, mesh), now).changes


def _written(db: Db, change: services.CreateObject | services.ReplaceObject) -> Resource:
    if isinstance(change, services.ReplaceObject):
        return change.resource
    return generated(db, change.document)


def generated(db: Db, document: Json) -> Resource:
    """An object that the control plane generates, from its plain document."""
    here = world.control_plane(db)
    whole = {**document, "labels": {labels.ORIGIN: here.origin, **document.get("labels", {})}}
    draft = forms.read_plain(whole, world.kind_of(db, document["type"]))
    return admission.admitted(draft, None, here).resource


def _with_addresses(db: Db, destinations: Iterable[Key], ranges: Ranges, now: datetime) -> Iterator[Resource]:
    """Destinations with the virtual addresses that they lack."""
    served = [key for key in destinations if _lacks_address(db, key)]
    if not served or world.control_plane(db).is_global:
        return
    history = AddressHistory(now - timedelta(days=365), vips.first_used(db, ranges, {}))
    for key, addresses in vips.plan(db, served, ranges, history, now).assigned.items():
        resource = world.RESOURCES.get(db, key)
        if resource is not None:
            status = {**(resource.status or {}), **statuses.addresses_of(resource, addresses)}
            yield msgspec.structs.replace(resource, status=status)


def _lacks_address(db: Db, key: Key) -> bool:
    resource = world.RESOURCES.get(db, key)
    return resource is not None and {*vips.required_names(db, key)} != {n for n, _ in vips.named(db, key)}
