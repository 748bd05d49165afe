"""What policies on services and on routes do to real calls: limits of time, retries, choice of endpoints."""

import contextlib
import socket
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests import build
from tests.build import policy
from tests.http_client import PersistentConnection, Response
from tests.traffic.conftest import SharedMesh
from tests.waiting import until

pytestmark = pytest.mark.slow

BACKEND, OTHER, DB = (build.service_ref(name) for name in ("backend", "other", "db"))
SLOW = "/sleep/1.4"
NO_RETRIES = {"http": {"numRetries": 0}}


def on_route(name: str, kind: str = "MeshHTTPRoute") -> Mapping[str, Any]:
    return {"kind": kind, "name": name}


def route(name: str, target: Mapping[str, Any] = BACKEND, **top: Any) -> Mapping[str, Any]:
    """A route for requests that ask for it by its name."""
    match = {"headers": [{"name": "x-route", "type": "Exact", "value": name}]}
    return build.http_route(name, {"matches": [match], "default": {}}, to=target["name"], **top)


def request_timeout(limit: str) -> Mapping[str, Any]:
    return {"http": {"requestTimeout": limit}}


def at_once(shared: SharedMesh, to: str, path: str, *routes: str) -> dict[str, int]:
    """The status of a request through each route, all asked at the same time; "" asks for none."""

    def ask(name: str) -> Response:
        return shared.get(to, path, x_route=name) if name else shared.get(to, path)

    with ThreadPoolExecutor(len(routes)) as pool:
        return {name: answer.status for name, answer in zip(routes, pool.map(ask, routes), strict=True)}


def test_a_route_has_its_own_request_timeout_and_inherits_what_only_the_service_has(shared: SharedMesh):
    shared.apply_only(
        route("quick"),
        route("patient"),
        route("silent"),
        policy(
            "MeshTimeout",
            "limits",
            (BACKEND, request_timeout("0.8s")),
            (on_route("quick"), request_timeout("0.1s")),
            (on_route("patient"), request_timeout("5s")),
            (on_route("silent"), {"http": {"streamIdleTimeout": "1h"}}),
        ),
    )
    assert at_once(shared, "backend", SLOW, "", "quick", "patient", "silent") == {
        "": 504,
        "quick": 504,
        "patient": 200,
        "silent": 504,
    }
    assert at_once(shared, "backend", "/sleep/0.3", "", "quick", "silent") == {
        "": 200,
        "quick": 504,
        "silent": 200,
    }


def test_a_policy_on_a_route_that_the_proxy_does_not_have_leaves_the_services_configuration(
    shared: SharedMesh,
):
    elsewhere = {"targetRef": {"kind": "Dataplane", "name": "node-2"}}
    shared.apply_only(
        route("of-others", **elsewhere),
        policy(
            "MeshTimeout",
            "limits",
            (BACKEND, request_timeout("0.3s")),
            (on_route("nowhere"), request_timeout("5s")),
            (on_route("of-others"), request_timeout("5s")),
        ),
        policy(
            "MeshRetry",
            "tries",
            (OTHER, NO_RETRIES),
            (on_route("nowhere"), {"http": {"numRetries": 3}}),
        ),
    )
    assert at_once(shared, "backend", SLOW, "", "nowhere", "of-others") == {
        "": 504,
        "nowhere": 504,
        "of-others": 504,
    }
    assert shared.get("other", "/fail-first/1/no-route").status == 503


def test_a_route_is_tried_again_as_its_own_policy_says_and_inherits_the_rest(shared: SharedMesh):
    shared.apply_only(
        route("eager", OTHER),
        route("idle", OTHER),
        route("silent", OTHER),
        policy(
            "MeshRetry",
            "tries",
            (OTHER, {"http": {"numRetries": 1, "retryOn": ["5xx"]}}),
            (on_route("eager"), {"http": {"numRetries": 3, "backOff": {"baseInterval": "1ms"}}}),
            (on_route("idle"), NO_RETRIES),
            (on_route("silent"), {"http": {"perTryTimeout": "3s"}}),
        ),
    )
    tries = {}
    for name in ("", "eager", "idle", "silent"):
        path = "/status/501" + f"?{name}"  # only what the service's own policy says is tried again at 501
        status = shared.get("other", path, x_route=name).status if name else shared.get("other", path).status
        tries[name] = status, len(shared.seen("other", path))
    assert tries == {"": (501, 2), "eager": (501, 4), "idle": (501, 1), "silent": (501, 2)}
    assert shared.get("other", "/fail-first/3/tried-eagerly", x_route="eager").status == 200
    assert shared.get("other", "/fail-first/3/tried-silently", x_route="silent").status == 503


