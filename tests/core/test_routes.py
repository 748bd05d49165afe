"""Rules of several routes: the founding document's examples, equality, rank, conflicts, origins, hashes."""

import base64
import copy
import hashlib

import merge_items
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from merge_items import at, item, json_values, ranked_items, written

from koguma.core import routes
from koguma.core.merge import Origin
from koguma.core.routes import ANSWER_AND_BACKENDS, REDIRECT_AND_REWRITE
from koguma.policies import mesh_http_route

OWNER = {"top_kind": "Mesh"}
CONSUMER = {"top_kind": "MeshService"}


def prefix(value, **more):
    return {"path": {"type": "PathPrefix", "value": value}, **more}


def rule(*matches, **default):
    return {"matches": list(matches), "default": default}


def route(name, *rules, index=0, **rank):
    return item(name, {"rules": list(rules)}, f"spec.to[{index}]", index=index, **rank)


def backend(version):
    return {"weight": 100, "kind": "MeshServiceSubset", "name": "backend", "tags": {"version": version}}


def read(text, **rank):
    """A policy as the founding document writes it, in the clean shape."""
    document = yaml.safe_load(text)
    (entry,) = mesh_http_route.clean(document["spec"])["to"]
    return route(document["metadata"]["name"], *entry["rules"], **rank)


SEED_OWNER = """
metadata:
 name: owner
spec:
 targetRef:
  kind: Mesh
 to:
  - targetRef:
     kind: MeshService
     name: backend
    rules:
     - matches:
        - path:
           prefix: /v1
       default:
        backendRefs:
         - weight: 100
           kind: MeshServiceSubset
           name: backend
           tags:
            version: v1
     - matches:
        path:
         prefix: /v2
       default:
        backendRefs:
         - weight: 100
           kind: MeshServiceSubset
           name: backend
           tags:
            version: v2
"""
SEED_CONSUMER = """
metadata:
 name: consumer
spec:
 targetRef:
  kind: MeshService
  name: frontend
 to:
  - targetRef:
     kind: MeshService
     name: backend
    rules:
     - matches:
        - path:
           prefix: /v2
       default:
        filters:
         - responseHeaderModifier:
            add:
             - name: env
               value: dev
"""
SEED_WIPER = """
metadata:
 name: consumer
spec:
 targetRef:
  kind: MeshService
  name: frontend
 to:
  - targetRef:
     kind: MeshService
     name: backend
    rules:
     - matches:
        - path:
           prefix: /v1
       default:
        filters: []
        backendRefs: []
     - matches:
        - path:
           prefix: /v2
       default:
        filters: []
        backendRefs: []
"""


def confs_by_path(rules):
    return {each.matches[0]["path"]["value"]: each.conf for each in rules}


def test_the_consumer_adds_to_the_owners_v2_and_the_owners_v1_is_kept():
    # The document's result shows the filter as one of the request; its text adds the one that was written.
    rules = routes.merged_rules([read(SEED_OWNER, **OWNER), read(SEED_CONSUMER, **CONSUMER)])
    added = {"add": [{"name": "env", "value": "dev"}]}
    assert confs_by_path(rules) == {
        "/v1": {"backendRefs": [backend("v1")]},
        "/v2": {
            "filters": [{"type": "ResponseHeaderModifier", "responseHeaderModifier": added}],
            "backendRefs": [backend("v2")],
        },
    }
    assert {each.matches[0]["path"]["value"]: each.origin.name for each in rules} == {
        "/v1": "owner",
        "/v2": "consumer",
    }


def test_empty_lists_take_away_what_the_owner_set_rule_by_rule():
    rules = routes.merged_rules([read(SEED_OWNER, **OWNER), read(SEED_WIPER, **CONSUMER)])
    empty = {"filters": [], "backendRefs": []}
    assert confs_by_path(rules) == {"/v1": empty, "/v2": empty}


def paths(rules):
    return [each.matches[0]["path"]["value"] for each in rules]


def test_rules_of_the_most_important_policy_come_first_each_in_the_order_they_were_written():
    low = route("low", rule(prefix("/z")), rule(prefix("/both")), rule(prefix("/a")), **OWNER)
    high = route("high", rule(prefix("/y")), rule(prefix("/both")), rule(prefix("/b")), **CONSUMER)
    assert paths(routes.merged_rules([low, high])) == ["/y", "/both", "/b", "/z", "/a"]


