"""Why a service does not answer, from what is stored and from what Envoys say."""

from typing import Any

import msgspec
import pytest

from koguma.core import pipeline, service_health
from koguma.core.service_health import Connection, EnvoyAnswers, Observations
from koguma.envoy.cluster_hosts import Host
from koguma.envoy.stats import Figures
from koguma.model import labels, names
from koguma.model.resource import Key
from tests import build
from tests.core.destinations import ALL, HERE, database

PORT = "80"
BACKEND = "kri_msvc_shop_east__backend_80"
UNSEEN = Observations(0)


def dataplane(name: str = "backend-1", last: int = 1, service: str = "backend", **inbound: Any):
    inbounds = [build.inbound(service, 80, servicePort=8080, **inbound)]
    document = build.dataplane(name, mesh="shop", address=f"10.0.0.{last}", inbound=inbounds)
    return build.resource(document, zone="east", modification_time="2026-01-01T00:00:00Z")


def service(*ports: Any, **more: Any):
    return build.resource(build.mesh_service("backend", *ports, mesh="shop", **more), zone="east")


def report(*objects: Any, seen: Observations = UNSEEN, about: Any = None):
    target = about or next(each for each in objects if each.kind.endswith("Service"))
    return service_health.report(database(*objects), target.key, seen)


def host(last: int = 1, **counters: int) -> Host:
    flags = {name: counters.pop(name) for name in ("is_ejected", "fails_active_check") if name in counters}
    return Host(f"10.0.0.{last}:80", counters, **{name: bool(value) for name, value in flags.items()})


def caller(*hosts: Host, before: tuple[Host, ...] = (), **counters: int) -> EnvoyAnswers:
    figures = {("cluster", BACKEND): Figures({name.replace("__", "."): n for name, n in counters.items()})}
    return EnvoyAnswers("web-1", {BACKEND: before}, {BACKEND: hosts}, {}, figures)


def own(before: dict[str, int], now: dict[str, int]) -> EnvoyAnswers:
    """What the Envoy of backend-1 says about its application."""
    name = "kri_dp_shop_east__backend-1_80"
    first, second = (Host("10.0.0.1:8080", counters) for counters in (before, now))
    return EnvoyAnswers("backend-1", {name: (first,)}, {name: (second,)})


def key(name: str = "backend-1") -> Key:
    return Key("Dataplane", "shop", "east", "", name)


def test_of_a_proxy_in_another_zone_only_that_zone_knows_whether_it_has_its_configuration():
    own = dataplane()
    registered = msgspec.structs.replace(own, labels={**own.labels, labels.REGISTERED_BY: "proxy"})
    (endpoint,) = report(service(), registered).endpoints
    assert (endpoint.state, endpoint.is_offered) == ("not-ready", False)
    on_global = msgspec.structs.replace(registered, core_name=names.hashed("shop", "backend-1", "east"))
    (endpoint,) = report(service(), on_global).endpoints
    assert endpoint.is_offered


# Nobody serves it.


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        ([service()], 'fits nothing: no Dataplane of mesh "shop" has kuma.io/service=backend'),
        ([service(selector={}), dataplane()], "its selector is empty"),
        (
            [service(selector={"dataplaneRef": {"name": "backend-9"}}), dataplane()],
            'names Dataplane "backend-9", and there is none',
        ),
        (
            [
                service(selector={"dataplaneTags": {"kuma.io/service": "backend", "version": "v2"}}),
                dataplane(tags={"version": "v1"}),
            ],
            'no Dataplane of mesh "shop" has version=v2',
        ),
        (
            [
                service(selector={"dataplaneTags": {"kuma.io/service": "backend", "version": "v2"}}),
                dataplane(tags={"version": "v1"}),
                dataplane("other", 2, "other", tags={"version": "v2"}),
            ],
            "in the mesh 1 have kuma.io/service=backend, 1 have version=v2, and none has all",
        ),
        (
            [service(build.port(80, targetPort="grpc")), dataplane()],
            'leads to target port "grpc", which no Dataplane that it selects (1) has; there are 80 (http)',
        ),
        ([service(build.port(81)), dataplane()], "port 81 leads to target port 81"),
    ],
)
def test_why_a_service_has_no_endpoint(objects, words):
    shown = report(*objects)
    assert (shown.state, shown.endpoints) == ("no-endpoints", ())
    assert words in shown.summary
    assert words in shown.reasons[0]


