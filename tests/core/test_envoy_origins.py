"""Who set a field of Envoy's: what is named decides it, what is always set depends on no policy."""

from random import Random

import pytest
import random_meshes
from building import database, encoder, objects, proxies, proxy

from koguma.core import loading, match, meta, world
from koguma.core.build import network, snapshot
from koguma.core.build.network import NodeMetadata
from koguma.core.envoy_origins import origins, paths
from koguma.core.envoy_origins.origins import ExplainedLeaf
from koguma.core.envoy_origins.parts import WrittenPart, try_parts, with_others
from koguma.core.envoy_origins.replay import with_spec
from koguma.core.incremental import Db
from koguma.envoy.snapshot import SECRET
from koguma.model.resource import Key, Resource

MESH = """
type: Mesh
name: default
---
type: MeshService
mesh: default
name: backend
spec:
  selector: {dataplaneTags: {kuma.io/service: backend}}
  ports: [{name: http, port: 80, targetPort: 8080, appProtocol: http}]
status: {vips: [{ip: 241.0.0.1}]}
---
type: Dataplane
mesh: default
name: web-1
labels: {app: web}
networking:
  address: 10.0.0.1
  inbound: [{port: 8080, name: main, tags: {kuma.io/service: web, kuma.io/protocol: http}}]
---
type: MeshTimeout
mesh: default
name: own
spec:
  targetRef: {kind: Dataplane, labels: {app: web}}
  to: [{targetRef: {kind: MeshService, name: backend}, default: {http: {requestTimeout: 3s}}}]
---
type: MeshTimeout
mesh: default
name: all
spec: {to: [{targetRef: {kind: Mesh}, default: {connectionTimeout: 5s, http: {requestTimeout: 3s}}}]}
"""
CLUSTER = "clusters[kri_msvc_default_east__backend_http]"
ROUTE = (
    "routes[kri_msvc_default_east__backend_http].virtual_hosts[kri_msvc_default_east__backend_http]"
    ".routes[_kuma_route_default].route"
)


@pytest.fixture
def db() -> Db:
    found = database(objects(MESH))
    origins.assume_node(found, proxy(found, "web-1"))
    return found


def explained(db: Db, path: str):
    return origins.explained(db, proxy(db, "web-1"), paths.parsed(path))


def test_a_value_that_a_loser_and_a_default_have_too(db):
    (leaf,) = explained(db, f"{ROUTE}.timeout")
    (origin,) = leaf.origins
    assert (leaf.value, origin.by, origin.kri) == ("3s", "policy", "kri_mt_default_east__own_")
    assert origin.path == "spec.to[0].default.http.requestTimeout"
    assert [loser["kri"] for loser in origin.losers] == ["kri_mt_default_east__all_"]
    (leaf,) = explained(db, f"{CLUSTER}.connectTimeout")
    assert [each.path for each in leaf.origins] == ["spec.to[0].default.connectionTimeout"]


def test_what_follows_from_objects_and_what_is_always_set(db):
    (leaf,) = explained(db, "listeners[kri_dp_default_east__web-1_main].address.socket_address.port_value")
    assert [(each.by, each.path) for each in leaf.origins] == [("object", "networking.inbound[0].port")]
    (leaf,) = explained(db, f"{CLUSTER}.name")
    (origin,) = leaf.origins
    assert origin.by == "koguma"
    assert origin.words.startswith(
        "always set by Koguma for the cluster of every port that is called: Clusters:"
    )


def test_all_below_a_path_and_the_nearest_of_one_that_is_not_there(db):
    below = explained(db, ROUTE)
    assert {leaf.path.removeprefix(f"{ROUTE}.") for leaf in below} >= {"timeout", "cluster"}
    answer = origins.answered(proxy(db, "web-1"), paths.parsed("clusters"), db)
    assert CLUSTER in answer["resources"]
    for path, hint in (
        (f"{CLUSTER}.conect_timeout", "the nearest are connect_timeout"),
        (
            "clusters[kri_msvc_default_east__bakend_http]",
            "the nearest are kri_msvc_default_east__backend_http",
        ),
        ("clustr[x].y", 'did you mean "cluster"?'),
        ("clusters.backend.connect_timeout", "names no resource in brackets: clusters.NAME."),
        ("clusters[backend", "is no path; write one such as clusters"),
        ("...", "is no path"),
    ):
        with pytest.raises(paths.NoSuchField, match=hint.replace("?", r"\?")):
            explained(db, path)


