"""Admission webhooks: asked through every door, in the version that their rule names."""

import json
import threading
from itertools import count

import pytest

from koguma.application import admission_review
from koguma.kube import catalog
from koguma.kube.kinds import webhooks as kinds
from koguma.kube.registry import KubeEndpoint
from koguma.model.resource import Resource
from koguma.store.contract import Put, Transaction
from tests import custom_resources
from tests.control_plane import LocalControlPlane
from tests.https_server import Reply
from tests.kube_client import (
    CORE,
    KOGUMA,
    KUMA,
    RBAC,
    KubeClient,
    accepted,
    bind_role,
    causes,
    config_maps_in,
    failure,
    timeout_spec,
)
from tests.waiting import until
from tests.webhook_server import VERSION, WebhookServer, added, denied, patched, rule

pytestmark = pytest.mark.slow

_NUMBERS = count(1)
LABELS = {"labels": {"kuma.io/mesh": "default"}}
MAPS = rule("v1", "configmaps", "configmaps/*")


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def plane(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("webhooks")
    sqlite = f"sqlite:///{folder}/koguma.db"
    store = sqlite if request.param == "sqlite" else request.getfixturevalue("postgres").database()
    with LocalControlPlane(folder, store=store, outgoing_hosts=("127.0.0.0/8",)) as plane:
        yield plane


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory):
    with WebhookServer(tmp_path_factory.mktemp("w")) as server:
        yield server


@pytest.fixture
def server(shared_server, plane):
    yield shared_server
    shared_server.requests.clear()
    shared_server.answers.clear()
    for kind in ("Validating", "Mutating"):
        configurations = KubeClient(plane, "", VERSION, f"{kind}WebhookConfiguration")
        for item in configurations.list().json["items"]:
            assert configurations.delete(item["metadata"]["name"]).status == 200


@pytest.fixture
def namespace(plane):
    name = f"hooked-{next(_NUMBERS)}"
    accepted(KubeClient(plane, "", CORE, "Namespace").create(name, metadata={"labels": {"team": name}}))
    return name


def configure(plane, *webhooks, kind="Validating", name="hooks"):
    configurations = KubeClient(plane, "", VERSION, f"{kind}WebhookConfiguration")
    return accepted(configurations.create(name, webhooks=list(webhooks)))


def timeouts(plane, namespace, version=KUMA) -> KubeClient:
    return KubeClient(plane, namespace, version, "MeshTimeout")


def plain_document(name, namespace, idle="5s"):
    return {
        "type": "MeshTimeout",
        "mesh": "default",
        "name": f"{name}.{namespace}",
        "labels": {"k8s.kuma.io/namespace": namespace},
        "spec": timeout_spec(idle),
    }


def plain_path(name, namespace):
    return f"/meshes/default/meshtimeouts/{name}.{namespace}"


def doors(plane, namespace, idle="7s"):
    """Every way to write a MeshTimeout called `a`, as (name, how to do it); each changes it."""
    kuma, koguma = timeouts(plane, namespace), timeouts(plane, namespace, KOGUMA)
    document = plain_document("a", namespace, idle)
    spec = timeout_spec(idle)
    return {
        "kube update": lambda: kuma.replace({**kuma.get("a"), "spec": spec}),
        "alias update": lambda: koguma.replace({**koguma.get("a"), "spec": spec}),
        "merge patch": lambda: koguma.patch("a", {"spec": spec}),
        "server-side apply": lambda: koguma.apply("a", force=True, metadata=LABELS, spec=spec),
        "plain PUT": lambda: plane("PUT", plain_path("a", namespace), document),
        "plain PATCH": lambda: plane(
            "PATCH", plain_path("a", namespace), {"spec": spec}, Content_Type="application/merge-patch+json"
        ),
        "apply": lambda: plane("POST", "/_apply", [document]),
        "kube delete": lambda: kuma.delete("a"),
        "alias delete": lambda: koguma.delete("a"),
        "deletecollection": lambda: kuma.send("DELETE", ""),
        "plain DELETE": lambda: plane("DELETE", plain_path("a", namespace)),
    }


@pytest.mark.parametrize("door", ["plain DELETE", "kube delete"])
def test_what_is_deleted_is_what_the_webhook_was_asked_about(plane, server, namespace, door):
    deletes = rule(KUMA, "meshtimeouts", operations=("DELETE",))
    accepted(timeouts(plane, namespace).create("a", metadata=LABELS, spec=timeout_spec("5s")))

    def answer(request):
        """Somebody writes the object while the webhook is asked; of what it is then, it says no."""
        if request["oldObject"]["spec"]["to"][0]["default"] == {"idleTimeout": "5s"}:
            changed = plain_document("a", namespace, "6s")
            assert plane("PUT", plain_path("a", namespace), changed).status == 200
            return {}
        return denied("not this one")

    server.answers["deletes"] = answer
    configure(plane, server.webhook("deletes", deletes))
    refused = doors(plane, namespace)[door]()
    assert refused.status == 403, refused.body
    assert "not this one" in refused.text
    assert timeouts(plane, namespace).exists("a")


