"""`koguma plan` from files alone: text, JSON and Markdown, exit codes, and what cannot be planned."""

import json

import pytest

from koguma.cli import plan_markdown, plan_text
from koguma.core.plan.model import CallerChange, ObjectChange, Plan, PlannedObject, ProxyGroup

BASE = """
type: Mesh
name: default
mtls: {enabledBackend: ca, backends: [{name: ca, type: builtin}]}
---
type: MeshTrafficPermission
mesh: default
name: all
spec: {rules: [{default: {allow: [{spiffeID: {type: Prefix, value: "spiffe://default/"}}]}}]}
---
type: Dataplane
mesh: default
name: web-1
labels: {app: web}
networking:
  address: 10.0.0.1
  inbound: [{port: 8080, name: main, tags: {kuma.io/service: web, kuma.io/protocol: http}}]
---
type: Dataplane
mesh: default
name: backend-1
labels: {app: backend}
networking:
  address: 10.0.0.2
  inbound: [{port: 8080, name: main, tags: {kuma.io/service: backend, kuma.io/protocol: http}}]
"""
QUICK = """
type: MeshTimeout
mesh: default
name: quick
spec:
  targetRef: {kind: Dataplane, labels: {app: web}}
  to:
    - targetRef: {kind: MeshService, name: backend}
      default: {http: {requestTimeout: 3s}}
"""


@pytest.fixture
def files(tmp_path):
    for name, text in (("base", BASE), ("quick", QUICK), ("both", f"{BASE}---{QUICK}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mesh.yaml").write_text(text)
    return tmp_path


def test_a_value_its_line_and_exit_code_2(koguma, files):
    ended = koguma("plan", "--base", str(files / "base"), "-f", str(files / "quick"))
    assert (ended.code, ended.err) == (2, "")
    assert "1 of 2 proxies change" in ended.out
    place = f"{files}/quick/mesh.yaml:9:40"
    assert f"    MeshTimeout http.requestTimeout: 15s → 3s   {place}" in ended.out
    assert "meshtimeout/quick created: changes 1 proxy" in ended.out
    ended = koguma("plan", "--base", str(files / "both"), "-f", str(files / "quick"))
    assert (ended.code, ended.out.splitlines()[0]) == (0, "0 of 2 proxies change")


def test_what_only_the_base_has_goes_with_prune(koguma, files):
    words = ("plan", "--base", str(files / "both"), "-f", str(files / "base"))
    assert koguma(*words).code == 0
    ended = koguma(*words, "--prune", "--json")
    plan = json.loads(ended.out)
    assert (ended.code, plan["changed"]) == (2, 1)
    (value,) = plan["groups"][0]["values"]
    assert (value["before"], value["after"]) == ("3s", "15s")
    assert [(each["name"], each["action"]) for each in plan["objects"]] == [("quick", "deleted")]


def test_a_deletion_its_risk_and_markdown(koguma, files):
    words = ("--base", str(files / "base"), "--delete", "dataplane/backend-1", "-o", "markdown")
    ended = koguma("plan", *words)
    assert ended.code == 2
    assert ended.out.startswith("### Plan: 2 of 2 proxies change, in 2 groups\n")
    assert "have no endpoint any more" in ended.out
    assert "<summary>web-1</summary>" in ended.out
    ended = koguma("plan", "--base", str(files / "base"), "--delete", "mtp/all", "--envoy")
    assert "inbound main: backend, web may no longer call; nobody may then" in ended.out
    assert "extension _kuma_permission_main changed" in ended.out


def test_what_is_in_a_mesh_goes_with_it(koguma, files):
    deleted = ("mesh/default", "dataplane/web-1", "dataplane/backend-1")
    words = [word for name in deleted for word in ("--delete", name)]
    ended = koguma("plan", "--base", str(files / "both"), *words, "--json")
    plan = json.loads(ended.out)
    actions = {(each["type"], each["name"]): each["action"] for each in plan["objects"]}
    assert set(actions.values()) == {"deleted"}
    assert {("MeshTimeout", "quick"), ("MeshService", "web"), ("MeshRetry", "mesh-retry-all-default")} <= {
        *actions
    }
    assert plan["newProblems"] == []


def test_of_several_objects_one_is_named(koguma, files):
    namespaced = """
apiVersion: kuma.io/v1alpha1
kind: MeshTimeout
metadata: {name: NAME, namespace: NAMESPACE, labels: {kuma.io/mesh: default}}
spec: {to: [{targetRef: {kind: Mesh}, default: {idleTimeout: 9s}}]}
---
"""
    places = (("slow", "red"), ("slow", "blue"), ("alone", "red"))
    texts = [namespaced.replace("NAMESPACE", space).replace("NAME", name) for name, space in places]
    (files / "base" / "more.yaml").write_text("".join(texts))
    base = ("plan", "--base", str(files / "base"), "--delete")
    ended = koguma(*base, "meshtimeout/slow")
    assert (ended.code, "name slow.blue or slow.red" in ended.err) == (1, True)
    for name, shown in (("slow.red", "slow.red"), ("alone", "alone.red")):
        assert f"meshtimeout/{shown} deleted" in koguma(*base, f"meshtimeout/{name}").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--bogus",), "No such option"),
        ((), "name what to read with -f"),
        (("--delete", "quick"), "must be KIND/NAME"),
        (("--delete", "meshtimeout/quikc"), 'did you mean "quick"?'),
        (("--delete", "meshtimout/quick"), 'did you mean "MeshTimeout"?'),
        (("--delete", "mesh/default"), "there are still some dataplanes attached"),
        (("-f", "-", "--delete", "meshtimeout/quick"), "among the objects to be written"),
        (("-f", "nowhere.yaml"), "nowhere.yaml"),
        (("-f", "-", "--set", "a"), "--set is for a server's objects"),
        (("-f", "-"), "<stdin>:1:"),
    ],
)
def test_errors_are_neither_0_nor_2(koguma, files, words, message):
    given = '{"type": "MeshTimeout", "spec": 1}' if "--delete" not in words else QUICK
    ended = koguma("plan", "--base", str(files / "both"), *words, given=given)
    assert (ended.code, ended.out) == (1, "")
    assert message in ended.err


