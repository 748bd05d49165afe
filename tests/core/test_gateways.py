"""Gateways: the listeners of a MeshGateway, and the routes that attach to them."""

import msgspec
from building import database, objects

from koguma.core import gateways, match
from koguma.core.group import Group
from koguma.model.resource import Key

MESH = """
type: Mesh
name: default
---
type: MeshGateway
mesh: default
name: edge
selectors: [{match: {kuma.io/service: edge}}]
conf:
  listeners:
    - {port: 80, protocol: HTTP}
    - name: shop
      port: 443
      protocol: HTTPS
      hostname: Shop.lan
      tls: {mode: TERMINATE, certificates: [{secret: shop}, {inlineString: pem}]}
    - {port: 444, protocol: TLS, hostname: "*.lan", tls: {mode: PASSTHROUGH}}
---
type: MeshHTTPRoute
mesh: default
name: everywhere
spec:
  to:
    - targetRef: {kind: MeshService, name: a}
      rules: RULES
---
type: MeshHTTPRoute
mesh: default
name: b
spec:
  targetRef: {kind: MeshGateway, name: edge}
  to:
    - targetRef: {kind: Mesh}
      hostnames: [a.lan]
      rules: RULES
    - {targetRef: {kind: Mesh}, rules: []}
---
type: MeshHTTPRoute
mesh: default
name: a
spec: {targetRef: {kind: MeshGateway, name: edge}, to: [{targetRef: {kind: Mesh}, rules: RULES}]}
---
type: MeshGatewayHTTPRoute
mesh: default
name: c
spec: {targetRef: {kind: MeshGateway, name: edge}, hostnames: [c.lan], rules: RULES}
""".replace(
    "RULES",
    "[{matches: [{path: {type: Exact, value: /}}], default: {backendRefs: [{kind: MeshService, name: a}]}}]",
)
EDGE = Key("MeshGateway", "default", "east", "", "edge")
AGES = {"a": "2026-02-01T00:00:00Z", "b": "2026-01-01T00:00:00Z", "c": "2026-01-01T00:00:00Z"}


def test_listeners_as_proxies_serve_them():
    db = database(objects(MESH))
    http, https, tls = gateways.listeners(db, EDGE)
    assert [each.section for each in (http, https, tls)] == ["80:*", "443:shop.lan", "444:*.lan"]
    assert [each.section for each in match.listeners(db, EDGE)] == ["80:*", "443:shop.lan", "444:*.lan"]
    assert (https.name, https.hostname, https.is_http, https.has_tls, https.ends_tls) == (
        *("shop", "shop.lan"),
        *(True, True, True),
    )
    assert (http.hostname, http.is_http, http.has_tls) == ("*", True, False)
    assert (tls.is_http, tls.has_tls, tls.ends_tls) == (False, True, False)


def test_routes_attach_that_name_a_gateway_the_oldest_first():
    stored = [msgspec.structs.replace(each, creation_time=AGES.get(each.name, "")) for each in objects(MESH)]
    db = database(stored)
    policies = Group(each.key for each in stored if each.kind in gateways.ROUTE_KINDS)
    attached = [(each.entry.policy.name, each.hostnames) for each in gateways.attached(db, policies)]
    assert attached == [("b", ("a.lan",)), ("a", ()), ("c", ("c.lan",))]