def test_a_rate_limit_on_a_route_is_refused_with_the_reason(shared: SharedMesh):
    limit = {"local": {"http": {"requestRate": {"num": 1, "interval": "1s"}}}}
    limited = {**policy("MeshRateLimit", "limit", (on_route("quick"), limit)), "mesh": "default"}
    answer = shared.mesh.request("POST", "/_apply", [limited])
    assert answer.status == 400, answer.text
    (refused,) = answer.json["invalid_parameters"]
    assert refused["field"] == "objects[0].spec.to[0].targetRef.kind"
    assert refused["reason"].startswith("a rate limit cannot act on a route: ")


RETRIES = {
    "what the mesh has by default": (None, "/status/503", 6),
    "an answer that nobody asked to repeat": (None, "/status/500", 1),
    "none": ({"numRetries": 0}, "/status/503", 1),
    "one": ({"numRetries": 1}, "/status/503", 2),
    "a status": ({"numRetries": 2, "retryOn": ["418"]}, "/status/418", 3),
    "another status": ({"numRetries": 2, "retryOn": ["418"]}, "/status/503", 1),
    "a method that was asked for": ({"numRetries": 2, "retryOn": ["5xx", "HttpMethodGet"]}, "/status/500", 3),
    "a method that was not": ({"numRetries": 2, "retryOn": ["5xx", "HttpMethodPut"]}, "/status/500", 1),
    "a header of the response": (
        {"numRetries": 2, "retriableResponseHeaders": [{"name": "x-from", "value": "other"}]},
        "/status/404",
        3,
    ),
    "each try has its own limit": ({"numRetries": 2, "perTryTimeout": "0.3s"}, "/sleep/1", 3),
}


@pytest.mark.parametrize("case", RETRIES)
def test_a_request_is_tried_as_often_as_the_services_policy_says(shared: SharedMesh, case: str):
    conf, path, expected = RETRIES[case]
    back_off = {"backOff": {"baseInterval": "1ms"}}
    if conf is not None:
        shared.apply_only(policy("MeshRetry", "tries", (OTHER, {"http": {**conf, **back_off}})))
    asked = f"{path}?{len(shared.services['other'].seen)}"
    shared.get("other", asked)
    assert len(shared.seen("other", asked)) == expected


def test_connections_are_tried_as_often_as_the_policy_says(shared: SharedMesh):
    name = "cluster.kri_extsvc_default_default__closed_5432.upstream_cx_connect_fail"
    failed = []
    for attempts in (1, 4):
        target = {"kind": "MeshExternalService", "name": "closed"}
        shared.apply_only(policy("MeshRetry", "tries", (target, {"tcp": {"maxConnectAttempt": attempts}})))
        before = shared.counter(name)
        assert shared.greeted("closed") == ""
        failed.append(shared.counter(name) - before)
    assert failed == [1, 4]


def test_a_connection_that_is_never_accepted_ends_with_the_connection_timeout(shared: SharedMesh):
    target = {"kind": "MeshExternalService", "name": "deaf"}
    shared.apply_only(
        policy("MeshTimeout", "limits", (target, {"connectionTimeout": "0.3s"})),
        policy("MeshRetry", "tries", (target, NO_RETRIES)),
    )
    began_at = time.monotonic()
    assert shared.get("deaf").status == 503
    assert 0.25 < time.monotonic() - began_at < 4.5  # five seconds by default


ARRIVING = {
    "rules": ({}, {"rules": [{"default": request_timeout("0.2s")}]}, {"v1": 504, "v2": 200}),
    "from": (
        {},
        {"from": [{"targetRef": {"kind": "Mesh"}, "default": request_timeout("0.2s")}]},
        {"v1": 504, "v2": 200},
    ),
    "this port": (
        {"sectionName": "backend"},
        {"rules": [{"default": request_timeout("0.2s")}]},
        {"v1": 504, "v2": 200},
    ),
    "another port": (
        {"sectionName": "db"},
        {"rules": [{"default": request_timeout("0.2s")}]},
        {"v1": 200, "v2": 200},
    ),
}


