"""MeshProxyPatches on what Envoys get: each file in `cases/patches` is a case, as in `cases/build`.

Beside resources a case says which policies changed what (`touched`), and what could not be done (`failures`).
"""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from building import at, case, database, decoded, of, proxies, proxy, stored, watcher

from koguma.core import pipeline, rules
from koguma.core.build import inbound, network, patches, snapshot
from koguma.core.build.network import NodeMetadata
from koguma.core.incremental import Db
from koguma.envoy.snapshot import CLUSTER, TYPES, Snapshot
from koguma.model import documents
from koguma.model.resource import Resource
from tests import build

pytestmark = pytest.mark.slow

CASES = tuple(case(path) for path in sorted((Path(__file__).parent / "cases" / "patches").glob("*.yaml")))
LINK = NodeMetadata(("feature-bind-outbounds",))
NAMES = ("a", "b", "c")


def looked(made: Snapshot, expected: Any) -> Any:
    """What there is at the places that a case looks at."""
    return {
        type_: {
            name: {path: at(_data(made, type_, name), path) for path in paths}
            for name, paths in expected[type_].items()
        }
        for type_ in TYPES
        if type_ in expected
    }


def _data(made: Snapshot, type_: str, name: str) -> Any:
    resource = made.get((type_, name))
    return decoded(resource) if resource else None


@pytest.mark.parametrize("case", CASES, ids=[case.path.stem for case in CASES])
def test_a_proxy_gets_what_its_case_says(case):
    db = case.database()
    for name, text in case.expected.items():
        (document,) = documents.load(text)
        expected = dict(document.value)
        made, touching = of(db, name), snapshot.touching(db, proxy(db, name))
        assert [f"{f.type} {f.name}: {f.text}" for f in made.failures] == expected.pop("failures", [])
        if "touched" in expected:
            found = {" ".join(id_): list(policies) for id_, policies in touching.items()}
            assert found == expected.pop("touched")
        assert looked(made, expected) == expected


def service(name: str, seconds: int = 0) -> Resource:
    status = {"vips": [{"ip": f"241.0.0.{NAMES.index(name) + 1}"}]}
    return stored(build.mesh_service(name, build.port(name="http", targetPort=8080), status=status))


def proxy_document(name: str, address: str = "10.0.0.1") -> Resource:
    inbounds = [build.inbound(name[0], 8080, name="main")]
    return stored(build.dataplane(name, address=address, inbound=inbounds))


def timeout(service: str, limit: str) -> Resource:
    conf = {"connectionTimeout": limit, "http": {"requestTimeout": limit}}
    return stored(build.policy("MeshTimeout", "limit", (build.service_ref(service), conf)))


def patch(name: str, *changes: Any, **top: Any) -> Resource:
    spec = {**top, "default": {"appendModifications": list(changes)}}
    return stored({"type": "MeshProxyPatch", "mesh": "default", "name": name, "spec": spec})


def on_clusters(value: Any, **match: str) -> Any:
    return {"cluster": {"operation": "Patch", **({"match": match} if match else {}), "value": value}}


BUFFER = on_clusters({"per_connection_buffer_limit_bytes": 1024}, origin="outbound")
HEADER = {
    "virtualHost": {"operation": "Patch", "value": {"request_headers_to_remove": ["x"]}},
}
ADDED = {"cluster": {"operation": "Add", "value": {"name": "new", "connect_timeout": "1s"}}}
FOR_A = {"targetRef": {"kind": "Dataplane", "name": "a-1"}}


def running(*more: Resource) -> Db:
    """Three services, two proxies of each; all of them call all of them."""
    there = [stored({"type": "Mesh", "name": "default"}), *map(service, NAMES), *more]
    there += [proxy_document(f"{name}-{number}", f"10.0.0.{number}") for name in NAMES for number in (1, 2)]
    db = database(there)
    for key in proxies(db):
        db.set(network.NODE_METADATA, key, LINK)
        watcher(db).add(key)
    watcher(db).changed()
    db.reset_counts()
    return db


def ran(db: Db) -> dict[str, int]:
    return {name: n for name, n in db.runs.items() if name.startswith("patches.")}


def told(db: Db, *written: Resource, gone: tuple[Resource, ...] = ()) -> list[str]:
    db.reset_counts()
    pipeline.take(db, written, [each.key for each in gone])
    return sorted(key.name for key in watcher(db).changed())


def test_without_patches_nothing_is_asked_and_bundles_are_the_same_objects():
    db = running()
    assert set(ran(db)) <= {"patches.entries"}
    key = proxy(db, "a-1")
    mine = rules.class_of(db, key)
    own = inbound.resources(db, key)
    assert patches.over(db, mine, [(patches.INBOUND, own)])[0] is own
    assert snapshot.of(db, key).bundles[2] is own
    assert snapshot.touching(db, key) == {}


def test_a_bundle_in_which_no_patch_means_anything_is_the_same_object():
    db = running(patch("p", BUFFER))
    key = proxy(db, "a-1")
    found = patches.entries(db, rules.class_of(db, key))
    own = inbound.resources(db, key)
    assert patches.applied(db, found, own, patches.INBOUND) is own
    assert patches.touching(db, found, own, patches.INBOUND) == {}
    assert snapshot.of(db, key).bundles[2] is own


def test_proxies_that_share_a_bundle_share_the_patched_one():
    db = running(patch("p", BUFFER, ADDED))
    shared = {id(snapshot.of(db, key).bundles[0]) for key in proxies(db)}
    assert len(shared) == 1
    db = running(patch("p", BUFFER), patch("of-a", ADDED, **FOR_A))
    shared = {id(snapshot.of(db, key).bundles[0]) for key in proxies(db)}
    assert len(shared) == 2
    assert [(CLUSTER, "new") in snapshot.of(db, key).bundles[0].resources for key in proxies(db)].count(
        True
    ) == 1


