"""What is reported on destinations, and the step from what is stored to that."""

from datetime import UTC, datetime

import msgspec
import pytest

from koguma.core import pipeline, statuses, vips
from koguma.core.address_history import AddressHistory
from koguma.core.build import endpoints
from koguma.core.statuses import ConnectedProxies
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.schema import read
from tests.core import port_confs
from tests.core.destinations import (
    ALL,
    database,
    internal_vip,
    stored,
    stored_dataplane,
    stored_external,
    stored_generator,
    stored_mesh,
    stored_multi_zone,
    stored_service,
)

MTLS = stored_mesh(mtls={"enabledBackend": "ca-1", "backends": [{"name": "ca-1", "type": "builtin"}]})
SVC = stored_generator("local", "{{ .DisplayName }}.svc.mesh.local")
NONE = ConnectedProxies()


def proxies(connected=(), certified=()):
    return ConnectedProxies(
        frozenset(each.key for each in connected), frozenset(each.key for each in certified)
    )


def plan(db, seen=NONE):
    now = datetime(2026, 1, 9, tzinfo=UTC)
    history = AddressHistory(now, vips.first_used(db, vips.DEFAULT, {}))
    return statuses.plan(db, "shop", seen, vips.DEFAULT, history, now)


def reported(resource, *others, seen=NONE, control_plane=None):
    """The status that an object gets, which must be one of its kind."""
    db = database(*others, resource, **({"control_plane": control_plane} if control_plane else {}))
    found = {change.key: change for change in plan(db, seen).changes}
    if resource.key not in found:
        return resource.status
    status = found[resource.key].status
    read(ALL[resource.kind].status, status)
    assert msgspec.structs.replace(found[resource.key], status=resource.status) == resource
    return status


# The whole of it, kind by kind.


def test_a_mesh_service_reports_all_that_is_known():
    there = [
        stored_dataplane("web-1", "web"),
        stored_dataplane("web-2", "web", state="NotReady"),
        stored_dataplane("api-1", "api"),
    ]
    web = stored_service("web", ports=(8080,))
    assert reported(web, MTLS, SVC, *there, seen=proxies(there, there)) == {
        "vips": [{"ip": "241.0.0.1"}],
        "addresses": [
            {
                "hostname": "web.svc.mesh.local",
                "origin": "HostnameGenerator",
                "hostnameGeneratorRef": {"coreName": "local"},
            }
        ],
        "hostnameGenerators": [
            {
                "hostnameGeneratorRef": {"coreName": "local"},
                "conditions": [{"type": "Generated", "status": "True", "reason": "Generated", "message": ""}],
            }
        ],
        "tls": {"status": "Ready"},
        "dataplaneProxies": {"connected": 2, "healthy": 1, "total": 2},
        "state": "Available",
        "identities": [{"type": "ServiceTag", "value": "web"}],
    }


def test_a_mesh_service_without_anything_has_an_address_and_zeros():
    assert reported(stored_service("web")) == {
        "vips": [{"ip": "241.0.0.1"}],
        "tls": {"status": "NotReady"},
        "dataplaneProxies": {"connected": 0, "healthy": 0, "total": 0},
        "state": "Unavailable",
        "identities": [{"type": "ServiceTag", "value": "web"}],
    }


@pytest.mark.parametrize(
    ("inbound", "ports", "state"),
    [
        ({}, (8080,), "Available"),
        ({}, (8080, 9090), "Available"),  # Kuma calls a service unavailable where one of its ports is
        ({}, (9090,), "Unavailable"),
        ({"state": "NotReady"}, (8080,), "Unavailable"),
    ],
)
def test_a_service_is_available_where_any_of_its_ports_can_be_called(inbound, ports, state):
    web = stored_service("web", ports=ports)
    assert reported(web, stored_dataplane("web-1", "web", **inbound))["state"] == state


def test_a_service_that_selects_by_labels_has_the_identities_of_its_proxies_and_keeps_the_last_ones():
    spec = {"selector": {"dataplaneLabels": {"matchLabels": {"team": "a"}}}, "ports": [{"port": 8080}]}
    service = stored("MeshService", "team", spec)
    there = [
        msgspec.structs.replace(stored_dataplane(f"{name}-1", name), labels={"team": team})
        for name, team in (("web", "a"), ("api", "a"), ("other", "b"))
    ]
    status = reported(service, *there)
    assert [each["value"] for each in status["identities"]] == ["api", "web"]
    alone = reported(msgspec.structs.replace(service, status=status))
    assert alone["identities"] == status["identities"]
    assert alone["state"] == "Unavailable"


def test_only_how_it_is_called_from_here_is_reported_on_another_zones_service():
    there = stored_dataplane("web-1", "web", zone="west")
    far = stored_service("web", zone="west", labels={"kuma.io/origin": "global"})
    assert reported(far, MTLS, there, seen=proxies([there], [there])) == {"vips": [{"ip": "241.0.0.1"}]}