def test_of_two_equal_rules_in_one_list_the_earlier_one_wins():
    doubled = route("p", rule(prefix("/"), filters=[1]), rule(prefix("/"), filters=[2], backendRefs=[2]))
    (merged,) = routes.merged_rules([doubled])
    assert merged.conf == {"filters": [1], "backendRefs": [2]}
    assert [source.path for source in merged.sources] == ["spec.to[0].rules[1]", "spec.to[0].rules[0]"]


def test_of_two_entries_of_one_policy_the_later_one_wins():
    first = route("p", rule(prefix("/a")), rule(prefix("/both"), filters=[1]), index=0)
    second = route("p", rule(prefix("/b")), rule(prefix("/both"), filters=[2]), index=1)
    merged = routes.merged_rules(merge_items.ascending([second, first]))
    assert paths(merged) == ["/b", "/both", "/a"]
    assert merged[1].conf == {"filters": [2]}


def test_a_rule_knows_all_who_name_its_matches_and_who_set_each_field():
    low = route("low", rule(prefix("/"), filters=[1], backendRefs=[1]), **OWNER)
    high = route("high", rule(prefix("/a")), rule(prefix("/"), filters=[2], backendRefs=None), **CONSUMER)
    merged = routes.merged_rules([low, high])[1]
    assert merged.origin == high.source
    assert merged.sources == (
        Origin(low.source, "spec.to[0].rules[0]"),
        Origin(high.source, "spec.to[0].rules[1]"),
    )
    assert merged.setters == {
        "filters": Origin(high.source, "spec.to[0].rules[1].default.filters"),
        "backendRefs": Origin(low.source, "spec.to[0].rules[0].default.backendRefs"),
    }


def test_merged_matches_are_written_as_in_the_most_important_policy():
    low = route("low", rule({"headers": [{"name": "x", "type": "Exact", "value": "1"}]}), **OWNER)
    high = route("high", rule({"headers": [{"name": "X", "value": "1"}]}), **CONSUMER)
    (merged,) = routes.merged_rules([low, high])
    assert merged.matches == [{"headers": [{"name": "X", "value": "1"}]}]


def header(name, value=None, kind=None):
    fields = {"name": name, "value": value, "type": kind}
    return {field: entry for field, entry in fields.items() if entry is not None}


def param(name, value, kind="Exact"):
    return {"name": name, "value": value, "type": kind}


SAME = {
    "Exact is the default of headers": (
        [{"headers": [header("x", "1")]}],
        [{"headers": [header("x", "1", "Exact")]}],
    ),
    "case of header names": ([{"headers": [header("X-A", "1")]}], [{"headers": [header("x-a", "1")]}]),
    "absent and empty and null": (
        [prefix("/a")],
        [prefix("/a", headers=[], queryParams=None, method=None)],
    ),
    "no path and every path": ([{"method": "GET"}], [prefix("/", method="GET")]),
    "order of headers": (
        [{"headers": [header("a", "1"), header("b", "2")]}],
        [{"headers": [header("b", "2"), header("a", "1")]}],
    ),
    "order of query parameters": (
        [{"queryParams": [param("a", "1"), param("b", "2")]}],
        [{"queryParams": [param("b", "2"), param("a", "1")]}],
    ),
    "a present header has no value": (
        [{"headers": [header("a", "", "Present")]}],
        [{"headers": [header("a", kind="Present")]}],
    ),
}
DIFFERENT = {
    "value": ([prefix("/a")], [prefix("/b")]),
    "type of path": ([prefix("/a")], [{"path": {"type": "Exact", "value": "/a"}}]),
    "case of path": ([prefix("/a")], [prefix("/A")]),
    "method": ([{"method": "GET"}], [{"method": "PUT"}]),
    "type of header": ([{"headers": [header("a", "1")]}], [{"headers": [header("a", "1", "Prefix")]}]),
    "case of query parameter": (
        [{"queryParams": [param("A", "1")]}],
        [{"queryParams": [param("a", "1")]}],
    ),
    "headers and query parameters": (
        [{"headers": [header("a", "1")]}],
        [{"queryParams": [param("a", "1")]}],
    ),
    "one of several": ([prefix("/a"), prefix("/b")], [prefix("/a")]),
    "order of several": ([prefix("/a"), prefix("/b")], [prefix("/b"), prefix("/a")]),
    "one match of two conditions and two of one": (
        [prefix("/a", method="GET")],
        [prefix("/a"), {"method": "GET"}],
    ),
}


