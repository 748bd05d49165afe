"""What is wrong with a modification before anything is patched: the place, the line, the nearest name."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from koguma.envoy import schema
from koguma.envoy.patch_check import PatchChecker

CHECKER = PatchChecker(schema.load(schema.find_envoy()))
PATCHES = Path(__file__).with_name("patches")
ROUTER = "envoy.extensions.filters.http.router.v3.Router"
ALGORITHMS = (
    "ROUND_ROBIN, LEAST_REQUEST, RING_HASH, RANDOM, MAGLEV, CLUSTER_PROVIDED, LOAD_BALANCING_POLICY_CONFIG"
)


def found(modification: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each.field, each.message) for each in CHECKER.violations(modification, "it")]


def value(written: Any, what: str = "cluster", operation: str = "Patch") -> dict[str, Any]:
    return {what: {"operation": operation, "value": written}}


@pytest.mark.parametrize(
    ("modification", "field", "message"),
    [
        (
            value({"lb_polici": "RANDOM"}),
            "cluster.value.lb_polici",
            'envoy.config.cluster.v3.Cluster has no field "lb_polici"; did you mean "lb_policy"?',
        ),
        (
            value("connect_timeout: 5s\nlb_policy: NO_SUCH\n"),
            "cluster.value.lb_policy",
            f'line 2: "NO_SUCH" is not one of {ALGORITHMS}',
        ),
        (
            value("lbPolicy: Randm"),
            "cluster.value.lbPolicy",
            f'line 1: "Randm" is not one of {ALGORITHMS}; did you mean RANDOM?',
        ),
        (
            value({"connectTimeout": 5}),
            "cluster.value.connectTimeout",
            'must be seconds such as "5s" or "0.25s", not a number',
        ),
        (
            value("name: x\nconnect_timeout: 0s", operation="Add"),
            "cluster.value.connect_timeout",
            "line 2: value must be greater than 0s",
        ),
        (
            value("name: v\ndomains: ['*']\nroutes:\n- match:\n    prefx: /\n", "virtualHost", "Add"),
            "virtualHost.value.routes[0].match.prefx",
            'line 5: envoy.config.route.v3.RouteMatch has no field "prefx"; did you mean "prefix"?',
        ),
        (
            value(
                {"name": "x", "typedConfig": {"@type": f"type.googleapis.com/{ROUTER[:-2]}r"}}, "httpFilter"
            ),
            "httpFilter.value.typedConfig.@type",
            f'this Envoy has no message "{ROUTER[:-2]}r"; did you mean "{ROUTER}"?',
        ),
        (
            value(
                {"name": "x", "typedConfig": {"@type": f"type.googleapis.com/{ROUTER}", "a": 1}}, "httpFilter"
            ),
            "httpFilter.value.typedConfig.a",
            f'{ROUTER} has no field "a"',
        ),
    ],
)
def test_a_value_is_judged_by_its_message(modification, field: str, message: str) -> None:
    assert found(modification) == [(f"it.{field}", message)]


def patched(operation: dict[str, Any], what: str = "cluster", name: str = "") -> list[tuple[str, str]]:
    change = {"operation": "Patch", "jsonPatches": [operation], **({"match": {"name": name}} if name else {})}
    return [(field.removeprefix(f"it.{what}."), message) for field, message in found({what: change})]


CLUSTER = "envoy.config.cluster.v3.Cluster"


@pytest.mark.parametrize(
    ("op", "pointer", "given", "field", "message"),
    [
        ("add", "/lbPolicy", "NO_SUCH", "value", f'"NO_SUCH" is not one of {ALGORITHMS}'),
        (
            "replace",
            "/lbPolici",
            "RANDOM",
            "path",
            f'{CLUSTER} has no field "lbPolici"; did you mean "lbPolicy"?',
        ),
        ("remove", "/nope", None, "path", f'{CLUSTER} has no field "nope"'),
        (
            "remove",
            "/lb_policy",
            None,
            "path",
            '"lb_policy" is "lbPolicy" in JSON, which a pointer leads through',
        ),
        (
            "add",
            "/healthChecks/first",
            {},
            "path",
            '"healthChecks" is a list; write an index, or "-" for its end, not "first"',
        ),
        (
            "add",
            "/healthChecks/-/timeou",
            "5s",
            "path",
            'envoy.config.core.v3.HealthCheck has no field "timeou"; did you mean "timeout"?',
        ),
        (
            "add",
            "/connectTimeout/seconds",
            5,
            "path",
            '"google.protobuf.Duration" is one value, and has no "seconds" in it',
        ),
        ("add", "/name/x", "a", "path", '"name" is one value, and has no "x" in it'),
        (
            "add",
            "/circuitBreakers",
            {"thresholds": [{"maxConnection": 1}]},
            "value",
            (
                'envoy.config.cluster.v3.CircuitBreakers.Thresholds has no field "maxConnection";'
                ' did you mean "maxConnections"?'
            ),
        ),
        ("add", "/a~2", 1, "path", "is no JSON pointer; write ~0 for '~' and ~1 for '/'"),
    ],
)
def test_a_pointer_leads_through_fields_and_what_is_put_there_fits(
    op, pointer, given, field, message
) -> None:
    operation = {"op": op, "path": pointer, **({} if given is None else {"value": given})}
    assert patched(operation) == [(f"jsonPatches[0].{field}", f"{pointer}: {message}")]


def test_where_something_is_taken_from_is_a_place_too() -> None:
    wrong = patched({"op": "move", "path": "/lbPolicy", "from": "/nope"})
    assert wrong == [("jsonPatches[0].from", f'/nope: {CLUSTER} has no field "nope"')]


def test_pointers_of_a_filter_begin_in_its_configuration() -> None:
    operation = {"op": "add", "path": "/suppressEnvoyHeader", "value": True}
    wrong = patched(operation, "httpFilter", "envoy.filters.http.router")
    assert wrong == [
        (
            "jsonPatches[0].path",
            (
                f'/suppressEnvoyHeader: {ROUTER} has no field "suppressEnvoyHeader";'
                ' did you mean "suppressEnvoyHeaders"?'
            ),
        )
    ]
    assert patched(operation, "httpFilter", "a.filter.of.somebody") == []


@pytest.mark.parametrize(
    ("pointer", "given"),
    [
        ("/lbPolicy", "RANDOM"),
        ("/lb_policy", "RANDOM"),
        ("/healthChecks/0/timeout", "5s"),
        ("/healthChecks/-", {"timeout": "5s"}),
        ("/metadata/filterMetadata/mine/deep/er", [1]),
        ("/transportSocket/typedConfig/sni", "a"),
        ("/typedExtensionProtocolOptions/envoy.extensions.upstreams.http.v3.HttpProtocolOptions/a", 1),
        ("", {"name": "x"}),
    ],
)
def test_what_may_be_right_is_let_through(pointer: str, given: Any) -> None:
    assert patched({"op": "add", "path": pointer, "value": given}) == []


WORKING = [
    pytest.param(change, id=f"{file.stem}: {case['case']}")
    for file in sorted(PATCHES.glob("*.yaml"))
    for case in yaml.safe_load_all(file.read_text())
    if not case.get("failures")
    for change in case["change"]
]


@pytest.mark.parametrize("change", WORKING)
def test_what_works_is_not_refused(change) -> None:
    assert found(change) == []
