"""Compile: how long the engine takes for a mesh, and what a change costs.

    python -m bench.compile [--proxies N --services S --policies P --json]

2,000 proxies in at least 200 classes, 500 services, 1,000 policies; the same with a quarter of the proxies,
so that the cost of a change can be compared. Every proxy is connected and watched as in the control plane
(`SnapshotWatcher`): what is measured is the path from stored objects to the snapshot that each Envoy gets.
Times are CPU time; counts of what ran stand beside them.
"""

import argparse
import gc
import json
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from koguma.core import admission, pipeline, rules
from koguma.core.build import encoding, network
from koguma.core.build.network import NodeMetadata
from koguma.core.build.snapshot_watcher import SnapshotWatcher
from koguma.envoy import schema
from koguma.envoy.encode import Encoder
from koguma.main import all_kinds
from koguma.model import forms
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kinds
from koguma.model.resource import Key, Resource

CONTROL_PLANE = ControlPlaneInfo()
NODE = NodeMetadata(features=("feature-bind-outbounds", "feature-embedded-dns"), admin_port=9901)
TEAMS = 50
CANARIES = 10


def documents(n_proxies: int, n_services: int, n_policies: int) -> Iterator[dict[str, Any]]:
    """A mesh: services with one port, proxies of them, and policies of every sort."""
    yield {"type": "Mesh", "name": "default"}
    for number in range(n_services):
        ports = [{"name": "http", "port": 80, "targetPort": 8080, "appProtocol": "http"}]
        spec = {"selector": {"dataplaneTags": {"kuma.io/service": f"svc-{number}"}}, "ports": ports}
        yield {"type": "MeshService", "mesh": "default", "name": f"svc-{number}", "spec": spec}
    for number in range(n_proxies):
        yield dataplane(number, n_services)
    for number in range(n_policies):
        yield policy(number, n_services)
    yield canary(7)


def dataplane(number: int, n_services: int) -> dict[str, Any]:
    """A proxy: its service, its team, its own address."""
    tags = {"kuma.io/service": f"svc-{number % n_services}", "kuma.io/protocol": "http"}
    return {
        "type": "Dataplane",
        "mesh": "default",
        "name": f"dp-{number}",
        "labels": {
            "team": f"team-{number % TEAMS}",
            "app": f"svc-{number % n_services}",
            "canary": "yes" if number < CANARIES else "no",
        },
        "networking": {
            "address": f"10.{number // 65536}.{number // 256 % 256}.{number % 256}",
            "inbound": [{"name": "main", "port": 8080, "tags": tags}],
        },
    }


def policy(number: int, n_services: int, seconds: int = 7) -> dict[str, Any]:
    """One of five sorts: for all callers of a service, of a team, of an app, retries, routes."""
    target = {"kind": "MeshService", "name": f"svc-{number % n_services}"}
    timeout = {"http": {"requestTimeout": f"{seconds}s"}}
    match number % 5:
        case 0:
            kind, spec = "MeshTimeout", {"to": [{"targetRef": target, "default": timeout}]}
        case 1:
            of = {"kind": "Dataplane", "labels": {"team": f"team-{number % TEAMS}"}}
            kind, spec = "MeshTimeout", {"targetRef": of, "to": [{"targetRef": target, "default": timeout}]}
        case 2:
            of = {"kind": "Dataplane", "labels": {"app": f"svc-{number // 5 % n_services}"}}
            everywhere = {"kind": "Mesh"}
            conf = {"idleTimeout": f"{seconds}s"}
            kind, spec = "MeshTimeout", {"targetRef": of, "to": [{"targetRef": everywhere, "default": conf}]}
        case 3:
            kind = "MeshRetry"
            spec = {"to": [{"targetRef": target, "default": {"http": {"numRetries": number % 7 + 1}}}]}
        case _:
            kind = "MeshHTTPRoute"
            path = {"type": "PathPrefix", "value": f"/v{number % 9}"}
            backends = [{"kind": "MeshService", "name": f"svc-{(number + 1) % n_services}"}]
            rule = {"matches": [{"path": path}], "default": {"backendRefs": backends}}
            spec = {"to": [{"targetRef": target, "rules": [rule]}]}
    return {"type": kind, "mesh": "default", "name": f"p-{number}", "spec": spec}


def canary(seconds: int) -> dict[str, Any]:
    """A policy for ten proxies, and for them it wins."""
    of = {"kind": "Dataplane", "labels": {"canary": "yes"}}
    conf = {"http": {"streamIdleTimeout": f"{seconds}s"}}
    spec = {"targetRef": of, "to": [{"targetRef": {"kind": "Mesh"}, "default": conf}]}
    return {"type": "MeshTimeout", "mesh": "default", "name": "canary", "spec": spec}


def admitted(kinds: Kinds, document: dict[str, Any]) -> Resource:
    return admission.admitted(forms.read(document, kinds), None, CONTROL_PLANE).resource


