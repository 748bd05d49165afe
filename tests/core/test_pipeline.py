"""Down the table of contents: a timeout from the stored policy to the Envoy of a proxy that it selects."""

from building import HERE, KINDS, decoded, encoder, objects

from koguma.core import items, pipeline
from koguma.core.build import encoding
from koguma.core.incremental import Db
from koguma.model.resource import Key

MESH = """
type: Mesh
name: default
---
type: MeshService
name: backend
mesh: default
spec: {ports: [{port: 80, appProtocol: http}], selector: {dataplaneTags: {kuma.io/service: backend}}}
---
type: Dataplane
name: web
mesh: default
networking:
  address: 10.0.0.1
  inbound: [{port: 8080, tags: {kuma.io/service: web}}]
  outbound: [{port: 9000, backendRef: {kind: MeshService, name: backend, port: 80}}]
---
type: MeshTimeout
name: slow
mesh: default
spec: {to: [{targetRef: {kind: MeshService, name: backend}, default: {connectionTimeout: 7s}}]}
"""
WEB = Key("Dataplane", "default", "east", "", "web")
BACKEND = Key("MeshService", "default", "east", "", "backend")
SLOW = Key("MeshTimeout", "default", "east", "", "slow")


def loaded() -> Db:
    db = pipeline.load(KINDS, HERE, objects(MESH))
    db.set(encoding.ENCODER, "envoy", encoder())
    return db


def test_each_stage_answers_for_the_next() -> None:
    db = loaded()
    proxy = pipeline.proxy(db, WEB)
    assert pipeline.reached(db, "default", "east", "", proxy.reach) == ((BACKEND, "80"),)
    matched = pipeline.matched(db, "MeshTimeout", pipeline.traits(db, WEB))
    assert [each.policy for each in matched] == [SLOW]
    port = pipeline.outbound_rules(db, pipeline.proxy_class(db, WEB)).of(BACKEND, "80")
    assert port.entries == (("MeshTimeout", (items.ItemId(SLOW, "to", 0),)),)
    assert pipeline.conf(db, dict(port.entries)["MeshTimeout"]) == {"connectionTimeout": "7s"}
    (shown,) = pipeline.outbound_policies(db, port)["policies"]
    assert shown["conf"] == [{"connectionTimeout": "7s"}]
    cluster = pipeline.snapshot(db, WEB).get(("cluster", "kri_msvc_default_east__backend_80"))
    assert decoded(cluster)["connect_timeout"] == "7s"


def test_a_changed_object_reaches_the_snapshot() -> None:
    db = loaded()
    watcher = pipeline.SnapshotWatcher(db)
    watcher.add(WEB)
    (edited,) = objects(MESH.replace("7s", "8s").rpartition("---\n")[2])
    pipeline.take(db, [edited])
    assert watcher.changed() == [WEB]
    cluster = watcher.of(WEB).get(("cluster", "kri_msvc_default_east__backend_80"))
    assert decoded(cluster)["connect_timeout"] == "8s"