ROUTES = """
type: MeshHTTPRoute
mesh: default
name: answers
spec:
  to:
  - targetRef: {kind: MeshService, name: backend}
    rules:
    - matches: [{path: {type: Exact, value: /a}}]
      default: {filters: [{type: DirectResponse, directResponse: {status: 201}}]}
    - matches: [{path: {type: Exact, value: /b}}]
      default:
        filters: [{type: URLRewrite, urlRewrite: {hostname: other}}]
        backendRefs: [{kind: MeshService, name: backend, port: 80}]
"""


def places(db: Db, path: str):
    return {
        leaf.path.rpartition("].")[2]: [each.path or each.by for each in leaf.origins]
        for leaf in explained(db, path)
    }


def test_only_the_rule_that_sets_a_value_is_named(db):
    loading.take(db, objects(ROUTES))
    virtual_host = ROUTE.partition(".routes")[0]
    first, second = places(db, f"{virtual_host}.routes[0]"), places(db, f"{virtual_host}.routes[1]")
    assert first["direct_response.status"] == ["spec.to[0].rules[0].default.filters[0].directResponse.status"]
    assert second["match.path"] == ["spec.to[0].rules[1].matches[0].path.value"]
    # Its own rule makes the route, a MeshTimeout sets its limit: not the name of what is called.
    assert second["route.timeout"] == ["spec.to[0].rules[1]", "spec.to[0].default.http.requestTimeout"]
    by_default = places(db, f"{virtual_host}.routes[2]")
    assert by_default["route.cluster"] == ["koguma"]
    assert by_default["route.timeout"] == ["spec.to[0].default.http.requestTimeout"]


def test_a_rule_far_below_in_a_long_route(db):
    rule = (
        "    - {matches: [{path: {type: Exact, value: /%d}}], default: {filters: [{type: URLRewrite, %s}]}}\n"
    )
    rules = "".join(rule % (number, f"urlRewrite: {{hostname: h{number}}}") for number in range(40))
    loading.take(db, objects(ROUTES.partition("    - matches")[0] + rules))
    path = f"{ROUTE.partition('.routes')[0]}.routes[39].route.host_rewrite_literal"
    assert places(db, path) == {
        "route.host_rewrite_literal": ["spec.to[0].rules[39].default.filters[0].urlRewrite.hostname"]
    }


def test_a_port_that_is_in_the_name_of_its_resource(db):
    loading.take(db, objects(MESH.replace("name: main, ", "")))
    path = "listeners[kri_dp_default_east__web-1_8080].address.socket_address"
    assert places(db, path) == {
        "address.socket_address.address": ["networking.address"],
        "address.socket_address.port_value": ["networking.inbound[0].port"],
    }


def test_every_path_that_is_shown_can_be_asked_for(db):
    patch = """
type: MeshProxyPatch
mesh: default
name: odd
spec:
  default:
    appendModifications: [{cluster: {operation: Add, value: "{name: 'odd[x].Cluster', type: STATIC}"}}]
"""
    loading.take(db, objects(patch))
    for id_ in origins.resources(db, proxy(db, "web-1")):
        shown = [leaf.path for leaf in explained(db, str(paths.FieldPath(*id_)))]
        for path in shown:
            assert paths.parsed(path).id == id_
            assert paths.below(paths.parsed(path).field, (paths.parsed(each).field for each in shown)) == [
                paths.parsed(path).field
            ], path
    options = "typedExtensionProtocolOptions.envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    assert explained(db, f"{CLUSTER}.{options}")


SERVED = ("ZoneEgress", "ZoneIngress", "MeshService", "Dataplane", *("MeshExternalService",) * 4)
SERVING = """
type: Mesh
name: default
mtls: {enabledBackend: ca, backends: [{name: ca, type: builtin}]}
---
type: ZoneEgress
name: e1
labels: {team: x}
networking: {address: 10.9.0.3, port: 10002}
"""
ON_EGRESS = ("MeshTrafficPermission", "MeshTimeout", "MeshTLS", "MeshLoadBalancingStrategy")


