"""Which policies may be about a built-in gateway, and what they may say there: the table of all of them.

A row is a kind with the conf of an entry, and for each list what it may target where `targetRef` is a
MeshGateway; None where the list is refused, or is not there.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from koguma import policies
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kind, Kinds, ValidationContext

KINDS = Kinds(policies.POLICIES)
GATEWAY = {"kind": "MeshGateway", "name": "edge"}
ALL_TARGETS = (
    *(
        "Mesh",
        "MeshService",
        "MeshExternalService",
        "MeshMultiZoneService",
        "MeshServiceSubset",
        "MeshSubset",
    ),
    *("MeshGateway", "MeshHTTPRoute", "MeshTCPRoute", "Dataplane"),
)
DESTINATIONS = ("MeshService", "MeshExternalService", "MeshMultiZoneService")
ROUTES = ("MeshHTTPRoute", "MeshTCPRoute")


GATEWAY_IN_SCOPE = (
    "must not be defined when the scope includes a Gateway, select only proxyType Sidecar or select only"
    " gateways and use spec.to"
)


class Row(NamedTuple):
    kind: str
    conf: dict[str, Any]
    to: tuple[str, ...] | None = None
    from_: tuple[str, ...] | None = None
    has_rules: bool = False
    system_only: bool = True
    narrowed: tuple[str, ...] = ("tags", "sectionName")  # how listeners may be chosen


BREAKER = {"connectionLimits": {"maxRetries": 3}}
CHECK = {"interval": "1s", "timeout": "1s", "unhealthyThreshold": 1, "healthyThreshold": 1, "tcp": {}}
LOG = {"backends": [{"type": "File", "file": {"path": "/dev/stdout"}}]}
LIMIT = {"local": {"http": {"requestRate": {"num": 1, "interval": "1s"}}}}
FAULT = {"http": [{"abort": {"httpStatus": 503, "percentage": 1}}]}
HASH = {"hashPolicies": [{"type": "Header", "header": {"name": "x-user"}}]}
TABLE = (
    Row("MeshTimeout", {"idleTimeout": "1s"}, ("Mesh", *DESTINATIONS, *ROUTES), has_rules=True),
    Row("MeshRetry", {"http": {"numRetries": 1}}, ("Mesh", *DESTINATIONS, *ROUTES)),
    Row(
        "MeshCircuitBreaker",
        BREAKER,
        ("Mesh", "MeshService", "MeshMultiZoneService"),
        from_=("Mesh",),
        has_rules=True,
        system_only=False,
    ),
    Row("MeshRateLimit", LIMIT, ("Mesh", "MeshHTTPRoute")),
    Row("MeshFaultInjection", FAULT, ("Mesh", "MeshHTTPRoute"), has_rules=True),
    Row("MeshHealthCheck", CHECK, ("Mesh", *DESTINATIONS), system_only=False),
    Row("MeshLoadBalancingStrategy", HASH, ("Mesh", *DESTINATIONS, *ROUTES), system_only=False),
    Row("MeshAccessLog", LOG, ("Mesh", *ROUTES), from_=("Mesh",), has_rules=True, system_only=False),
    Row("MeshTrace", {"backends": []}, narrowed=()),
    Row("MeshMetric", {"backends": []}, narrowed=("tags",)),
    Row("MeshProxyPatch", {"appendModifications": [{"cluster": {"operation": "Remove"}}]}, narrowed=()),
)
REFUSED = ("MeshTLS", "MeshPassthrough")
BETWEEN_MESHES = ("MeshTrafficPermission",)  # on listeners with crossMesh alone
ROUTE_POLICIES = ("MeshHTTPRoute", "MeshTCPRoute", "MeshGatewayHTTPRoute")


def fields(kind: Kind, spec: dict[str, Any], namespace: str = "") -> list[str]:
    """The fields at which a spec is refused."""
    context = ValidationContext(ControlPlaneInfo(), name="it", mesh="default", namespace=namespace)
    return [violation.field for violation in kind.violations(spec, context)]


def spec_of(row: Row, list_: str = "", target: str = "Mesh") -> dict[str, Any]:
    kind = KINDS[row.kind]
    assert kind.policy is not None
    if not (kind.policy.has_to or kind.policy.has_rules):
        return {"targetRef": GATEWAY, "default": row.conf}
    entry: dict[str, Any] = {"default": row.conf}
    if list_ != "rules":
        entry["targetRef"] = {"kind": target, **({} if target == "Mesh" else {"name": "a"})}
        if target in ("MeshServiceSubset", "MeshSubset"):
            entry["targetRef"]["tags"] = {"team": "a"}
    return {"targetRef": GATEWAY, list_ or "to": [entry]}


def targets() -> Iterator[Any]:
    for row in TABLE:
        policy = KINDS[row.kind].policy
        assert policy is not None
        lists = (("to", policy.has_to, row.to), ("from", policy.has_from, row.from_))
        for list_, allowed in ((name, allowed or ()) for name, is_there, allowed in lists if is_there):
            for target in ALL_TARGETS:
                yield pytest.param(row, list_, target, target in allowed, id=f"{row.kind} {list_} {target}")


@pytest.mark.parametrize(("row", "list_", "target", "is_legal"), list(targets()))
def test_a_policy_on_a_gateway_may_target_what_the_table_says(
    row: Row, list_: str, target: str, *, is_legal: bool
) -> None:
    refused = fields(KINDS[row.kind], spec_of(row, list_, target))
    assert (not refused) == is_legal, refused


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.kind)
def test_a_policy_on_a_gateway_may_have_rules_where_the_table_says_so(row: Row) -> None:
    policy = KINDS[row.kind].policy
    assert policy is not None
    refused = fields(KINDS[row.kind], spec_of(row, "rules")) if policy.has_rules else ["spec.rules"]
    assert (not refused) == row.has_rules, refused


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.kind)
def test_only_policies_of_the_system_namespace_name_a_gateway_where_the_table_says_so(row: Row) -> None:
    kind, spec = KINDS[row.kind], spec_of(row)
    assert fields(kind, spec) == []
    assert fields(kind, spec, "shop") == (["spec.targetRef.kind"] if row.system_only else [])


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.kind)
def test_a_policy_chooses_listeners_where_it_can_act_on_one(row: Row) -> None:
    for field, value in (("tags", {"port": "http"}), ("sectionName", "http")):
        spec = {**spec_of(row), "targetRef": {**GATEWAY, field: value}}
        expected = [] if field in row.narrowed else [f"spec.targetRef.{field}"]
        assert fields(KINDS[row.kind], spec) == expected


@pytest.mark.parametrize("name", REFUSED)
def test_a_policy_that_cannot_act_on_a_gateway_is_refused(name: str) -> None:
    spec = (
        {"targetRef": GATEWAY, "default": {}}
        if name == "MeshPassthrough"
        else {"targetRef": GATEWAY, "rules": []}
    )
    assert "spec.targetRef.kind" in fields(KINDS[name], spec)


def test_every_policy_stands_in_the_table() -> None:
    built_in = {kind.name for kind in policies.POLICIES if kind.policy is not None}
    assert built_in == {row.kind for row in TABLE} | {*REFUSED, *BETWEEN_MESHES, *ROUTE_POLICIES}


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.kind)
@pytest.mark.parametrize("types", [["Gateway"], ["Sidecar"], ["Sidecar", "Gateway"]])
def test_every_policy_selects_proxies_by_type(row: Row, types: list[str]) -> None:
    spec = {**spec_of(row), "targetRef": {"kind": "Mesh", "proxyTypes": types}}
    is_gateways_only = row.kind in ("MeshRateLimit", "MeshFaultInjection")
    expected = ["spec.to"] if is_gateways_only and types == ["Sidecar"] else []
    assert fields(KINDS[row.kind], spec) == expected


@pytest.mark.parametrize("kind", ["MeshRateLimit", "MeshFaultInjection"])
@pytest.mark.parametrize(
    "top",
    [
        None,
        {"kind": "Mesh"},
        {"kind": "Mesh", "proxyTypes": ["Gateway"]},
        {"kind": "MeshSubset", "tags": {}},
        GATEWAY,
    ],
)
def test_calls_that_arrive_are_refused_where_a_gateway_is_in_scope(kind: str, top: Any) -> None:
    row = next(row for row in TABLE if row.kind == kind)
    spec = {**spec_of(row, "from"), "targetRef": top}
    context = ValidationContext(ControlPlaneInfo(), name="it", mesh="default")
    (violation,) = KINDS[kind].violations(spec, context)
    assert violation.field == "spec.from"
    assert violation.message == GATEWAY_IN_SCOPE