def test_a_rule_for_one_endpoint_is_asked_through_all_in_its_version(plane, server, namespace):
    configure(plane, server.webhook("check", rule(KUMA, "meshtimeouts")))
    accepted(timeouts(plane, namespace, KOGUMA).create("a", metadata=LABELS, spec=timeout_spec()))
    (review,) = server.reviews()
    assert review["kind"] == {"group": "kuma.io", "version": "v1alpha1", "kind": "MeshTimeout"}
    assert review["resource"] == {"group": "kuma.io", "version": "v1alpha1", "resource": "meshtimeouts"}
    assert review["requestKind"] == {"group": "koguma.io", "version": "v1", "kind": "MeshTimeout"}
    assert review["requestResource"]["group"] == "koguma.io"
    assert review["object"]["apiVersion"] == KUMA
    assert review["object"]["spec"]["to"][0]["default"] == {"idleTimeout": "5s"}
    assert (review["operation"], review["name"], review["namespace"]) == ("CREATE", "a", namespace)
    assert review["oldObject"] is None
    assert review["dryRun"] is False
    assert review["options"]["kind"] == "CreateOptions"
    assert review["userInfo"]["username"] == "mesh-system:admin"
    assert server.requests[0].path == "/check?timeout=10s"

    assert plane("PUT", plain_path("a", namespace), plain_document("a", namespace, "6s")).status == 200
    review = server.reviews()[-1]
    assert review["requestResource"] == review["resource"]
    assert (review["operation"], review["name"], review["namespace"]) == ("UPDATE", "a", namespace)
    assert review["oldObject"]["spec"]["to"][0]["default"] == {"idleTimeout": "5s"}
    assert review["object"]["spec"]["to"][0]["default"] == {"idleTimeout": "6s"}

    assert timeouts(plane, namespace, KOGUMA).delete("a").status == 200
    review = server.reviews()[-1]
    assert (review["operation"], review["object"]) == ("DELETE", None)
    assert review["oldObject"]["apiVersion"] == KUMA
    assert review["options"]["kind"] == "DeleteOptions"


def test_no_door_leads_past_a_refusal(plane, server, namespace):
    accepted(timeouts(plane, namespace).create("a", metadata=LABELS, spec=timeout_spec()))
    before = timeouts(plane, namespace).get("a")
    configure(plane, server.webhook("no", rule(KUMA, "meshtimeouts")))
    server.answers["no"] = lambda _request: denied("not today")
    text = 'admission webhook "no.hooks.example" denied the request: not today'
    for name, write in doors(plane, namespace).items():
        n_asked = len(server.requests)
        answer = write()
        assert answer.status == 403, name
        shown = answer.json.get("message") or answer.json.get("detail")
        assert shown == text, name
        assert len(server.requests) > n_asked, name
    for version in (KUMA, KOGUMA):
        refused = timeouts(plane, namespace, version).create("b", metadata=LABELS, spec=timeout_spec())
        assert failure(refused) == (403, "Forbidden")
        dry = timeouts(plane, namespace, version).create(
            "b", query={"dryRun": "All"}, metadata=LABELS, spec=timeout_spec()
        )
        assert failure(dry) == (403, "Forbidden")
        assert server.reviews()[-1]["dryRun"] is True
    assert plane("PUT", plain_path("b", namespace), plain_document("b", namespace)).status == 403
    assert timeouts(plane, namespace).get("a") == before


def test_an_endpoint_that_comes_at_run_time_is_covered_without_touching_the_rule(plane, server, namespace):
    configure(plane, server.webhook("check", rule(KUMA, "meshtimeouts")))
    server.answers["check"] = lambda _request: denied("seen")
    clean = catalog.of(plane.plane.kinds).registry.find("koguma.io", "v1", "meshtimeouts")
    plane.plane.catalogs.serve(
        KubeEndpoint(
            group="later.example",
            version="v2",
            plural="meshtimeouts",
            set=clean.set,
            namespaced=True,
            converter=clean.converter,
        )
    )
    client = timeouts(plane, namespace, "later.example/v2")
    refused = client.create("a", metadata=LABELS, spec=timeout_spec())
    assert "denied the request: seen" in refused.json["message"]
    review = server.reviews()[-1]
    assert review["requestResource"] == {
        "group": "later.example",
        "version": "v2",
        "resource": "meshtimeouts",
    }
    assert review["object"]["apiVersion"] == KUMA


def test_exact_rules_see_their_own_endpoint_only(plane, server, namespace):
    configure(plane, server.webhook("exact", rule(KOGUMA, "meshtimeouts"), matchPolicy="Exact"))
    accepted(timeouts(plane, namespace).create("a", metadata=LABELS, spec=timeout_spec()))
    assert plane("PUT", plain_path("a", namespace), plain_document("a", namespace, "6s")).status == 200
    assert server.reviews() == []
    accepted(timeouts(plane, namespace, KOGUMA).patch("a", {"spec": timeout_spec("7s")}))
    assert [review["object"]["apiVersion"] for review in server.reviews()] == [KOGUMA]