def connected(seed: int, kinds: tuple[str, ...] = ("",) * 45, others: str = "", n_shown: int = 0) -> Db:
    random = Random(seed)
    found = [random_meshes.resource(random, kind) for kind in kinds]
    found += [*random.sample(random_meshes.SHOWN, n_shown), *objects(others)]
    db = database({each.key: each for each in found if each is not None}.values())
    for key in proxies(db):
        origins.assume_node(db, key)
    return db


def leaves(db: Db, key: Key, id_):
    found = snapshot.of(db, key)
    resource = found.get(id_) if found is not None else None
    return paths.flattened(encoder().shown(resource, json_names=False)) if resource is not None else {}


def of_kind(db: Db, kind: str):
    return [each for each in world.stored(db) if each.kind == kind]


def others(db: Db, key: Key, id_, kind: str) -> set[str]:
    """The fields that differ without policies of a kind, or with other values in them; in the whole mesh."""
    policies, before = of_kind(db, kind), leaves(db, key, id_)
    changed = set()
    for instead, gone in (
        ((), [each.key for each in policies]),
        ([with_spec(each, with_others(each.spec)) for each in policies], ()),
    ):
        loading.take(db, instead, gone)
        if not any(world.UNREADABLE.get(db, each.key) for each in policies):
            after = leaves(db, key, id_)
            changed |= {path for path, value in before.items() if after.get(path) != value}
        loading.take(db, policies)
    return changed


def checked(db: Db, seed: int, *kinds: str, at_most: int = 1) -> int:
    random, n_policies = Random(seed), 0
    for key in [key for kind in kinds for key in world.BY_KIND_EVERYWHERE.keys(db, kind)]:
        ids = [id_ for id_ in origins.resources(db, key) if id_[0] != SECRET] if key.zone == "east" else []
        for id_ in random.sample(ids, min(at_most, len(ids))):
            found = origins.explained(db, key, paths.FieldPath(*id_))
            prefix = f"{paths.FieldPath(*id_)}."
            by_path = {leaf.path.removeprefix(prefix): leaf for leaf in found}
            assert {path: leaf.value for path, leaf in by_path.items()} == leaves(db, key, id_)
            named = {o.kind for leaf in found for o in leaf.origins if o.by == "policy"}
            n_policies += len(named)
            for kind in match.policy_kinds(db):
                said = {path for path, leaf in by_path.items() if kind in {o.kind for o in leaf.origins}}
                assert said == others(db, key, id_, kind), (seed, key, id_, kind)
    return n_policies


def test_what_is_named_decides_the_value() -> None:
    assert sum(checked(connected(seed), seed, "Dataplane") for seed in range(4)) > 1


def test_what_is_named_decides_the_value_for_zone_proxies() -> None:
    kinds = (*SERVED * 3, *ON_EGRESS * 3, *("",) * 20)
    meshes = [connected(seed, kinds, SERVING, n_shown=12) for seed in range(6)]
    found = [checked(db, seed, "ZoneEgress", "ZoneIngress", at_most=9) for seed, db in enumerate(meshes)]
    assert sum(found) > 20


