"""Which MeshServices follow from Dataplanes, and the step from what is stored to them."""

import itertools
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koguma.core import admission, pipeline, services
from koguma.core.services import CreateObject, DeleteObject, ReplaceObject
from koguma.kinds import KINDS, mesh_service
from koguma.model import forms
from koguma.model.control_plane_info import ControlPlaneInfo, Mode
from koguma.model.kind import Kinds
from koguma.model.resource import Resource
from tests import build

HERE = ControlPlaneInfo(zone="east")
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MANAGED = {"kuma.io/managed-by": "meshservice-generator"}
STARTED = "kuma.io/deletion-grace-period-started-at"


def stored_mesh(mode=None):
    spec = {} if mode is None else {"meshServices": {"mode": mode} if mode else {}}
    return build.resource(build.mesh("shop", **spec))


def stored_dataplane(name, *inbounds, workload="", zone="east", namespace="", gateway=None):
    """Inbounds are written `service:port/protocol@name`; service, protocol and name may be left out."""
    networking = {
        "inbound": [inbound(text) for text in inbounds],
        **({"gateway": gateway} if gateway else {}),
    }
    labels = {"kuma.io/workload": workload} if workload else None
    document = build.dataplane(name, mesh="shop", labels=labels, **networking)
    return build.resource(document, zone=zone, namespace=namespace, core_name=name)


def inbound(text):
    rest, _, name = text.partition("@")
    service, _, port = rest.rpartition(":")
    number, _, protocol = port.partition("/")
    tags = {"kuma.io/service": service} if service else {}
    if service and protocol:
        tags["kuma.io/protocol"] = protocol
    made = {"port": int(number), **({"tags": tags} if tags else {}), **({"name": name} if name else {})}
    return made if service or not protocol else {**made, "protocol": protocol}


def stored_service(name, *ports, labels=MANAGED, by="kuma.io/service", namespace="", revision=1, **more):
    """A stored MeshService; ports are written `port/protocol@name>target`."""
    selector = {"dataplaneTags": {by: name}}
    if by == "kuma.io/workload":
        selector = {"dataplaneLabels": {"matchLabels": {by: name}}}
    core_name = f"{name}.{namespace}" if namespace else name
    where = {"zone": "east", "namespace": namespace, **more.pop("place", {})}
    return Resource(
        kind="MeshService",
        mesh="shop",
        name=name,
        core_name=more.pop("core_name", core_name),
        labels=labels,
        spec={"selector": selector, "ports": [port(text) for text in ports], **more},
        revision=revision,
        **where,
    )


def port(text):
    text, _, target = text.partition(">")
    rest, _, name = text.partition("@")
    number, _, protocol = rest.partition("/")
    number = int(number)
    return {
        "name": name or str(number),
        "port": number,
        "targetPort": target or number,
        "appProtocol": protocol or "tcp",
    }


def database(*resources, control_plane=HERE, mode=None):
    return pipeline.load(Kinds(KINDS), control_plane, [stored_mesh(mode), *resources])


def plan(*resources, now=NOW, mode=None, **grace):
    db = database(*resources, mode=mode)
    return services.plan(services.desired(db, "shop"), services.stored(db, "shop"), now, **grace)


def after(there, made):
    """What is stored when the changes are written, with revisions as a store gives them."""
    stored = {resource.key: resource for resource in there}
    revisions = itertools.count(max([0, *(r.revision for r in there)]) + 1)
    for change in made.changes:
        match change:
            case CreateObject(key=key, document=document):
                assert key not in stored
                draft = forms.read_plain(document, mesh_service.KIND)
                resource = admission.admitted(draft, None, HERE).resource
                assert resource.key == key
            case ReplaceObject(resource=resource):
                assert stored[resource.key].revision == resource.revision
            case DeleteObject(resource=resource):
                assert stored.pop(resource.key).revision == resource.revision
                continue
        stored[resource.key] = msgspec.structs.replace(resource, revision=next(revisions))
    return list(stored.values())


def summary(stored):
    """Services with their ports, as they are written above."""

    def written(port):
        target = f">{port['targetPort']}" if port["targetPort"] != port["port"] else ""
        return f"{port['port']}/{port['appProtocol']}@{port['name']}{target}"

    return {s.core_name: [written(port) for port in s.spec["ports"]] for s in stored}


