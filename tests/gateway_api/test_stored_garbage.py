"""Objects of the Gateway API that were stored under other rules: wherever they are odd, nothing raises."""

import copy
from collections.abc import Iterator
from typing import Any

import gateway_api_objects as gateway_api
import msgspec
import pytest

from koguma.core import loading, world
from koguma.core.gateway_api import objects, route_status, statuses
from koguma.core.incremental import Db
from koguma.main import all_kinds
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.resource import Resource

NOW = "2026-01-01T00:00:00Z"
JUNK = (None, 7, "(", [], {}, [7], [{}], {"name": [7]})
HEADERS = {"set": [{"name": "a", "value": "b"}], "remove": ["c"]}
MIRROR = {"backendRef": gateway_api.backend(), "fraction": {"numerator": 1, "denominator": 3}}
CORS = {"allowOrigins": ["https://*.a.lan"], "allowCredentials": True, "exposeHeaders": ["x"], "maxAge": 5}
REWRITE = {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/y"}}
SESSION = {"sessionName": "s", "absoluteTimeout": "1h", "cookieConfig": {"lifetimeType": "Permanent"}}
RULE = {
    "matches": [{"path": {"value": "/x"}, "headers": [{"name": "a", "value": "b"}]}],
    "filters": [
        {"type": "RequestHeaderModifier", "requestHeaderModifier": HEADERS},
        {"type": "RequestMirror", "requestMirror": MIRROR},
        {"type": "URLRewrite", "urlRewrite": REWRITE},
        {"type": "CORS", "cors": CORS},
    ],
    "timeouts": {"request": "10s"},
    "retry": {"codes": [503], "attempts": 2, "backoff": "10ms"},
    "sessionPersistence": SESSION,
    "backendRefs": [gateway_api.backend(weight=2)],
}
SELECTOR = {
    "matchLabels": {"a": "b"},
    "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}],
}
ALLOWED = {"namespaces": {"from": "Selector", "selector": SELECTOR}, "kinds": [{"kind": "HTTPRoute"}]}
TLS = {"mode": "Terminate", "certificateRefs": [{"name": "c", "namespace": "other"}]}
OBJECTS = {
    "HTTPRoute": gateway_api.route("web", RULE, hostnames=["*.a.lan"]),
    "GRPCRoute": gateway_api.route(
        "calls",
        {"matches": [{"method": {"service": "a.B", "method": "C"}}], "backendRefs": [gateway_api.backend()]},
        kind=objects.GRPC_ROUTE,
    ),
    "TCPRoute": gateway_api.route("tcp", kind=objects.TCP_ROUTE),
    "Gateway": gateway_api.gateway(
        "edge",
        gateway_api.listener(allowedRoutes=ALLOWED),
        gateway_api.listener("tls", 8443, "HTTPS", hostname="a.lan", tls=TLS),
        addresses=[{"type": "IPAddress", "value": "192.0.2.1"}],
    ),
    "ReferenceGrant": gateway_api.grant("Gateway", to="Secret"),
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value can be replaced."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield from places(part, (*path, name))


def replaced(value: Any, path: tuple[Any, ...], junk: Any) -> Any:
    if not path:
        return junk
    changed = copy.copy(value)
    changed[path[0]] = replaced(value[path[0]], path[1:], junk)
    return changed


def report(db: Db) -> dict[str, Any]:
    """All statuses, as the control plane would write them, by the name of the object."""
    written = {each.name: each.status for each in statuses.plan(db, NOW)}
    for kind in objects.ROUTES:
        for _, resource in world.BY_KIND_EVERYWHERE.items(db, kind):
            written[resource.name] = route_status.status(db, resource, NOW)
    return written


@pytest.mark.parametrize("name", OBJECTS)
def test_whatever_is_stored_nothing_raises(name: str) -> None:
    good = OBJECTS[name]
    namespace = gateway_api.stored("Namespace.core", "shop", {}, namespace="", labels={"a": "b"})
    db = loading.load(
        all_kinds(),
        ControlPlaneInfo(zone="east"),
        (gateway_api.gateway_class(), namespace, *OBJECTS.values()),
    )
    before = report(db)
    for path in places(good.spec):
        for junk in JUNK:
            loading.take(db, [msgspec.structs.replace(good, spec=replaced(good.spec, path, junk))])
            assert set(report(db)) >= before.keys() - {good.name}
    loading.take(db, [good])
    assert report(db) == before


ODD_STATUSES = (
    {"parents": [{"controllerName": objects.CONTROLLER, "parentRef": 7, "conditions": [{"type": 7}]}]},
    {"listeners": [{"name": [7], "conditions": 7}], "conditions": [7, {"type": []}]},
    {"parents": 7, "listeners": 7, "conditions": 7},
)


@pytest.mark.parametrize("name", ["HTTPRoute", "Gateway"])
@pytest.mark.parametrize("status", ODD_STATUSES)
def test_odd_statuses_are_replaced(name: str, status: Any) -> None:
    odd: Resource = msgspec.structs.replace(OBJECTS[name], status=status)
    others = [each for each in OBJECTS.values() if each.key != odd.key]
    stored = (gateway_api.gateway_class(), odd, *others)
    written = report(loading.load(all_kinds(), ControlPlaneInfo(zone="east"), stored))
    said = written[odd.name] if name == "Gateway" else written[odd.name]["parents"][0]
    conditions = said["conditions"]
    assert "Accepted" in [each["type"] for each in conditions]
