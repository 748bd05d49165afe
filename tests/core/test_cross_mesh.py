"""Listeners of gateways for other meshes: who may call, what a change touches, what people are shown."""

import re
from typing import Any

import pytest
from building import database, decoded, proxy, stored

from koguma.core import gateway_view, gateways, match, rules_view, world
from koguma.core.build import cross_mesh, snapshot
from koguma.core.incremental import Db
from koguma.envoy.snapshot import EXTENSION, LISTENER
from koguma.model.resource import Key
from tests import build

EDGE = {"kuma.io/service": "edge", "tier": "front"}
CALLERS = {
    "web of tea": ("spiffe://tea/web", "kuma://team/x"),
    "admin of tea": ("spiffe://tea/admin",),
    "web of teapot": ("spiffe://teapot/web",),
    "web of default": ("spiffe://default/web", "kuma://team/x"),
    "web of default, who says web of tea": ("spiffe://default/web", "spiffe://tea/web"),
}


def listener(port: int, **more: Any) -> dict[str, Any]:
    return {"port": port, "protocol": "HTTP", **more}


def meshes(*permissions: dict[str, Any]) -> Db:
    between = [
        listener(81, name="orders", hostname="orders.shop", crossMesh=True, tags={"side": "in"}),
        listener(81, name="rest", crossMesh=True),
    ]
    gateway = build.document(
        "MeshGateway",
        "edge",
        selectors=[{"match": {"kuma.io/service": "edge"}}],
        conf={"listeners": [listener(80, name="open"), *between]},
    )
    networking = {"address": "10.0.0.1", "gateway": {"type": "BUILTIN", "tags": EDGE}}
    objects = [
        build.mesh(mtls=build.builtin_mtls()),
        gateway,
        build.document("Dataplane", "edge-1", networking=networking),
        *permissions,
    ]
    return database(map(stored, objects))


def permission(name: str = "p", ref: dict[str, Any] | None = None, **lists: str) -> dict[str, Any]:
    """A permission by identities, or by prefixes that end with a slash."""
    conf = {
        field: [{"spiffeID": {"type": "Prefix" if uri.endswith("/") else "Exact", "value": uri}}]
        for field, uri in lists.items()
    }
    top = {"targetRef": ref} if ref else {}
    return build.policy("MeshTrafficPermission", name, **top, rules=[{"default": conf}])


def by_tags(action: str = "Allow", **client: Any) -> dict[str, Any]:
    entry = {"targetRef": {"kind": "Mesh", **client}, "default": {"action": action}}
    return build.document("MeshTrafficPermission", "p", spec={"from": [entry]})


def is_decided_by_filter(db: Db, section: str, uris: tuple[str, ...]) -> bool:
    """What the RBAC filter of a listener does with a caller, read from its configuration."""
    resource = snapshot.of(db, proxy(db, "edge-1")).get((EXTENSION, f"_kuma_permission_{section}"))
    matcher = decoded(resource)["typed_config"]["matcher"]
    for each in (matcher.get("matcher_list") or {}).get("matchers", ()):
        predicate = each["predicate"]
        several = predicate.get("or_matcher", {"predicate": [predicate]})["predicate"]
        patterns = [one["single_predicate"]["value_match"]["safe_regex"]["regex"] for one in several]
        if any(re.fullmatch(pattern, ",".join(uris)) for pattern in patterns):
            return is_allowing(each["on_match"])
    return is_allowing(matcher["on_no_match"])


def is_allowing(match_: dict[str, Any]) -> bool:
    return match_["action"]["typed_config"].get("action", "ALLOW") == "ALLOW"


def allowed(db: Db, name: str) -> set[str]:
    """The callers that may call a listener; what is asked and what is built must agree."""
    traits = match.traits(db, proxy(db, "edge-1"))
    assert traits is not None
    assert traits.gateway is not None
    (one,) = [each for each in gateways.listeners(db, traits.gateway) if each.name == name]
    found = {who for who, uris in CALLERS.items() if cross_mesh.is_permitted(db, traits, one, uris)}
    assert found == {who for who, uris in CALLERS.items() if is_decided_by_filter(db, one.section, uris)}
    return found


