"""Views for people: each file in `inspected` is a case, resources above, what is shown below.

In a case an object is written as `Kind/core name`, an entry of it as `Kind/core name#number`, and what is
empty is left out.
"""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koguma.core import admission, inspect, pipeline, rules_view, subset_rules, world
from koguma.core.incremental import Db
from koguma.core.items import ItemId
from koguma.core.meta import kri
from koguma.core.subset_rules import SubsetItem
from koguma.main import all_kinds
from koguma.model import documents, forms
from koguma.model import kri as kris
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kind, Kinds
from koguma.model.overlay import PolicyHooks
from koguma.model.printed_yaml import yaml_text
from koguma.model.resource import Key
from koguma.model.schema import Json

KINDS: Kinds = all_kinds()
CASES = sorted((Path(__file__).parent / "cases" / "inspect").glob("*.yaml"))


def load(*objects: Json) -> Db:
    drafts = [forms.read(document, KINDS) for document in objects]
    return pipeline.load(
        KINDS,
        ControlPlaneInfo(),
        [admission.admitted(each, None, ControlPlaneInfo()).resource for each in drafts],
    )


def key_of(db: Db, kind: str, core_name: str) -> Key:
    (key,) = [key for key, one in world.BY_KIND.items(db, (kind, "default")) if one.core_name == core_name]
    return key


def proxy(db: Db, core_name: str) -> Key:
    return key_of(db, "Dataplane", core_name)


def short(value: Json) -> Json:
    """What is shown, as the cases write it."""
    match value:
        case {"resourceMeta": of, "ruleIndex": number}:
            return f"{short(of)}#{number}"
        case {"resourceMeta": of, "resourceSectionName": section, **rest}:
            return {"of": short(of), "section": section, **short(rest)} if rest else f"{short(of)}:{section}"
        case {"type": kind, "name": name, "labels": dict()}:
            return f"{kind}/{name}"
        case dict():
            return {name: short(part) for name, part in value.items()}
        case list():
            return [short(part) for part in value]
        case _:
            return value


def rules_of(db: Db, name: str, kind: str = "") -> Json:
    shown = {}
    for entry in rules_view.of_proxy(db, proxy(db, name))["rules"]:
        written = {key: value for key, value in entry.items() if value and key not in ("type", "warnings")}
        if written and kind in ("", entry["type"]):
            shown[entry["type"]] = short(written)
    return shown


def tags_of(db: Db, name: str, kind: str) -> Json:
    """Outbound rules by tags."""
    shown = rules_of(db, name, kind)[kind]["toRules"]
    for rule in shown:
        words = [(each["key"], "!=" if each["not"] else "=", each["value"]) for each in rule["matchers"]]
        rule["matchers"] = ["".join(each) for each in words]
    return shown


def warnings_of(db: Db, name: str) -> Json:
    entries = rules_view.of_proxy(db, proxy(db, name))["rules"]
    return {entry["type"]: entry["warnings"] for entry in entries if entry["warnings"]}


def port_of(db: Db, name: str, text: str):
    return inspect.outbound(db, proxy(db, name), key_of_kri(text), kris.parse(text).section)


def outbound_of(db: Db, name: str, text: str) -> Json:
    port = port_of(db, name, text)
    return inspect.outbound_policies(db, port)["policies"] if port else "not called"


def route_of(db: Db, name: str, text: str, route: str) -> Json:
    key = key_of_kri(route)
    return inspect.route_policies(db, port_of(db, name, text), key)["policies"]


def key_of_kri(text: str) -> Key:
    wanted = kris.parse(text)
    return Key(KINDS.by_short[wanted.short].name, wanted.mesh, wanted.zone, wanted.namespace, wanted.name)


def dataplanes_of(db: Db, kind: str, name: str) -> Json:
    found = inspect.dataplanes(db, key_of(db, kind, name))
    return [world.proxy(db, key).core_name for key in found]


def layout_of(db: Db, name: str) -> Json:
    return {key: value for key, value in inspect.layout(db, proxy(db, name)).items() if key != "labels"}


