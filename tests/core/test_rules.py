"""Rules: one-file cases, resources above, what comes out below; and what must hold for any mesh."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koguma.core import admission, items, match, merge, pipeline, rules, world
from koguma.main import all_kinds
from koguma.model import documents, forms
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kinds
from koguma.model.resource import Resource
from tests.core import port_confs

KINDS: Kinds = all_kinds()
CONTROL_PLANE = ControlPlaneInfo()
FOLDER = Path(__file__).parent / "cases" / "rules"
CASES = sorted(FOLDER.glob("*.yaml"))


def admitted(document) -> Resource:
    return admission.admitted(forms.read(document, KINDS), None, CONTROL_PLANE).resource


def load(text):
    return pipeline.load(KINDS, CONTROL_PLANE, [admitted(d.value) for d in documents.load(text)])


def proxy_named(db, core_name):
    (key,) = [k for k in match.proxies(db, "default") if world.proxy(db, k).core_name == core_name]
    return key


def core_names(db):
    return {key: resource.core_name for key, resource in world.RESOURCES.items(db)}


def outbound(db, core_name, kind):
    """What comes out for a proxy, as the cases write it."""
    named = core_names(db)
    shown = {}
    for port in port_confs.outbound(db, rules.class_of(db, proxy_named(db, core_name))):
        target = named[port.destination]
        if port.section != "80":
            target = f"{target}:{port.section}"
        if kind in dict(port.confs):
            shown[target] = dict(port.confs)[kind]
        for route, confs in port.routes:
            if kind in dict(confs):
                shown[f"{target} via {named[route.key]}"] = dict(confs)[kind]
    return shown


def http(db, core_name, destination):
    named = core_names(db)
    for port in port_confs.outbound(db, rules.class_of(db, proxy_named(db, core_name))):
        if named[port.destination] == destination:
            return [{"matches": rule.matches, **rule.conf} for rule in port.http]
    return []


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_case(case):
    above, *below = case.read_text().split("\n---- ")
    db = load(above)
    assert below
    for part in below:
        head, _, text = part.partition("\n")
        what, core_name, of = head.split()
        (expected,) = documents.load(text)
        found = outbound(db, core_name, of) if what == "to" else http(db, core_name, of)
        assert found == expected.value, head


NAMES = ["a", "b", "c"]
NAMESPACES = ["", "red", "blue"]


def placed(draw, kind, name, spec):
    namespace = draw(st.sampled_from(NAMESPACES))
    if not namespace:
        return {"type": kind, "mesh": "default", "name": name, "spec": spec}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "kuma.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


refs = st.one_of(
    st.just({"kind": "Mesh"}),
    st.builds(lambda n: {"kind": "MeshService", "name": n}, st.sampled_from(NAMES)),
    st.builds(
        lambda n, s: {"kind": "MeshService", "name": n, "namespace": s},
        st.sampled_from(NAMES),
        st.sampled_from(["red", "blue"]),
    ),
    st.builds(lambda n: {"kind": "MeshHTTPRoute", "name": n}, st.sampled_from(NAMES)),
    st.builds(
        lambda n: {"kind": "MeshService", "labels": {"kuma.io/display-name": n}}, st.sampled_from(NAMES)
    ),
)
tops = st.one_of(
    st.none(),
    st.just({"kind": "Mesh", "proxyTypes": ["Sidecar"]}),
    st.builds(lambda n: {"kind": "MeshSubset", "tags": {"kuma.io/service": n}}, st.sampled_from(NAMES)),
    st.builds(lambda n: {"kind": "Dataplane", "labels": {"app": n}}, st.sampled_from(NAMES)),
    st.builds(lambda n: {"kind": "Dataplane", "name": n}, st.sampled_from(NAMES)),
)
confs = st.fixed_dictionaries(
    {"idleTimeout": st.sampled_from(["1s", "2s"])},
    optional={"http": st.builds(lambda t: {"requestTimeout": t}, st.sampled_from(["3s", "4s"]))},
)


@st.composite
def objects(draw):
    """A document of a small mesh; some are refused, as users' are."""
    sort, name = draw(st.sampled_from(["dp", "svc", "timeout", "route"])), draw(st.sampled_from(NAMES))
    if sort == "dp":
        tags = {"kuma.io/service": draw(st.sampled_from(NAMES))}
        inbound = draw(st.sampled_from([[], [{"port": 80, "tags": tags}]]))
        document = placed(
            draw, "Dataplane", name, {"networking": {"address": "10.0.0.1", "inbound": inbound}}
        )
        if "type" in document:
            document |= document.pop("spec")
            document["labels"] = {"app": draw(st.sampled_from(NAMES))}
        return document
    if sort == "svc":
        return placed(draw, "MeshService", name, {"ports": [{"port": 80, "appProtocol": "http"}]})
    top = draw(tops)
    spec = {"targetRef": top} if top else {}
    if sort == "timeout":
        spec["to"] = [
            {"targetRef": draw(refs), "default": draw(confs)} for _ in range(draw(st.integers(1, 2)))
        ]
        return placed(draw, "MeshTimeout", name, spec)
    rule = {
        "matches": [{"path": {"type": "Exact", "value": draw(st.sampled_from(["/a", "/b"]))}}],
        "default": {},
    }
    target = {"kind": "MeshService", "name": draw(st.sampled_from(NAMES))}
    return placed(draw, "MeshHTTPRoute", name, {**spec, "to": [{"targetRef": target, "rules": [rule]}]})


