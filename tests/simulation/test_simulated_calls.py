"""Calls in a mesh, simulated: through an egress, to another zone, and what else decides about them."""

from typing import Any

import pytest

from koguma.core.simulation import answers
from koguma.core.simulation.answers import CallGroup, CallQuestion
from koguma.core.simulation.calls import CallSimulator
from koguma.envoy.simulation.traffic import SimulatedRequest
from tests.core import building

MESH = """
type: Mesh
name: default
mtls: {enabledBackend: ca, backends: [{name: ca, type: builtin}]}
routing: {zoneEgress: true}
---
type: Dataplane
mesh: default
name: web-1
networking:
  address: 10.0.0.1
  inbound: [{port: 8080, tags: {kuma.io/service: web, kuma.io/protocol: http}}]
---
type: Dataplane
mesh: default
name: backend-1
networking:
  address: 10.0.0.2
  inbound: [{port: 8080, name: main, tags: {kuma.io/service: backend, kuma.io/protocol: http}}]
---
type: MeshService
mesh: default
name: backend
spec:
  selector: {dataplaneTags: {kuma.io/service: backend}}
  ports: [{port: 80, targetPort: main, appProtocol: http}]
status: {vips: [{ip: 241.0.0.1}], tls: {status: Ready}}
"""
ALLOW = """
---
type: MeshTrafficPermission
mesh: default
name: all
spec: {from: [{targetRef: {kind: Mesh}, default: {action: Allow}}]}
"""
EGRESS = """
---
type: ZoneEgress
name: e1
networking: {address: 10.0.0.8, port: 10002}
---
type: MeshExternalService
mesh: default
name: mail
spec:
  match: {type: HostnameGenerator, port: 80, protocol: http}
  endpoints: [{address: 192.0.2.9, port: 25}]
status: {vip: {ip: 242.0.0.1}}
"""
REMOTE = """
---
type: ZoneIngress
name: i-west
x-zone: west
networking: {address: 10.1.0.1, port: 10001, advertisedAddress: 192.0.2.1, advertisedPort: 10001}
---
type: MeshService
mesh: default
name: orders
x-zone: west
spec:
  selector: {dataplaneTags: {kuma.io/service: orders}}
  ports: [{port: 80, appProtocol: http}]
  identities: [{type: ServiceTag, value: orders}]
status: {vips: [{ip: 241.0.0.2}], tls: {status: Ready}}
"""


def asked(objects: str, caller: str, to: str, **request: Any) -> CallGroup:
    simulator = CallSimulator(building.database(building.objects(objects)), "default")
    (group,) = answers.groups(simulator, CallQuestion(caller, to, request=SimulatedRequest(**request)))
    return group


def shown(objects: str, caller: str, to: str, **request: Any) -> Any:
    simulator = CallSimulator(building.database(building.objects(objects)), "default")
    question = CallQuestion(caller, to, request=SimulatedRequest(**request))
    return answers.shown(simulator.db, question, answers.groups(simulator, question))


def policy(kind: str, name: str, spec: str) -> str:
    return f"\n---\ntype: {kind}\nmesh: default\nname: {name}\nspec: {spec}\n"


def test_an_external_service_through_an_egress():
    group = asked(MESH + ALLOW + EGRESS, "web", "mail")
    (outcome,) = group.outcomes
    assert group.verdict == "yes", outcome
    assert outcome.decided_at is not None
    assert outcome.decided_at.kind == "ZoneEgress"
    assert outcome.side.permits == ("kri_mtp_default_east__all_",)


def test_an_egress_denies_as_other_proxies_do():
    group = asked(MESH + EGRESS, "web", "mail")
    (outcome,) = group.outcomes
    assert (group.verdict, outcome.kind, outcome.status) == ("no", "denied", 403)


def test_without_an_egress_there_are_no_endpoints():
    objects = (MESH + ALLOW + EGRESS).replace("type: ZoneEgress", "type: ZoneIngress")
    assert asked(objects, "web", "mail").outcomes[0].kind == "no endpoints"