ZONE = """
type: Mesh
name: {mesh}
mtls: {{enabledBackend: ca, backends: [{{name: ca, type: builtin}}]}}
routing: {{zoneEgress: true}}
---
type: MeshExternalService
mesh: {mesh}
name: api
spec:
  match: [{{type: InternalVIP, value: api.ext, port: 80, protocol: http}}]
  destination:
    type: Regular
    endpoints: [{{address: 192.0.2.{number}, port: 443}}, {{address: api.example, port: 443}}]
    tls: {{enabled: true}}
---
type: MeshExternalService
mesh: {mesh}
name: db
spec:
  match: [{{type: InternalVIP, value: db.ext, port: 5432, protocol: tcp}}]
  destination: {{type: Regular, endpoints: [{{address: 192.0.2.{number}, port: 5432}}]}}
---
type: MeshService
mesh: {mesh}
name: backend
labels: {{app: backend}}
spec:
  selector: {{dataplaneTags: {{kuma.io/service: backend}}}}
  ports: [{{name: http, port: 80, targetPort: main, appProtocol: http}}]
---
type: MeshMultiZoneService
mesh: {mesh}
name: backend
x-zone: ''
spec:
  selector: {{meshService: {{matchLabels: {{app: backend}}}}}}
  ports: [{{name: http, port: 80, appProtocol: http}}]
---
type: Dataplane
mesh: {mesh}
name: {mesh}-1
networking:
  address: 10.0.0.1
  inbound:
  - {{port: 8080, address: 10.0.1.{number}, name: main, tags: {{kuma.io/service: backend, version: v1}}}}
---
type: MeshTrafficPermission
mesh: {mesh}
name: web
spec:
  rules:
  - default:
      allow:
      - spiffeID: {{type: Exact, value: 'spiffe://{mesh}/web'}}
        sni: {{type: Exact, value: sni.extsvc.{mesh}.east.api.80}}
      - spiffeID: {{type: Exact, value: 'spiffe://{mesh}/batch'}}
---
type: MeshTimeout
mesh: {mesh}
name: all
spec: {{to: [{{targetRef: {{kind: Mesh}}, default: {{connectionTimeout: {number}s}}}}]}}
---
type: MeshTimeout
mesh: {mesh}
name: api
spec: {{to: [{{targetRef: {{kind: MeshExternalService, name: api}}, default: {{connectionTimeout: 8s}}}}]}}
---
type: MeshTimeout
mesh: {mesh}
name: arriving
spec:
  targetRef: {{kind: Dataplane, labels: {{kuma.io/listener-zoneegress: enabled}}}}
  rules: [{{default: {{idleTimeout: 77s, http: {{requestTimeout: 9s, requestHeadersTimeout: 3s}}}}}}]
---
type: MeshCircuitBreaker
mesh: {mesh}
name: cb
spec:
  to:
  - targetRef: {{kind: Mesh}}
    default:
      connectionLimits: {{maxConnections: 7}}
      outlierDetection: {{detectors: {{totalFailures: {{consecutive: 3}}}}}}
---
type: MeshRateLimit
mesh: {mesh}
name: limit
spec:
  targetRef: {{kind: Dataplane, labels: {{kuma.io/listener-zoneegress: enabled}}}}
  rules: [{{default: {{local: {{http: {{requestRate: {{num: 5, interval: 10s}}}}}}}}}}]
---
type: MeshHealthCheck
mesh: {mesh}
name: health
spec: {{to: [{{targetRef: {{kind: Mesh}}, default: {{interval: 9s, tcp: {{}}}}}}]}}
---
type: MeshAccessLog
mesh: {mesh}
name: log
spec:
  targetRef: {{kind: Dataplane, labels: {{kuma.io/listener-zoneegress: enabled}}}}
  rules: [{{default: {{backends: [{{type: File, file: {{path: /var/log/koguma/{mesh}.log}}}}]}}}}]
"""
ZONE_PROXIES = """
type: ZoneEgress
name: egress-1
networking: {address: 10.9.0.3, port: 10002}
---
type: ZoneIngress
name: ingress-1
networking: {address: 10.9.0.4, port: 10001, advertisedAddress: 192.0.2.99, advertisedPort: 10001}
"""
CHAIN = "listeners[kri_ze__east__egress-1_].filter_chains[kri_extsvc_shop_east__api_80]"


@pytest.fixture
def zone() -> Db:
    meshes = [ZONE.format(mesh=mesh, number=number) for number, mesh in enumerate(("shop", "pay"), 3)]
    found = database(objects("\n---\n".join((*meshes, ZONE_PROXIES))))
    for name in ("egress-1", "ingress-1"):
        node = NodeMetadata(("feature-access-log-pipe", "feature-embedded-dns"), "/w", 9901)
        found.set(network.NODE_METADATA, proxy(found, name), node)
    return found


def said(db: Db, name: str, path: str):
    """Who set a field, in few words."""
    (leaf,) = origins.explained(db, proxy(db, name), paths.parsed(path))
    return [(each.kri or each.by, each.path) for each in leaf.origins]