def test_why_a_multi_zone_service_has_no_endpoint():
    many = build.resource(
        build.multi_zone_service(
            "many", build.port(), labels={"kuma.io/display-name": "backend"}, mesh="shop"
        )
    )
    assert "fits no MeshService" in report(many).summary
    assert (
        'none of its 1 MeshServices has a port "80"'
        in report(service(build.port(81)), many, about=many).summary
    )
    assert 'MeshService "backend"' in report(service(), many, about=many).summary
    served = report(service(), dataplane(), many, about=many)
    assert [(each.service, each.proxy) for each in served.endpoints] == [("backend", "backend-1")]


MTLS = {"enabledBackend": "ca", "backends": [{"name": "ca", "type": "builtin"}]}


def of_west(**more: Any):
    """A MeshService of another zone, with what that zone reports of it."""
    document = build.mesh_service("backend", mesh="shop")
    return build.resource({**document, "spec": {**document["spec"], **more}}, zone="west")


def ingress(last: int = 9):
    networking = {"port": 10001, "advertisedAddress": f"10.0.9.{last}", "advertisedPort": 443}
    return build.resource(build.document("ZoneIngress", f"in-{last}", "", networking=networking), zone="west")


@pytest.mark.parametrize(
    ("mtls", "objects", "words"),
    [
        ({}, [of_west(), ingress()], 'it is of zone "west", and other zones are called with mTLS only'),
        ({"mtls": MTLS}, [of_west()], 'zone "west" has no ingress that is ready; start one there'),
        ({"mtls": MTLS}, [of_west(state="Unavailable"), ingress()], "says that none of its proxies can be"),
    ],
)
def test_why_a_service_of_another_zone_cannot_be_called(mtls, objects, words):
    mesh = build.resource(build.mesh("shop", **mtls))
    everywhere = build.resource(
        build.multi_zone_service("all", mesh="shop", labels={"kuma.io/display-name": "backend"})
    )
    labelled = [msgspec.structs.replace(each, labels={"kuma.io/display-name": each.name}) for each in objects]
    for about in (labelled[0], everywhere):
        found = report(mesh, everywhere, *labelled, about=about)
        assert any(words in reason for reason in found.reasons), found.reasons


def test_ingresses_of_another_zone_are_named():
    mesh = build.resource(build.mesh("shop", mtls=MTLS))
    found = report(mesh, of_west(state="Available"), ingress(8), ingress(9))
    assert [(each.address, each.proxy, each.zone) for each in found.endpoints] == [
        ("10.0.9.8:443", "in-8", "west"),
        ("10.0.9.9:443", "in-9", "west"),
    ]
    assert found.state == "unknown"
    found = report(mesh, of_west(state="Unavailable"), ingress(8))
    assert (found.state, found.summary) == ("down", "0 of 1 endpoint serve; 1 not-ready")


def test_an_external_service_is_what_callers_see_of_it():
    outside = build.resource(
        build.external_service("outside", endpoints=[{"address": "1.1.1.1", "port": 443}], mesh="shop"),
        zone="east",
    )
    db = database(outside)
    ((port, cluster),) = service_health.clusters(db, outside.key).items()
    seen = Observations(1, [EnvoyAnswers("web-1", {}, {cluster: (Host("1.1.1.1:443", {"rq_total": 1}),)})])
    (endpoint,) = service_health.report(db, outside.key, seen).endpoints
    assert (endpoint.port, endpoint.address, endpoint.state, endpoint.proxy) == (
        port,
        "1.1.1.1:443",
        "healthy",
        "",
    )


def test_an_external_service_that_nobody_calls_has_the_endpoints_that_are_written():
    written = [{"address": "1.1.1.1", "port": 443}, {"address": "api.example", "port": 443}]
    outside = build.resource(build.external_service("outside", endpoints=written, mesh="shop"))
    shown = report(outside)
    assert [(each.address, each.state) for each in shown.endpoints] == [
        ("1.1.1.1:443", "unknown"),
        ("api.example:443", "unknown"),
    ]
    assert (shown.state, shown.reasons) == ("unknown", ("none of the 0 proxies that answered calls it",))