def n_merged(one, other):
    return len(routes.merged_rules([route("a", rule(*one)), route("b", rule(*other))]))


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME)
def test_two_ways_to_write_the_same_matches_are_one_rule(one, other):
    assert routes.normalised(one) == routes.normalised(other)
    assert n_merged(one, other) == 1


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_other_matches_stay_rules_of_their_own(one, other):
    assert routes.normalised(one) != routes.normalised(other)
    assert n_merged(one, other) == 2


# Top first, each with a name for the failure's text; neighbours are strictly in this order.
RANKING = [
    ("exact", {"path": {"type": "Exact", "value": "/a"}}),
    ("long prefix", prefix("/abc")),
    ("prefix, method, header", prefix("/ab", method="GET", headers=[header("a", "1")])),
    ("prefix, method", prefix("/ab", method="GET")),
    (
        "prefix, headers",
        prefix("/ab", headers=[header("a", "1"), header("b", "1")], queryParams=[]),
    ),
    (
        "prefix, header, query",
        prefix("/ab", headers=[header("a", "1")], queryParams=[param("a", "1")]),
    ),
    ("prefix, header", prefix("/ab", headers=[header("a", "1")])),
    ("prefix, queries", prefix("/ab", queryParams=[param("a", "1"), param("b", "1")])),
    ("prefix, query", prefix("/ab", queryParams=[param("a", "1")])),
    ("short prefix", prefix("/ab")),
    ("method only", {"method": "GET"}),
    ("headers only", {"headers": [header("a", "1"), header("b", "1")]}),
    ("header of every path", prefix("/", headers=[header("a", "1")])),
    ("query only", {"queryParams": [param("a", "1")]}),
    ("every path", prefix("/")),
    ("long expression", {"path": {"type": "RegularExpression", "value": "/.*x"}, "method": "GET"}),
    ("short expression", {"path": {"type": "RegularExpression", "value": "/x"}, "method": "GET"}),
    ("short expression alone", {"path": {"type": "RegularExpression", "value": "/x"}}),
]


@pytest.mark.parametrize("seed", range(5))
def test_the_most_specific_match_is_tried_first(seed):
    rotated = RANKING[seed * 4 :] + RANKING[: seed * 4]
    rules = routes.merged_rules([route("p", *(rule(match) for _, match in rotated[::-1]))])
    names = {routes.normalised([match]): name for name, match in RANKING}
    found = [names[routes.normalised([each.match])] for each in routes.ranked(rules)]
    assert found == [name for name, _ in RANKING]


GRPC_RANKING = [
    {"service": "a.Long", "method": "Longest"},
    {"service": "a.Long", "method": "Get"},
    {"service": "a.Long"},
    {"service": "a"},
    {"type": "RegularExpression", "service": "a.*"},
    {"method": "Longest"},
    {"method": "Get"},
    {},
]


def test_of_grpc_calls_the_longest_service_and_then_the_longest_method_is_tried_first():
    rules = routes.merged_rules([route("p", *(rule({"grpc": each}) for each in reversed(GRPC_RANKING)))])
    assert [each.match["grpc"] for each in routes.ranked(rules)] == GRPC_RANKING


def test_a_match_of_grpc_calls_is_not_one_of_requests():
    assert n_merged([{}], [{"grpc": {}}]) == 2
    assert n_merged([{"grpc": {}}], [{"grpc": {"type": "Exact"}}]) == 1


def test_equally_specific_matches_keep_the_order_of_the_policies():
    low = route("low", rule({"path": {"type": "Exact", "value": "/long/one"}}), rule(prefix("/a")), **OWNER)
    high = route("high", rule(prefix("/b")), rule({"path": {"type": "Exact", "value": "/x"}}), **CONSUMER)
    found = routes.ranked(routes.merged_rules([low, high]))
    assert [each.match["path"]["value"] for each in found] == ["/x", "/long/one", "/b", "/a"]


def test_every_match_of_a_rule_finds_its_own_place_and_knows_its_rule():
    two = route("p", rule(prefix("/a"), prefix("/abc"), filters=[1]), rule(prefix("/ab"), filters=[2]))
    found = routes.ranked(routes.merged_rules([two]))
    assert [(each.match["path"]["value"], each.index, each.rule.conf["filters"]) for each in found] == [
        ("/abc", 1, [1]),
        ("/ab", 0, [2]),
        ("/a", 0, [1]),
    ]