@pytest.mark.parametrize("case", ARRIVING)
def test_a_limit_of_arriving_calls_acts_in_the_called_proxy_alone(shared: SharedMesh, case: str):
    section, conf, expected = ARRIVING[case]
    top = {"kind": "Dataplane", "name": "node.1", **section}
    versions = {
        "v1": split("backend", {"v1": 1}, name="first", path="/sleep/0.5"),
        "v2": split("backend", {"v2": 1}, name="second", path="/sleep/0.50"),
    }
    shared.apply_only(
        {"type": "MeshTimeout", "name": "arriving", "spec": {"targetRef": top, **conf}},
        policy("MeshRetry", "tries", (BACKEND, NO_RETRIES)),
        *versions.values(),
    )
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda path: shared.get("backend", path), ("/sleep/0.5", "/sleep/0.50"))
    assert {"v1": first.status, "v2": second.status} == expected


def split(
    service: str, weights: Mapping[str, int], *, name: str, path: str = "", kind: str = "MeshHTTPRoute"
) -> Mapping[str, Any]:
    """A route to versions of a service by weight; version "" is a service that is not there."""
    refs = [
        {"kind": "MeshServiceSubset", "name": service, "tags": {"version": version}, "weight": weight}
        if version
        else {"kind": "MeshService", "name": "nobody", "weight": weight}
        for version, weight in weights.items()
    ]
    matches = {"matches": [{"path": {"type": "PathPrefix", "value": path or "/"}}]}
    rule = {**(matches if kind == "MeshHTTPRoute" else {}), "default": {"backendRefs": refs}}
    target = {"kind": "MeshService", "name": service}
    return {"type": kind, "name": name, "spec": {"to": [{"targetRef": target, "rules": [rule]}]}}


def test_an_idle_tcp_connection_is_closed_and_a_busy_one_is_not(shared: SharedMesh):
    shared.apply_only(policy("MeshTimeout", "limits", (DB, {"idleTimeout": "1.5s"})))
    with socket.create_connection(("127.0.0.1", shared.outbounds["db"]), timeout=60) as connection:
        lines = connection.makefile("rw")
        assert lines.readline().startswith("db-")
        for index in range(5):  # together longer than an idle connection lives
            time.sleep(0.4)
            lines.write(f"{index}\n")
            lines.flush()
            assert lines.readline() == f"{index}\n"
        assert lines.readline() == ""


def test_idle_connections_to_an_http_service_are_closed(shared: SharedMesh):
    name = "cluster.kri_msvc_default_default__other_http.upstream_cx_idle_timeout"
    shared.apply_only(policy("MeshTimeout", "limits", (OTHER, {"idleTimeout": "0.2s"})))
    before = shared.counter(name)
    assert shared.get("other").status == 200
    until(lambda: shared.counter(name) > before, "an idle connection is closed")


def test_a_stream_without_a_byte_ends_with_the_idle_timeout_of_streams(shared: SharedMesh):
    shared.apply_only(
        route("idle"),
        policy("MeshRetry", "tries", (BACKEND, NO_RETRIES)),
        policy("MeshTimeout", "limits", (on_route("idle"), {"http": {"streamIdleTimeout": "0.2s"}})),
    )
    assert at_once(shared, "backend", "/sleep/0.7", "", "idle") == {"": 200, "idle": 504}


def test_an_idle_connection_is_closed_by_the_called_proxy_too(shared: SharedMesh):
    top = {"targetRef": {"kind": "Dataplane", "name": "node.1", "sectionName": "db"}}
    inbound = {"rules": [{"default": {"idleTimeout": "0.3s"}}]}
    shared.apply_only(
        {"type": "MeshTimeout", "name": "arriving", "spec": {**top, **inbound}},
        split("db", {"v1": 1}, name="databases", kind="MeshTCPRoute"),
    )
    with socket.create_connection(("127.0.0.1", shared.outbounds["db"]), timeout=60) as connection:
        assert connection.makefile().read() == "db-v1\n"


def test_a_stream_that_takes_too_long_is_ended(shared: SharedMesh):
    shared.apply_only(policy("MeshTimeout", "limits", (BACKEND, {"http": {"maxStreamDuration": "1s"}})))
    assert at_once(shared, "backend", "/sleep/3", "") == {"": 504}
    assert shared.get("backend").status == 200


def test_a_client_that_does_not_finish_its_headers_is_told_so(shared: SharedMesh):
    shared.apply_only(policy("MeshTimeout", "limits", (BACKEND, {"http": {"requestHeadersTimeout": "0.3s"}})))
    with socket.create_connection(("127.0.0.1", shared.outbounds["backend"]), timeout=60) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 408 ")