def test_a_field_of_envoy_is_explained_from_files(koguma, files):
    words = ("explain", "dataplane", "web-1", "-f", str(files / "both"), "--envoy")
    name = "kri_msvc_default_default__backend_main"
    route = f"routes[{name}].virtual_hosts[{name}].routes[_kuma_route_default].route"
    ended = koguma(*words, f"{route}.timeout")
    assert ended.code == 0
    first, origin, loser = ended.out.splitlines()
    assert first == f"{route}.timeout = 3s"
    assert origin == f"  set by kri_mt_default_default__quick_, {files}/both/mesh.yaml:34:40"
    assert loser.startswith("  not 15s of kri_mt_default_default__mesh-timeout-all-default_")
    assert f"clusters[{name}]" in koguma(*words, "clusters").out.splitlines()
    beside = koguma(*words, "clusters", "--to", "backend", "--kind", "mt")
    assert (beside.code, "--envoy stands instead of --to, --kind" in beside.err) == (2, True)
    assert json.loads(koguma(*words, f"{route}.timeout", "-o", "json").out)["fields"][0]["value"] == "3s"
    ended = koguma(*words, "clusters[x]")
    assert (ended.code, ended.out) == (1, "")
    assert "there is no resource in cluster" in ended.err
    assert koguma("explain", "dataplane", "web-1").code == 2


ZONE = """
type: MeshExternalService
mesh: default
name: api
spec:
  match: [{type: InternalVIP, value: api.ext, port: 80, protocol: http}]
  destination: {type: Regular, endpoints: [{address: 192.0.2.1, port: 443}]}
---
type: ZoneEgress
name: egress-1
networking: {address: 10.0.0.8, port: 10002}
---
type: ZoneIngress
name: ingress-1
networking: {address: 10.0.0.9, port: 10001}
"""