def test_a_mutation_in_another_version_is_converted_back(plane, server, namespace):
    configure(plane, server.webhook("mutate", rule(KOGUMA, "meshtimeouts")), kind="Mutating")
    server.answers["mutate"] = lambda _request: {
        **patched(
            added("/metadata/labels/changed", "yes"),
            {"op": "replace", "path": "/spec/to/0/default/idleTimeout", "value": "42s"},
        ),
        "warnings": ["I changed it"],
    }
    answer = timeouts(plane, namespace).create("a", metadata=LABELS, spec=timeout_spec())
    stored = accepted(answer)
    assert answer.warnings == ["I changed it"]
    assert server.reviews()[0]["object"]["apiVersion"] == KOGUMA
    assert stored["metadata"]["labels"]["changed"] == "yes"
    assert stored["spec"]["to"][0]["default"] == {"idleTimeout": "42s"}

    put = plane("PUT", plain_path("b", namespace), plain_document("b", namespace))
    assert (put.status, put.json) == (201, {"warnings": ["I changed it"]})
    shown = plane("GET", plain_path("b", namespace)).json
    assert shown["labels"]["changed"] == "yes"
    assert shown["spec"]["to"][0]["default"] == {"idleTimeout": "42s"}
    applied = plane("POST", "/_apply", [plain_document("c", namespace)])
    assert applied.json["results"][0]["warnings"] == ["I changed it"]
    assert timeouts(plane, namespace).get("c")["spec"]["to"][0]["default"] == {"idleTimeout": "42s"}
    dry = timeouts(plane, namespace).create(
        "d", query={"dryRun": "All"}, metadata=LABELS, spec=timeout_spec()
    )
    assert accepted(dry)["spec"]["to"][0]["default"] == {"idleTimeout": "42s"}


def test_objects_are_mutated_before_they_are_validated(plane, server, namespace):
    configure(plane, server.webhook("mend", rule(KUMA, "meshtimeouts")), kind="Mutating")
    server.answers["mend"] = lambda _request: patched(added("/spec/to", timeout_spec("1s")["to"]))
    accepted(timeouts(plane, namespace).create("a", metadata=LABELS, spec={"to": "nonsense"}))
    server.answers["mend"] = lambda _request: patched(added("/spec/to/0/default/idleTimeout", "soon"))
    refused = timeouts(plane, namespace).create("b", metadata=LABELS, spec=timeout_spec())
    assert failure(refused) == (422, "Invalid")
    assert causes(refused)[0][0] == "spec.to[0].default.idleTimeout"


def test_mutating_webhooks_come_in_order_and_once_more_where_needed(plane, server, namespace):
    def append(letter):
        def answer(request):
            data = request["object"].get("data") or {}
            return patched(added("/data", {**data, "order": data.get("order", "") + letter}))

        return answer

    configure(plane, server.webhook("b", MAPS), kind="Mutating", name="z-last")
    configure(
        plane,
        server.webhook("a", MAPS, reinvocationPolicy="IfNeeded"),
        server.webhook("c", MAPS),
        kind="Mutating",
        name="a-first",
    )
    server.answers |= {"a": append("a"), "b": append("b"), "c": append("c")}
    stored = accepted(config_maps_in(plane, namespace).create("m"))
    assert stored["data"] == {"order": "acba"}
    configure(plane, server.webhook("judge", MAPS))
    accepted(config_maps_in(plane, namespace).create("n"))
    assert server.reviews("judge")[0]["object"]["data"] == {"order": "acba"}


