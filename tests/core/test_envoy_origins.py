"""Who set a field of Envoy's: what is named decides it, what is always set depends on no policy."""

from random import Random

import pytest
import random_meshes
from building import database, encoder, objects, proxy

from koguma.core import loading, match, world
from koguma.core.build import network, snapshot
from koguma.core.envoy_origins import origins, paths
from koguma.core.envoy_origins.parts import with_others
from koguma.core.envoy_origins.replay import with_spec
from koguma.core.incremental import Db
from koguma.envoy.snapshot import SECRET
from koguma.model.resource import Key

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


def connected(seed: int) -> Db:
    random = Random(seed)
    found = (random_meshes.resource(random) for _ in range(45))
    db = database({each.key: each for each in found if each is not None}.values())
    for key in world.BY_KIND_EVERYWHERE.keys(db, "Dataplane"):
        net = network.networking(db, key)
        if net is not None:
            db.set(network.NODE_METADATA, key, network.likely_node_metadata(net))
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


def checked(seed: int) -> int:
    db, random, n_policies = connected(seed), Random(seed), 0
    for key in world.BY_KIND_EVERYWHERE.keys(db, "Dataplane"):
        ids = [id_ for id_ in origins.resources(db, key) if id_[0] != SECRET] if key.zone == "east" else []
        for id_ in random.sample(ids, min(1, len(ids))):
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
    assert sum(checked(seed) for seed in range(4)) > 1
