"""A plan is what then happens: over random meshes and changes, compared with both sides from scratch."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
import random_meshes
from building import bodies, database, decoded

from koguma.core import inspect, world
from koguma.core.build import network, snapshot
from koguma.core.build.outbound_spec import OutboundSpec
from koguma.core.incremental import Db
from koguma.core.plan import consequences
from koguma.core.plan.model import Plan, ProxyGroup, leaves
from koguma.core.plan.planner import PROXY_KINDS, PlannedChange, Planner
from koguma.core.plan.reader import PlanReader
from koguma.envoy.snapshot import SECRET, Snapshot
from koguma.model.resource import Key, Resource

pytestmark = pytest.mark.slow

NOW = datetime(2026, 1, 1, tzinfo=UTC)
Objects = dict[Key, Resource]


def drawn(random: Random, count: int) -> Objects:
    found = (random_meshes.resource(random) for _ in range(count))
    return {each.key: each for each in found if each is not None}


def changed(random: Random, stored: Objects) -> PlannedChange:
    written = drawn(random, random.randint(0, 3))
    others = [key for key in stored if key not in written]
    gone = random.sample(others, min(len(others), random.randint(0 if written else 1, 2)))
    return PlannedChange(tuple(written.values()), tuple(gone))


def connected(db: Db) -> Db:
    """The same database, whose proxies have said of themselves what they most likely will."""
    for key in proxies(db):
        net = network.networking(db, key) if key.kind == "Dataplane" else None
        if net is not None:
            db.set(network.NODE_METADATA, key, network.likely_node_metadata(net))
    return db


def proxies(db: Db) -> Iterable[Key]:
    for kind in PROXY_KINDS:
        yield from (key for key in world.BY_KIND_EVERYWHERE.keys(db, kind) if key.zone in ("", "east"))


def snapshots(db: Db) -> dict[Key, Snapshot | None]:
    return {key: snapshot.of(db, key) for key in proxies(db)}


def named(db: Db, key: Key) -> tuple[str, str, str]:
    resource = world.RESOURCES.get(db, key)
    assert resource is not None
    return key.kind, key.mesh, resource.core_name


def differing(one: Db, other: Db) -> dict[tuple[str, str, str], tuple[Snapshot | None, Snapshot | None]]:
    before, after = snapshots(one), snapshots(other)
    return {
        named(one if key in before else other, key): (before.get(key), after.get(key))
        for key in before | after
        if resources(before.get(key)) != resources(after.get(key))
    }


def resources(side: Snapshot | None) -> Any:
    return bodies(side)[0] if side is not None else {}


def shown(plan: Plan) -> dict[tuple[str, str, str], ProxyGroup]:
    return {(each.type, each.mesh, each.name): group for group in plan.groups for each in group.proxies}


def check_resources(group: ProxyGroup, before: Snapshot | None, after: Snapshot | None) -> None:
    """What the plan says of Envoy's resources of the first of a group is what differs, field by field."""
    old, new = ({resource.id: resource for resource in side or ()} for side in (before, after))
    ids = {id_ for id_ in old | new if old.get(id_) != new.get(id_)}
    said = {(each.type, each.name): each for each in group.resources}
    assert said.keys() == ids
    for id_, each in said.items():
        is_changed = id_ in old and id_ in new
        assert (each.action == "changed") is is_changed
        if is_changed and id_[0] != SECRET:
            fields = leaves(decoded(old[id_]), decoded(new[id_]))
            assert [leaf.path for leaf in fields] == [leaf.path for leaf in each.fields]


def merged(db: Db, key: Key) -> Mapping[tuple[str, str], Any]:
    """The confs of a proxy by port and kind, as the Inspect API shows them."""
    found = {}
    for port in inspect.called(db, key):
        name = inspect.kri(db, port.destination, port.section)
        for each in inspect.outbound_policies(db, port)["policies"]:
            (found[name, each["kind"]],) = each["conf"]
    return found


def at(conf: Any, field: str) -> Any:
    for name in field.split("."):
        conf = conf.get(name) if isinstance(conf, dict) else None
    return conf


def check_values(group: ProxyGroup, key: Key, before: Db, after: Db) -> int:
    """The values that the plan names are those of both sides; gives how many were compared."""
    old, new = merged(before, key), merged(after, key)
    compared = 0
    for each in group.values:
        name = each.at, each.kind
        is_plain = each.about == "calls" and each.kind and not each.route and not each.requests
        if is_plain and "[" not in each.field + each.at and (name in old or name in new):
            assert (at(old.get(name), each.field), at(new.get(name), each.field)) == (each.before, each.after)
            compared += 1
    called = [callable_ports(each, key) for each in (before, after)]
    for name in old | new:
        port, _ = name
        if old.get(name) != new.get(name) and all(port in each for each in called):
            assert any((each.at, each.kind) == name for each in group.values), name
    return compared


def callable_ports(db: Db, key: Key) -> set[str]:
    spec = snapshot.spec_of(db, key)
    ports = spec.ports if isinstance(spec, OutboundSpec) else ()
    return {inspect.kri(db, each.destination, each.section) for each in ports}


def planned(seed: int) -> tuple[int, int]:
    """Some changes of a random mesh; gives how many proxies changed, and how many values were compared."""
    random = Random(seed)
    stored = drawn(random, 45)
    planner_db = database(stored.values())
    planner = Planner(planner_db)
    n_changed = n_values = 0
    for _ in range(4):
        change = changed(random, stored)
        before = connected(database(stored.values()))
        rest = [each for key, each in stored.items() if key not in change.keys]
        after = database([*rest, *change.written])
        consequences.follow(after, change.keys, NOW)
        after = connected(after)
        plan = planner.plan(change, NOW, PlanReader(envoy_fields=True))
        planner.refresh()
        expected, said = differing(before, after), shown(plan)
        assert said.keys() == expected.keys(), change
        assert plan.changed == len(expected)
        keys = {named(each, key): key for each in (before, after) for key in proxies(each)}
        for group in plan.groups:
            first = group.proxies[0]
            name = first.type, first.mesh, first.name
            check_resources(group, *expected[name])
            is_sidecar = group.action == "changed" and first.type == "Dataplane"
            if is_sidecar:
                n_values += check_values(group, keys[name], before, after)
        n_changed += plan.changed
        assert {each.key: each for each in world.stored(planner_db)} == stored
        assert not differing(before, planner_db)
    return n_changed, n_values


@pytest.mark.parametrize("seeds", [range(4), range(4, 8)], ids=str)
def test_a_plan_is_what_then_happens(seeds: range) -> None:
    counts = [planned(seed) for seed in seeds]
    assert sum(changed for changed, _ in counts) > 3


def test_values_of_plans_are_those_of_both_sides() -> None:
    assert sum(planned(seed)[1] for seed in range(100, 106)) > 3


def test_what_a_proxy_says_of_itself_counts_from_then_on() -> None:
    stored = drawn(Random(3), 45)
    db = database(stored.values())
    planner = Planner(db)
    key = next(key for key in proxies(db) if key.kind == "Dataplane")
    said = network.NodeMetadata(admin_port=9901)
    assert network.NODE_METADATA.get(db, key) is not None, "it is assumed to say what is most likely"
    db.set(network.NODE_METADATA, key, said)
    planner.refresh()
    planner.plan(PlannedChange((), (key,)), NOW)
    assert network.NODE_METADATA.get(db, key) == said