def test_refusals_have_the_code_of_the_webhook(plane, server, namespace):
    configure(plane, server.webhook("no", MAPS))
    maps = config_maps_in(plane, namespace)
    server.answers["no"] = lambda _request: denied("short and stout", code=418, reason="Teapot")
    assert failure(maps.create("a")) == (418, "Teapot")
    server.answers["no"] = lambda _request: denied("my words", code=409, reason="AlreadyExists")
    refused = maps.create("a")
    assert failure(refused) == (409, "AlreadyExists")
    assert refused.json["message"] == 'admission webhook "no.hooks.example" denied the request: my words'
    server.answers["no"] = lambda _request: denied()
    refused = maps.create("a")
    assert (
        refused.json["message"]
        == 'admission webhook "no.hooks.example" denied the request without explanation'
    )
    server.answers["no"] = lambda _request: denied("x", code=200)
    assert maps.create("a").status == 403


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(b"what?"), "its answer is no JSON"),
        (Reply(b"[]"), "not an AdmissionReview"),
        (Reply(b"{}"), "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview"),
        (Reply(b"no", status=503), "it answers with status 503"),
        (Reply(status=307, headers=(("Location", "https://127.0.0.1/"),)), "it answers with status 307"),
        ({"uid": "another"}, "expected response.uid="),
        ({"allowed": "yes"}, "response.allowed must be a boolean"),
        ({"patch": "!", "patchType": "JSONPatch"}, "response.patch is no base64"),
        ({"patch": "W10=", "patchType": "Merge"}, "response.patchType"),
    ],
)
def test_what_is_no_answer_fails_or_is_ignored(plane, server, namespace, reply, words):
    server.answers["odd"] = lambda _request: reply
    maps = config_maps_in(plane, namespace)
    for kind in ("Validating", "Mutating"):
        configure(plane, server.webhook("odd", MAPS), kind=kind)
        refused = maps.create("a")
        assert failure(refused) == (500, "InternalError")
        begin = 'Internal error occurred: failed calling webhook "odd.hooks.example": failed to call webhook'
        assert refused.json["message"].startswith(f'{begin}: Post "{server.url}/odd?timeout=10s": ')
        assert words in refused.json["message"]
        KubeClient(plane, "", VERSION, f"{kind}WebhookConfiguration").delete("hooks")
    configure(plane, server.webhook("odd", MAPS, failurePolicy="Ignore"))
    configure(plane, server.webhook("odd", MAPS, failurePolicy="Ignore"), kind="Mutating")
    accepted(maps.create("a"))


def test_a_webhook_that_hangs_or_is_down_fails_or_is_ignored(plane, server, namespace, unused_tcp_port):
    maps = config_maps_in(plane, namespace)
    server.answers["slow"] = lambda _request: server.ended.wait(5) and {}
    configure(plane, server.webhook("slow", MAPS, timeoutSeconds=1))
    assert "no answer within 1s" in maps.create("a").json["message"]
    down = server.webhook("down", MAPS)
    down["clientConfig"]["url"] = f"https://127.0.0.1:{unused_tcp_port}/down"
    configurations = KubeClient(plane, "", VERSION, "ValidatingWebhookConfiguration")
    accepted(configurations.patch("hooks", {"webhooks": [down]}))
    assert failure(maps.create("a")) == (500, "InternalError")
    assert plane("PUT", "/meshes/default/meshtimeouts/free", plain_free()).status in (200, 201)
    accepted(configurations.patch("hooks", {"webhooks": [{**down, "failurePolicy": "Ignore"}]}))
    accepted(maps.create("a"))
    elsewhere = {**down, "clientConfig": {"url": "https://192.0.2.1/x"}}
    accepted(configurations.patch("hooks", {"webhooks": [elsewhere]}))
    assert "its operator allows that with the setting outgoingHosts" in maps.create("b").json["message"]
    named = {**down, "clientConfig": {"service": {"namespace": "a", "name": "b", "path": "/c"}}}
    accepted(configurations.patch("hooks", {"webhooks": [named]}))
    assert 'Post "https://b.a.svc:443/c?timeout=10s"' in maps.create("b").json["message"]


def test_many_slow_webhooks_have_a_limit_together(plane, server, namespace, monkeypatch):
    monkeypatch.setattr(admission_review, "SECONDS_MAX", 0.5)
    hung = threading.Event()
    server.answers |= dict.fromkeys(("a", "b"), lambda _request: hung.wait(10) and {})
    hooks = [server.webhook(path, MAPS, failurePolicy="Ignore", timeoutSeconds=30) for path in ("a", "b")]
    configure(plane, *hooks, server.webhook("c", MAPS), kind="Mutating")
    refused = config_maps_in(plane, namespace).create("m")
    hung.set()
    assert failure(refused) == (500, "InternalError")
    assert 'failed calling webhook "c.hooks.example"' in refused.json["message"]
    assert "no answer within 0s" in refused.json["message"]


def plain_free():
    return {"type": "MeshTimeout", "mesh": "default", "name": "free", "spec": timeout_spec()}


def test_a_failing_webhook_is_shown_until_it_answers(plane, server, namespace):
    configure(plane, server.webhook("ill", MAPS, failurePolicy="Ignore"))
    server.answers["ill"] = lambda _request: Reply(b"cough")
    for name in ("a", "b"):
        accepted(config_maps_in(plane, namespace).create(name))

    def shown():
        checks = plane("GET", "/_check").json["checks"]
        return [check["message"] for check in checks if check["name"] == "webhooks"]

    assert shown() == [
        'webhook "ill.hooks.example" failed 2 times since it last answered: its answer is no JSON'
    ]
    configurations = KubeClient(plane, "", VERSION, "ValidatingWebhookConfiguration")
    stored = configurations.get("hooks")["webhooks"]
    assert configurations.delete("hooks").status == 200
    assert shown() == []
    configure(plane, *stored)
    server.answers.clear()
    accepted(config_maps_in(plane, namespace).create("c"))
    assert shown() == []