REDIRECT = {"type": "RequestRedirect", "requestRedirect": {"hostname": "new.example"}}
DIRECT = {"type": "DirectResponse", "directResponse": {"status": 503}}
REWRITE = {"type": "URLRewrite", "urlRewrite": {"hostname": "x"}}
MODIFIER = {"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["x"]}}


@pytest.mark.parametrize(("answer", "index"), [([REDIRECT], 0), ([MODIFIER, DIRECT], 1)])
@pytest.mark.parametrize("answer_is_more_important", [True, False])
def test_who_answers_the_request_wins_over_backends_and_both_are_named(
    answer, index, answer_is_more_important
):
    answering = route("answers", rule(prefix("/"), filters=answer))
    sending = route("sends", rule(prefix("/"), backendRefs=[backend("v1")]))
    both = [sending, answering] if answer_is_more_important else [answering, sending]
    (merged,) = routes.merged_rules(both)
    found, (problem,) = routes.resolved(merged)
    assert found.conf == {"filters": answer}
    assert set(found.setters) == {"filters"}
    assert problem.kind == ANSWER_AND_BACKENDS
    assert problem.origins == (
        Origin(answering.source, f"spec.to[0].rules[0].default.filters[{index}]"),
        Origin(sending.source, "spec.to[0].rules[0].default.backendRefs"),
    )
    assert str(answering.source) in problem.message
    assert str(sending.source) in problem.message
    assert answer[index]["type"] in problem.message


def test_a_redirect_wins_over_a_rewrite_beside_it():
    (merged,) = routes.merged_rules([route("p", rule(prefix("/"), filters=[REWRITE, MODIFIER, REDIRECT]))])
    found, (problem,) = routes.resolved(merged)
    assert found.conf == {"filters": [MODIFIER, REDIRECT]}
    assert problem.kind == REDIRECT_AND_REWRITE
    assert [origin.path[-10:] for origin in problem.origins] == ["filters[2]", "filters[0]"]


def test_both_conflicts_of_one_rule_are_reported():
    filters, backends = [REDIRECT, REWRITE], [backend("v1")]
    (merged,) = routes.merged_rules([route("p", rule(prefix("/"), filters=filters, backendRefs=backends))])
    found, problems = routes.resolved(merged)
    assert found.conf == {"filters": [REDIRECT]}
    assert [problem.kind for problem in problems] == [ANSWER_AND_BACKENDS, REDIRECT_AND_REWRITE]


@pytest.mark.parametrize(
    "default",
    [
        {},
        {"filters": [REWRITE, MODIFIER], "backendRefs": [backend("v1")]},
        {"filters": [REDIRECT], "backendRefs": []},
        {"filters": [DIRECT, MODIFIER]},
        {"filters": [], "backendRefs": [backend("v1")]},
    ],
)
def test_a_legal_rule_stays_as_it_is(default):
    (merged,) = routes.merged_rules([route("p", rule(prefix("/"), **default))])
    assert routes.resolved(merged) == (merged, ())


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ({"type": "Exact", "value": "/"}, "JNNc6//C3P17nUsOJm5f4kqG+U3v8pXhS0od9C3+oss="),
        ({"type": "PathPrefix", "value": "/"}, "9Zuf5Tg79OuZcQITwBbQykxAk2u4fRKrwYn3//AL4Yo="),
    ],
)
def test_matches_have_the_hash_that_kuma_gives_them(path, expected):
    assert routes.match_hash([{"path": path}]) == expected


def test_a_hash_is_that_of_gos_field_order_and_escapes():
    match = {
        "headers": [{"value": "é\u2028", "name": "a"}, {"name": "b", "type": "Present", "value": None}],
        "queryParams": [{"value": "", "name": "q", "type": "Exact"}],
        "method": "GET",
        "path": {"type": "RegularExpression", "value": '/<a>&"\\\n'},
    }
    text = (
        r'[{"path":{"value":"/\u003ca\u003e\u0026\"\\\n","type":"RegularExpression"},"method":"GET",'
        r'"queryParams":[{"type":"Exact","name":"q","value":""}],'
        r'"headers":[{"name":"a","value":"é\u2028"},{"type":"Present","name":"b"}]},{"method":"PUT"}]'
    )
    expected = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    assert routes.match_hash([match, {"method": "PUT", "headers": [], "queryParams": None}]) == expected


