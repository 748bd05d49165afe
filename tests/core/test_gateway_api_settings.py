"""What rules of HTTPRoutes say about timeouts, retries, sessions and CORS, in the routes of Envoys."""

from typing import Any

import build
import gateway_api_objects as gateway_api
import pytest
from building import database, of, plain, stored

from koguma.core.gateway_api import objects, routes
from koguma.model.resource import Key

CORS = {"type": "CORS", "cors": {"allowOrigins": ["https://a.example"], "allowCredentials": True}}
SESSION = {"sessionName": "stay", "type": "Cookie"}


def conversion(**fields: Any) -> Any:
    db = database([gateway_api.route("web", gateway_api.rule("/", **fields))])
    return routes.converted(db, Key(objects.HTTP_ROUTE, "", "", "shop", "web"), "default")


def dropped(**fields: Any) -> tuple[str, str]:
    """Why the only rule was left out."""
    found = conversion(**fields)
    assert found.rules == ()
    return found.dropped[0].reason, found.dropped[0].message


def outbound_routes(*resources: Any) -> list[Any]:
    """The routes of a sidecar to the Service `backend`."""
    called = {"kind": "MeshService", "labels": {"kuma.io/display-name": "backend"}, "port": 80}
    web = build.dataplane("web", outbound=[{"address": "127.0.0.1", "port": 23080, "backendRef": called}])
    service = {**build.mesh_service("backend"), "labels": {"k8s.kuma.io/namespace": "shop"}}
    db = database((stored(web), stored(service), *resources))
    (config,) = (
        each for name, each in plain(of(db, "web"))["routes"].items() if name.startswith("kri_msvc_")
    )
    return config["virtual_hosts"][0]["routes"]


def on_service(name: str, *rules: Any, **fields: Any) -> Any:
    return gateway_api.route(name, *rules, parent=gateway_api.SERVICE, **fields)


def test_a_rule_keeps_its_settings() -> None:
    settings = {
        "timeouts": {"request": "10s", "backendRequest": "2s"},
        "retry": {"codes": [503], "attempts": 2, "backoff": "10ms"},
        "sessionPersistence": SESSION,
    }
    (route,) = outbound_routes(on_service("web", gateway_api.rule(filters=[CORS], **settings)))
    assert route["route"]["timeout"] == "10s"
    assert route["route"]["retry_policy"]["per_try_timeout"] == "2s"
    assert route["route"]["retry_policy"]["num_retries"] == 2
    assert set(route["typed_per_filter_config"]) == {
        "envoy.filters.http.cors",
        "envoy.filters.http.stateful_session",
    }


def test_a_younger_route_adds_nothing_to_a_rule_of_equal_matches() -> None:
    older = on_service("older", gateway_api.rule("/a"), created="2026-01-01T00:00:00Z")
    younger = on_service(
        "younger",
        gateway_api.rule("/a", timeouts={"request": "1s"}, retry={"codes": [500]}),
        created="2026-01-02T00:00:00Z",
    )
    for order in ((older, younger), (younger, older)):
        built = outbound_routes(*order)
        assert {each["route"]["timeout"] for each in built} == {"15s"}
        assert not any("retry_policy" in each["route"] for each in built)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"timeouts": {"request": "soon"}}, "spec.rules[0].timeouts.request: in body should match"),
        ({"retry": {"backoff": 3}}, "spec.rules[0].retry.backoff: in body must be of type string"),
        (
            {"sessionPersistence": {**SESSION, "absoluteTimeout": "1h"}},
            "spec.rules[0].sessionPersistence.absoluteTimeout: Envoy ends sessions in cookies",
        ),
        (
            {"sessionPersistence": {**SESSION, "idleTimeout": "1h"}},
            "spec.rules[0].sessionPersistence.idleTimeout: Envoy does not know",
        ),
        (
            {"filters": [{**CORS, "cors": {**CORS["cors"], "exposeHeaders": ["*"]}}]},
            "spec.rules[0].filters[0].cors.exposeHeaders: beside credentials",
        ),
    ],
)
def test_what_envoy_cannot_do_takes_its_rule_away_with_the_reason(fields: Any, message: str) -> None:
    reason, found = dropped(**fields)
    assert reason == "UnsupportedValue"
    assert found.startswith(message)
