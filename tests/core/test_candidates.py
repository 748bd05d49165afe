"""Candidates: what is found by a word of a targetRef is what asking every policy finds, at random.

The definitions here read everything: all that a proxy has, and all policies of its kind.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

import building
import msgspec
import pytest
from building import stored

from koguma.core import candidates, items, match, order, pipeline, problems, rules, selectors, world
from koguma.core.incremental import Db
from koguma.core.items import ItemId
from koguma.core.lint import contenders, selection, ties
from koguma.core.lint.problem import Problem
from koguma.core.match import Matched, Traits
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kinds
from koguma.model.resource import Key, Resource
from tests import build

MESH = "default"
POLICIES = [f"t{number}" for number in range(40)]


def targets_of_timeouts(random: Random) -> list[dict[str, Any]]:
    app, team = random.choice("abc"), random.choice("xy")
    return [
        {},
        {"kind": "Mesh"},
        {"kind": "Mesh", "proxyTypes": [random.choice(["Sidecar", "Gateway"])]},
        {"kind": "MeshSubset", "tags": {"kuma.io/service": app}},
        {"kind": "MeshSubset", "tag": {"version": random.choice(["1", "2", "*"])}},
        {"kind": "MeshSubset", "tags": {"team": team, "version": "*"}},
        {"kind": "MeshSubset", "tags": {"kuma.io/zone": random.choice(["east", "west"]), "version": "1"}},
        {"kind": "MeshService", "name": app},
        {"kind": "MeshServiceSubset", "name": app, "tags": {"version": "1"}},
        {"kind": "Dataplane"},
        {"kind": "Dataplane", "labels": {"team": team}},
        {"kind": "Dataplane", "labels": {"app": app, "team": team}},
        {"kind": "Dataplane", "labels": {"kuma.io/display-name": random.choice(["p1", "p2"])}},
        {"kind": "Dataplane", "name": random.choice(["p1", "p3"])},
        {"kind": "Dataplane", "name": "p2", "sectionName": random.choice(["80", "81"])},
        {"kind": "MeshGateway", "name": random.choice(["edge", "none"])},
        {"kind": "MeshHTTPRoute", "name": random.choice(["r1", "none"])},
    ]


def timeout(random: Random) -> Resource:
    by_label = {"kind": "Dataplane", "labels": {"team": random.choice("xy")}}
    ref = random.choice([*targets_of_timeouts(random), *[by_label] * 6])
    conf = {
        name: random.choice(["1s", "2s", "2s"])
        for name in random.sample(["idleTimeout", "connectionTimeout"], random.randint(1, 2))
    }
    to = random.choice([{"kind": "Mesh"}, {"kind": "Mesh"}, {"kind": "MeshService", "name": "a"}])
    labels = {"kuma.io/effect": "shadow"} if random.random() < 0.1 else {}
    spec: dict[str, Any] = {"targetRef": ref} if ref else {}
    if "sectionName" in ref:
        spec["rules"] = [{"default": {"idleTimeout": conf.get("idleTimeout", "3s")}}]
    else:
        spec["to"] = [{"targetRef": to, "default": conf}]
    valid = {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": "1s"}}]}
    document = build.document("MeshTimeout", random.choice(POLICIES), labels=labels, spec=valid)
    resource = stored(document | {"x-zone": random.choice(["east", "east", "east", "west", ""])})
    return msgspec.structs.replace(resource, spec=spec)  # also what is refused now: it may be stored


def route(random: Random) -> Resource:
    ref = random.choice(
        [{"kind": "Mesh"}, {"kind": "Dataplane", "labels": {"only-routes": random.choice("xy")}}]
    )
    to = [{"targetRef": {"kind": "MeshService", "name": "a"}, "rules": []}]
    return stored(build.document("MeshHTTPRoute", "r1", spec={"targetRef": ref, "to": to}))


def proxy(random: Random) -> Resource:
    name, own = random.choice(["p1", "p2", "p3", "p4"]), {"only-routes": random.choice("xy")}
    labels = {"app": random.choice("abc"), "team": random.choice("xy"), **own}
    inbounds = [
        build.inbound(random.choice("abc"), port, tags={"version": random.choice("12")})
        for port in random.sample([80, 81], random.randint(1, 2))
    ]
    if random.random() < 0.3:
        gateway = {"type": random.choice(["BUILTIN", "DELEGATED"]), "tags": {"kuma.io/service": "edge"}}
        document = build.dataplane(name, labels=labels, gateway=gateway)
        del document["networking"]["inbound"]
    else:
        document = build.dataplane(name, labels=labels, inbound=inbounds)
    return stored(document | {"x-zone": random.choice(["east", "east", "west"])})


EDGE = build.document(
    "MeshGateway",
    "edge",
    selectors=[{"match": {"kuma.io/service": "edge"}}],
    conf={"listeners": [{"port": 8080, "protocol": "HTTP", "tags": {"version": "1"}}]},
)
ALWAYS = [stored(build.mesh()), stored(build.mesh_service("a")), stored(EDGE)]


def everything_of(db: Db, key: Key) -> Traits:
    """The traits of a proxy if selectors could ask for all that it has."""
    traits, own = match.traits(db, key), world.proxy(db, key)
    assert traits is not None
    assert own is not None
    tags = [(each.section, each.tags) for each in own.inbounds]
    if traits.gateway is not None:
        listeners = match.listeners(db, traits.gateway)
        tags += [(each.section, world.pairs(dict(own.gateway_tags) | dict(each.tags))) for each in listeners]
    of_labels = dict(own.labels)
    return msgspec.structs.replace(
        traits,
        name=key.name,
        labels=own.labels,
        inbounds=tuple((section, world.pairs(of_labels | dict(each))) for section, each in tags),
        gateway_tags=world.pairs(of_labels | dict(own.gateway_tags)),
    )


def matching_selectors(db: Db, kind: str) -> Iterator[selectors.Selector]:
    for each in selectors.of_kind(db, kind, MESH):
        if not each.is_shadow and not each.problem:
            yield each


def every_match(db: Db, kind: str, proxy: Key) -> tuple[Matched, ...]:
    traits = everything_of(db, proxy)
    found = ((each.policy, match.selected(each, traits)) for each in matching_selectors(db, kind))
    return tuple(Matched(policy, tuple(sections)) for policy, sections in found if sections is not None)


def proxies_of(db: Db) -> dict[Key, set[Key]]:
    """The proxies that each policy selects."""
    found: dict[Key, set[Key]] = {}
    for key in building.dataplanes(db):
        for matched in every_match(db, "MeshTimeout", key):
            found.setdefault(matched.policy, set()).add(key)
    return found


def every_loss(db: Db) -> Iterator[tuple[Problem, int]]:
    """Each tie with the number of entries that have its subject: every entry against every other one."""
    keys, proxies = world.BY_KIND.keys(db, ("MeshTimeout", MESH)), proxies_of(db)

    def is_shared(entry: ItemId, rival: ItemId) -> bool:
        one, other = entry.policy, rival.policy
        sections = {each.section for key in (one, other) if (each := selectors.selector(db, key))}
        if entry.list == "rules" and len(sections) > 1:
            return False
        if not building.dataplanes(db):
            return selection.overlap(db, MESH, *(selectors.selector(db, key) for key in (one, other)))
        return not proxies.get(one, set()).isdisjoint(proxies.get(other, set()))

    every = [(subject, entry) for key in keys for subject, entry in contenders.subjects(db, key)]
    for own, entry in every:
        left, group = (
            set(contenders.of_entry(db, entry)),
            [other for subject, other in every if subject == own],
        )
        for rival in sorted(group, key=lambda each: rank(db, each), reverse=True):
            if rank(db, rival) <= rank(db, entry) or not is_shared(entry, rival):
                continue
            fields, others = contenders.of_entry(db, entry), contenders.of_entry(db, rival)
            shared = (at for at in fields if at in left and at in others)
            lost = [at for at in shared if fields[at].value != others[at].value]
            if lost:
                yield ties._loss(db, entry, rival, [fields[at].path for at in lost]), len(group)
                left -= set(lost)


def rank(db: Db, entry: ItemId) -> order.Precedence:
    return order.key(items.rank(db, entry))


def check(db: Db) -> tuple[int, int]:
    n_matched = 0
    for key in building.dataplanes(db):
        traits = match.traits(db, key)
        assert traits is not None
        for kind in ("MeshTimeout", "MeshHTTPRoute"):
            assert match.matched(db, kind, traits) == every_match(db, kind, key), (kind, key)
            n_matched += len(match.matched(db, kind, traits))
    every = list(every_loss(db))
    for key in world.BY_KIND.keys(db, ("MeshTimeout", MESH)):
        lost = {problem for problem, _ in every if problem.objects[0] == key}
        won = {
            problem
            for problem, count in every
            if problem.objects[1] == key and count <= ties._WINS_LISTED_MAX
        }
        assert set(ties.ties(db, key)) == lost | won
    return n_matched, len(every)


@pytest.mark.parametrize(("few", "near", "listed"), [(16, 100, 100), (1, 100, 100), (1, 4, 4), (1, 0, 100)])
@pytest.mark.parametrize("with_proxies", [True, False])
def test_what_is_found_by_words_is_what_asking_every_policy_finds(
    monkeypatch, few, near, listed, with_proxies
):
    monkeypatch.setattr(contenders, "_FEW", few)
    monkeypatch.setattr(contenders, "_NEAR_MAX", near)
    monkeypatch.setattr(ties, "_WINS_LISTED_MAX", listed)
    n_matched = n_lost = 0
    for seed in range(4):
        random = Random(seed)
        makers = [timeout] * 8 + [route] + ([proxy] * 3 if with_proxies else [])
        db = building.database([*ALWAYS, *(timeout(random) for _ in range(25))])
        there: dict[Key, Resource] = {}
        for _ in range(8):
            written = [random.choice(makers)(random) for _ in range(random.randint(1, 8))]
            gone = random.sample(sorted(there), min(len(there), random.randint(0, 3)))
            there |= {each.key: each for each in written}
            pipeline.take(db, [each for each in written if each.key not in gone], gone)
            there = {key: each for key, each in there.items() if key not in gone}
            if random.random() < 0.5:
                db.changed()
            if random.random() < 0.7:
                problems.keep(db, [each.key for each in written if each.kind == "MeshTimeout"])
            matched, lost = check(db)
            n_matched, n_lost = n_matched + matched, n_lost + lost
    assert n_lost > 40
    assert n_matched > 300 or not with_proxies


def test_a_policy_whose_kind_reads_its_target_from_elsewhere_is_found():
    def clean(spec: Any) -> Any:
        return (
            {"targetRef": {"kind": "Dataplane", "labels": {"app": spec["for"]}}, **spec}
            if "for" in spec
            else spec
        )

    timeouts = msgspec.structs.replace(building.KINDS["MeshTimeout"], clean=clean)
    kinds = Kinds(timeouts if kind.name == timeouts.name else kind for kind in building.KINDS)
    policy = stored(build.policy("MeshTimeout", "t", (build.ANY, {"idleTimeout": "1s"})))
    policy = msgspec.structs.replace(policy, spec={"for": "web", **policy.spec})
    proxies = [stored(build.dataplane(app, labels={"app": app})) for app in ("web", "other")]
    db = pipeline.load(kinds, ControlPlaneInfo(zone="east"), [*ALWAYS, *proxies])
    db.set(world.RESOURCES, policy.key, policy)
    found = {
        key.name: match.matched(db, "MeshTimeout", match.traits(db, key)) for key in building.dataplanes(db)
    }
    assert {name: bool(matched) for name, matched in found.items()} == {"web": True, "other": False}


@pytest.mark.parametrize(
    "ref",
    [1, "text", [], {"kind": 1}, {"kind": "Dataplane", "name": 1}, {"kind": "Dataplane", "labels": [1]},
     {"kind": "MeshSubset", "tags": {"a": 1}}, {"kind": "MeshSubset", "tags": "a"}, {"kind": {}},
     {"kind": None}],
)  # fmt: skip
def test_whatever_stands_in_a_targetref_it_is_a_word_or_unknown(ref):
    assert not candidates.written({"targetRef": ref}).is_known
    assert not candidates.written(ref).is_known


def test_a_policy_is_found_by_the_word_that_says_most():
    def word(**ref: Any) -> tuple[str, ...]:
        return tuple(filter(None, candidates.word(candidates.written({"targetRef": ref})) or ()))

    assert word(kind="Dataplane", labels={"kuma.io/zone": "east", "app": "web"}) == ("label", "app", "web")
    assert word(kind="Dataplane", labels={"app": "web", "kuma.io/display-name": "p"}) == ("name", "p")
    assert word(kind="MeshServiceSubset", name="web", tags={"a": "b"}) == ("tag", "kuma.io/service", "web")
    assert word(kind="MeshGateway", name="edge", tags={"a": "b"}) == ("gateway", "edge")
    assert word(kind="MeshSubset", tags={"a": "*"}) == word(kind="Mesh") == ()


def test_a_new_policy_asks_no_proxy_that_lacks_its_word():
    proxies = [stored(build.dataplane(f"p{n}", labels={"app": f"a{n}"})) for n in range(20)]
    first, second = (
        stored(
            build.policy(
                "MeshTimeout",
                f"t{app}",
                (build.ANY, {"idleTimeout": "1s"}),
                targetRef={"kind": "Dataplane", "labels": {"app": app}},
            )
        )
        for app in ("a1", "a2")
    )
    db = building.database([*ALWAYS, *proxies, first])
    for key in building.dataplanes(db):
        db.watch(match.matched_by_kind, match.traits(db, key))
    db.reset_counts()
    pipeline.take(db, [second])
    assert len(db.changed()) == 1
    assert db.runs["match.matched_by_kind"] == 1
    assert db.runs["match.traits"] == 0


def wide(name: str, service: str) -> Resource:
    to = {"kind": "MeshService", "name": service}
    return stored(build.policy("MeshTimeout", name, (to, {"idleTimeout": "1s"}), targetRef={"kind": "Mesh"}))


def test_a_new_policy_for_the_whole_mesh_is_put_in_order_once_for_all_proxies():
    proxies = [stored(build.dataplane(f"p{n}", labels={"app": f"a{n}"})) for n in range(20)]
    services = [stored(build.mesh_service(f"s{n}")) for n in range(10)]
    of_apps = [
        stored(
            build.policy(
                "MeshTimeout",
                f"t{n}",
                (build.ANY, {"idleTimeout": "1s"}),
                targetRef={"kind": "Dataplane", "labels": {"app": f"a{n}"}},
            )
        )
        for n in range(20)
    ]
    others = [wide(f"w{n}", f"s{n % 10}") for n in range(60)]
    db = building.database([*ALWAYS, *proxies, *services, *of_apps, *others])
    for key in building.dataplanes(db):
        db.watch(rules.outbound, rules.class_of(db, key))
    db.reset_counts()
    pipeline.take(db, [wide("new", "s3")])
    assert rules.class_of(db, proxies[0].key).of("MeshTimeout").parts != ()
    asked = {key: rules.class_of(db, key) for key in building.dataplanes(db)}
    assert all(rules.outbound(db, each).named for each in asked.values())
    assert db.runs["match.matched_by_kind"] == 0
    assert db.runs["match._mesh_wide_in_shard"] == 1
    assert db.runs["rules._part_by_target"] == 1
    # The ports of the one service for each of the 20 classes, and those of no other service.
    assert db.runs["rules._ports_of"] == 20