# What there is, what is made of it, and the rules of the problems that are told.
GENERATED = {
    "a service for each tag": (
        [stored_dataplane("web-1", "web:80/http", "admin:90")],
        {"web": ["80/http@80"], "admin": ["90/tcp@90"]},
        [],
    ),
    "the union of what its Dataplanes serve": (
        [
            stored_dataplane("web-1", "web:80/http@main"),
            stored_dataplane("web-2", "web:80/http@main", "web:81/grpc@rpc"),
        ],
        {"web": ["80/http@main", "81/grpc@rpc"]},
        [],
    ),
    "a workload's name where there are no tags": (
        [stored_dataplane("web-1", "80/http", "81", workload="web")],
        {"web": ["80/http@80", "81/tcp@81"]},
        [],
    ),
    "tags before the workload's name": (
        [stored_dataplane("web-1", "web:80", "81", workload="other")],
        {"web": ["80/tcp@80"]},
        [],
    ),
    "nothing of a Dataplane without either": ([stored_dataplane("web-1", "80")], {}, []),
    "nothing of a gateway, which serves no inbound": (
        [stored_dataplane("edge", gateway={"tags": {"kuma.io/service": "edge"}}, workload="edge")],
        {},
        [],
    ),
    "nothing of another zone's Dataplane": ([stored_dataplane("web-1", "web:80", zone="west")], {}, []),
    "the first in key order where ports contradict": (
        [
            stored_dataplane("web-1", "web:80/http"),
            stored_dataplane("web-0", "web:80/grpc"),
            stored_dataplane("web-2", "web:80/http"),
        ],
        {"web": ["80/grpc@80"]},
        ["port"],
    ),
    "one port where two have one name": (
        [stored_dataplane("web-1", "web:80@main"), stored_dataplane("web-2", "web:81@main")],
        {"web": ["80/tcp@main>main"]},
        [],
    ),
    "one port where two of one name have different protocols, and the other is told": (
        [stored_dataplane("web-1", "web:80/http@main"), stored_dataplane("web-2", "web:81/grpc@main")],
        {"web": ["80/http@main"]},
        ["port"],
    ),
    "several ports of several names under different numbers": (
        [
            stored_dataplane("web-1", "web:80/http@main", "web:90/http@admin"),
            stored_dataplane("web-2", "web:81/http@main", "web:91/http@admin"),
        ],
        {"web": ["80/http@main>main", "90/http@admin>admin"]},
        [],
    ),
    "one port of instances that have one inbound each, whatever its number": (
        [stored_dataplane("web-1", "web:10080/http"), stored_dataplane("web-2", "web:10081/http")],
        {"web": ["10080/http@10080>http"]},
        [],
    ),
    "one port for each protocol of which instances have one inbound": (
        [
            stored_dataplane("web-1", "web:80/http", "web:90"),
            stored_dataplane("web-2", "web:81/http", "web:91"),
        ],
        {"web": ["80/http@80>http", "90/tcp@90>tcp"]},
        [],
    ),
    "one port of a named inbound and one without a name": (
        [stored_dataplane("web-1", "web:80/http@main"), stored_dataplane("web-2", "web:81/http")],
        {"web": ["80/http@main>http"]},
        [],
    ),
    "one port of instances of a workload": (
        [
            stored_dataplane("web-1", "80/http", workload="web"),
            stored_dataplane("web-2", "81/http", workload="web"),
        ],
        {"web": ["80/http@80>http"]},
        [],
    ),
    "a port for each number where an instance has several of a protocol": (
        [stored_dataplane("web-1", "web:80/http", "web:81/http"), stored_dataplane("web-2", "web:82/http")],
        {"web": ["80/http@80", "81/http@81", "82/http@82"]},
        [],
    ),
    "the number where an instance has several, and one port with those that have one": (
        [
            stored_dataplane("web-1", "web:80/http"),
            stored_dataplane("web-2", "web:81/http"),
            stored_dataplane("web-3", "web:80/http", "web:83/http"),
        ],
        {"web": ["80/http@80>http", "83/http@83"]},
        [],
    ),
    "a port for each protocol that instances have at different numbers": (
        [stored_dataplane("web-1", "web:80/http"), stored_dataplane("web-2", "web:81/tcp")],
        {"web": ["80/http@80", "81/tcp@81"]},
        [],
    ),
    "the first in key order where one is named by a tag and one by a label": (
        [stored_dataplane("web-1", "80/http", workload="web"), stored_dataplane("web-2", "web:81")],
        {"web": ["80/http@80"]},
        ["selector"],
    ),
    "nothing of a name that cannot be a host's": (
        [stored_dataplane("web-1", "web_default_svc_80:80", "ok:81")],
        {"ok": ["81/tcp@81"]},
        ["name"],
    ),
    "a service in the namespace of its Dataplanes": (
        [stored_dataplane("web-1", "web:80", namespace="a"), stored_dataplane("web-1", "web:81")],
        {"web.a": ["80/tcp@80"], "web": ["81/tcp@81"]},
        [],
    ),
}