def test_a_mesh_external_service_reports_each_name_with_its_address():
    assert reported(stored_external("db", "a.ext", "b.ext")) == {
        "vips": [
            {"ip": "242.0.0.1", "type": "Kuma", "hostname": "a.ext"},
            {"ip": "242.0.0.2", "type": "Kuma", "hostname": "b.ext"},
        ]
    }


def test_a_mesh_external_service_of_the_released_shape_reports_its_one_address_twice():
    named = stored_generator("e", "{{ .DisplayName }}.ext", "meshExternalService")
    status = reported(stored_external("db"), named)
    assert (status["vip"], status["vips"]) == ({"ip": "242.0.0.1"}, [{"ip": "242.0.0.1", "type": "Kuma"}])
    assert [each["hostname"] for each in status["addresses"]] == ["db.ext"]


def test_a_mesh_external_service_without_virtual_addresses_reports_nothing():
    match = [internal_vip("example.com", kind="Domain")]
    assert reported(stored("MeshExternalService", "db", {"match": match})) is None


def test_external_services_report_what_disrupts_their_traffic():
    first = stored("MeshExternalService", "first", {"match": [addressed("10.1.0.0/16", "CIDR")]})
    second = stored("MeshExternalService", "second", {"match": [addressed("10.1.2.3", "IP")]})
    message = "first and second have overlapping IPs 10.1.2.3, which can disrupt your traffic."
    condition = {"type": "Overlapping", "status": "True", "reason": "Overlapping", "message": message}
    assert reported(first, second) == reported(second, first) == {"conditions": [condition]}
    assert [(each.about.name, each.message) for each in plan(database(first, second)).problems] == [
        ("first", message)
    ]
    elsewhere = msgspec.structs.replace(second, zone="west")
    assert reported(first, elsewhere) is None
    on_tcp = {**internal_vip("a.com", kind="Domain"), "protocol": "tcp"}
    whole = stored("MeshExternalService", "whole", {"match": [on_tcp]})
    (condition,) = reported(whole)["conditions"]
    assert condition["type"] == "WholePortTaken"
    assert "takes all traffic on port 443" in condition["message"]
    assert [each.rule for each in plan(database(whole)).problems] == ["port"]


def addressed(value, kind):
    return {"type": kind, "value": value, "port": 80, "protocol": "tcp"}


def test_a_multi_zone_service_reports_the_services_of_its_own_mesh():
    there = [
        stored_service("web", namespace="ns"),
        stored_service("web", zone="west", core_name="web-x"),
        stored_service("web", mesh="other"),
        stored_service("api"),
    ]
    assert reported(stored_multi_zone("web"), *there) == {
        "vips": [{"ip": "243.0.0.1"}],
        "meshServices": [
            {"name": "web", "namespace": "ns", "zone": "east", "mesh": "shop"},
            {"name": "web", "namespace": "", "zone": "west", "mesh": "shop"},
        ],
        "conditions": [
            {
                "type": "MeshServicesMatched",
                "status": "True",
                "reason": "MatchesFound",
                "message": "Matched 2 MeshService(s)",
            }
        ],
    }


def test_a_multi_zone_service_without_services_says_so():
    assert reported(stored_multi_zone("web"))["conditions"] == [
        {
            "type": "MeshServicesMatched",
            "status": "False",
            "reason": "NoMatchesFound",
            "message": "Selector does not match any MeshService in this zone",
        }
    ]


# Proxies.


@pytest.mark.parametrize(
    ("inbound", "is_healthy"),
    [
        ({}, True),
        ({"state": "Ready"}, True),
        ({"health": {"ready": True}}, True),
        ({"state": "NotReady"}, False),
        ({"state": "Ready", "health": {"ready": False}}, False),
    ],
)
def test_a_proxy_is_healthy_when_its_inbounds_are_ready(inbound, is_healthy):
    counts = reported(stored_service("web"), stored_dataplane("web-1", "web", **inbound))["dataplaneProxies"]
    assert counts == {"connected": 0, "healthy": int(is_healthy), "total": 1}


def test_only_inbounds_of_the_service_count():
    both = stored_dataplane("both", "web")
    both.spec["networking"]["inbound"].append(
        {"port": 9, "tags": {"kuma.io/service": "api"}, "state": "NotReady"}
    )
    assert reported(stored_service("web"), both)["dataplaneProxies"]["healthy"] == 1
    assert reported(stored_service("api"), both)["dataplaneProxies"]["healthy"] == 0


# TLS.


