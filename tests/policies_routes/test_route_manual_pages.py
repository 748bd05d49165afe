"""Each policy file is a page of the manual: its example applies, its record names it rightly."""

import re

import msgspec
import pytest
import route_cases
import yaml

from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import About, Kind

RECORDS = {
    "MeshHTTPRoute": ("meshhttproutes", "mhttpr", 100, "Mesh HTTP Route", "Mesh HTTP Routes"),
    "MeshGatewayHTTPRoute": (
        "meshgatewayhttproutes",
        "mgwhttpr",
        110,
        "Mesh Gateway HTTP Route",
        "Mesh Gateway HTTP Routes",
    ),
    "MeshTCPRoute": ("meshtcproutes", "mtcpr", 200, "Mesh TCP Route", "Mesh TCP Routes"),
    "MeshLoadBalancingStrategy": (
        "meshloadbalancingstrategies",
        "mlbs",
        400,
        "Mesh Load Balancing Strategy",
        "Mesh Load Balancing Strategies",
    ),
    "MeshTimeout": ("meshtimeouts", "mt", 1000, "Mesh Timeout", "Mesh Timeouts"),
    "MeshRetry": ("meshretries", "mr", 1400, "Mesh Retry", "Mesh Retries"),
}


@pytest.mark.parametrize("kind", route_cases.KINDS.values(), ids=lambda kind: kind.name)
def test_the_example_of_a_page_applies_without_a_remark(kind: Kind) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", kind.doc, re.DOTALL)
    document = yaml.safe_load(example)
    about = About(control_plane=ControlPlaneInfo(), name=document["name"], mesh=document["mesh"])

    assert document["type"] == kind.name
    assert list(kind.violations(document["spec"], about)) == []
    assert list(kind.warn(kind.read(kind.clean(document["spec"])), about)) == []


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_names_its_kind(name: str) -> None:
    kind = route_cases.KINDS[name]
    assert kind.policy is not None
    assert (kind.plural, kind.short, kind.policy.phase, *kind.display_names) == RECORDS[name]


def test_every_kind_has_a_json_schema_and_no_two_components_share_a_name() -> None:
    specs = [kind.spec for kind in route_cases.KINDS.values()]
    _, components = msgspec.json.schema_components(specs, ref_template="#/{name}")
    assert {spec.__name__ for spec in specs} <= set(components)
    assert not [name for name in components if "." in name]  # msgspec adds the module where names clash