def test_a_configuration_that_nobody_checked_is_shown_and_stops_nothing(plane, server, namespace):
    broken = Resource(
        kind=kinds.VALIDATING.stored_as, name="broken", core_name="broken", spec={"webhooks": 5}
    )
    plane.run(plane.plane.store.write(Transaction((Put(broken),), "test")))
    accepted(config_maps_in(plane, namespace).create("a"))
    messages = [check["message"] for check in plane("GET", "/_check").json["checks"]]
    assert any("broken" in text and "none of its webhooks is asked" in text for text in messages)
    assert KubeClient(plane, "", VERSION, "ValidatingWebhookConfiguration").delete("broken").status == 200


def test_an_apply_names_the_object_that_a_webhook_refuses(plane, server, namespace):
    configure(plane, server.webhook("no", rule(KUMA, "meshtimeouts")))
    server.answers["no"] = lambda request: denied("\x1b[31mred\r\nline") if request["name"] == "b" else {}
    refused = plane("POST", "/_apply", [plain_document(name, namespace) for name in ("a", "b", "c")])
    text = 'admission webhook "no.hooks.example" denied the request: [31mred line'
    assert (refused.status, refused.json["detail"]) == (403, text)
    assert refused.json["causes"][0]["field"] == "objects[1]"
    assert timeouts(plane, namespace).list().json["items"] == []


def test_what_an_apply_prunes_is_asked_about(plane, server, namespace):
    envelope = {"set": namespace, "objects": [plain_document(name, namespace) for name in ("a", "b")]}
    assert plane("POST", "/_apply", envelope).status == 200
    configure(plane, server.webhook("keep", rule(KUMA, "meshtimeouts", operations=("DELETE",))))
    server.answers["keep"] = lambda _request: denied("keep it")
    pruning = {"set": namespace, "objects": envelope["objects"][:1], "prune": True}
    assert plane("POST", "/_apply", pruning).status == 403
    assert [review["name"] for review in server.reviews()] == ["b"]
    assert timeouts(plane, namespace).exists("b")
    server.answers.clear()
    assert plane("POST", "/_apply", pruning).status == 200
    assert not timeouts(plane, namespace).exists("b")


def test_what_a_plan_deletes_is_asked_about(plane, server, namespace):
    assert plane("POST", "/_apply", [plain_document("a", namespace)]).status == 200
    configure(plane, server.webhook("keep", rule(KUMA, "meshtimeouts", operations=("DELETE",))))
    planned = {"delete": [{"type": "MeshTimeout", "name": f"a.{namespace}", "mesh": "default"}]}
    server.answers["keep"] = lambda _request: {"warnings": ["who needs it?"]}
    (deleted,) = plane("POST", "/_plan", planned).json["objects"]
    assert deleted["warnings"] == ["who needs it?"]
    (review,) = server.reviews()
    assert (review["operation"], review["dryRun"]) == ("DELETE", True)
    server.answers["keep"] = lambda _request: denied("keep it")
    refused = plane("POST", "/_plan", planned)
    assert (refused.status, refused.json["causes"][0]["field"]) == (403, "delete[0]")


def test_a_bad_patch_is_named_and_stores_nothing(plane, server, namespace):
    configure(plane, server.webhook("bad", MAPS, failurePolicy="Ignore"), kind="Mutating")
    maps = config_maps_in(plane, namespace)
    for operation, words in (
        ({"op": "remove", "path": "/data/none"}, "its patch cannot be applied"),
        (added("/metadata/name", "other"), "its patch cannot be applied"),
        (added("/kind", "Secret"), "its patch cannot be applied"),
        (added("/colour", "red"), "fields that do not exist: colour"),
    ):
        server.answers["bad"] = lambda _request, operation=operation: patched(operation)
        refused = maps.create("a")
        assert failure(refused) == (500, "InternalError")
        assert words in refused.json["message"]
    assert not maps.exists("a")


def test_selectors_scopes_and_conditions_choose_what_is_asked(plane, server, namespace):
    team = {"matchLabels": {"team": namespace}}
    configure(
        plane,
        server.webhook("namespace", MAPS, namespaceSelector=team),
        server.webhook("object", MAPS, objectSelector={"matchLabels": {"hot": "yes"}}),
        server.webhook("cluster", rule("v1", "*", scope="Cluster")),
        server.webhook("updates", rule("v1", "configmaps", operations=("UPDATE",))),
        server.webhook(
            "condition",
            MAPS,
            matchConditions=[
                {"name": "named", "expression": "object.metadata.name.startsWith('x-')"},
                {"name": "user", "expression": "request.userInfo.username != 'nobody'"},
            ],
        ),
    )

    def asked(write):
        server.requests.clear()
        accepted(write())
        return sorted(each.path.partition("?")[0].strip("/") for each in server.requests)

    maps, other = config_maps_in(plane, namespace), config_maps_in(plane, "default")
    number = next(_NUMBERS)
    assert asked(lambda: maps.create("a")) == ["namespace"]
    assert asked(lambda: other.create(f"a-{number}")) == []
    assert asked(lambda: other.create(f"x-{number}")) == ["condition"]
    for value in ("yes", None):  # what an object was or will be is selected
        hot = {"metadata": {"labels": {"hot": value}}}
        assert asked(lambda hot=hot: maps.patch("a", hot)) == ["namespace", "object", "updates"]
    spaces = KubeClient(plane, "", CORE, "Namespace")
    assert asked(lambda: spaces.create(f"new-{number}")) == ["cluster"]