def test_each_field_of_a_rule_says_who_set_it_and_who_lost():
    low = route("low", rule(prefix("/"), filters=[1], backendRefs=[1]), **OWNER)
    high = route("high", rule(prefix("/"), filters=[2]), rule(prefix("/"), filters=[3]), **CONSUMER)
    (found,) = routes.traced_rules([low, high])
    assert {path: (origin.source.name, origin.path) for path, origin in found.origins.items()} == {
        "filters": ("high", "spec.to[0].rules[0].default.filters"),
        "backendRefs": ("low", "spec.to[0].rules[0].default.backendRefs"),
    }
    assert [(lost.origin.path, lost.value, lost.reason) for lost in found.losers["filters"]] == [
        (
            "spec.to[0].rules[1].default.filters",
            [3],
            "it stands later in the same list, the earlier rule with equal matches wins",
        ),
        ("spec.to[0].rules[0].default.filters", [1], "its targetRef is Mesh, MeshService wins"),
    ]
    assert found.losers["backendRefs"] == ()


MATCHES = [prefix("/"), prefix("/a"), {}, {"method": "GET"}, {"headers": [header("X", "1")]}]
matches = st.lists(st.sampled_from(MATCHES), min_size=1, max_size=2)
filters = st.lists(st.sampled_from([REDIRECT, DIRECT, REWRITE, MODIFIER]), max_size=3)
legal_rules = st.fixed_dictionaries(
    {
        "matches": matches,
        "default": st.fixed_dictionaries(
            {},
            optional={
                "filters": st.none() | filters,
                "backendRefs": st.none() | st.lists(st.just(backend("v1")), max_size=2),
            },
        ),
    }
)
entries = st.fixed_dictionaries({"rules": st.lists(legal_rules, max_size=4)})
random_routes = ranked_items(entries, "spec.to[{index}]")


@pytest.mark.property
@given(random_routes, st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter(items, random):
    shuffled = merge_items.ascending(random.sample(items, len(items)))
    assert routes.traced_rules(shuffled) == routes.traced_rules(merge_items.ascending(items))
    ranked = routes.ranked(routes.merged_rules(shuffled))
    assert ranked == routes.ranked(routes.merged_rules(merge_items.ascending(items)))


@pytest.mark.property
@given(random_routes)
def test_traced_equals_untraced_and_leaves_its_items_alone(items):
    items = merge_items.ascending(items)
    before = copy.deepcopy(items)
    traced = routes.traced_rules(items)
    assert tuple(each.rule for each in traced) == routes.merged_rules(items)
    assert all(each.origins == each.rule.setters for each in traced)
    assert items == before


@pytest.mark.property
@given(random_routes)
def test_every_field_has_an_origin_that_really_contains_it(items):
    items = merge_items.ascending(items)
    for each in routes.traced_rules(items):
        assert each.origins.keys() == each.rule.conf.keys()
        for path, origin in each.origins.items():
            (source,) = (item for item in items if is_inside(origin, item))
            assert at(written(source), origin.path) == at(each.rule.conf, path)


def is_inside(origin, each):
    return origin.source == each.source and origin.path.startswith(each.path)


@pytest.mark.property
@given(random_routes)
def test_every_rule_that_was_written_is_in_exactly_one_merged_rule(items):
    items = merge_items.ascending(items)
    rules = routes.merged_rules(items)
    sources = [source for each in rules for source in each.sources]
    assert sorted((source.source, source.path) for source in sources) == sorted(
        (each.source, f"{each.path}.rules[{index}]")
        for each in items
        for index in range(len(each.conf["rules"]))
    )
    meanings = [routes.normalised(each.matches) for each in rules]
    assert len(set(meanings)) == len(meanings)


@pytest.mark.property
@given(random_routes)
def test_a_resolved_rule_is_legal_and_stays_as_it_is(items):
    for each in routes.merged_rules(merge_items.ascending(items)):
        found, problems = routes.resolved(each)
        types = {one["type"] for one in found.conf.get("filters", ())}
        assert not (types & {"RequestRedirect", "DirectResponse"} and found.conf.get("backendRefs"))
        assert not types >= {"RequestRedirect", "URLRewrite"}
        assert (found == each) == (not problems)
        assert routes.resolved(found) == (found, ())


WORDS = ["rules", "matches", "default", "filters", "backendRefs", "path", "headers", "queryParams", "type"]
junk = st.recursive(
    json_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.property
@given(ranked_items(junk | st.builds(lambda rules: {"rules": rules}, junk), "spec.to[{index}]"))
def test_whatever_stands_in_a_route_nothing_is_raised(items):
    items = merge_items.ascending(items)
    rules = routes.merged_rules(items)
    assert tuple(each.rule for each in routes.traced_rules(items)) == rules
    for each in rules:
        assert routes.resolved(each)[0].sources == each.sources
        assert len(routes.match_hash(each.matches)) == 44
    assert all(each.match is each.rule.matches[each.index] for each in routes.ranked(rules))
