"""Every kind of policy changes what some Envoy gets, or says of itself that it does not act yet (KG015)."""

import re
from random import Random

import hypothesis.strategies as st
import msgspec
import pytest
from building import KINDS, bodies, database, objects, proxies, stored
from hypothesis import given, settings
from test_broken_objects import taken, with_another_value

from koguma.core import inspect, problems, rules_view
from koguma.core.build import network, snapshot
from koguma.core.build.network import NodeMetadata
from koguma.core.incremental import Db
from koguma.core.lint.problem import NOT_BUILT
from koguma.model import documents
from koguma.model.kind import Kinds, Policy
from koguma.model.resource import Resource

pytestmark = pytest.mark.slow

# Everybody is everything that manuals speak of: called and calling, over HTTP and not, on any address.
MESH = """
type: Mesh
name: default
mtls: {enabledBackend: ca, backends: [{name: ca, type: builtin, mode: STRICT}]}
---
type: Dataplane
mesh: default
name: web
labels: {app: backend, kuma.io/workload: web}
networking:
  address: 127.0.0.2
  inbound:
    - {name: http, port: 21080, tags: {kuma.io/service: backend, kuma.io/protocol: http}}
    - {name: bytes, port: 21081, tags: {kuma.io/service: backend}}
  transparentProxying: {redirectPortInbound: 15006, redirectPortOutbound: 15001}
---
type: MeshService
mesh: default
name: backend
labels: {app: backend}
spec:
  selector: {dataplaneTags: {kuma.io/service: backend}}
  ports: [{name: http, port: 80, targetPort: 21080, appProtocol: http}]
status: {vips: [{ip: 241.0.0.1}], tls: {status: Ready}}
---
type: MeshService
mesh: default
name: database
spec: {selector: {dataplaneTags: {kuma.io/service: database}}, ports: [{port: 5432}]}
status: {vips: [{ip: 241.0.0.2}], tls: {status: Ready}}
---
type: MeshMultiZoneService
mesh: default
name: backend
x-zone: ""
spec: {selector: {meshService: {matchLabels: {app: backend}}}, ports: [{port: 80, appProtocol: http}]}
status: {vips: [{ip: 243.0.0.1}]}
---
type: Dataplane
mesh: default
name: edge
networking: {address: 10.0.0.9, gateway: {type: BUILTIN, tags: {kuma.io/service: edge}}}
---
type: MeshGateway
mesh: default
name: edge-gateway
selectors: [{match: {kuma.io/service: edge}}]
conf: {listeners: [{port: 80, protocol: HTTP}]}
---
type: MeshOpenTelemetryBackend
mesh: default
name: collector
labels: {team: observability}
spec: {endpoint: {address: otel.local, port: 4317}}
"""
POLICIES = tuple(kind.name for kind in KINDS if kind.policy is not None)
LINK = NodeMetadata(("feature-embedded-dns", "feature-access-log-pipe"), "/w", 9901, 15053)


def examples(kind: str) -> list[Resource]:
    """What the manual of a kind shows, with the services of this mesh for those of the manual."""
    found = re.findall(r"^```yaml\n(.*?)^```$", KINDS[kind].doc, re.DOTALL | re.MULTILINE)
    text = re.sub(r"\b(checkout|orders|shop|web|frontend|api)\b(?!-)", "backend", "---\n".join(found))
    made = [stored(each.value) for each in documents.load(text)]
    return [each for each in made if each.kind == kind]


def mesh(*more: Resource) -> Db:
    db = database([*objects(MESH), *more])
    for key in proxies(db):
        db.set(network.NODE_METADATA, key, LINK)
    return db


def changes(example: Resource) -> bool:
    """Whether a policy changes what any proxy gets."""
    before, after = mesh(), mesh(example)
    return any(bodies(snapshot.of(before, key)) != bodies(snapshot.of(after, key)) for key in proxies(before))


def reports(example: Resource) -> bool:
    return NOT_BUILT in {each.code for each in problems.of_policy(mesh(example), example.key)}


@pytest.mark.parametrize("kind", POLICIES)
def test_a_policy_acts_or_says_that_it_does_not(kind: str):
    shown = examples(kind)
    assert shown, "its manual shows how to write it"
    acts = any(changes(each) for each in shown)
    assert {reports(each) for each in shown} == {not acts}
    assert KINDS[kind].policy.acts == acts


@pytest.mark.parametrize("kind", POLICIES)
def test_what_does_not_act_is_no_rule_of_any_proxy(kind: str):
    for example in examples(kind):
        db = mesh(example)
        for key in proxies(db):
            listed = {each["kind"] for each in inspect.whole_policies(db, key)["policies"]}
            shown = rules_view.of_proxy(db, key)["rules"]
            ruled = {each["type"] for each in shown if any(each[name] for name in each if name not in APART)}
            assert KINDS[kind].policy.acts or kind not in listed | ruled
            told = [text for each in shown if each["type"] == kind for text in each["warnings"]]
            selected = key in inspect.dataplanes(db, example.key)
            assert not selected or KINDS[kind].policy.acts != any(NOT_BUILT in text for text in told)


APART = ("type", "warnings")


def test_a_kind_without_hooks_says_that_it_does_not_act():
    (example,) = examples("MeshFaultInjection")
    kind = msgspec.structs.replace(KINDS["MeshFaultInjection"], policy=Policy(has_rules=True))
    kinds = Kinds((*(each for each in KINDS if each.name != kind.name), kind))
    db = database([*objects(MESH), example], kinds=kinds)
    assert NOT_BUILT in {each.code for each in problems.of_policy(db, example.key)}


@pytest.mark.property
@pytest.mark.parametrize("kind", POLICIES)
@settings(max_examples=12)
@given(st.randoms(use_true_random=False))
def test_a_policy_with_any_field_spoilt_keeps_no_new_proxy_waiting(kind: str, random: Random):
    db = mesh(with_another_value(random, random.choice(examples(kind))))
    for key in proxies(db):
        assert taken(snapshot.of(db, key))[1].state == "synced"
        rules_view.of_proxy(db, key, fields=True)
    problems.of_mesh(db, "default")