def test_a_condition_that_cannot_be_evaluated_fails_unless_another_is_false(plane, server, namespace):
    broken = {"name": "broken", "expression": "object.nothing.here == 1"}
    maps = config_maps_in(plane, namespace)
    configure(plane, server.webhook("c", MAPS, matchConditions=[broken]))
    refused = maps.create("a")
    assert failure(refused) == (500, "InternalError")
    assert 'match condition "broken" cannot be evaluated' in refused.json["message"]
    configurations = KubeClient(plane, "", VERSION, "ValidatingWebhookConfiguration")
    never = {"name": "never", "expression": "false"}
    accepted(
        configurations.patch(
            "hooks", {"webhooks": [server.webhook("c", MAPS, matchConditions=[broken, never])]}
        )
    )
    accepted(maps.create("a"))
    assert server.reviews() == []


def test_statuses_are_subresources_of_their_own(plane, server, namespace):
    configure(plane, server.webhook("status", rule("v1", "resourcequotas/status")))
    configure(plane, server.webhook("set", rule("v1", "*/status")), kind="Mutating")
    server.answers["set"] = lambda _request: patched(added("/status/used", {"pods": "7"}))
    quotas = KubeClient(plane, namespace, CORE, "ResourceQuota")
    accepted(quotas.create("q"))
    until(lambda: quotas.get("q").get("status"), "the control plane has written its own status")
    assert server.reviews() == []
    written = accepted(quotas.replace({**quotas.get("q"), "status": {"hard": {"pods": "1"}}}, part="status"))
    assert written["status"]["used"] == {"pods": "7"}
    assert [review["subResource"] for review in server.reviews()] == ["status", "status"]
    assert server.reviews("status")[0]["object"]["status"]["used"] == {"pods": "7"}


def test_custom_resources_in_all_their_versions(plane, server, namespace):
    parts = {"status": {}, "scale": custom_resources.SCALE}
    widgets = custom_resources.defined(
        plane,
        custom_resources.version(subresources=parts),
        custom_resources.version("v2", storage=False, subresources=parts),
        namespace=namespace,
    )
    group = widgets.version.partition("/")[0]
    newer = widgets.other(version=f"{group}/v2")
    configure(plane, server.webhook("check", rule(f"{group}/v2", "widgets", "widgets/*")))
    configure(plane, server.webhook("size", rule(f"{group}/v2", "widgets")), kind="Mutating")
    server.answers["size"] = lambda _request: patched(added("/spec/size", 7))
    made = accepted(widgets.create("a", spec={"size": 5}))
    assert (made["apiVersion"], made["spec"]["size"]) == (widgets.version, 7)
    assert [review["object"]["apiVersion"] for review in server.reviews()] == [newer.version] * 2
    accepted(newer.replace({**newer.get("a"), "status": {"phase": "up"}}, part="status"))
    assert server.reviews()[-1]["subResource"] == "status"
    assert server.reviews()[-1]["object"]["status"] == {"phase": "up"}
    assert server.reviews()[-1]["oldObject"].get("status") is None

    configure(
        plane, server.webhook("half", rule(f"{group}/v2", "widgets/scale")), kind="Mutating", name="half"
    )
    server.answers["half"] = lambda _request: patched(added("/spec/replicas", 3))
    scale = widgets.send("GET", "a/scale").json
    written = accepted(widgets.replace({**scale, "spec": {"replicas": 6}}, part="scale"))
    assert written["spec"] == {"replicas": 3}
    assert widgets.get("a")["spec"]["replicas"] == 3
    review = server.reviews("half")[-1]
    assert review["kind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    assert review["requestKind"] == review["kind"]
    assert review["resource"] == {"group": group, "version": "v2", "resource": "widgets"}
    assert (review["object"]["spec"], review["oldObject"]["spec"]) == ({"replicas": 6}, {"replicas": 1})
    server.answers["check"] = lambda _request: denied("no")
    assert widgets.delete("a").status == 403


def convert(request):
    """A conversion webhook: `hostPort: a:1` in v1 is `host: a, port: 1` in v2."""
    version = request["desiredAPIVersion"]

    def converted(spec):
        if version.endswith("/v2"):
            host, _, port = spec["hostPort"].partition(":")
            return {"host": host, "port": port}
        return {"hostPort": f"{spec['host']}:{spec['port']}"}

    objects = [
        {**each, "apiVersion": version, "spec": converted(each["spec"])} for each in request["objects"]
    ]
    response = {"uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": objects}
    review = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response}
    return Reply(json.dumps(review).encode())


