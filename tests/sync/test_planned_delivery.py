"""What a zone would be sent is what it is then sent: over random stores and changes."""

from random import Random

import pytest

from koguma.core.role import PolicyRole
from koguma.main import all_kinds
from koguma.model import labels
from koguma.model.resource import Key, Resource
from koguma.store import Delete, Put, Store, Transaction, open_store
from koguma.sync import mapping, planned_delivery
from koguma.sync.global_server import _audience
from koguma.sync.planned_delivery import PlannedDeliveries
from koguma.sync.protocol.catalog import SyncReach

KINDS = all_kinds()
ZONES = ("east", "west")
SENT = ("MeshTimeout", "MeshService", "Mesh", "Config")  # an older zone knows fewer kinds


def _resource(dice: Random) -> Resource:
    kind = dice.choice(("MeshTimeout", "MeshTimeout", "MeshService", "Mesh", "Zone", "Config", "Dataplane"))
    zone = dice.choice(("", *ZONES)) if kind in ("MeshTimeout", "MeshService", "Dataplane") else ""
    name = dice.choice(ZONES) if kind == "Zone" else dice.choice(("a", "b", "kuma-cluster-id"))
    written = {labels.ORIGIN: "zone" if zone else "global"}
    if dice.random() < 0.2:
        written[labels.KDS_SYNC] = "disabled"
    if dice.random() < 0.5:
        written[labels.ROLE] = PolicyRole.PRODUCER.value
    only = {"kind": "MeshSubset", "tags": {labels.ZONE: dice.choice(ZONES)}}
    spec = {"enabled": dice.random() < 0.5} if kind == "Zone" else {"v": dice.randrange(3)}
    if dice.random() < 0.3:
        spec["targetRef"] = only
    is_in_mesh = KINDS[kind].is_mesh_scoped
    return Resource(
        kind=kind,
        mesh="default" if is_in_mesh else "",
        zone=zone,
        name=name,
        core_name=f"{name}-{zone}" if zone else name,
        labels=written,
        spec=spec,
        status={"n": dice.randrange(2)},
    )


def _transaction(dice: Random, store: Store) -> Transaction:
    operations: dict[Key, Put | Delete] = {}
    for _ in range(dice.randint(1, 5)):
        resource = _resource(dice)
        is_there = store.state.get(resource.key) is not None
        operations[resource.key] = Delete(resource.key) if is_there and dice.random() < 0.5 else Put(resource)
    return Transaction(tuple(operations.values()), "test")


def _sent(store: Store, zone: str) -> dict[Key, bytes]:
    """All that a zone has been sent, from scratch."""
    off = planned_delivery.disabled(store.state.listed("Zone"))
    audience, found = _audience(zone, frozenset(SENT)), {}
    for resource in store.state.all():
        travelling = mapping.downward(resource, KINDS[resource.kind], off)
        if travelling is None:
            continue
        sent = travelling.resource
        if audience(SyncReach(sent.kind, sent.zone, travelling.only_to)):
            found[sent.key] = mapping.content(sent)
    return found


def _without_time(content: bytes) -> Resource:
    resource = mapping.received(content)
    return Resource(
        **{name: getattr(resource, name) for name in ("kind", "name", "core_name", "labels", "spec")}
    )


@pytest.mark.parametrize("seed", range(30))
async def test_what_is_planned_is_what_is_sent(seed: int) -> None:
    dice, store = Random(seed), await open_store("memory://")
    n_sent = 0
    try:
        for _ in range(12):
            transaction = _transaction(dice, store)
            deliveries = PlannedDeliveries(store.state, store.preview(transaction), KINDS.get)
            planned = {zone: deliveries.of(_audience(zone, frozenset(SENT))) for zone in ZONES}
            before = {zone: _sent(store, zone) for zone in ZONES}
            await store.write(transaction)
            for zone in ZONES:
                after = _sent(store, zone)
                written = {key: after[key] for key in after if before[zone].get(key) != after[key]}
                assert sorted(planned[zone].removed) == sorted(
                    key for key in before[zone] if key not in after
                )
                assert {each.key: _without_time(each.content) for each in planned[zone].objects} == {
                    key: _without_time(content) for key, content in written.items()
                }
                n_sent += len(planned[zone].keys)
    finally:
        await store.close()
    assert n_sent