def mesh(kinds: Kinds, n_proxies: int, n_services: int, n_policies: int) -> Iterator[Resource]:
    """The objects of a mesh in which every service has a virtual address, so that everybody can call it."""
    number = 0
    for document in documents(n_proxies, n_services, n_policies):
        stored = admitted(kinds, document)
        if stored.kind == "MeshService":
            number += 1
            address = f"241.{number // 65536}.{number // 256 % 256}.{number % 256}"
            stored = msgspec.structs.replace(stored, status={"vips": [{"ip": address}]})
        yield stored


def connect(watcher: SnapshotWatcher, proxy: Key) -> None:
    """Let a proxy connect, and watch what it gets."""
    watcher.db.set(network.NODE_METADATA, proxy, NODE)
    watcher.add(proxy)


def measured(
    kinds: Kinds, encoder: Encoder, n_proxies: int, n_services: int, n_policies: int
) -> dict[str, Any]:
    """Figures of one size."""
    resources = list(mesh(kinds, n_proxies, n_services, n_policies))
    proxies = [r.key for r in resources if r.kind == "Dataplane"]
    gc.collect()
    before = rss_mb()
    started = time.process_time()
    db = pipeline.load(kinds, CONTROL_PLANE, resources)
    db.set(encoding.ENCODER, "envoy", encoder)
    watcher = SnapshotWatcher(db)
    for key in proxies:
        connect(watcher, key)
    watcher.changed()
    full = time.process_time() - started
    gc.collect()
    gc.freeze()  # as the control plane does once it has loaded
    classes = {rules.class_of(db, key) for key in proxies}
    figures: dict[str, Any] = {
        "proxies": n_proxies,
        "classes": len(classes),
        "full_s": round(full, 3),
        "memory_mb": round(rss_mb() - before, 1),
        "memos": db.n_memos,
    }
    figures["ten"] = _change(watcher, lambda turn: [admitted(kinds, canary(100 + turn))])
    figures["all"] = _change(
        watcher, lambda turn: [admitted(kinds, policy(0, n_services, seconds=100 + turn))], rounds=3
    )
    figures["unrelated"] = _change(watcher, lambda turn: [_secret(kinds, turn)])
    figures["no_effect"] = _change(
        watcher, lambda turn: [admitted(kinds, {**canary(108), "labels": {"note": f"n-{turn}"}})]
    )
    figures["matched"] = _matched(kinds, watcher)
    figures["new_proxy"] = _change(
        watcher, lambda turn: [admitted(kinds, dataplane(n_proxies + turn, n_services))], connects=True
    )
    return figures


def _matched(kinds: Kinds, watcher: SnapshotWatcher, rounds: int = 9) -> dict[str, Any]:
    """A new proxy unlike all others: which policies select it."""
    db, times = watcher.db, []
    for turn in range(rounds):
        labels = {"team": f"team-{turn}", "app": f"svc-{turn * 7 + 3}", "canary": "yes"}
        document = {**dataplane(10**6 + turn, 10**6 + turn + 1), "labels": labels}
        new = admitted(kinds, document)
        started = time.process_time()
        pipeline.take(db, [new])
        assert rules.class_of(db, new.key) is not None
        times.append(time.process_time() - started)
    watcher.changed()
    return {"ms": round(median(times) * 1000, 3)}


def _secret(kinds: Kinds, turn: int) -> Resource:
    """A change of an object that no proxy's configuration depends on."""
    return admitted(kinds, {"type": "Secret", "mesh": "default", "name": "s", "data": "YWFh" * (turn + 1)})


def _change(
    watcher: SnapshotWatcher,
    written: Callable[[int], list[Resource]],
    rounds: int = 9,
    *,
    connects: bool = False,
) -> dict[str, Any]:
    db, times, changed, ran = watcher.db, [], 0, 0
    for turn in range(rounds):
        resources = written(turn)
        db.reset_counts()
        started = time.process_time()
        pipeline.take(db, resources)
        if connects:
            connect(watcher, resources[0].key)
        changed = len(watcher.changed())
        times.append(time.process_time() - started)
        ran = sum(db.runs.values())
    return {"ms": round(median(times) * 1000, 3), "proxies_changed": changed, "questions_run": ran}


def rss_mb() -> float:
    """The memory that this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--proxies", type=int, default=2000)
    parser.add_argument("--services", type=int, default=500)
    parser.add_argument("--policies", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    kinds, encoder = all_kinds(), Encoder(schema.load(schema.find_envoy()))
    small = measured(kinds, encoder, options.proxies // 4, options.services, options.policies)
    large = measured(kinds, encoder, options.proxies, options.services, options.policies)
    ratio = round(large["ten"]["ms"] / small["ten"]["ms"], 2)
    result = {"small": small, "large": large, "ten_ratio": ratio}
    if options.json:
        print(json.dumps(result))
        return
    for figures in (small, large):
        print(figures)
    print(f"a change that touches ten proxies, {small['proxies']} -> {large['proxies']} proxies: {ratio} x")


if __name__ == "__main__":
    main()