@pytest.mark.parametrize("case", GENERATED)
def test_of_dataplanes_is_made(case):
    there, expected, problems = GENERATED[case]
    made = plan(*there)
    assert summary(after([], made)) == expected
    assert [problem.rule for problem in made.problems] == problems


# mode, whether services are made
@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (None, True),
        ("", True),
        ("Everywhere", True),
        ("ReachableBackends", True),
        ("Exclusive", True),
        ("Disabled", False),
    ],
)
def test_only_disabled_switches_generation_off(mode, expected):
    assert bool(plan(stored_dataplane("web-1", "web:80"), mode=mode).changes) is expected


def test_a_generated_service_selects_by_what_named_it_and_says_who_made_it():
    made = plan(
        stored_dataplane("web-1", "web:80/http"),
        stored_dataplane("api-1", "81", workload="api", namespace="team"),
    )
    by_tag, by_label = sorted(after([], made), key=lambda s: s.name, reverse=True)
    assert by_tag.spec == {
        "selector": {"dataplaneTags": {"kuma.io/service": "web"}},
        "ports": [{"name": "80", "port": 80, "targetPort": 80, "appProtocol": "http"}],
    }
    assert by_tag.labels == {
        "kuma.io/display-name": "web",
        "kuma.io/env": "universal",
        "kuma.io/managed-by": "meshservice-generator",
        "kuma.io/mesh": "shop",
        "kuma.io/origin": "zone",
        "kuma.io/zone": "east",
    }
    assert by_label.spec["selector"] == {
        "dataplaneLabels": {"matchLabels": {"kuma.io/workload": "api", "k8s.kuma.io/namespace": "team"}}
    }
    assert (by_label.namespace, by_label.core_name) == ("team", "api.team")


