"""A plan on Global is what then happens in each zone: random changes, real control planes, from scratch."""

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest
import random_meshes
from building import bodies, encoder

from koguma.core import pipeline, world
from koguma.core.build import encoding, network, snapshot
from koguma.core.incremental import Db
from koguma.core.plan.model import Plan
from koguma.core.plan.planner import PROXY_KINDS
from koguma.envoy.snapshot import Snapshot
from koguma.model.resource import Key
from tests import build
from tests.control_plane import LocalControlPlane
from tests.sync.test_zones import Federation, _has_mesh
from tests.waiting import until

pytestmark = pytest.mark.slow

# What is written on Global; a Mesh is not among them, since statuses follow it later.
ON_GLOBAL = [
    kind
    for kind in random_meshes.KINDS
    if kind not in ("Dataplane", "MeshService", "ZoneIngress", "ZoneEgress", "Mesh", "Secret")
]
Ids = dict[tuple[str, str], str]


class Zone(NamedTuple):
    name: str
    plane: LocalControlPlane

    def database(self) -> Db:
        """All that the zone stores, loaded anew; its proxies say of themselves what they most likely will."""
        here = self.plane.plane
        db = pipeline.load(here.kinds, here.settings.control_plane, list(here.store.state.all()))
        db.set(encoding.ENCODER, "envoy", encoder())
        for key in self.proxies(db):
            net = network.networking(db, key) if key.kind == "Dataplane" else None
            if net is not None:
                db.set(network.NODE_METADATA, key, network.likely_node_metadata(net))
        return db

    def proxies(self, db: Db) -> Iterator[Key]:
        for kind in PROXY_KINDS:
            yield from (key for key in world.BY_KIND_EVERYWHERE.keys(db, kind) if key.zone == self.name)

    def snapshots(self) -> dict[Key, Snapshot | None]:
        db = self.database()
        return {key: snapshot.of(db, key) for key in self.proxies(db)}


def differing(before: Snapshot | None, after: Snapshot | None) -> Ids:
    old, new = (bodies(side)[0] if side is not None else {} for side in (before, after))
    return {
        id_: "added" if id_ not in old else "removed" if id_ not in new else "changed"
        for id_ in old | new
        if old.get(id_) != new.get(id_)
    }


def happened(zones: list[Zone], before: dict[Key, Snapshot | None]) -> dict[Key, Ids]:
    after = {key: each for zone in zones for key, each in zone.snapshots().items()}
    assert before.keys() == after.keys()
    found = {key: differing(before[key], after[key]) for key in after}
    return {key: ids for key, ids in found.items() if ids}


def said(top: LocalControlPlane, plan: Plan) -> dict[Key, Ids | None]:
    """The proxies of a plan by their keys; of the first of each group also which resources change."""
    found: dict[Key, Ids | None] = {}
    for group in plan.groups:
        for number, each in enumerate(group.proxies):
            resource = top.plane.store.state.named(each.type, each.mesh, each.name)
            assert resource is not None
            assert resource.zone == each.zone
            ids = {(one.type, one.name): one.action for one in group.resources}
            found[resource.key] = ids if number == 0 else None
    return found


def document(random: Random, kind: str) -> dict[str, Any]:
    drawn = {"type": kind, **random_meshes.KINDS[kind](random)}
    return {name: value for name, value in drawn.items() if not name.startswith("x-") and name != "status"}


@pytest.fixture
def zones(tmp_path: Any) -> Iterator[tuple[LocalControlPlane, list[Zone]]]:
    federation = Federation(tmp_path)
    top = federation.top
    with federation.stack as stack:
        assert top("PUT", "/meshes/default", build.mesh(mtls=build.builtin_mtls())).status == 200
        assert top("PUT", "/meshes/other", build.mesh("other")).status == 201
        found = [Zone(name, stack.enter_context(federation.zone(name))) for name in ("east", "west")]
        for zone in found:
            until(lambda zone=zone: zone.plane("GET", "/meshes/other").status == 200, "it has the meshes")
            assert _has_mesh(zone.plane)
        yield top, found


def fill(random: Random, zone: Zone) -> int:
    """Write some proxies and services in a zone; gives how many objects were written."""
    written = set()
    for kind in ("Dataplane",) * 5 + ("MeshService",) * 3:
        drawn = document(random, kind)
        if kind == "MeshService":
            drawn["labels"] = {**drawn["labels"], "kuma.io/origin": "zone"}
        path = f"/meshes/{drawn['mesh']}/{kind.lower()}s/{drawn['name']}"
        if zone.plane("PUT", path, drawn).status in (200, 201):
            written.add(path)
    return len(written)


def settle(top: LocalControlPlane, zones: list[Zone], looks: int = 25) -> None:
    """Wait until everybody has what the others wrote, and nothing is written any more."""

    def revisions() -> list[int]:
        return [plane.plane.store.state.revision for plane in (top, *(zone.plane for zone in zones))]

    seen, quiet = revisions(), 0

    def is_quiet() -> bool:
        nonlocal seen, quiet
        now = revisions()
        quiet = quiet + 1 if now == seen else 0
        seen = now
        return quiet > looks

    until(is_quiet, "nothing is written any more")
    for zone in zones:
        assert top.run(top.plane._sync.server.wait_for(zone.name, 20.0))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_plan_on_global_is_what_then_happens_in_each_zone(
    seed: int, zones: tuple[LocalControlPlane, list[Zone]]
) -> None:
    top, places = zones
    random = Random(seed)
    assert sum(fill(random, zone) for zone in places) > 5
    settle(top, places, looks=100)  # services, addresses and statuses follow from each other
    stored: dict[str, dict[str, str]] = {}
    n_changed = n_zones = 0
    for _ in range(8):
        objects = [document(random, random.choice(ON_GLOBAL)) for _ in range(random.randint(1, 3))]
        gone = random.sample(sorted(stored), min(len(stored), random.randint(0, 1)))
        names = [stored[path] for path in gone]
        asked = top("POST", "/_plan", {"objects": objects, "delete": names})
        dry = top("POST", "/_apply?dryRun=All", {"objects": objects})
        if asked.status != 200:
            assert (asked.status, dry.status) == (400, 400) or names, asked.text
            continue
        plan = msgspec.convert(asked.json, Plan)
        assert not plan.unknown_zones
        before = {key: each for zone in places for key, each in zone.snapshots().items()}
        assert plan.total == len(before)
        for path in gone:
            assert top("DELETE", path).status == 200
            del stored[path]
        applied = top("POST", "/_apply", {"objects": objects})
        assert applied.status == 200, applied.text
        for each in applied.json["results"]:
            mesh = f"/meshes/{each['mesh']}" if each.get("mesh") else ""
            named = {name: each[name] for name in ("type", "name", "mesh") if each.get(name)}
            stored[f"{mesh}/{each['path']}/{each['name']}"] = named
        settle(top, places)
        expected, found = happened(places, before), said(top, plan)
        assert found.keys() == expected.keys(), (objects, names)
        assert plan.changed == len(expected)
        for key, ids in found.items():
            assert ids is None or ids == expected[key], (key, objects, names)
        n_changed += plan.changed
        n_zones = max(n_zones, len({key.zone for key in expected}))
    assert n_changed > 3
    assert n_zones == 2