def test_a_zone_egress_follows_each_mesh_that_it_serves(zone):
    timeout = "spec.to[0].default.connectionTimeout"
    for mesh in ("shop", "pay"):
        cluster = f"clusters[kri_extsvc_{mesh}_east__%s].connect_timeout"
        assert said(zone, "egress-1", cluster % "api_80") == [(f"kri_mt_{mesh}_east__api_", timeout)]
        assert said(zone, "egress-1", cluster % "db_5432") == [(f"kri_mt_{mesh}_east__all_", timeout)]
    (leaf,) = origins.explained(
        zone, proxy(zone, "egress-1"), paths.parsed("clusters[kri_extsvc_shop_east__api_80].connect_timeout")
    )
    (origin,) = leaf.origins
    assert [loser["kri"] for loser in origin.losers] == ["kri_mt_shop_east__all_"]
    arriving = f"{CHAIN}.filters[envoy.filters.network.http_connection_manager].typed_config.%s"
    assert said(zone, "egress-1", arriving % "request_headers_timeout") == [
        ("kri_mt_shop_east__arriving_", "spec.rules[0].default.http.requestHeadersTimeout")
    ]
    listener = "listeners[kri_ze__east__egress-1_].address.socket_address.port_value"
    assert said(zone, "egress-1", listener) == [("kri_ze__east__egress-1_", "networking.port")]
    server_name = f"{CHAIN}.filter_chain_match.server_names[0]"
    assert said(zone, "egress-1", server_name) == [("kri_extsvc_shop_east__api_", "spec.match[0].port")]
    (leaf,) = origins.explained(zone, proxy(zone, "egress-1"), paths.parsed(f"{CHAIN}.name"))
    text = "always set by Koguma for the listener of all ports that a zone egress serves: Egress: what"
    assert [each.words.startswith(text) for each in leaf.origins] == [True]


def test_a_zone_ingress_follows_the_proxies_behind_it(zone):
    at = "endpoints[kri_%s_http].endpoints[0].lb_endpoints[0].endpoint.address.socket_address"
    for service in ("msvc_pay_east__backend", "mzsvc_pay___backend"):
        assert said(zone, "ingress-1", f"{at % service}.address") == [
            ("kri_dp_pay_east__pay-1_", "networking.inbound[0].address")
        ]
        assert said(zone, "ingress-1", f"{at % service}.port_value") == [
            ("kri_dp_pay_east__pay-1_", "networking.inbound[0].port")
        ]


def stored_object(db: Db, kri: str) -> Resource:
    known = (each for each in world.stored(db) if world.KINDS.get(db, each.kind) is not None)
    return next(each for each in known if meta.kri(db, each.key) == kri)


def edits(resource: Resource, path: str) -> list[Resource]:
    """An object with another value at a path, and without it."""
    found: list[WrittenPart] = []
    try_parts(resource.spec, lambda part: found.append(part) or True)
    shown = path if path.startswith("spec.") else f"spec.{path}"
    return [with_spec(resource, part.spec) for part in found if part.path == shown and not part.is_whole]


def check_places(db: Db, key: Key, id_, found: tuple[ExplainedLeaf, ...]) -> None:
    """Each field changes with another value at a place that is named for it, or without that."""
    before = leaves(db, key, id_)
    fields: dict[tuple[str, str], set[str]] = {}
    for leaf in found:
        for origin in leaf.origins:
            if origin.path:
                fields.setdefault((origin.kri, origin.path), set()).add(paths.parsed(leaf.path).field)
    for (kri, path), expected in fields.items():
        resource, changed = stored_object(db, kri), set()
        for instead in edits(resource, path):
            loading.take(db, [instead])
            after = leaves(db, key, id_)
            changed |= {field for field in expected if after.get(field) != before[field]}
            loading.take(db, [resource])
        assert changed == expected, (id_, kri, path)


ON_ZONE_PROXY = {
    "egress-1": {
        *("MeshTrafficPermission", "MeshTimeout", "MeshCircuitBreaker", "MeshAccessLog", "MeshRateLimit"),
        *("MeshHealthCheck", "ZoneEgress", "MeshExternalService"),
    },
    "ingress-1": {"ZoneIngress", "Dataplane", "MeshService", "MeshMultiZoneService"},
}


@pytest.mark.parametrize("name", ON_ZONE_PROXY)
def test_each_place_that_is_named_for_a_zone_proxy_changes_the_field(zone, name):
    key, named = proxy(zone, name), set()
    for id_ in origins.resources(zone, key):
        found = origins.explained(zone, key, paths.FieldPath(*id_))
        assert [leaf.path for leaf in found] == [
            str(paths.FieldPath(*id_, field)) for field in leaves(zone, key, id_)
        ]
        assert all(leaf.origins for leaf in found)
        check_places(zone, key, id_, found)
        named |= {origin.kind for leaf in found for origin in leaf.origins}
    assert named == {*ON_ZONE_PROXY[name], ""}, "what Koguma always sets has no kind"