VIEWS = {
    "rules": rules_of,
    "tags": tags_of,
    "warnings": warnings_of,
    "policies": lambda db, name: inspect.whole_policies(db, proxy(db, name))["policies"],
    "inbound": lambda db, name, at: inspect.inbound_policies(db, proxy(db, name), at)["policies"],
    "outbound": outbound_of,
    "routes": lambda db, name, at: inspect.outbound_routes(db, port_of(db, name, at))["routes"],
    "route": route_of,
    "dataplanes": dataplanes_of,
    "layout": layout_of,
}


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_case(case):
    above, *below = case.read_text().split("\n---- ")
    db = load(*(document.value for document in documents.load(above)))
    assert below
    for part in below:
        head, _, text = part.partition("\n")
        view, *words = head.split()
        (expected,) = documents.load(text)
        assert VIEWS[view](db, *words) == expected.value, head


def without_hooks(kind: Kind) -> Kind:
    """A policy as a package may bring it that has none yet."""
    return msgspec.structs.replace(kind, policy=msgspec.structs.replace(kind.policy, hooks=PolicyHooks()))


def test_a_policy_that_reaches_no_envoy_is_listed_apart():
    kinds = Kinds([without_hooks(kind) if kind.name == "MeshPassthrough" else kind for kind in KINDS])
    stored_only = named("MeshPassthrough", "all", {"default": {"passthroughMode": "None"}})
    documents = [{"type": "Mesh", "name": "default"}, WEB, stored_only]
    resources = [
        admission.admitted(forms.read(each, kinds), None, ControlPlaneInfo()).resource for each in documents
    ]
    db = pipeline.load(kinds, ControlPlaneInfo(), resources)
    origins = [{"kri": "kri_mp_default_default__all_"}]
    inactive = {"kind": "MeshPassthrough", "origins": origins, "reason": "stored, does not act yet"}
    assert inspect.whole_policies(db, proxy(db, "web")) == {"policies": [], "inactive": [inactive]}


def named(kind: str, name: str, spec: Json) -> Json:
    return {"type": kind, "mesh": "default", "name": name, "spec": spec}


def timeout(name: str, idle: str, top: Json = None, ref: Json = None) -> Json:
    entry = {"targetRef": ref or {"kind": "Mesh"}, "default": {"idleTimeout": idle}}
    return named("MeshTimeout", name, {**({"targetRef": top} if top else {}), "to": [entry]})


INBOUND = {"port": 80, "tags": {"kuma.io/service": "web"}}
WEB = {
    "type": "Dataplane",
    "mesh": "default",
    "name": "web",
    "networking": {"address": "10.0.0.1", "inbound": [INBOUND]},
}
BACKEND = named("MeshService", "backend", {"ports": [{"port": 80, "appProtocol": "http"}]})
MESH = {"type": "Mesh", "name": "default"}
WEB_ONLY = {"kind": "MeshSubset", "tags": {"kuma.io/service": "web"}}


def test_who_sets_a_field_is_shown_with_its_line_and_with_those_that_lost():
    db = load(MESH, WEB, timeout("all", "1s"), timeout("mine", "2s", WEB_ONLY))
    shown = rules_view.of_proxy(db, proxy(db, "web"), fields=True)
    (rule,) = shown["rules"][0]["toResourceRules"]
    assert rule["conf"] == [{"idleTimeout": "2s"}]
    assert rule["origins"] == {
        "idleTimeout": {
            "kri": "kri_mt_default_default__mine_",
            "ruleIndex": 0,
            "path": "spec.to[0].default.idleTimeout",
            "line": line_of(db, "mine", "      idleTimeout: 2s"),
            "value": "2s",
            "losers": [
                {
                    "kri": "kri_mt_default_default__all_",
                    "ruleIndex": 0,
                    "path": "spec.to[0].default.idleTimeout",
                    "line": line_of(db, "all", "      idleTimeout: 1s"),
                    "value": "1s",
                    "reason": "its targetRef is Mesh, MeshSubset wins",
                }
            ],
        }
    }


def line_of(db: Db, name: str, text: str) -> int:
    resource = world.RESOURCES.get(db, key_of(db, "MeshTimeout", name))
    return yaml_text(forms.plain(resource, KINDS["MeshTimeout"])).splitlines().index(text) + 1


