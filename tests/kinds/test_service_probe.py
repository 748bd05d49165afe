"""Service probes: the probe decides whether an inbound takes calls, and a report changes what it must."""

from typing import Any

import pytest

from koguma.kinds import service_probe
from koguma.kinds.service_probe import filled, reported

ENVOY = "envoy"
PROBE = "_kuma_probe_8080"
UP, DOWN = ("Ready", True), ("NotReady", False)


def spec(**inbound: Any) -> dict[str, Any]:
    return {"networking": {"address": "10.0.0.1", "inbound": [{"port": 8080, **inbound}]}}


def probed(**inbound: Any) -> dict[str, Any]:
    return spec(serviceProbe={}, **inbound)


def state(of: Any) -> tuple[Any, Any]:
    (inbound,) = of["networking"]["inbound"]
    return inbound.get("state"), (inbound.get("health") or {}).get("ready")


def marked(state: str, *, ready: bool) -> dict[str, Any]:
    return {"state": state, "health": {"ready": ready}}


@pytest.mark.parametrize(
    ("written", "stored", "expected"),
    [
        (probed(), None, DOWN),
        (probed(state="Ready"), None, DOWN),
        (probed(state="Ignored"), None, ("Ignored", None)),
        (spec(), None, (None, None)),
        (spec(state="NotReady"), None, ("NotReady", None)),
        (probed(), probed(**marked("Ready", ready=True)), UP),
        (probed(**marked("NotReady", ready=False)), probed(**marked("Ready", ready=True)), UP),
        (probed(), probed(**marked("NotReady", ready=False)), DOWN),
        (probed(), probed(), (None, None)),  # stored before probes acted
        (probed(), spec(), DOWN),
        (probed(), probed(state="Ignored"), DOWN),
        (probed(name="http"), probed(**marked("Ready", ready=True)), DOWN),
        (spec(), probed(**marked("NotReady", ready=False)), (None, None)),
    ],
)
def test_what_is_written_has_the_state_that_the_probe_found(written, stored, expected):
    assert state(filled(written, stored)) == expected


@pytest.mark.parametrize(
    "written", [{}, {"networking": None}, {"networking": "x"}, {"networking": {"inbound": "x"}}, spec()]
)
def test_what_has_no_probe_stays_as_it_is(written):
    assert filled(written, None) is written


@pytest.mark.parametrize(
    ("stored", "healthy", "expected"),
    [
        (probed(**marked("NotReady", ready=False)), {PROBE: True}, UP),
        (probed(**marked("Ready", ready=True)), {PROBE: False}, DOWN),
        (probed(), {PROBE: False}, DOWN),
        (probed(**marked("Ready", ready=True)), {PROBE: True, ENVOY: False}, DOWN),
        (spec(), {ENVOY: False}, DOWN),
        (spec(**marked("NotReady", ready=False)), {ENVOY: True}, UP),
    ],
)
def test_a_report_changes_the_state(stored, healthy, expected):
    assert state(reported(stored, healthy, ENVOY)) == expected


@pytest.mark.parametrize(
    ("stored", "healthy"),
    [
        (probed(**marked("NotReady", ready=False)), {PROBE: False}),
        (probed(**marked("NotReady", ready=False)), {}),  # nothing was found out yet
        (probed(**marked("NotReady", ready=False)), {ENVOY: True}),
        (probed(), {PROBE: True}),
        (probed(state="Ignored"), {PROBE: True, ENVOY: False}),
        (spec(), {ENVOY: True}),
        (spec(state="NotReady"), {ENVOY: True}),  # which somebody wrote
        (spec(health={"ready": False}), {ENVOY: True}),
        (spec(**marked("NotReady", ready=False)), {"_kuma_probe_8080": True}),
    ],
)
def test_a_report_that_says_nothing_new_changes_nothing(stored, healthy):
    assert reported(stored, healthy, ENVOY) is stored


def test_what_is_checked_is_where_the_application_listens():
    inbounds = [
        {"port": 1, "serviceProbe": {}},
        {"port": 2, "servicePort": 3, "serviceAddress": "127.0.0.1", "name": "web", "serviceProbe": {}},
        {"port": 4, "address": "10.0.0.2", "serviceProbe": {"interval": "1m", "timeout": "500ms"}},
        {"port": 5, "serviceProbe": {"healthyThreshold": 2, "unhealthyThreshold": 3}},
        {"port": 6},
        {"port": 7, "state": "Ignored", "serviceProbe": {}},
    ]
    given = {"networking": {"address": "10.0.0.1", "inbound": inbounds}}
    found = list(service_probe.checks(given, is_transparent=False))
    assert [(each.name, each.address, each.port) for each in found] == [
        ("_kuma_probe_1", "10.0.0.1", 1),
        ("_kuma_probe_web", "127.0.0.1", 3),
        ("_kuma_probe_4", "10.0.0.2", 4),
        ("_kuma_probe_5", "10.0.0.1", 5),
    ]
    assert [(each.interval, each.timeout) for each in found[1:3]] == [("1s", "2s"), ("60s", "0.5s")]
    assert (found[3].healthy_threshold, found[3].unhealthy_threshold) == (2, 3)
    assert {each.source for each in found} == {""}
    sources = [each.source for each in service_probe.checks(given, is_transparent=True)]
    assert sources == ["127.0.0.6", "", "127.0.0.6", "127.0.0.6"]


def test_people_are_told_which_inbound_is_not_ready_and_why():
    tags = {"kuma.io/service": "web"}
    given = probed(
        tags=tags, servicePort=18080, serviceAddress="127.0.0.1", **marked("NotReady", ready=False)
    )
    (text,) = service_probe.not_ready(given)
    assert text.startswith("inbound[port=8080,svc=web] is not ready: its application has not answered on")
    assert "127.0.0.1:18080" in text
    (text,) = service_probe.not_ready(spec(state="NotReady"))
    assert text.startswith("inbound[port=8080,svc=] is not ready: its Dataplane says so")
    assert not list(service_probe.not_ready(probed(**marked("Ready", ready=True))))
    assert not list(service_probe.not_ready(spec(state="Ignored")))