def accepted(documents_):
    found = {}
    for document in documents_:
        try:
            resource = admitted(document)
        except admission.Invalid:
            continue
        found[resource.key] = resource
    return found


def answers(db):
    return {key: port_confs.of_proxy(db, key) for key in match.proxies(db, "default")}


@pytest.mark.property
@given(st.lists(objects(), max_size=14), st.randoms(use_true_random=False))
def test_arrival_order_does_not_matter(written, random):
    resources = list(accepted(written).values())
    expected = answers(pipeline.load(KINDS, CONTROL_PLANE, resources))
    random.shuffle(resources)
    db = pipeline.load(KINDS, CONTROL_PLANE, [])
    for resource in resources:
        pipeline.take(db, [resource])
    assert answers(db) == expected


@pytest.mark.property
@given(st.lists(st.tuples(objects(), st.booleans()), max_size=20))
def test_incremental_equals_from_scratch(history):
    db = pipeline.load(KINDS, CONTROL_PLANE, [])
    current = {}
    for document, removed in history:
        for key, resource in accepted([document]).items():
            if removed:
                current.pop(key, None)
                pipeline.take(db, [], [key])
            else:
                current[key] = resource
                pipeline.take(db, [resource])
            answers(db)
    assert answers(db) == answers(pipeline.load(KINDS, CONTROL_PLANE, current.values()))


@pytest.mark.property
@given(st.lists(objects(), max_size=14))
def test_every_leaf_has_an_origin_that_really_says_it(written):
    resources = accepted(written)
    db = pipeline.load(KINDS, CONTROL_PLANE, resources.values())
    for key in match.proxies(db, "default"):
        for port in rules.ports(db, rules.class_of(db, key)):
            for _, entries in (*port.entries, *(pair for _, by_kind in port.routes for pair in by_kind)):
                traced = merge.traced([items.item(db, entry) for entry in entries])
                assert traced.conf == items.conf(db, entries)
                for path, origin in traced.origins.items():
                    assert at(resources[origin.source].spec, origin.path) == at(traced.conf, path)


def at(value, path):
    for step in documents.steps(path.removeprefix("spec.")):
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


def mesh_of(n_proxies):
    text = (FOLDER / "seed_002_universal.yaml").read_text().split("\n---- ")[0]
    proxies = [
        {
            "type": "Dataplane",
            "mesh": "default",
            "name": f"dp-{number}",
            "networking": {
                "address": "10.0.0.9",
                "inbound": [{"port": 80, "tags": {"kuma.io/service": "x"}}],
            },
        }
        for number in range(n_proxies)
    ]
    resources = [admitted(d.value) for d in documents.load(text)] + [admitted(d) for d in proxies]
    db = pipeline.load(KINDS, CONTROL_PLANE, resources)
    for key in match.proxies(db, "default"):
        db.watch(port_confs.of_proxy, key)
    db.changed()
    db.reset_counts()
    return db


def timeout_on_backend(idle):
    conf = {"http": {"requestTimeout": "2s", "streamIdleTimeout": idle}}
    spec = {"to": [{"targetRef": {"kind": "MeshService", "name": "backend"}, "default": conf}]}
    return admitted(
        {"type": "MeshTimeout", "name": "timeout-on-backend-service", "mesh": "default", "spec": spec}
    )


def test_editing_a_timeout_never_matches_again():
    db = mesh_of(30)
    pipeline.take(db, [timeout_on_backend("9h")])
    assert len(db.changed()) == 31  # all but `web`, which has an override
    ran = {name for name, times in db.runs.items() if times}
    assert not ran & {"match.matched", "match.traits", "match.mentioned", "rules.class_of", "rules.outbound"}
    assert db.runs["port_confs.outbound"] == 1  # once per class, and only where the answer differs


def test_a_change_without_effect_stops_where_it_has_none():
    db = mesh_of(30)
    same = timeout_on_backend("1h")
    pipeline.take(db, [same])
    assert db.changed() == []
    assert sum(db.runs.values()) <= 4


def test_a_new_proxy_of_a_known_class_asks_next_to_nothing():
    db = mesh_of(30)
    networking = {"address": "10.0.0.9", "inbound": [{"port": 80, "tags": {"kuma.io/service": "x"}}]}
    new = admitted({"type": "Dataplane", "mesh": "default", "name": "new", "networking": networking})
    pipeline.take(db, [new])
    db.watch(port_confs.of_proxy, new.key)
    db.changed()
    assert sum(db.runs.values()) <= 8
    assert not db.runs["match.matched"]


def test_memos_are_dropped_when_proxies_leave():
    db = mesh_of(0)
    db.collect()
    before = db.n_memos
    added = []
    for number in range(40):
        networking = {
            "address": "10.0.0.9",
            "inbound": [{"port": 80, "tags": {"kuma.io/service": f"s{number}"}}],
        }
        new = admitted(
            {"type": "Dataplane", "mesh": "default", "name": f"dp-{number}", "networking": networking}
        )
        pipeline.take(db, [new])
        db.watch(port_confs.of_proxy, new.key)
        added.append(new.key)
    db.changed()
    assert db.n_memos > before + 40
    for key in added:
        db.unwatch(port_confs.of_proxy, key)
        pipeline.take(db, [], [key])
    db.changed()
    db.collect()
    assert db.n_memos <= before + 5
