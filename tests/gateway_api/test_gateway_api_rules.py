"""Objects of the Gateway API: what is refused, at which field, and what is filled in."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from koguma.kube import native
from koguma.kube.kinds import gateway_api
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kind, ValidationContext

KINDS = {kind.name: kind for kind in gateway_api.KINDS}
CASES = yaml.safe_load((Path(__file__).parent / "rules.yaml").read_text())


def violations(kind: Kind, spec: Any, stored: Any = None) -> dict[str, str]:
    context = ValidationContext(control_plane=ControlPlaneInfo(), name="it", namespace="shop", stored=stored)
    found = list(kind.violations(native.stored_spec(kind, spec), context))
    assert len({violation.field for violation in found}) == len(found)
    return {violation.field: violation.message for violation in found}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['kind']} that {case['it']}")
def test_what_is_wrong_is_said_at_its_field(case: Any):
    given = copy.deepcopy(case["spec"])
    found = violations(KINDS[case["kind"]], case["spec"])
    assert list(found) == list(case["wrong"]) or sorted(found) == sorted(case["wrong"])
    for field, part in case["wrong"].items():
        assert part in found[field]
    assert case["spec"] == given, "a spec was changed in place"


def stored(kind: str, spec: Any) -> Any:
    assert violations(KINDS[kind], spec) == {}
    result = native.stored_spec(KINDS[kind], spec)
    assert native.stored_spec(KINDS[kind], result) == result
    return result


def test_a_route_that_says_nothing_takes_all_paths():
    assert stored("HTTPRoute", {}) == {
        "rules": [{"matches": [{"path": {"type": "PathPrefix", "value": "/"}}]}]
    }
    assert stored("GRPCRoute", {}) == {}


def test_defaults_are_stored_where_fields_are_absent_or_null():
    written = {
        "parentRefs": [{"name": "edge", "kind": None}],
        "rules": [
            {
                "matches": [{"path": {"value": "/a"}, "headers": [{"name": "v", "value": "1"}]}],
                "backendRefs": [{"name": "web", "port": 80}],
            },
            {
                "matches": [],
                "filters": [{"type": "RequestRedirect", "requestRedirect": {"scheme": "https"}}],
                "sessionPersistence": {"cookieConfig": {}},
            },
        ],
    }
    assert stored("HTTPRoute", written) == {
        "parentRefs": [{"name": "edge", "group": "gateway.networking.k8s.io", "kind": "Gateway"}],
        "rules": [
            {
                "matches": [
                    {
                        "path": {"value": "/a", "type": "PathPrefix"},
                        "headers": [{"name": "v", "value": "1", "type": "Exact"}],
                    }
                ],
                "backendRefs": [{"name": "web", "port": 80, "group": "", "kind": "Service", "weight": 1}],
            },
            {
                "matches": [],
                "filters": [
                    {"type": "RequestRedirect", "requestRedirect": {"scheme": "https", "statusCode": 302}}
                ],
                "sessionPersistence": {"type": "Cookie", "cookieConfig": {"lifetimeType": "Session"}},
            },
        ],
    }


def test_a_listener_takes_routes_of_its_own_namespace_by_default():
    listener = {"name": "web", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "c"}]}}
    spec = stored("Gateway", {"gatewayClassName": "koguma", "listeners": [listener], "allowedListeners": {}})
    assert spec["listeners"][0] == {
        **listener,
        "tls": {"mode": "Terminate", "certificateRefs": [{"name": "c", "group": "", "kind": "Secret"}]},
        "allowedRoutes": {"namespaces": {"from": "Same"}},
    }
    assert spec["allowedListeners"] == {"namespaces": {"from": "None"}}


def test_the_controller_of_a_class_stays():
    kind = KINDS["GatewayClass"]
    before = {"controllerName": "example.com/a"}
    assert violations(kind, {"controllerName": "example.com/a"}, before) == {}
    found = violations(kind, {"controllerName": "example.com/b"}, before)
    assert found == {"spec.controllerName": 'Invalid value: "example.com/b": field is immutable'}


def test_a_route_has_128_matches_and_no_more():
    match = {"path": {"value": "/a"}}
    assert violations(KINDS["HTTPRoute"], {"rules": [{"matches": [match] * 64}] * 2}) == {}
    found = violations(KINDS["HTTPRoute"], {"rules": [{"matches": [match] * 64}] * 2 + [{}]})
    assert "have 129 matches" in found["spec.rules"]
    grpc = {"rules": [{"matches": [{}] * 64}] * 3}
    assert "have 192 matches" in violations(KINDS["GRPCRoute"], grpc)["spec.rules"]
    assert "at most 16 items" in violations(KINDS["HTTPRoute"], {"rules": [{}] * 17})["spec.rules"]
