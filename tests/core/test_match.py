"""Match: whom each kind of reference selects, and which of its inbounds."""

import msgspec
import pytest

from koguma.core import admission, match, pipeline
from koguma.main import all_kinds
from koguma.model import documents, forms
from koguma.model.control_plane_info import ControlPlaneInfo

KINDS = all_kinds()
MESH = """
type: Mesh
name: default
---
type: MeshGateway
mesh: default
name: edge
selectors: [{match: {kuma.io/service: edge}}]
tags: {team: red}
conf:
  listeners:
    - {port: 8080, protocol: HTTP, tags: {port: http}}
    - {port: 8081, protocol: HTTP, tags: {port: admin, team: blue}}
    - {port: 8081, protocol: HTTP, name: shop, hostname: Shop.lan}
---
type: Dataplane
mesh: default
name: web
labels: {app: web}
networking:
  address: 10.0.0.1
  inbound:
    - {name: main, port: 80, tags: {kuma.io/service: web, version: v1}}
    - {name: admin, port: 81, tags: {kuma.io/service: web-admin, version: v1}}
---
type: Dataplane
mesh: default
name: client
labels: {app: client, version: v1}
networking: {address: 10.0.0.2}
---
type: Dataplane
mesh: default
name: edge-1
networking: {address: 10.0.0.3, gateway: {type: BUILTIN, tags: {kuma.io/service: edge}}}
---
type: Dataplane
mesh: default
name: front-door
networking: {address: 10.0.0.4, gateway: {type: DELEGATED, tags: {kuma.io/service: front}}}
---
apiVersion: kuma.io/v1alpha1
kind: Dataplane
metadata: {name: app, namespace: demo}
spec: {networking: {address: 10.0.0.5, inbound: [{port: 80, tags: {kuma.io/service: app}}]}}
"""
EDGE = ("8080:*", "8081:*", "8081:shop.lan")
ALL = {"web": ("main", "admin"), "client": (), "edge-1": EDGE, "front-door": (), "app": ("80",)}


def gateway(**narrowed):
    return {"kind": "MeshGateway", "name": "edge", **narrowed}


def selected(ref, control_plane=ControlPlaneInfo(), **labels):  # noqa: B008 - a value
    """Whom a timeout with this top-level reference selects: name of proxy -> its inbounds."""
    spec = {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": "1s"}}]}
    if ref is not None:
        spec["targetRef"] = ref
    policy = {"type": "MeshTimeout", "mesh": "default", "name": "p", "labels": labels, "spec": spec}
    written = [d.value for d in documents.load(MESH)] + [policy]
    found = [admission.admitted(forms.read(d, KINDS), None, control_plane).resource for d in written]
    db = pipeline.load(KINDS, control_plane, found)
    shown = {}
    for key in match.proxies(db, "default"):
        for one in match.matched(db, "MeshTimeout", match.traits(db, key)):
            shown[key.name] = one.sections
    return shown


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        (None, ALL),
        ({"kind": "Mesh"}, ALL),
        ({"kind": "Mesh", "proxyTypes": ["Gateway"]}, {n: ALL[n] for n in ("edge-1", "front-door")}),
        ({"kind": "Mesh", "proxyTypes": ["Sidecar"]}, {n: ALL[n] for n in ("web", "client", "app")}),
        ({"kind": "MeshSubset"}, ALL),
        ({"kind": "MeshSubset", "tags": {"version": "v1"}}, {"web": ("main", "admin"), "client": ()}),
        ({"kind": "MeshSubset", "tags": {"kuma.io/service": "web"}}, {"web": ("main",)}),
        ({"kind": "MeshSubset", "tags": {"kuma.io/zone": "default"}}, ALL),
        ({"kind": "MeshSubset", "tags": {"k8s.kuma.io/namespace": "demo"}}, {"app": ("80",)}),
        ({"kind": "MeshService", "name": "web-admin"}, {"web": ("admin",)}),
        ({"kind": "MeshService", "name": "front"}, {"front-door": ()}),
        ({"kind": "MeshServiceSubset", "name": "web", "tags": {"version": "v1"}}, {"web": ("main",)}),
        ({"kind": "MeshServiceSubset", "name": "web", "tags": {"version": "v2"}}, {}),
        ({"kind": "MeshServiceSubset", "name": "web", "tags": {"version": "*"}}, {"web": ("main",)}),
        ({"kind": "Dataplane"}, {n: ALL[n] for n in ("web", "client", "front-door", "app")}),
        ({"kind": "Dataplane", "labels": {"app": "web"}}, {"web": ("main", "admin")}),
        ({"kind": "Dataplane", "labels": {"kuma.io/display-name": "client"}}, {"client": ()}),
        ({"kind": "Dataplane", "name": "web"}, {"web": ("main", "admin")}),
        ({"kind": "Dataplane", "name": "app", "namespace": "demo"}, {"app": ("80",)}),
        ({"kind": "Dataplane", "name": "app", "namespace": "other"}, {}),
        (gateway(), {"edge-1": EDGE}),
        (gateway(tags={"port": "http"}), {"edge-1": ("8080:*",)}),
        (gateway(tags={"team": "red"}), {"edge-1": ("8080:*", "8081:shop.lan")}),
        (gateway(tags={"port": "none"}), {}),
        (gateway(sectionName="shop"), {"edge-1": ("8081:shop.lan",)}),
        (gateway(sectionName="8081"), {"edge-1": ("8081:*", "8081:shop.lan")}),
        (gateway(sectionName="808"), {}),
        (gateway(sectionName="nothing"), {}),
        (gateway(sectionName="8081", tags={"port": "admin"}), {"edge-1": ("8081:*",)}),
        (gateway(sectionName="shop", tags={"port": "admin"}), {}),
        ({"kind": "MeshGateway", "name": "other"}, {}),
        ({"kind": "MeshHTTPRoute", "name": "nowhere"}, {}),
    ],
)
def test_a_reference_selects(ref, expected):
    assert selected(ref) == expected


