"""What every policy is called, when it acts, and that its page of the manual can be applied as it stands."""

import re

import msgspec
import pytest
import yaml

from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kind, Kinds, ValidationContext
from koguma.model.schema import json_schemas
from koguma.policies import POLICIES

ABOUT = ValidationContext(control_plane=ControlPlaneInfo(), name="it", mesh="default")

# kind, path, short name, phase, and which lists it has: to, from, from-as-rules, rules.
CATALOGUE = """
MeshHTTPRoute             meshhttproutes              mhttpr   100  to - - -
MeshGatewayHTTPRoute      meshgatewayhttproutes       mgwhttpr 110  - - - -
MeshTCPRoute              meshtcproutes               mtcpr    200  to - - -
MeshTLS                   meshtlses                   mtls     300  - from as-rules rules
MeshLoadBalancingStrategy meshloadbalancingstrategies mlbs     400  to - - -
MeshPassthrough           meshpassthroughs            mp       500  - - - -
MeshAccessLog             meshaccesslogs              mal      600  to from as-rules rules
MeshTrace                 meshtraces                  mtr      700  - - - -
MeshFaultInjection        meshfaultinjections         mfi      800  to from - rules
MeshRateLimit             meshratelimits              mrl      900  to from as-rules rules
MeshTimeout               meshtimeouts                mt       1000 to from as-rules rules
MeshTrafficPermission     meshtrafficpermissions      mtp      1100 - from - rules
MeshHealthCheck           meshhealthchecks            mhc      1200 to - - -
MeshCircuitBreaker        meshcircuitbreakers         mcb      1300 to from as-rules rules
MeshRetry                 meshretries                 mr       1400 to - - -
MeshMetric                meshmetrics                 mm       1500 - - - -
MeshProxyPatch            meshproxypatches            mpp      9999 - - - -
"""

KINDS = Kinds(POLICIES)


@pytest.mark.parametrize("line", CATALOGUE.strip().splitlines())
def test_a_policy_stands_in_the_catalogue(line: str) -> None:
    name, plural, short, phase, *lists = line.split()
    kind = KINDS[name]
    assert kind.policy is not None
    assert (kind.plural, kind.short, kind.policy.phase) == (plural, short, int(phase))
    flags = (kind.policy.has_to, kind.policy.has_from, kind.policy.from_as_rules, kind.policy.has_rules)
    assert flags == tuple(word != "-" for word in lists)


@pytest.mark.parametrize(
    ("name", "singular", "plural"),
    [
        ("MeshTLS", "Mesh TLS", "Mesh TLSes"),
        ("MeshProxyPatch", "Mesh Proxy Patch", "Mesh Proxy Patches"),
        ("MeshAccessLog", "Mesh Access Log", "Mesh Access Logs"),
        ("MeshHTTPRoute", "Mesh HTTP Route", "Mesh HTTP Routes"),
        ("MeshGatewayHTTPRoute", "Mesh Gateway HTTP Route", "Mesh Gateway HTTP Routes"),
        ("MeshTCPRoute", "Mesh TCP Route", "Mesh TCP Routes"),
        ("MeshLoadBalancingStrategy", "Mesh Load Balancing Strategy", "Mesh Load Balancing Strategies"),
        ("MeshTimeout", "Mesh Timeout", "Mesh Timeouts"),
        ("MeshRetry", "Mesh Retry", "Mesh Retries"),
    ],
)
def test_a_policy_has_a_name_for_people(name: str, singular: str, plural: str) -> None:
    assert KINDS[name].display_names == (singular, plural)


def test_no_two_policies_share_a_word_or_a_phase() -> None:
    for words in ([k.name for k in POLICIES], [k.plural for k in POLICIES], [k.short for k in POLICIES]):
        assert len(set(words)) == len(words)
    phases = [kind.policy.phase for kind in POLICIES if kind.policy]
    assert phases == sorted(phases)
    assert len(phases) == len(POLICIES) - 1  # a RouteFilter is part of a route


@pytest.mark.parametrize("kind", POLICIES, ids=lambda kind: kind.name)
def test_the_example_on_a_policys_page_applies(kind: Kind) -> None:
    found = re.search(r"^```yaml\n(.*?)^```$", kind.doc, re.DOTALL | re.MULTILINE)
    assert found, "a page has an example"
    example = yaml.safe_load(found[1])
    assert (example["type"], example["mesh"]) == (kind.name, "default")
    assert list(kind.violations(example["spec"], ABOUT)) == []
    assert list(kind.warn(kind.read(kind.clean(example["spec"])), ABOUT)) == []


def test_the_policies_have_json_schemas_together() -> None:
    schemas, components = json_schemas({kind.name: kind.spec for kind in POLICIES}, "#/schemas/{name}")
    assert set(schemas) == {kind.name for kind in POLICIES}
    assert msgspec.json.encode(components)
    assert not [name for name in components if "." in name]  # msgspec adds the module where names clash