def test_a_connection_that_has_lived_long_enough_is_closed_after_an_answer(shared: SharedMesh):
    shared.apply_only(policy("MeshTimeout", "limits", (BACKEND, {"http": {"maxConnectionDuration": "1s"}})))
    with contextlib.closing(PersistentConnection(shared.outbounds["backend"])) as kept:
        assert kept.call().headers.get("connection") is None
        time.sleep(1.2)
        answer = kept.call()
    assert (answer.status, answer.headers.get("connection")) == (200, "close")


def test_a_route_at_the_top_of_a_policy_still_counts_and_loses_to_one_among_its_entries(shared: SharedMesh):
    """The older way to say that a policy is about a route."""

    def older(name: str, limit: str) -> Mapping[str, Any]:
        to = [{"targetRef": {"kind": "Mesh"}, "default": request_timeout(limit)}]
        spec = {"targetRef": on_route(name), "to": to}
        return {"type": "MeshTimeout", "name": f"older-{name}", "spec": spec}

    shared.apply_only(
        route("older"),
        route("both"),
        policy("MeshTimeout", "service", (BACKEND, request_timeout("5s"))),
        older("older", "0.2s"),
        older("both", "0.2s"),
        policy("MeshTimeout", "newer", (on_route("both"), request_timeout("6s"))),
    )
    assert at_once(shared, "backend", "/sleep/0.6", "", "older", "both") == {
        "": 200,
        "older": 504,
        "both": 200,
    }


def balanced(target: Mapping[str, Any], **conf: Any) -> Mapping[str, Any]:
    return policy("MeshLoadBalancingStrategy", "strategy", (target, conf))


def by(type_: str, **body: Any) -> Mapping[str, Any]:
    return {"type": type_, type_[0].lower() + type_[1:]: body}


HASHES = {
    "a header": (by("Header", name="x-user"), lambda shared, user: shared.get("backend", x_user=user)),
    "a query parameter": (
        by("QueryParameter", name="user"),
        lambda shared, user: shared.get("backend", f"/?user={user}"),
    ),
    "a cookie": (
        by("Cookie", name="user"),
        lambda shared, user: shared.get("backend", cookie=f"user={user}"),
    ),
}


@pytest.mark.parametrize("algorithm", ["RingHash", "Maglev"])
@pytest.mark.parametrize("what", HASHES)
def test_requests_of_one_hash_stay_with_one_endpoint(shared: SharedMesh, algorithm: str, what: str):
    hashed, ask = HASHES[what]
    shared.apply_only(balanced(BACKEND, loadBalancer={"type": algorithm}, hashPolicies=[hashed]))
    users = [f"user-{index}" for index in range(32)]
    served = [{user: ask(shared, user).json["name"] for user in users} for _ in range(4)]
    assert all(again == served[0] for again in served)
    assert set(served[0].values()) == {"backend-v1", "backend-v2"}


def test_a_client_without_the_cookie_gets_one_that_keeps_it_with_its_endpoint(shared: SharedMesh):
    cookie = by("Cookie", name="session", ttl="1h", path="/")
    shared.apply_only(balanced(BACKEND, loadBalancer={"type": "Maglev"}, hashPolicies=[cookie]))
    first = shared.get("backend")
    cookie, *about = (part.strip() for part in first.headers["set-cookie"].split(";"))
    assert cookie.startswith("session=")
    assert {"Max-Age=3600", "Path=/"} <= set(about)
    again = {shared.get("backend", cookie=cookie).json["name"] for _ in range(16)}
    assert again == {first.json["name"]}


def test_what_is_hashed_can_be_said_for_one_route_alone(shared: SharedMesh):
    entries = (
        (BACKEND, {"loadBalancer": {"type": "RingHash"}}),
        (on_route("sticky"), {"hashPolicies": [by("Header", name="x-user")]}),
    )
    shared.apply_only(route("sticky"), policy("MeshLoadBalancingStrategy", "strategy", *entries))

    def served(**headers: str) -> set[str]:
        return {shared.get("backend", x_user="kim", **headers).json["name"] for _ in range(32)}

    assert len(served(x_route="sticky")) == 1
    assert served() == {"backend-v1", "backend-v2"}


