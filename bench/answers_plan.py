"""Plans and explanations: what they cost beside the compile that they stand on; a part of `bench.answers`.

A plan of a change for ten proxies and of one for all, once the planner has
compiled what all get; and who set a field of Envoy's. Times are CPU time. `ratio` is to the compile of the
same change alone.
"""

import gc
import time
from collections.abc import Callable
from datetime import UTC, datetime
from statistics import median
from typing import Any

from bench.compile import CONTROL_PLANE, admitted, canary, mesh, policy
from koguma.core import pipeline, world
from koguma.core.build import encoding
from koguma.core.build.snapshot_watcher import SnapshotWatcher
from koguma.core.envoy_origins import origins, paths
from koguma.core.incremental import Db
from koguma.core.plan.planner import PlannedChange, Planner
from koguma.envoy import schema
from koguma.envoy.encode import Encoder
from koguma.main import all_kinds
from koguma.model.resource import Key, Resource

ROUNDS = 5
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def timed(ask: Callable[[], Any], after: Callable[[], Any] = lambda: None) -> float:
    """The median CPU time of asking, in milliseconds; what comes after it is not counted."""
    times = []
    for _ in range(ROUNDS):
        started = time.process_time()
        ask()
        times.append(time.process_time() - started)
        after()
    return round(median(times) * 1000, 1)


def compiled(db: Db, change: Resource, before: Resource) -> float:
    """The compile of a change alone, in milliseconds."""
    watcher = SnapshotWatcher(db)
    for key in _proxies(db):
        watcher.add(key)

    def back() -> None:
        pipeline.take(db, [before])
        watcher.changed()

    def there() -> None:
        pipeline.take(db, [change])
        watcher.changed()

    return timed(there, back)


def _proxies(db: Db) -> tuple[Key, ...]:
    return tuple(world.BY_KIND_EVERYWHERE.keys(db, "Dataplane"))


def measured(n_proxies: int, n_services: int, n_policies: int) -> dict[str, Any]:
    """The figures."""
    kinds = all_kinds()
    resources = list(mesh(kinds, n_proxies, n_services, n_policies))
    db = pipeline.load(kinds, CONTROL_PLANE, resources)
    db.set(encoding.ENCODER, "envoy", Encoder(schema.load(schema.find_envoy())))
    started = time.process_time()
    planner = Planner(db)
    figures: dict[str, Any] = {"first_s": round(time.process_time() - started, 2)}
    gc.collect()
    gc.freeze()  # as the control plane does once it has loaded
    for name, new, old in (
        ("ten", canary(100), canary(7)),
        ("all", policy(0, n_services, seconds=100), policy(0, n_services)),
    ):
        change = PlannedChange((admitted(kinds, new),), ())
        plan = planner.plan(change, NOW)
        planner.refresh()
        plan_ms = timed(lambda change=change: planner.plan(change, NOW), planner.refresh)
        compile_ms = compiled(db, change.written[0], admitted(kinds, old))
        figures[f"plan_{name}"] = {
            "ms": plan_ms,
            "proxies": plan.changed,
            "compile_ms": compile_ms,
            "ratio": round(plan_ms / compile_ms, 2),
        }
    path = paths.parsed("clusters[kri_msvc_default_default__svc-3_http].connect_timeout")
    proxy = _proxies(db)[0]
    figures["explain"] = {"ms": timed(lambda: origins.explained(db, proxy, path))}
    return figures