@pytest.mark.parametrize("word", ["zoneegress", "zone-egress", "ze", "ZoneEgress", "zoneegresses"])
def test_a_field_of_a_zone_egress_is_explained_from_files(koguma, files, word):
    (files / "both" / "zone.yaml").write_text(ZONE)
    words = ("explain", word, "egress-1", "-f", str(files / "both"), "--envoy")
    path = "clusters[kri_extsvc_default_default__api_80]"
    assert koguma(*words, "clusters").out.splitlines() == [path]
    limit = f"{path}.circuit_breakers.thresholds[0].max_connections"
    first, origin = koguma(*words, limit).out.splitlines()
    assert first == f"{limit} = 1024"
    assert origin.startswith(
        "  set by kri_mcb_default_default__mesh-circuit-breaker-all-default_, spec.to[0]"
    )
    assert koguma(*words, f"{path}.connect_timeout").out.startswith(f"{path}.connect_timeout = 5s\n  always")
    whole = koguma(*words, f"{path}.circuit_breakers.thresholds[0].track_remaining").out.splitlines()[1]
    assert whole == "  set by kri_mcb_default_default__mesh-circuit-breaker-all-default_, whatever it sets"
    address = f"{path}.load_assignment.endpoints[0].lb_endpoints[0].endpoint.address.socket_address.address"
    ended = koguma(*words, address)
    assert ended.out.splitlines()[1] == (
        f"  follows from kri_extsvc_default_default__api_, {files}/both/zone.yaml:7:54"
    )
    assert json.loads(koguma(*words, limit, "-o", "json").out)["fields"][0]["value"] == 1024


def test_a_field_of_a_zone_ingress_is_explained_from_files(koguma, files):
    (files / "both" / "zone.yaml").write_text(ZONE)
    words = ("explain", "zone-ingress", "ingress-1", "-f", str(files / "both"), "--envoy")
    service = "endpoints[kri_msvc_default_default__backend_main].endpoints[0].lb_endpoints[0]"
    ended = koguma(*words, f"{service}.endpoint.address.socket_address.address")
    assert ended.out.splitlines()[1] == (
        f"  follows from kri_dp_default_default__backend-1_, {files}/both/mesh.yaml:24:12"
    )
    nobody = koguma("explain", "zoneingress", "egress-1", "-f", str(files / "both"), "--envoy", "")
    assert (nobody.code, nobody.err) == (
        1,
        'error: the files have no ZoneIngress "egress-1"; they have ingress-1\n',
    )
    assert koguma("explain", "zoneingress", "ingress-1").code == 2
    past = koguma(*words, "clusters", "--at", "2h")
    assert (past.code, "files have no history" in past.err) == (2, True)
    assert koguma("explain", "mesh", "default").code == 2


def test_who_may_not_read_all_proxies_is_told_so():
    callers = CallerChange("main", (), ("web",), 1, 0)
    group = ProxyGroup("changed", 1, (PlannedObject("Dataplane", "web-1", "default"),), callers=(callers,))
    objects = tuple(
        ObjectChange("MeshTimeout", f"t{n}", "created", "default", proxies=n, why="so") for n in (0, 1)
    )
    plan = Plan(3, 1, (group,), objects, (), (), (), is_partial=True)
    for lines in (plan_text.lines(plan, {}), plan_markdown.lines(plan, {})):
        text = "\n".join(lines)
        assert "1 of 3 proxies that you may read change" in text
        assert "web may no longer call; none that you may read may then" in text
        assert "changes no proxy that you may read: so" in text
        assert "changes 1 proxy that you may read" in text


def test_a_reason_that_is_a_warning_is_shown_once():
    text = "spec.targetRef: it selects no proxy (KG005)"
    change = ObjectChange("MeshTimeout", "t", "created", "default", proxies=0, why=text, warnings=(text,))
    plan = Plan(3, 0, (), (change,), (), (), ())
    for lines in (plan_text.lines(plan, {}), plan_markdown.lines(plan, {})):
        shown = "\n".join(lines)
        assert "created: changes no proxy\n" in shown
        assert shown.count("KG005") == 1
