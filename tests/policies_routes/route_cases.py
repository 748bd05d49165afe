"""Cases: how the data files of this folder are read and asked. The only caller of the kinds' API here.

A case names its kind and gives a `spec`; a `rule`, `conf`, or `matches` stands for a spec that has only that.
"""

from pathlib import Path
from typing import Any

import yaml

from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import About, Kind
from koguma.policies import (
    mesh_gateway_http_route,
    mesh_http_route,
    mesh_load_balancing_strategy,
    mesh_retry,
    mesh_tcp_route,
    mesh_timeout,
)

HERE = Path(__file__).parent
MODULES = (
    mesh_gateway_http_route,
    mesh_http_route,
    mesh_load_balancing_strategy,
    mesh_retry,
    mesh_tcp_route,
    mesh_timeout,
)
KINDS: dict[str, Kind] = {module.KIND.name: module.KIND for module in MODULES}
BACKEND = {"kind": "MeshService", "name": "backend"}

Case = dict[str, Any]


def cases(folder: str) -> list[Case]:
    """The cases of every file in a folder."""
    found = [
        case for path in sorted((HERE / folder).glob("*.yaml")) for case in yaml.safe_load(path.read_text())
    ]
    assert found, f"no cases in {folder}"
    return found


def title(case: Case) -> str:
    return f"{case['kind']}: {case['case']}"


def spec(case: Case) -> Any:
    """The spec of a case, from the shorthand that it uses."""
    if "rule" in case and case["kind"] == "MeshGatewayHTTPRoute":
        return {"targetRef": {"kind": "MeshGateway", "name": "edge"}, "rules": [case["rule"]]}
    if "rule" in case:
        return {"to": [{"targetRef": BACKEND, "rules": [case["rule"]]}]}
    if "match" in case:
        return {"to": [{"targetRef": BACKEND, "rules": [{"matches": [case["match"]], "default": {}}]}]}
    if "filters" in case:
        rule = {
            "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
            "default": {"filters": case["filters"]},
        }
        return {"to": [{"targetRef": BACKEND, "rules": [rule]}]}
    if "conf" in case:
        return {"to": [{"targetRef": case.get("to", BACKEND), "default": case["conf"]}]}
    return case["spec"]


def about(case: Case) -> About:
    control_plane = ControlPlaneInfo(allow_proxy_data_sources=case.get("allowProxyDataSources", False))
    return About(
        control_plane=control_plane, name="a-policy", mesh="default", namespace=case.get("namespace", "")
    )


def violations(case: Case) -> list[list[str]]:
    """What is wrong, as pairs of field and message."""
    found = KINDS[case["kind"]].violations(spec(case), about(case))
    return [[violation.field, violation.message] for violation in found]


def warnings(case: Case) -> list[str]:
    """What is legal and odd."""
    kind = KINDS[case["kind"]]
    return list(kind.warn(kind.read(kind.clean(spec(case))), about(case)))