@pytest.mark.parametrize(
    ("before", "certified", "mtls", "expected"),
    [
        ("NotReady", [], True, "NotReady"),
        ("NotReady", [1], True, "NotReady"),
        ("NotReady", [1, 2], True, "Ready"),
        ("Ready", [], True, "Ready"),
        ("Ready", [1, 2], False, "NotReady"),
        ("NotReady", [1, 2], False, "NotReady"),
    ],
)
def test_tls_is_ready_once_all_proxies_have_certificates_and_stays_so(before, certified, mtls, expected):
    there = [stored_dataplane("web-1", "web"), stored_dataplane("web-2", "web")]
    web = stored_service("web", status={"tls": {"status": before}})
    seen = proxies(certified=[there[number - 1] for number in certified])
    status = reported(web, *([MTLS] if mtls else []), *there, seen=seen)
    assert status["tls"] == {"status": expected}


def test_a_service_without_proxies_is_not_ready():
    assert reported(stored_service("web"), MTLS)["tls"] == {"status": "NotReady"}


# The step.


def test_what_is_written_is_not_written_again():
    resources = [
        stored_service("web"),
        stored_service("far", zone="west"),
        stored_external("db"),
        stored_external("own", "a.ext"),
        stored_multi_zone("all"),
        stored("MeshExternalService", "none", {"match": [internal_vip("x.com", kind="Domain")]}),
        stored_dataplane("web-1", "web"),
        SVC,
    ]
    db = database(*resources)
    first = plan(db)
    assert len(first.changes) == 5
    pipeline.take(db, first.changes)
    assert plan(db).changes == ()


def test_parts_of_a_status_that_are_not_ours_are_kept():
    web = stored_service("web", status={"later": {"a": 1}, "conditions": [{"type": "Old"}]})
    status = reported(web)
    assert status["later"] == {"a": 1}
    assert "conditions" not in status


def test_a_spec_is_never_touched():
    web = stored_service("web", revision=7)
    web.spec["state"] = "Unavailable"
    (change,) = plan(database(web, stored_dataplane("web-1", "web"))).changes
    assert (change.spec, change.revision) == (web.spec, 7)


def test_a_name_that_is_taken_or_illegal_is_a_problem_of_who_wrote_it():
    first, second, third = (
        stored_external("a", "x.ext"),
        stored_external("b", "x.ext", created=1),
        stored_external("c", "*.ext"),
    )
    problems = plan(database(first, second, third)).problems
    assert [(problem.about.name, problem.rule) for problem in problems] == [
        ("b", "hostname"),
        ("c", "hostname"),
    ]
    assert problems[0].message == (
        'cannot be called as "x.ext": Hostname collision with MeshExternalService: a; choose another name'
    )


@pytest.mark.parametrize(
    ("before", "after", "is_recount"),
    [
        ({"dataplaneProxies": {"total": 1}}, {"dataplaneProxies": {"total": 2}}, True),
        ({"vips": [], "dataplaneProxies": {"total": 1}}, {"dataplaneProxies": {"total": 2}}, False),
        (None, {"dataplaneProxies": {"total": 2}}, False),
    ],
)
def test_a_recount_is_a_change_of_nothing_but_numbers(before, after, is_recount):
    one, other = stored_service("web", status=before), stored_service("web", status=after)
    assert statuses.is_recount(msgspec.structs.replace(one, status=before), other) is is_recount


# What it costs.


def test_a_new_count_of_proxies_matches_nothing_again():
    timeout = stored(
        "MeshTimeout", "slow", {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": "5s"}}]}
    )
    proxy, caller = stored_dataplane("web-1", "web"), stored_dataplane("api-1", "api")
    web = stored_service("web", "241.0.0.1")
    db = database(web, stored_service("api"), proxy, caller, timeout, SVC)
    for one in (proxy, caller):
        db.watch(port_confs.of_proxy, one.key)
    db.watch(endpoints.of_service, web.key, "80")
    db.reset_counts()
    counted = {**web.status, "dataplaneProxies": {"connected": 1, "healthy": 1, "total": 1}}
    pipeline.take(db, [msgspec.structs.replace(web, status=counted, revision=99, modification_time="later")])
    assert db.changed() == []
    ran = set(db.runs)
    assert "world.destination" in ran
    assert not [name for name in ran if name.startswith(("match.", "rules.", "items.", "inbound.", "merge."))]
    assert max(db.runs.values()) == 1


def test_one_proxy_that_falls_ill_asks_about_its_own_service_only():
    services = [stored_service(f"s{number}") for number in range(10)]
    db = database(*services, *(stored_dataplane(f"d{number}", f"s{number}") for number in range(10)))
    for one in services:
        db.watch(statuses.facts, one.key)
    db.reset_counts()
    pipeline.take(db, [stored_dataplane("d3", "s3", state="NotReady")])
    assert [asked.args for asked in db.changed()] == [(services[3].key,)]
    assert db.runs["statuses.facts"] == 1


def test_the_zone_decides_whose_proxies_are_counted():
    web, proxy = stored_service("web"), stored_dataplane("web-1", "web")
    assert "dataplaneProxies" in reported(web, proxy, control_plane=ControlPlaneInfo(zone="east"))
    assert "dataplaneProxies" not in reported(web, proxy, control_plane=ControlPlaneInfo(zone="west"))