def test_an_endpoint_that_moves_patches_nothing_again():
    db = running(patch("p", BUFFER, HEADER))
    assert len(told(db, proxy_document("b-1", "10.0.0.77"))) == 6
    assert ran(db)["patches._outcome"] == 1  # the listener of the one that moved, on its new address


def test_a_limit_of_one_service_patches_that_service_again_and_no_other():
    db = running(patch("p", BUFFER, HEADER), timeout("a", "3s"))
    assert len(told(db, timeout("a", "4s"))) == 6
    assert ran(db)["patches._outcome"] == 2  # its cluster and its routes, once for all six proxies
    assert "patches.program" not in ran(db)


def test_an_edited_patch_touches_those_that_it_selects():
    db = running(patch("p", BUFFER), patch("of-a", HEADER, **FOR_A))
    assert told(db, patch("of-a", ADDED, **FOR_A)) == ["a-1"]
    assert told(db, patch("of-a", ADDED, **FOR_A)) == []
    assert told(db, gone=(patch("of-a", ADDED, **FOR_A),)) == ["a-1"]
    assert told(db, patch("p", on_clusters({"per_connection_buffer_limit_bytes": 9}))) == [
        f"{name}-{number}" for name in NAMES for number in (1, 2)
    ]


def test_what_a_patch_adds_is_there_once_also_where_it_has_the_name_of_an_inbound():
    name = "kri_dp_default_east__a-1_main"
    taken = {"cluster": {"operation": "Add", "value": {"name": name, "connect_timeout": "7s"}}}
    db = running(patch("p", taken, on_clusters({"alt_stat_name": "x"}, name=name)))
    made = of(db, "a-1")
    (only,) = [resource for resource in made if resource.id == (CLUSTER, name)]
    assert decoded(only) == {"name": name, "connect_timeout": "7s", "alt_stat_name": "x"}
    assert snapshot.touching(db, proxy(db, "a-1")) == {(CLUSTER, name): ("kri_mpp_default_east__p_",)}


def test_a_patch_that_was_broken_and_is_repaired_acts():
    db = running(patch("p", on_clusters({"nothing": 1})))
    before = of(db, "a-1")
    assert [failure.origin for failure in before.failures] == ["kri_mpp_default_east__p_"]
    assert len(told(db, patch("p", BUFFER))) == 6
    after = of(db, "a-1")
    assert not after.failures
    assert (
        decoded(after.get((CLUSTER, "kri_msvc_default_east__b_http")))["per_connection_buffer_limit_bytes"]
        == 1024
    )


def test_a_stored_patch_of_a_shape_that_nobody_can_write_breaks_nothing():
    odd = patch("p", BUFFER)
    for shape in ({}, None, 7, {"cluster": 7}, {"cluster": {"operation": "Fly", "match": {}, "value": {}}}):
        odd.spec["default"]["appendModifications"][:] = [shape, BUFFER]
        made = of(running(odd), "a-1")
        assert {failure.origin for failure in made.failures} <= {"kri_mpp_default_east__p_"}
        data = decoded(made.get((CLUSTER, "kri_msvc_default_east__b_http")))
        assert data["per_connection_buffer_limit_bytes"] == 1024


def bodies(made: Snapshot | None) -> Any:
    return made and ({resource.id: resource.body for resource in made}, made.failures)


def some_change(random: Random) -> Resource:
    limit = f"{random.randint(0, 2)}s"
    changes = [
        BUFFER,
        HEADER,
        ADDED,
        on_clusters({"connect_timeout": limit}),
        on_clusters({"connect_timeout": limit}, name="new"),
        {"cluster": {"operation": "Remove", "match": {"origin": random.choice(["outbound", "inbound"])}}},
        {"listener": {"operation": "Remove", "match": {"name": "kri_msvc_default_east__b_http"}}},
        {"httpFilter": {"operation": "Remove", "match": {"name": "envoy.filters.http.router"}}},
    ]
    top = random.choice([{}, {}, FOR_A])
    return random.choice(
        [
            *[patch(random.choice(["p", "q", "r"]), *random.sample(changes, random.randint(1, 3)), **top)]
            * 4,
            proxy_document(
                f"{random.choice(NAMES)}-{random.randint(1, 3)}", f"10.0.0.{random.randint(1, 5)}"
            ),
            service(random.choice(NAMES)),
            timeout(random.choice(NAMES), f"{random.randint(1, 3)}s"),
        ]
    )


@pytest.mark.parametrize("seed", range(12))
def test_after_any_history_everything_is_as_after_a_fresh_start(seed):
    random = Random(seed)
    db = running()
    there = {each.key: each for each in (stored({"type": "Mesh", "name": "default"}), *map(service, NAMES))}
    there |= {
        each.key: each
        for name in NAMES
        for each in (proxy_document(f"{name}-{n}", f"10.0.0.{n}") for n in (1, 2))
    }
    for _ in range(15):
        changed = some_change(random)
        if changed.key in there and random.random() < 0.3:
            del there[changed.key]
            pipeline.take(db, [], [changed.key])
        else:
            there[changed.key] = changed
            pipeline.take(db, [changed])
        watcher(db).changed()
        fresh = database(there.values())
        for key in proxies(fresh):
            fresh.set(network.NODE_METADATA, key, LINK)
            db.set(network.NODE_METADATA, key, LINK)
        for key in proxies(fresh):
            assert bodies(snapshot.of(db, key)) == bodies(snapshot.of(fresh, key))
