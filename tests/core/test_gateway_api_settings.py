"""What rules of HTTPRoutes say about timeouts, retries, sessions and CORS, in the routes of Envoys."""

from typing import Any

import build
import gateway_api_objects as gateway_api
import pytest
from building import database, of, plain, stored

from koguma.core import inspect
from koguma.core.gateway_api import objects, routes
from koguma.core.incremental import Db
from koguma.core.rules import PortRules
from koguma.model.resource import Key

CORS = {"type": "CORS", "cors": {"allowOrigins": ["https://a.example"], "allowCredentials": True}}
SERVICE = ("MeshService", "default", "east", "shop", "backend")
SESSION = {"sessionName": "stay", "type": "Cookie"}


def conversion(**fields: Any) -> Any:
    db = database([gateway_api.route("web", gateway_api.rule("/", **fields))])
    return routes.converted(db, Key(objects.HTTP_ROUTE, "", "", "shop", "web"), "default")


def dropped(**fields: Any) -> tuple[str, str]:
    """Why the only rule was left out."""
    found = conversion(**fields)
    assert found.rules == ()
    return found.dropped[0].reason, found.dropped[0].message


def mesh(*resources: Any) -> Db:
    """A mesh with a sidecar that calls the Service `backend`."""
    ref = {"kind": "MeshService", "labels": {"kuma.io/display-name": "backend"}, "port": 80}
    web = build.dataplane("web", outbound=[{"address": "127.0.0.1", "port": 23080, "backendRef": ref}])
    service = {**build.mesh_service("backend"), "labels": {"k8s.kuma.io/namespace": "shop"}}
    return database((stored(web), stored(service), *resources))


def called(*resources: Any) -> tuple[Db, PortRules]:
    db = mesh(*resources)
    proxy, service = Key("Dataplane", "default", "east", "", "web"), Key(*SERVICE)
    port = inspect.outbound(db, proxy, service, "80")
    assert port is not None
    return db, port


def shown_fields(db: Db, port: PortRules) -> dict[str, Any]:
    """Who set the fields of the policies for the only route."""
    policies = inspect.route_policies(db, port, port.http[0].policy, fields=True)["policies"]
    return {field: origin for each in policies for field, origin in each["fieldOrigins"].items()}


def outbound_routes(*resources: Any) -> list[Any]:
    """The routes of a sidecar to the Service `backend`."""
    db = mesh(*resources)
    (config,) = (
        each for name, each in plain(of(db, "web"))["routes"].items() if name.startswith("kri_msvc_")
    )
    return config["virtual_hosts"][0]["routes"]


def on_service(name: str, *rules: Any, **fields: Any) -> Any:
    return gateway_api.route(name, *rules, parent=gateway_api.SERVICE, **fields)


def policy(kind: str, conf: Any) -> Any:
    to = {"targetRef": {"kind": "Mesh"}, "default": conf}
    return stored({"type": kind, "mesh": "default", "name": "all", "spec": {"to": [to]}})


def test_people_see_where_a_rule_comes_instead_of_a_policy() -> None:
    timeout = policy("MeshTimeout", {"http": {"requestTimeout": "5s", "streamIdleTimeout": "6s"}})
    retry = policy("MeshRetry", {"http": {"numRetries": 5, "perTryTimeout": "7s"}})
    settings = {"timeouts": {"request": "10s"}, "retry": {"attempts": 2}}
    some = gateway_api.rule("/x", **settings)
    db, port = called(on_service("web", some, gateway_api.rule("/")), timeout, retry)
    fields = shown_fields(db, port)
    (instead,) = fields["http.requestTimeout"]["setByRules"]
    assert (instead["value"], instead["path"]) == ("10s", "spec.rules[0].timeouts.request")
    assert instead["kri"].startswith("kri_httproute_")
    assert instead["matches"] == [{"path": {"type": "PathPrefix", "value": "/x"}}]
    assert fields["http.requestTimeout"]["acts"]
    (instead,) = fields["http.numRetries"]["setByRules"]
    assert (instead["value"], instead["path"]) == ({"attempts": 2}, "spec.rules[0].retry")
    assert "setByRules" not in fields["http.perTryTimeout"]
    assert "setByRules" not in fields["http.streamIdleTimeout"]
    db, port = called(on_service("web", some), timeout)
    assert not shown_fields(db, port)["http.requestTimeout"]["acts"]


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
