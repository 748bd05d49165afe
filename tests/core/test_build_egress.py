"""Zone egresses in the engine: a change touches only the egresses and sidecars that it concerns."""

from typing import Any

import pytest
from building import database, proxy, stored

from koguma.core import pipeline
from koguma.core.build import egress, snapshot, zone_egress
from koguma.core.build.snapshot_watcher import SnapshotWatcher
from tests import build

EGRESSES, SIDECAR = {"egress-1", "egress-2"}, {"web-1"}


def mesh(name: str = "default", *, egress: bool = True, mtls: bool = True) -> dict[str, Any]:
    fields = {"mtls": build.builtin_mtls(), "routing": {"zoneEgress": egress}} if mtls else {}
    return build.mesh(name, **fields)


def api(mesh: str = "default", address: str = "192.0.2.1", name: str = "api", **tls: Any) -> dict[str, Any]:
    match = [{"type": "InternalVIP", "value": f"{name}.ext", "port": 80, "protocol": "http"}]
    destination = {"type": "Regular", "endpoints": [{"address": address, "port": 80}], **tls}
    return build.document(
        "MeshExternalService", name, mesh, spec={"match": match, "destination": destination}
    )


def zone_proxy(name: str, address: str = "10.0.0.3", **fields: Any) -> dict[str, Any]:
    return build.document("ZoneEgress", name, "", networking={"address": address, "port": 10002}, **fields)


def permission(mesh: str = "default", **spec: Any) -> dict[str, Any]:
    allow = [{"spiffeID": {"type": "Exact", "value": f"spiffe://{mesh}/web"}}]
    return build.document(
        "MeshTrafficPermission", "p", mesh, spec={**spec, "rules": [{"default": {"allow": allow}}]}
    )


def outbound(name: str) -> dict[str, Any]:
    return {"port": 9001, "backendRef": {"kind": "MeshExternalService", "name": name}}


MESH = (
    mesh(),
    mesh("plain", mtls=False),
    api(),
    build.dataplane("web-1", outbound=[outbound("api")]),
    zone_proxy("egress-1"),
    zone_proxy("egress-2", "10.0.0.4"),
)
ONLY_SIDECARS = {"kind": "Mesh", "proxyTypes": ["Sidecar"]}
ONLY_EGRESS = {"kind": "Dataplane", "labels": {"kuma.io/listener-zoneegress": "enabled"}}


@pytest.mark.parametrize(
    ("written", "changed"),
    [
        pytest.param(build.dataplane("other-1", "other"), set(), id="another sidecar"),
        pytest.param(
            api(address="192.0.2.2"), EGRESSES, id="an endpoint: sidecars call the egress as before"
        ),
        pytest.param(api(name="new"), EGRESSES, id="a service that the sidecar does not call"),
        pytest.param(api("plain"), set(), id="a service of a mesh without mTLS"),
        pytest.param(mesh(egress=False), SIDECAR, id="the switch: the egress is ready before"),
        pytest.param(mesh("plain"), set(), id="mTLS where there is nothing to call"),
        pytest.param(zone_proxy("egress-3", "10.0.0.5"), SIDECAR, id="one more egress"),
        pytest.param(zone_proxy("egress-2", "10.0.0.9"), SIDECAR | {"egress-2"}, id="an egress that moves"),
        pytest.param(permission(), EGRESSES | SIDECAR, id="a permission for all"),
        pytest.param(permission(targetRef=ONLY_SIDECARS), SIDECAR, id="a permission of sidecars"),
        pytest.param(permission(targetRef=ONLY_EGRESS), EGRESSES, id="a permission of egresses"),
        pytest.param(permission("plain"), set(), id="a permission elsewhere"),
    ],
)
def test_a_change_touches_whom_it_concerns(written: dict[str, Any], changed: set[str]):
    db = database(map(stored, MESH))
    watcher = SnapshotWatcher(db)
    for name in (*EGRESSES, *SIDECAR):
        watcher.add(proxy(db, name))
    pipeline.take(db, [stored(written)])
    assert {key.name for key in watcher.changed()} == changed


def test_egresses_that_are_alike_share_what_they_have():
    db = database(map(stored, MESH))
    one, other = (snapshot.of(db, proxy(db, name)) for name in sorted(EGRESSES))
    assert one is not None
    assert other is not None
    assert one.bundles[0] is other.bundles[0]


def test_an_egress_has_identities_only_where_a_chain_uses_them():
    db = database(map(stored, MESH))
    key = proxy(db, "egress-1")
    assert [mesh for mesh, _ in egress.identities(db, key)] == ["default"]
    (_, uris), *_ = egress.identities(db, key)
    assert uris == (
        "spiffe://default/zone-egress",
        "kuma://kuma.io/service/zone-egress",
        "kuma://kuma.io/zone/east",
    )
    pipeline.take(db, [stored(mesh("plain")), stored(api("plain", name="no.label"))])
    assert "plain" in zone_egress.meshes(db)
    assert [mesh for mesh, _ in egress.identities(db, key)] == ["default"]


def test_an_egress_that_has_no_configuration_yet_gets_no_calls():
    starting = stored(zone_proxy("egress-9", "10.0.0.9", labels={"koguma.io/registered-by": "proxy"}))
    db = database([*map(stored, MESH), starting])
    addresses = {endpoint.address for endpoint in zone_egress.endpoints_in(db, "east")}
    assert addresses == {"10.0.0.3", "10.0.0.4"}