def test_custom_objects_are_converted_by_their_own_webhook_for_a_review(plane, server, namespace):
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    schema = {"type": "object", "properties": {"spec": texts}}
    client = server.webhook("convert")["clientConfig"]
    webhook = {"clientConfig": client, "conversionReviewVersions": ["v1"]}
    server.answers["convert"] = convert
    older = custom_resources.defined(
        plane,
        custom_resources.version("v1", schema=schema),
        custom_resources.version("v2", storage=False, schema=schema),
        conversion={"strategy": "Webhook", "webhook": webhook},
        namespace=namespace,
    )
    group = older.version.partition("/")[0]
    newer = rule(f"{group}/v2", "widgets")
    configure(plane, server.webhook("mutate", newer), kind="Mutating")
    configure(plane, server.webhook("check", newer))
    server.answers["mutate"] = lambda _request: patched(added("/spec/host", "b"))
    made = accepted(older.create("w", spec={"hostPort": "a:1"}))
    assert made["spec"] == {"hostPort": "b:1"}
    assert server.reviews("mutate")[0]["object"]["spec"] == {"host": "a", "port": "1"}
    assert server.reviews("check")[0]["object"]["spec"] == {"host": "b", "port": "1"}
    server.answers["mutate"] = lambda _request: {}
    accepted(older.patch("w", {"spec": {"hostPort": "c:2"}}))
    for path in ("mutate", "check"):
        review = server.reviews(path)[-1]
        assert review["oldObject"]["spec"] == {"host": "b", "port": "1"}
        assert review["object"]["spec"] == {"host": "c", "port": "2"}
    assert older.other(version=f"{group}/v2").get("w")["spec"] == {"host": "c", "port": "2"}
    assert older.delete("w").status == 200
    assert server.reviews("check")[-1]["oldObject"]["spec"] == {"host": "c", "port": "2"}


def test_what_only_shows_objects_is_no_endpoint_of_a_rule(plane, server, namespace):
    """`v1 services` shows MeshServices and takes no writes: a rule for it is not about them."""
    configure(plane, server.webhook("services", rule("v1", "services")))
    services = KubeClient(plane, namespace, KUMA, "MeshService")
    accepted(services.create("s", metadata=LABELS, spec={"ports": [{"port": 80}]}))
    assert server.reviews() == []


def test_only_administrators_configure_webhooks(plane, server, namespace):
    user = f"user-{namespace}"
    bind_role(plane, user, "admin")
    for kind in ("Validating", "Mutating"):
        configurations = KubeClient(plane, "", VERSION, f"{kind}WebhookConfiguration")
        hook = server.webhook("own", MAPS)
        answer = configurations.send(
            "POST", "", configurations.document("own", webhooks=[hook]), Impersonate_User=user
        )
        assert failure(answer) == (403, "Forbidden")
    quotas = KubeClient(plane, namespace, CORE, "ResourceQuota")
    answer = quotas.send("POST", "", quotas.document("own", spec={"hard": {}}), Impersonate_User=user)
    assert failure(answer) == (403, "Forbidden"), "a limit is not for those whom it limits"


def test_a_webhook_cannot_give_its_writer_more_rights(plane, server, namespace):
    """What it changes is checked as if the writer had written it."""
    user = f"user-{namespace}"
    bind_role(plane, user, "admin", namespace)
    roles = KubeClient(plane, namespace, RBAC, "Role")
    configure(plane, server.webhook("more", rule(RBAC, "roles")), kind="Mutating")
    everything = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    server.answers["more"] = lambda _request: patched(added("/rules", everything))
    body = roles.document("r", rules=[{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}])
    answer = roles.send("POST", "", body, Impersonate_User=user)
    assert failure(answer) == (403, "Forbidden")
    assert server.reviews()[0]["userInfo"]["username"] == user
    assert not roles.exists("r")


def test_a_webhook_sees_secrets_whole(plane, server, namespace):
    configure(plane, server.webhook("secrets", rule("v1", "secrets")))
    secrets = KubeClient(plane, namespace, CORE, "Secret")
    accepted(secrets.create("s", stringData={"password": "hunter2"}))
    assert server.reviews()[0]["object"]["data"] == {"password": "aHVudGVyMg=="}