def test_connections_from_one_address_stay_with_one_endpoint(shared: SharedMesh):
    hashed = [by("Connection", sourceIP=True)]
    shared.apply_only(balanced(DB, loadBalancer={"type": "RingHash"}, hashPolicies=hashed))
    assert len({shared.greeted("db") for _ in range(16)}) == 1


@pytest.mark.parametrize("algorithm", ["RoundRobin", "LeastRequest", "Random"])
def test_every_algorithm_reaches_all_endpoints(shared: SharedMesh, algorithm: str):
    shared.apply_only(balanced(BACKEND, loadBalancer={"type": algorithm}))
    counts = shared.many("backend", "/", 64)
    assert set(counts) == {"backend-v1", "backend-v2"}
    if algorithm == "RoundRobin":
        assert counts["backend-v1"] == counts["backend-v2"]


NEAR = {
    "without a policy": (None, 0.5),
    "one tag": ([{"key": "rack"}], 0.9),
    "a tag with a weight": ([{"key": "rack", "weight": 3}], 0.75),
    "a tag that the client has not": ([{"key": "version"}], 0.5),
}


@pytest.mark.parametrize("case", NEAR)
def test_an_endpoint_that_shares_a_tag_with_the_client_comes_first(shared: SharedMesh, case: str):
    affinity, share = NEAR[case]
    if affinity:
        shared.apply_only(balanced(BACKEND, localityAwareness={"localZone": {"affinityTags": affinity}}))
    counts = shared.many("backend", "/", 400)
    assert counts["backend-v1"] / 400 == pytest.approx(share, abs=0.02)


def test_near_endpoints_come_first_among_those_of_a_subset_too(shared: SharedMesh):
    shared.apply_only(
        balanced(BACKEND, localityAwareness={"localZone": {"affinityTags": [{"key": "rack"}]}}),
        split("backend", {"v2": 1}, name="second"),
    )
    assert set(shared.many("backend", "/", 50)) == {"backend-v2"}


def greetings(shared: SharedMesh, to: str, n_connections: int) -> Counter[str]:
    return Counter(shared.greeted(to) for _ in range(n_connections))


def test_a_tcp_route_splits_connections_by_weight(shared: SharedMesh):
    shared.apply_only(split("db", {"v1": 80, "v2": 20}, name="databases", kind="MeshTCPRoute"))
    n_connections, share = 1_000, 0.8
    counts = greetings(shared, "db", n_connections)
    assert set(counts) == {"db-v1", "db-v2"}
    bound = 5 * (n_connections * share * (1 - share)) ** 0.5
    assert abs(counts["db-v1"] - n_connections * share) <= bound, counts


TCP_SPLITS = {
    "one backend": ({"v2": 1}, {"db-v2"}),
    "a weight of nothing": ({"v1": 0, "v2": 1}, {"db-v2"}),
    "a version that nobody is": ({"v3": 1}, {""}),
    "a service that is not there": ({"": 1}, {""}),
    "a share for nobody": ({"": 1, "v1": 1}, {"", "db-v1"}),
}


@pytest.mark.parametrize("case", TCP_SPLITS)
def test_connections_go_where_the_tcp_route_says_and_else_are_closed(shared: SharedMesh, case: str):
    weights, expected = TCP_SPLITS[case]
    shared.apply_only(split("db", weights, name="databases", kind="MeshTCPRoute"))
    assert set(greetings(shared, "db", 40)) == expected


def test_a_tcp_route_acts_on_an_http_port_until_an_http_route_is_about_it(shared: SharedMesh):
    tcp = split("backend", {"v2": 1}, name="by-connection", kind="MeshTCPRoute")
    shared.apply_only(tcp)
    assert set(shared.many("backend", "/", 20)) == {"backend-v2"}
    shared.apply_only(tcp, split("backend", {"v1": 1}, name="by-request", path="/first"))
    assert set(shared.many("backend", "/first", 20)) == {"backend-v1"}
    assert set(shared.many("backend", "/", 20)) == {"backend-v1", "backend-v2"}


def test_a_tcp_route_has_its_own_idle_timeout(shared: SharedMesh):
    shared.apply_only(
        split("db", {"v1": 1}, name="databases", kind="MeshTCPRoute"),
        policy("MeshTimeout", "limits", (on_route("databases", "MeshTCPRoute"), {"idleTimeout": "0.3s"})),
    )
    with socket.create_connection(("127.0.0.1", shared.outbounds["db"]), timeout=60) as connection:
        assert connection.makefile().read() == "db-v1\n"