def test_a_zone_egress_on_the_way_is_named():
    networking = {"address": "10.0.0.9", "port": 10002}
    egress = build.resource(build.document("ZoneEgress", "egress-1", "", networking=networking))
    written = [{"address": "1.1.1.1", "port": 443}]
    outside = build.resource(build.external_service("outside", endpoints=written, mesh="shop"))
    in_mesh = build.resource(build.mesh("shop", mtls=build.builtin_mtls(), routing={"zoneEgress": True}))
    db = pipeline.load(ALL, HERE, [in_mesh, egress, outside])
    (cluster,) = service_health.clusters(db, outside.key).values()
    hosts = [Host("10.0.0.9:10002", {"rq_total": 1}), Host("1.1.1.1:443", {}, is_ejected=True)]
    seen = Observations(1, [EnvoyAnswers(str(each.address), {}, {cluster: (each,)}) for each in hosts])
    shown = service_health.report(db, outside.key, seen)
    assert [(each.address, each.proxy, each.state) for each in shown.endpoints] == [
        ("1.1.1.1:443", "", "ejected"),
        ("10.0.0.9:10002", "egress-1", "healthy"),
    ]


# An endpoint, and by whose word.


def state_of(*, seen: Observations = UNSEEN, **inbound: Any) -> tuple[str, str]:
    (endpoint,) = report(service(), dataplane(**inbound), seen=seen).endpoints
    return endpoint.state, "; ".join(f"{word.by}: {word.text}" for word in endpoint.words)


def test_a_failing_probe_is_named_with_its_time():
    probe = {"serviceProbe": {"tcp": {}}, "state": "NotReady", "health": {"ready": False}}
    state, words = state_of(**probe)
    assert state == "not-ready"
    assert "probe: its probe fails: the application does not answer on 10.0.0.1:8080" in words
    assert "since 2026-01-01T00:00:00Z or earlier" in words


def test_an_inbound_that_is_not_ready_without_a_probe():
    state, words = state_of(state="NotReady")
    assert state == "not-ready"
    assert "dataplane: its Dataplane says that it is not ready, or its proxy drains" in words


def test_an_application_that_refuses_connections_now():
    before, now = (
        {"cx_total": 50, "cx_connect_fail": 1, "rq_success": 49},
        {"cx_total": 54, "cx_connect_fail": 5},
    )
    seen = Observations(1, serving={key(): own(before, {**before, **now})})
    state, words = state_of(seen=seen)
    assert state == "application-down"
    assert words.startswith(
        "application: all 4 connections of its Envoy to 10.0.0.1:8080 failed in the last 1 s"
    )


def test_an_application_that_never_listened():
    counters = {"cx_total": 3, "cx_connect_fail": 3}
    state, words = state_of(seen=Observations(1, serving={key(): own(counters, counters)}))
    assert state == "application-down"
    assert "all 3 connections of its Envoy to 10.0.0.1:8080 failed since its start" in words


def test_an_application_that_failed_before_and_that_nobody_calls():
    counters = {"cx_total": 30, "cx_connect_fail": 3, "rq_success": 27}
    state, words = state_of(seen=Observations(1, serving={key(): own(counters, counters)}))
    assert (state, "3 of 30 connections" in words) == ("suspect", True)
    still_open = {**counters, "cx_active": 1}
    assert state_of(seen=Observations(1, serving={key(): own(still_open, still_open)})) == ("unknown", "")


def test_an_application_that_answers_with_errors():
    seen = Observations(1, serving={key(): own({"rq_total": 5}, {"rq_total": 9, "rq_error": 3})})
    state, words = state_of(seen=seen)
    assert (state, "3 of 4 requests failed in the last 1 s" in words) == ("failing", True)


def test_an_endpoint_that_some_callers_have_ejected():
    bad, good = host(is_ejected=1, rq_error=5, rq_total=6), host(rq_total=6)
    (endpoint,) = report(
        service(), dataplane(), seen=Observations(1, [caller(bad), caller(bad), caller(good)])
    ).endpoints
    assert endpoint.state == "ejected"
    assert endpoint.words[0].text == (
        "is ejected (outlier detection) by 2 of 3 callers: 10 of 18 requests failed since their start"
    )
    assert (endpoint.callers.asked, endpoint.callers.ejected, endpoint.callers.healthy) == (3, 2, 1)