# What is stored, which Dataplanes there are, and what is stored then.
KEPT = {
    "a port stays while one Dataplane agrees": (
        [stored_service("web", "80/grpc")],
        [stored_dataplane("web-0", "web:80/http"), stored_dataplane("web-1", "web:80/grpc")],
        {"web": ["80/grpc@80"]},
    ),
    "a port changes when none agrees any more": (
        [stored_service("web", "80/grpc")],
        [stored_dataplane("web-0", "web:80/http"), stored_dataplane("web-1", "web:80/http2")],
        {"web": ["80/http@80"]},
    ),
    "a port that nobody serves goes, and a new one comes": (
        [stored_service("web", "80", "81")],
        [stored_dataplane("web-0", "web:81", "web:82")],
        {"web": ["81/tcp@81", "82/tcp@82"]},
    ),
    "a port with several numbers keeps its own when the instance that had it goes": (
        [stored_service("web", "10080/http>http")],
        [stored_dataplane("web-2", "web:10081/http")],
        {"web": ["10080/http@10080>http"]},
    ),
    "a port with several numbers stays as it is when they agree for a while": (
        [stored_service("web", "10080/http>http")],
        [stored_dataplane("web-1", "web:10080/http")],
        {"web": ["10080/http@10080>http"]},
    ),
    "a port of one name keeps its number when the instance that had it goes": (
        [stored_service("web", "80/http@main>main")],
        [stored_dataplane("web-2", "web:81/http@main")],
        {"web": ["80/http@main>main"]},
    ),
    "a word that fits nobody any more goes with its port": (
        [stored_service("web", "80/http@main>main")],
        [stored_dataplane("web-2", "web:81/http")],
        {"web": ["81/http@81"]},
    ),
    "two ports that both are served are not made one": (
        [stored_service("web", "80/http", "81/http")],
        [stored_dataplane("web-1", "web:80/http"), stored_dataplane("web-2", "web:81/http")],
        {"web": ["80/http@80", "81/http@81"]},
    ),
    "another instance with another number joins the port that is stored": (
        [stored_service("web", "81/http")],
        [stored_dataplane("web-1", "web:80/http"), stored_dataplane("web-2", "web:81/http")],
        {"web": ["81/http@81>http"]},
    ),
    "the selector stays while one Dataplane is named so": (
        [stored_service("web", "81", by="kuma.io/workload")],
        [stored_dataplane("web-0", "web:80"), stored_dataplane("web-1", "81", workload="web")],
        {"web": ["81/tcp@81"]},
    ),
    "the selector changes when none is named so any more": (
        [stored_service("web", "80", by="kuma.io/workload")],
        [stored_dataplane("web-0", "web:80")],
        {"web": ["80/tcp@80"]},
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_what_is_stored_has_a_say(case):
    stored, dataplanes, expected = KEPT[case]
    assert summary(after(stored, plan(*stored, *dataplanes))) == expected


def test_what_others_keep_in_a_generated_service_stays():
    own = {**MANAGED, "team": "shop"}
    stored = stored_service(
        "web", "80", labels=own, state="Available", identities=[{"type": "SpiffeID", "value": "x"}]
    )
    (change,) = plan(stored, stored_dataplane("web-1", "web:81")).changes
    assert change.resource.labels == own
    assert change.resource.spec["state"] == "Available"
    assert change.resource.spec["identities"] == stored.spec["identities"]
    assert change.resource.revision == stored.revision


def test_a_hand_made_service_wins_and_is_never_touched():
    stored = stored_service("web", "8000", labels={})
    made = plan(stored, stored_dataplane("web-1", "web:80"))
    assert made.changes == ()
    assert [(p.about, p.rule) for p in made.problems] == [(stored.key, services.HAND_MADE)]
    assert plan(stored).changes == ()
    assert plan(stored, mode="Disabled").changes == ()


def test_a_core_name_that_is_taken_is_a_problem():
    stored = stored_service("web.a", "80", labels={})
    made = plan(stored, stored_dataplane("web-1", "web:80", namespace="a"))
    assert made.changes == ()
    (problem,) = made.problems
    assert problem.rule == "core-name"
    assert str(stored.key) in problem.message


def test_another_zones_services_are_not_ours_to_delete():
    foreign = stored_service("web", "80", core_name="web-xyz", place={"zone": "west"})
    assert plan(foreign).changes == ()
    assert plan(foreign, mode="Disabled").changes == ()


def test_a_service_without_dataplanes_is_deleted_after_the_grace_period():
    stored = [stored_service("web", "80")]
    begun = plan(*stored)
    stored = after(stored, begun)
    assert stored[0].labels == {STARTED: "2026-03-01T12:00:00Z", **MANAGED}
    end = NOW + timedelta(hours=1)
    waiting = plan(*stored, now=end - timedelta(seconds=1))
    assert (waiting.changes, waiting.due_at) == ((), end)
    over = plan(*stored, now=end)
    assert over.changes == (DeleteObject(stored[0]),)
    assert over.due_at is None
    short = plan(*stored, now=NOW + timedelta(minutes=2), grace=timedelta(minutes=1))
    assert short.changes == (DeleteObject(stored[0]),)


def test_a_service_whose_dataplane_comes_back_stays():
    stored = [stored_service("web", "80", labels={STARTED: "2026-03-01T11:30:00Z", **MANAGED})]
    (change,) = plan(*stored, stored_dataplane("web-1", "web:80")).changes
    assert change.resource.labels == MANAGED
    assert change.resource.spec == stored[0].spec


@pytest.mark.parametrize("text", ["", "yesterday", "2026-03-01T11:00:00", "9999-12-31T23:59:59Z"])
def test_a_beginning_that_cannot_be_read_is_no_beginning(text):
    stored = stored_service("web", "80", labels={STARTED: text, **MANAGED})
    (change,) = plan(stored).changes
    assert change.resource.labels[STARTED] == "2026-03-01T12:00:00Z"


def test_switching_off_deletes_the_generated_ones_at_once():
    generated, by_hand = stored_service("web", "80"), stored_service("api", "80", labels={})
    made = plan(generated, by_hand, stored_dataplane("web-1", "web:80"), mode="Disabled")
    assert made.changes == (DeleteObject(generated),)


def test_global_generates_nothing():
    db = database(
        stored_dataplane("web-1", "web:80", zone=""),
        control_plane=ControlPlaneInfo(mode=Mode.GLOBAL, zone=""),
    )
    assert services.desired(db, "shop") == services.DesiredServices("shop", "", is_on=False)


def test_one_more_of_the_same_changes_no_answer():
    db = database(stored_dataplane("web-1", "web:80"), stored_dataplane("web-2", "web:80"))
    before = services.desired(db, "shop")
    db.reset_counts()
    pipeline.take(db, [stored_dataplane("web-3", "web:80")])
    assert services.desired(db, "shop") == before
    assert db.runs == {"services.desired": 1, "services.offered_ports": 1, "world.proxy": 1}


SERVICES = st.sampled_from(["web", "api", "not_a_host"])
INBOUNDS = st.builds(
    "{}:{}/{}{}".format,
    SERVICES,
    st.integers(80, 82),
    st.sampled_from(["http", "tcp"]),
    st.sampled_from(["", "@main"]),
)
DATAPLANES = st.lists(
    st.builds(
        lambda name, inbounds, workload, namespace: stored_dataplane(
            name,
            *(inbounds if not workload else [text.partition(":")[2] for text in inbounds]),
            workload=workload,
            namespace=namespace,
        ),
        st.sampled_from([f"dp-{n}" for n in range(5)]),
        st.lists(INBOUNDS, max_size=3),
        st.sampled_from(["", "", "web", "api"]),
        st.sampled_from(["", "team"]),
    ),
    max_size=6,
    unique_by=lambda one: one.key,
)
STORED = st.lists(
    st.builds(
        lambda name, ports, labels, by, namespace: stored_service(
            name, *ports, labels=labels, by=by, namespace=namespace
        ),
        st.sampled_from(["web", "api", "old"]),
        st.lists(
            st.sampled_from(["80/http", "80/tcp", "81@main", "80/http>http", "81/http@main>main", "82>tcp"]),
            max_size=2,
            unique_by=lambda p: p[:2],
        ),
        st.sampled_from([{}, MANAGED, {**MANAGED, STARTED: "2026-03-01T11:30:00Z"}]),
        st.sampled_from(["kuma.io/service", "kuma.io/workload"]),
        st.sampled_from(["", "team"]),
    ),
    max_size=4,
    unique_by=lambda one: one.key,
)
MODES = st.sampled_from([None, "Disabled"])


@pytest.mark.property
@given(DATAPLANES, st.lists(st.booleans(), min_size=6, max_size=6))
def test_no_port_changes_its_number_while_an_instance_that_it_serves_is_there(dataplanes, stay):
    """Whoever goes and comes back in between: the ports that are served are the same before and after."""
    there = after([], plan(*dataplanes))
    left = [one for one, stays in zip(dataplanes, stay, strict=False) if stays]
    now = after(there, plan(*there, *left))
    again = after(now, plan(*now, *dataplanes))
    words = {(s.key, p["name"], p["port"]) for s in there for p in s.spec["ports"] if _is_word(p)}
    still = {s.key for s in now if any(_serves(one, s) for one in left)}
    kept = {(s.key, p["name"], p["port"]) for s in again for p in s.spec["ports"]}
    assert {each for each in words if each[0] in still and _fits(each, there, left)} <= kept


def _is_word(port):
    return isinstance(port["targetPort"], str)


def _serves(one, service):
    return any(offer.service == service.name for offer in services.offered_ports(database(one), one.key))


def _fits(port, there, left):
    """Whether one of these Dataplanes has an inbound for a port."""
    key, name, _ = port
    (found,) = [p for s in there for p in s.spec["ports"] if (s.key, p["name"]) == (key, name)]
    wanted = services._read_port(found)
    db = database(*left)
    offers = [
        offer
        for one in left
        if one.namespace == key.namespace
        for offer in services.offered_ports(db, one.key)
    ]
    return any(offer.service == key.name and wanted.covers(offer.port) for offer in offers)


@pytest.mark.property
@given(DATAPLANES, STORED, MODES, st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter(dataplanes, stored, mode, random):
    expected = plan(*stored, *dataplanes, mode=mode)
    arriving = [*dataplanes, *stored]
    random.shuffle(arriving)
    db = database(mode=mode)
    for resource in arriving:
        pipeline.take(db, [resource])
        services.desired(db, "shop")
    assert services.plan(services.desired(db, "shop"), services.stored(db, "shop"), NOW) == expected


@pytest.mark.property
@given(DATAPLANES, STORED, MODES)
def test_a_step_that_was_taken_is_not_taken_again(dataplanes, stored, mode):
    first = plan(*stored, *dataplanes, mode=mode)
    there = after(stored, first)
    again = plan(*there, *dataplanes, mode=mode)
    assert again.changes == ()
    assert again.problems == first.problems
    touched = {r.key for r in stored} - {r.key for r in there if r in stored}
    by_hand = {r.key for r in stored if not services.is_generated(r)}
    assert not touched & by_hand