WEB, ADMIN, TEA = "spiffe://tea/web", "spiffe://tea/admin", "spiffe://tea/"
WEB_ALONE, ALL_OF_TEA = {"web of tea"}, {"web of tea", "admin of tea"}
OF_DEFAULT = {"web of default", "web of default, who says web of tea"}
OF_THE_GATEWAY = {"kind": "MeshGateway", "name": "edge"}
BY_SECTION, BY_TAG = {**OF_THE_GATEWAY, "sectionName": "orders"}, {**OF_THE_GATEWAY, "tags": {"side": "in"}}
FRONT, BACK = ({"kind": "MeshSubset", "tags": {"tier": tier}} for tier in ("front", "back"))


@pytest.mark.parametrize(
    ("permissions", "orders", "rest"),
    [
        ((), set(), set()),
        ((permission(allow=WEB),), WEB_ALONE, WEB_ALONE),
        ((permission(allow=TEA),), ALL_OF_TEA, ALL_OF_TEA),
        ((permission(ref=OF_THE_GATEWAY, allow=WEB),), WEB_ALONE, WEB_ALONE),
        ((permission(ref=BY_SECTION, allow=WEB),), WEB_ALONE, set()),
        ((permission(ref=BY_TAG, allow=WEB),), WEB_ALONE, set()),
        ((permission(ref=FRONT, allow=WEB),), WEB_ALONE, WEB_ALONE),
        ((permission(ref=BACK, allow=WEB),), set(), set()),
        ((permission(allow=TEA), permission("no", deny=ADMIN)), WEB_ALONE, WEB_ALONE),
        ((by_tags(),), OF_DEFAULT, OF_DEFAULT),
        ((by_tags(kind="MeshSubset", tags={"team": "x"}),), {"web of default"}, {"web of default"}),
        ((by_tags("Deny"),), set(), set()),
    ],
)
def test_permissions_decide_by_identity_and_listener(
    permissions: tuple[dict[str, Any], ...], orders: set[str], rest: set[str]
) -> None:
    db = meshes(*permissions)
    assert allowed(db, "orders") == orders
    assert allowed(db, "rest") == rest


def test_a_permission_changes_its_filter_and_no_listener() -> None:
    db = meshes()
    before = snapshot.of(db, proxy(db, "edge-1"))
    written = stored(permission(ref=BY_SECTION, allow=WEB))
    db.set(world.RESOURCES, written.key, written)
    after = snapshot.of(db, proxy(db, "edge-1"))
    assert before is not None
    assert after is not None
    changed = {each.id for each in after if before.get(each.id) != each}
    assert changed == {(EXTENSION, "_kuma_permission_81:orders.shop")}


def test_another_mesh_changes_nothing_but_secrets() -> None:
    db = meshes()
    before = snapshot.of(db, proxy(db, "edge-1"))
    other = stored(build.mesh("tea", mtls=build.builtin_mtls()))
    db.set(world.RESOURCES, other.key, other)
    assert snapshot.of(db, proxy(db, "edge-1")) == before


def test_without_mtls_the_port_is_closed_and_the_others_are_open() -> None:
    db = meshes()
    off = stored(build.mesh())
    db.set(world.RESOURCES, off.key, off)
    found = snapshot.of(db, proxy(db, "edge-1"))
    assert found is not None
    assert [each.name.rpartition("_")[2] for each in found if each.type == LISTENER] == ["80"]
    (failure,) = found.failures
    assert 'mesh "default" has no mTLS' in failure.text


def test_people_are_shown_permissions_where_they_act() -> None:
    db = meshes(permission(allow=WEB))
    shown = rules_view.of_proxy(db, proxy(db, "edge-1"))
    (of_kind,) = [each for each in shown["rules"] if each["type"] == "MeshTrafficPermission"]
    assert [each["inbound"]["port"] for each in of_kind["inboundRules"]] == [81, 81]
    gateway = next(
        key for key in world.RESOURCES.keys(db) if isinstance(key, Key) and key.kind == "MeshGateway"
    )
    served = {each["name"]: each for each in gateway_view.of_gateway(db, gateway)["listeners"]}
    assert served["orders"]["crossMesh"] == "orders.shop"
    assert served["rest"]["crossMesh"] == "internal.edge.default.mesh"
    assert "crossMesh" not in served["open"]
    assert "MeshTrafficPermission" in served["rest"]["policies"]
    assert "MeshTrafficPermission" not in served["open"]["policies"]