def test_gateways_with_other_hostnames_have_configurations_of_their_own():
    def route(name: str, *hostnames: str) -> Json:
        rules = [{"matches": [{"path": {"type": "Exact", "value": "/"}}], "default": {"backendRefs": [ref]}}]
        to = {"targetRef": {"kind": "Mesh"}, "hostnames": list(hostnames), "rules": rules}
        return named(
            "MeshHTTPRoute", name, {"targetRef": {"kind": "MeshGateway", "name": "edge"}, "to": [to]}
        )

    ref = {"kind": "MeshService", "name": "backend", "port": 80}
    gateway = {
        "type": "MeshGateway",
        "mesh": "default",
        "name": "edge",
        "selectors": [{"match": {"kuma.io/service": "edge"}}],
        "conf": {"listeners": [{"port": 80, "protocol": "HTTP"}]},
    }
    edge = {
        "type": "Dataplane",
        "mesh": "default",
        "name": "edge-1",
        "networking": {
            "address": "10.0.0.1",
            "gateway": {"type": "BUILTIN", "tags": {"kuma.io/service": "edge"}},
        },
    }
    db = load(MESH, edge, gateway, BACKEND, route("b", "b.example"), route("a", "a.example"))
    shown = rules_view.of_proxy(db, proxy(db, "edge-1"), fields=True)
    (rule,) = shown["rules"][0]["toResourceRules"]
    assert [conf["hostnames"] for conf in rule["conf"]] == [["b.example"], ["a.example"]]
    assert set(rule["origins"]) == {
        f"[{index}].rules[0].{field}" for index in (0, 1) for field in ("matches", "default.backendRefs")
    }


def test_what_merging_made_impossible_is_left_out_and_has_no_origin():
    def route(name: str, top: Json, default: Json) -> Json:
        rules = [{"matches": [{"path": {"type": "Exact", "value": "/a"}}], "default": default}]
        to = [{"targetRef": {"kind": "MeshService", "name": "backend"}, "rules": rules}]
        return named("MeshHTTPRoute", name, {"targetRef": top, "to": to})

    backends = {"backendRefs": [{"kind": "MeshService", "name": "backend", "port": 80}]}
    answer = {"filters": [{"type": "DirectResponse", "directResponse": {"status": 418}}]}
    db = load(MESH, WEB, BACKEND, route("owner", {"kind": "Mesh"}, backends), route("me", WEB_ONLY, answer))
    shown = rules_view.of_proxy(db, proxy(db, "web"), fields=True)
    (rule,) = shown["rules"][0]["toResourceRules"]
    assert rule["conf"][0]["rules"][0]["default"] == answer
    assert set(rule["origins"]) == {"rules[0].matches", "rules[0].default.filters"}
    (warning,) = [text for text in shown["rules"][0]["warnings"] if "answers the request itself" in text]
    assert "DirectResponse" in warning
    assert [match["match"] for match in shown["httpMatches"]] == [
        [{"path": {"type": "Exact", "value": "/a"}}]
    ]


def test_an_exclusive_mesh_has_no_rules_by_tags():
    exclusive = {**MESH, "meshServices": {"mode": "Exclusive"}}
    for mesh, n_rules in ((MESH, 1), (exclusive, 0)):
        db = load(mesh, WEB, timeout("all", "1s"))
        (entry,) = rules_view.of_proxy(db, proxy(db, "web"))["rules"]
        assert (len(entry["toRules"]), len(entry["toResourceRules"])) == (n_rules, 1)


def test_matches_are_named_also_where_nothing_is_called_by_the_route():
    rules = [{"matches": [{"path": {"type": "PathPrefix", "value": "/"}}], "default": {}}]
    to = [{"targetRef": {"kind": "MeshService", "name": "nobody"}, "rules": rules}]
    route = {"type": "MeshHTTPRoute", "mesh": "default", "name": "r", "spec": {"to": to}}
    db = load(MESH, WEB, route)
    assert rules_view.of_proxy(db, proxy(db, "web"))["httpMatches"] == [
        {"hash": "9Zuf5Tg79OuZcQITwBbQykxAk2u4fRKrwYn3//AL4Yo=", "match": rules[0]["matches"]}
    ]