def test_an_endpoint_that_fails_active_checks():
    state, words = state_of(seen=Observations(1, [caller(host(fails_active_check=1))]))
    assert (state, "fails the active health check of 1 of 1 caller" in words) == (
        "check-failed",
        True,
    )


def test_connections_of_callers_that_fail():
    seen = Observations(2, [caller(host(cx_total=4, cx_connect_fail=3), before=(host(cx_total=1),))])
    state, words = state_of(seen=seen)
    assert (state, "3 connections of callers to it failed in the last 2 s" in words) == ("failing", True)


def test_a_proxy_that_is_not_connected():
    lost = {key(): Connection(is_connected=False, text="its proxy is gone")}
    assert state_of(seen=Observations(1, connections=lost)) == (
        "not-connected",
        "connection: its proxy is gone",
    )
    calls = [caller(host(rq_total=9, rq_success=9), before=(host(rq_total=1, rq_success=1),))]
    state, words = state_of(seen=Observations(1, calls, connections=lost))
    assert (state, words) == ("healthy", "connection: its proxy is gone"), "it serves all the same"


def test_an_endpoint_that_nobody_was_asked_about():
    shown = report(service(), dataplane())
    assert [each.state for each in shown.endpoints] == ["unknown"]
    assert (shown.state, shown.reasons) == ("unknown", ("none of the 0 proxies that answered calls it",))


def test_an_envoy_that_was_started_anew_counts_from_there():
    seen = Observations(1, [caller(host(rq_total=2, rq_success=2), before=(host(rq_total=90),))])
    assert state_of(seen=seen) == ("healthy", "")


# The service as a whole.


def test_a_service_with_one_bad_endpoint_is_degraded():
    seen = Observations(1, [caller(host(1, rq_total=1), host(2, is_ejected=1))])
    shown = report(service(), dataplane(), dataplane("backend-2", 2), seen=seen)
    assert (shown.state, shown.summary) == ("degraded", "1 of 2 endpoints serve; 1 ejected")
    seen = Observations(1, [caller(host(1, is_ejected=1), host(2, is_ejected=1))])
    shown = report(service(), dataplane(), dataplane("backend-2", 2), seen=seen)
    assert (shown.state, shown.summary) == ("down", "0 of 2 endpoints serve; 2 ejected")
    shown = report(service(), dataplane(), seen=Observations(1, [caller(host(rq_total=1))]))
    assert (shown.state, shown.summary) == ("healthy", "1 of 1 endpoint healthy")


@pytest.mark.parametrize(
    ("counters", "words"),
    [
        (
            {"circuit_breakers__default__rq_pending_open": 1},
            "circuit breaker of 1 of 1 callers is open: they have reached maxPendingRequests",
        ),
        ({"upstream_rq_pending_overflow": 7}, "circuit breakers refused 7 requests in the last 1 s"),
        ({"lb_healthy_panic": 2}, "1 of 1 callers are in panic mode"),
        ({"upstream_cx_none_healthy": 4}, "4 requests found no healthy endpoint in the last 1 s"),
    ],
)
def test_why_callers_send_nothing(counters, words):
    shown = report(service(), dataplane(), seen=Observations(1, [caller(host(), **counters)]))
    assert words in shown.reasons[0]
    assert shown.reasons[0].startswith("port 80: ")


def test_callers_of_a_service_without_endpoints_are_not_said_to_panic():
    shown = report(service(), seen=Observations(1, [caller(lb_healthy_panic=3, upstream_cx_none_healthy=3)]))
    assert shown.reasons[1:] == ("port 80: 3 requests found no healthy endpoint in the last 1 s",)


def test_callers_that_have_no_endpoint_yet():
    shown = report(service(), dataplane(), seen=Observations(1, [caller()]))
    assert shown.reasons == ("port 80: 1 of 1 callers have no endpoint, though there are 1",)


def test_what_callers_have_and_nobody_is_any_more():
    seen = Observations(1, [caller(host(1), host(9, rq_total=1))])
    shown = report(service(), dataplane(), seen=seen)
    assert [(each.address, each.proxy) for each in shown.endpoints] == [
        ("10.0.0.1:80", "backend-1"),
        ("10.0.0.9:80", ""),
    ]


def test_a_service_that_is_not_stored_has_no_endpoints():
    db = pipeline.load(ALL, HERE, [])
    assert service_health.report(db, Key("MeshService", "shop", "", "", "x"), UNSEEN).state == "no-endpoints"