def test_a_shadow_policy_selects_no_proxy():
    assert selected(None, **{"kuma.io/effect": "shadow"}) == {}


def test_a_section_narrows_an_inbound_policy():
    ref = {"kind": "Dataplane", "labels": {"app": "web"}, "sectionName": "admin"}
    spec = {"targetRef": ref, "rules": [{"default": {"idleTimeout": "1s"}}]}
    policy = {"type": "MeshTimeout", "mesh": "default", "name": "p", "spec": spec}
    written = [d.value for d in documents.load(MESH)] + [policy]
    found = [admission.admitted(forms.read(d, KINDS), None, ControlPlaneInfo()).resource for d in written]
    db = pipeline.load(KINDS, ControlPlaneInfo(), found)
    chosen = {
        key.name: [one.sections for one in match.matched(db, "MeshTimeout", match.traits(db, key))]
        for key in match.proxies(db, "default")
    }
    assert {name: sections for name, sections in chosen.items() if sections} == {"web": [("admin",)]}


@pytest.mark.parametrize(
    ("origin", "zone", "role", "reaches"),
    [
        ("zone", "default", "system", True),
        ("zone", "west", "system", False),  # another zone's policy, shown here only
        ("zone", "west", "producer", True),  # a producer speaks to callers everywhere
        ("global", "", "system", True),
        ("global", "west", "producer", True),
        ("", "", "system", True),
    ],
)
def test_a_zones_policy_stays_in_its_zone(origin, zone, role, reaches):
    web, policy = (
        admission.admitted(forms.read(d, KINDS), None, ControlPlaneInfo()).resource
        for d in (
            {"type": "Dataplane", "mesh": "default", "name": "web", "networking": {"address": "10.0.0.1"}},
            {
                "type": "MeshTimeout",
                "mesh": "default",
                "name": "p",
                "spec": {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": "1s"}}]},
            },
        )
    )
    labels = {"kuma.io/origin": origin, "kuma.io/policy-role": role}
    foreign = msgspec.structs.replace(policy, zone=zone, labels=labels)
    db = pipeline.load(KINDS, ControlPlaneInfo(), [web, foreign])
    found = match.matched(db, "MeshTimeout", match.traits(db, web.key))
    assert bool(found) is reaches