def tagged(*subsets):
    """Items of a policy's `to` that are about these tags, in order."""
    policy = Key("MeshTimeout", "m", "", "", "p")
    return [SubsetItem(world.pairs(one), ItemId(policy, "to", n)) for n, one in enumerate(subsets)]


one_tag = st.dictionaries(st.just("service"), st.sampled_from("123"))


@given(st.lists(one_tag, max_size=6), one_tag)
def test_the_first_rule_by_tags_that_fits_has_all_entries_that_fit(subsets, called):
    items = tagged(*subsets)
    fitting = (
        rule
        for rule in subset_rules.combined(items)
        if all(called.get(each.key) == each.value for each in rule.matchers)
    )
    found = next((rule.entries for rule in fitting), ())
    assert found == tuple(each.entry for each in items if each.subset in ((), world.pairs(called)))


def test_rules_by_several_tags_come_in_kumas_order():
    rules = subset_rules.combined(tagged({}, {"a": "1", "b": "1"}, {"a": "2"}))
    shown = [
        (
            " ".join(f"{each.key}{'!' if each.is_negated else '='}{each.value}" for each in rule.matchers),
            [entry.number for entry in rule.entries],
        )
        for rule in rules
    ]
    assert shown == [
        ("a=1 b=1", [0, 1]),
        ("a=2", [0, 2]),
        ("a!1 b=1", [0]),
        ("a=1 b!1", [0]),
        ("a!2", [0]),
        ("a!1 b!1", [0]),
    ]


def test_an_object_is_named_by_its_core_name_and_kri():
    db = load(MESH, WEB, timeout("all", "1s"))
    shown = rules_view.of_proxy(db, proxy(db, "web"))
    assert shown["resource"] == {
        "type": "Dataplane",
        "mesh": "default",
        "name": "web",
        "labels": {
            "kuma.io/display-name": "web",
            "kuma.io/env": "universal",
            "kuma.io/mesh": "default",
            "kuma.io/origin": "zone",
            "kuma.io/proxy-type": "sidecar",
            "kuma.io/zone": "default",
        },
        "kri": "kri_dp_default_default__web_",
    }
    (rule,) = shown["rules"][0]["toResourceRules"]
    assert rule["resourceMeta"]["kri"] == "kri_m____default_"
    assert rule["resourceMeta"]["mesh"] == ""
    assert kri(db, Key("MeshTimeout", "default", "", "", "gone")) == ""


times = st.sampled_from(["1s", "2s", "3s"])
tops = st.sampled_from([None, WEB_ONLY, {"kind": "Dataplane", "labels": {"kuma.io/display-name": "web"}}])
refs = st.sampled_from(
    [{"kind": "Mesh"}, {"kind": "MeshService", "name": "backend"}, {"kind": "MeshHTTPRoute", "name": "r"}]
)
ROUTE = named(
    "MeshHTTPRoute",
    "r",
    {
        "to": [
            {
                "targetRef": {"kind": "MeshService", "name": "backend"},
                "rules": [{"matches": [{"method": "GET"}], "default": {}}],
            }
        ]
    },
)


@given(st.lists(st.tuples(times, tops, refs), max_size=6))
def test_asking_for_origins_changes_no_configuration(written):
    policies = [timeout(f"p{number}", *each) for number, each in enumerate(written)]
    db = load(MESH, WEB, BACKEND, ROUTE, *policies)
    plain = rules_view.of_proxy(db, proxy(db, "web"))
    full = rules_view.of_proxy(db, proxy(db, "web"), fields=True)
    for entry in full["rules"]:
        for rule in entry["toResourceRules"]:
            origins = rule.pop("origins")
            if entry["type"] == "MeshTimeout":
                assert {path: origin["value"] for path, origin in origins.items()} == rule["conf"][0]
                (winner,) = origins.values()
                assert winner["value"] == written[int(winner["kri"].split("_")[5][1:])][0]
                assert len(winner["losers"]) + 1 == len(rule["origin"])
    assert full == plain
