"""Snapshots: how long the engine takes from stored objects to the bytes that Envoys get.

    python -m bench.snapshots [--proxies N --services S --policies P --json]

The same mesh as `bench.compile`, but every proxy is connected, every service has a virtual address and a
name, limits differ from policy to policy, and the answer is what each Envoy is sent. Beside it stands the
encoder alone on every resource that a proxy gets, which shows what the engine costs above encoding. Times
are CPU time; the larger mesh comes first, so that its memory is all new.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterable, Iterator
from statistics import median
from typing import Any

from bench.compile import CONTROL_PLANE, admitted, canary, dataplane, policy, rss_mb
from bench.compile import mesh as callable_mesh
from koguma.core import pipeline, rules
from koguma.core.build import encoding, network, snapshot
from koguma.core.build.network import NodeMetadata
from koguma.core.build.snapshot_watcher import SnapshotWatcher
from koguma.core.incremental import Db
from koguma.envoy import schema
from koguma.envoy.encode import Encoder
from koguma.envoy.snapshot import XdsResource
from koguma.main import all_kinds
from koguma.model.kind import Kinds
from koguma.model.resource import Key, Resource

FEATURES = ("feature-bind-outbounds", "feature-embedded-dns")
Objects = Callable[[int], Iterable[Resource]]


def mesh(kinds: Kinds, n_proxies: int, n_services: int, n_policies: int) -> Iterator[Resource]:
    """The objects of a mesh in which everybody can call everybody."""
    for resource in callable_mesh(kinds, n_proxies, n_services, n_policies):
        if resource.name.startswith("p-"):
            number = int(resource.name.removeprefix("p-"))
            yield admitted(kinds, policy(number, n_services, seconds=5 + number % 10))
        else:
            yield resource
    names = {"selector": {"meshService": {"matchLabels": {}}}, "template": "{{ .DisplayName }}.mesh"}
    yield admitted(kinds, {"type": "HostnameGenerator", "name": "all", "spec": names})


def connect(db: Db, watcher: SnapshotWatcher, key: Key) -> None:
    """Connect a proxy."""
    node = NodeMetadata(features=FEATURES, workdir=f"/run/koguma/{key.name}", admin_port=9901)
    db.set(network.NODE_METADATA, key, node)
    watcher.add(key)


def measured(kinds: Kinds, encoder: Encoder, size: tuple[int, int, int]) -> dict[str, Any]:
    """Figures of one size: proxies, services, policies."""
    n_proxies, n_services, _ = size
    resources = list(mesh(kinds, *size))
    proxies = [resource.key for resource in resources if resource.kind == "Dataplane"]
    gc.collect()
    before, started = rss_mb(), time.process_time()
    db = pipeline.load(kinds, CONTROL_PLANE, resources)
    db.set(encoding.ENCODER, "envoy", encoder)
    watcher = SnapshotWatcher(db)
    for key in proxies:
        connect(db, watcher, key)
    watcher.changed()
    full = time.process_time() - started
    gc.collect()
    gc.freeze()  # as the control plane does once it has loaded
    first_snapshot = snapshot.of(db, proxies[0])
    assert first_snapshot is not None
    assert not first_snapshot.failures
    distinct = _distinct(db, proxies)
    figures: dict[str, Any] = {
        "proxies": n_proxies,
        "classes": len({rules.class_of(db, key) for key in proxies}),
        "pieces_each": len(list(first_snapshot)),
        "kib_each": round(sum(len(resource.body) for resource in first_snapshot) / 1024),
        "full_s": round(full, 3),
        "memory_mb": round(rss_mb() - before, 1),
        "memos": db.n_memos,
        "pieces": len(distinct),
        "encoding_s": round(_encoded(encoder, distinct), 3),
    }
    timed = _Timed(db, watcher, proxies, full)
    figures["moves"] = timed.of(lambda turn: [admitted(kinds, _moved(turn, n_services))])
    figures["ten"] = timed.of(lambda turn: [admitted(kinds, canary(100 + turn))])
    figures["route"] = timed.of(lambda turn: [admitted(kinds, _route(turn, n_services))])
    figures["service"] = timed.of(lambda turn: [admitted(kinds, policy(0, n_services, 100 + turn))])
    figures["no_effect"] = timed.of(
        lambda turn: [admitted(kinds, {**canary(108), "labels": {"note": f"n-{turn}"}})]
    )
    figures["joins"] = timed.of(
        lambda turn: [admitted(kinds, dataplane(n_proxies + turn, n_services))], joins=True
    )
    figures["everything"] = timed.of(lambda turn: [admitted(kinds, _everywhere(20 + turn))], rounds=3)
    return figures


def _distinct(db: Db, proxies: Iterable[Key]) -> set[XdsResource]:
    """The distinct resources that proxies get."""
    bundles = {id(bundle): bundle for key in proxies if (of := snapshot.of(db, key)) for bundle in of.bundles}
    return {resource for bundle in bundles.values() for resource in bundle.resources.values()}


def _encoded(encoder: Encoder, resources: Iterable[XdsResource]) -> float:
    """CPU time of the encoder alone."""
    plain = [(resource.type, resource.name, encoder.decoded(resource)) for resource in resources]
    started = time.process_time()
    for type_, name, data in plain:
        encoder.resource(type_, name, data)
    return time.process_time() - started


def _moved(turn: int, n_services: int) -> dict[str, Any]:
    document = dataplane(0, n_services)
    document["networking"]["address"] = f"10.255.0.{turn + 1}"
    return document


def _route(turn: int, n_services: int) -> dict[str, Any]:
    document = policy(4, n_services)
    document["spec"]["to"][0]["rules"][0]["matches"][0]["path"]["value"] = f"/turn-{turn}"
    return document


def _everywhere(seconds: int) -> dict[str, Any]:
    conf = {"connectionTimeout": f"{seconds}s"}
    spec = {"to": [{"targetRef": {"kind": "Mesh"}, "default": conf}]}
    return {"type": "MeshTimeout", "mesh": "default", "name": "everywhere", "spec": spec}


class _Timed:
    """Changes, each measured until every new snapshot is known."""

    def __init__(self, db: Db, watcher: SnapshotWatcher, proxies: list[Key], full: float) -> None:
        self._db = db
        self._watching = watcher
        self._full = full
        self._known = {key: snapshot.of(db, key) for key in proxies}

    def of(self, objects: Objects, rounds: int = 7, *, joins: bool = False) -> dict[str, Any]:
        """The median cost of a change, and what the last one touched."""
        db, times = self._db, []
        touched: set[XdsResource] = set()
        changed: list[Key] = []
        for turn in range(rounds):
            resources = list(objects(turn))
            db.reset_counts()
            started = time.process_time()
            pipeline.take(db, resources)
            for resource in resources if joins else ():
                connect(db, self._watching, resource.key)
            changed = self._watching.changed()
            times.append(time.process_time() - started)
            ran = sum(db.runs.values())
            touched = self._touched({*changed, *(resource.key for resource in resources if joins)})
        return {
            "ms": round(median(times) * 1000, 3),
            "of_scratch": round(median(times) / self._full, 5),
            "proxies_changed": len(changed),
            "pieces_made": len(touched),
            "questions_run": ran,
        }

    def _touched(self, keys: Iterable[Key]) -> set[XdsResource]:
        """The distinct resources that a proxy has now and had not before."""
        touched: set[XdsResource] = set()
        for key in keys:
            now, before = snapshot.of(self._db, key), self._known.get(key)
            had = {id(bundle) for bundle in before.bundles} if before else set()
            for bundle in now.bundles if now else ():
                if id(bundle) not in had:
                    touched |= {
                        p for p in bundle.resources.values() if before is None or before.get(p.id) != p
                    }
            self._known[key] = now
        return touched


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--proxies", type=int, default=2000)
    parser.add_argument("--services", type=int, default=500)
    parser.add_argument("--policies", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    kinds, encoder = all_kinds(), Encoder(schema.load(schema.find_envoy()))
    sizes = [
        (proxies, options.services, options.policies) for proxies in (options.proxies, options.proxies // 4)
    ]
    large, small = (measured(kinds, encoder, size) for size in sizes)
    changes = [name for name, figure in large.items() if isinstance(figure, dict)]
    ratios = {name: round(large[name]["ms"] / max(small[name]["ms"], 1e-3), 2) for name in changes}
    if options.json:
        print(json.dumps({"small": small, "large": large, "ratios": ratios}))
        return
    for figures in (small, large):
        for name, figure in figures.items():
            print(f"  {name:16} {figure}")
        print()
    print(f"{small['proxies']} -> {large['proxies']} proxies, cost of a change: {ratios}")


if __name__ == "__main__":
    main()