def test_a_service_of_another_zone_is_followed_to_its_ingress():
    (outcome,) = asked(MESH + ALLOW + REMOTE, "web", "orders").outcomes
    assert outcome.is_reached
    assert [name for name, _ in outcome.endpoints] == ["192.0.2.1:10001"]
    assert outcome.side.notes == ("in zone west, whose control plane decides who may call",)


def test_what_a_proxy_cannot_reach():
    narrow = MESH.replace(
        "  inbound: [{port: 8080, tags: {kuma.io/service: web",
        "  transparentProxying: {redirectPortInbound: 15006, redirectPortOutbound: 15001,"
        " reachableBackends: {refs: []}}\n  inbound: [{port: 8080, tags: {kuma.io/service: web",
    )
    (outcome,) = shown(narrow + ALLOW, "web", "backend")["groups"][0]["outcomes"]
    assert outcome["outcome"] == "no listener"
    assert outcome["reason"].endswith("it is not among what the proxy can reach")


def test_a_planned_denial_is_noted():
    spec = "{from: [{targetRef: {kind: Mesh}, default: {action: AllowWithShadowDeny}}]}"
    (outcome,) = asked(MESH + policy("MeshTrafficPermission", "soon", spec), "web", "backend").outcomes
    assert outcome.is_reached
    assert outcome.side.notes == ("kri_mtp_default_east__soon_ plans to deny this",)


def test_limits_delays_and_mirrors_are_named():
    rate = "{num: 3, interval: 10s}"
    limit = "{targetRef: {kind: Dataplane}, rules: [{default: {local: {http: {requestRate: " + rate + "}}}}]}"
    delay = "{delay: {value: 2s, percentage: 10}}"
    fault = "{targetRef: {kind: Dataplane}, rules: [{default: {http: [" + delay + "]}}]}"
    mirror = (
        "{type: RequestMirror, requestMirror: {backendRef: {kind: MeshService, name: backend, port: 80}}}"
    )
    rules = "[{matches: [{path: {type: PathPrefix, value: /}}], default: {filters: [" + mirror + "]}}]"
    route = "{to: [{targetRef: {kind: MeshService, name: backend}, rules: " + rules + "}]}"
    objects = (
        MESH
        + ALLOW
        + policy("MeshRateLimit", "few", limit)
        + policy("MeshFaultInjection", "slow", fault)
        + policy("MeshHTTPRoute", "copy", route)
    )
    (outcome,) = shown(objects, "web", "backend")["groups"][0]["outcomes"]
    assert outcome["limits"] == ["3 requests per 10s, then TooManyRequests (kri_mrl_default_east__few_)"]
    assert outcome["faults"] == ["10 % delayed by 2s (kri_mfi_default_east__slow_)"]
    assert outcome["mirrors"] == ["kri_msvc_default_east__backend_80"]


def test_a_certificate_of_somebody_else_is_not_taken():
    """The MeshService names another identity than its proxies have: callers refuse these."""
    wrong = MESH.replace(
        "spec:\n  selector", "spec:\n  identities: [{type: ServiceTag, value: other}]\n  selector"
    )
    (outcome,) = shown(wrong + ALLOW, "web", "backend")["groups"][0]["outcomes"]
    assert (outcome["outcome"], outcome["status"]) == ("tls error", 503)
    assert "expects spiffe://default/other" in outcome["reason"]


@pytest.mark.parametrize("share", [0, 40, 100])
def test_shares_add_up(share):
    abort = f"{{abort: {{httpStatus: 500, percentage: {share}}}}}"
    spec = "{targetRef: {kind: Dataplane}, rules: [{default: {http: [" + abort + "]}}]}"
    group = asked(MESH + ALLOW + policy("MeshFaultInjection", "some", spec), "web", "backend")
    assert sum(outcome.share for outcome in group.outcomes) == 1
    assert group.verdict == {0: "yes", 40: "partly", 100: "no"}[share]