def test_configurations_and_the_control_plane_itself_are_never_stopped(plane, server):
    everything = {**rule("x/x", "*/*"), "apiGroups": ["*"], "apiVersions": ["*"]}
    configure(plane, server.webhook("all", everything))
    configure(plane, server.webhook("all", everything), kind="Mutating")
    server.answers["all"] = lambda _request: denied("nothing goes")
    assert plane("PUT", "/meshes/stopped", {"type": "Mesh", "name": "stopped"}).status == 403
    reviews = KubeClient(plane, "", "authorization.k8s.io/v1", "SelfSubjectAccessReview")
    accepted(reviews.create(spec={"nonResourceAttributes": {"path": "/", "verb": "get"}}))
    server.answers.clear()
    assert plane("PUT", "/meshes/free", {"type": "Mesh", "name": "free"}).status == 201
    server.answers["all"] = lambda _request: denied("nothing goes")
    spaces = KubeClient(plane, "", CORE, "Namespace")
    until(lambda: spaces.exists("mesh-free"))
    configurations = KubeClient(plane, "", VERSION, "ValidatingWebhookConfiguration")
    accepted(configurations.patch("hooks", {"metadata": {"labels": {"a": "b"}}}))
    assert configurations.delete("hooks").status == 200
    assert configurations.other(kind="MutatingWebhookConfiguration").delete("hooks").status == 200
    assert plane("DELETE", "/meshes/free").status == 200
    until(lambda: not spaces.exists("mesh-free"))


def test_nobody_without_the_right_reaches_a_webhook(plane, server, namespace):
    configure(plane, server.webhook("c", rule(KUMA, "meshtimeouts")), kind="Mutating")
    for write in (
        lambda: timeouts(plane, namespace).send("POST", "", {}, X_Forwarded_For="192.0.2.1"),
        lambda: plane(
            "PUT", plain_path("a", namespace), plain_document("a", namespace), X_Forwarded_For="192.0.2.1"
        ),
    ):
        assert write().status in (401, 403)
    assert server.reviews() == []


def wrong(**changes):
    return {
        "name": "a.hooks.example",
        "clientConfig": {"url": "https://hooks.example/x"},
        "rules": [rule("v1", "configmaps")],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        **changes,
    }


@pytest.mark.parametrize(
    ("webhook", "field"),
    [
        (wrong(name="short"), "webhooks[0].name"),
        (wrong(clientConfig={}), "webhooks[0].clientConfig"),
        (wrong(clientConfig={"url": "http://x.example"}), "webhooks[0].clientConfig.url"),
        (wrong(clientConfig={"url": "https://u@x.example"}), "webhooks[0].clientConfig.url"),
        (wrong(clientConfig={"url": "https://x.example?a=b"}), "webhooks[0].clientConfig.url"),
        (wrong(clientConfig={"url": "https://x", "caBundle": "aGk="}), "webhooks[0].clientConfig.caBundle"),
        (wrong(clientConfig={"service": {"name": "x"}}), "webhooks[0].clientConfig.service.namespace"),
        (wrong(sideEffects=None), "webhooks[0].sideEffects"),
        (wrong(sideEffects="Some"), "webhooks[0].sideEffects"),
        (wrong(failurePolicy="Maybe"), "webhooks[0].failurePolicy"),
        (wrong(matchPolicy="Like"), "webhooks[0].matchPolicy"),
        (wrong(timeoutSeconds=31), "webhooks[0].timeoutSeconds"),
        (wrong(admissionReviewVersions=["v2"]), "webhooks[0].admissionReviewVersions"),
        (wrong(rules=[rule("v1")]), "webhooks[0].rules[0].resources"),
        (wrong(rules=[rule("v1", "x", operations=("READ",))]), "webhooks[0].rules[0].operations[0]"),
        (wrong(rules=[rule("v1", "x", scope="Here")]), "webhooks[0].rules[0].scope"),
        (
            wrong(objectSelector={"matchExpressions": [{"key": "a", "operator": "Is"}]}),
            "webhooks[0].objectSelector.matchExpressions[0].operator",
        ),
        (
            wrong(matchConditions=[{"name": "a", "expression": "1 +"}]),
            "webhooks[0].matchConditions[0].expression",
        ),
        (
            wrong(matchConditions=[{"name": "a", "expression": "'text'"}]),
            "webhooks[0].matchConditions[0].expression",
        ),
        (
            wrong(matchConditions=[{"name": "a", "expression": "authorizer.x()"}]),
            "webhooks[0].matchConditions[0].expression",
        ),
    ],
)
def test_a_wrong_configuration_is_refused(plane, server, webhook, field):
    for kind in ("Validating", "Mutating"):
        configurations = KubeClient(plane, "", VERSION, f"{kind}WebhookConfiguration")
        refused = configurations.create("wrong", webhooks=[webhook])
        assert failure(refused) == (422, "Invalid")
        assert field in [each[0] for each in causes(refused)]


def test_defaults_are_those_of_kubernetes(plane, server):
    (stored,) = configure(plane, wrong(), kind="Mutating")["webhooks"]
    assert stored["failurePolicy"] == "Fail"
    assert stored["matchPolicy"] == "Equivalent"
    assert stored["timeoutSeconds"] == 10
    assert stored["reinvocationPolicy"] == "Never"
    assert stored["rules"][0]["scope"] == "*"
    assert (stored["namespaceSelector"], stored["objectSelector"]) == ({}, {})
