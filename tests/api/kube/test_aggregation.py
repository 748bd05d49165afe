"""Aggregation: another server's group and version through this one, and nothing that it could take down."""

import json

import pytest

from koguma.kube.aggregation import TRUST_ANNOTATION
from tests import aggregated
from tests.aggregated import API_SERVICES, NAME, available
from tests.aggregated_server import GROUP, RESOURCE_ID, VERSION
from tests.control_plane import LocalControlPlane
from tests.custom_resources import definition_spec, definitions_of, version
from tests.kube_client import accepted, failure
from tests.waiting import until

pytestmark = pytest.mark.slow

ROOT = f"/apis/{GROUP}/{VERSION}"
NOTES = f"{ROOT}/namespaces/team/notes"
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = aggregated.new(tmp_path_factory.mktemp("server"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def plane(tmp_path_factory, server):
    with LocalControlPlane(tmp_path_factory.mktemp("cp"), **aggregated.settings(server.port)) as plane:
        assert plane("POST", API_SERVICES, server.document()).status == 201
        server.start(plane)
        yield plane


def note(name, text="hello"):
    kind = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "Note"}
    return {**kind, "metadata": {"name": name}, "text": text}


def discovered(plane):
    groups = plane("GET", "/apis", Accept=AGGREGATED).json["items"]
    (group,) = [each for each in groups if each["metadata"]["name"] == GROUP]
    return group["versions"][0]


def test_objects_of_the_other_server_are_reached_through_ours(plane):
    created = plane("POST", NOTES, note("first"))
    assert created.status == 201, created.body
    assert created.json["metadata"]["annotations"]["author"] == "mesh-system:admin"
    assert plane("GET", f"{NOTES}/first").json["text"] == "hello"
    assert [each["metadata"]["name"] for each in plane("GET", NOTES).json["items"]] == ["first"]
    missing = plane("GET", f"{NOTES}/none")
    assert (missing.status, missing.json["reason"]) == (404, "NotFound"), "its own errors come back"
    with plane.watch(f"{ROOT}/notes?watch=true") as watch:
        assert watch.next()["object"]["metadata"]["name"] == "first"
        plane("POST", NOTES, note("second"))
        assert watch.next()["object"]["metadata"]["name"] == "second"
    assert plane("DELETE", f"{NOTES}/second").status == 200


def test_its_resource_ids_are_passed_on_untouched_in_both_forms_of_discovery(plane):
    (resource,) = plane("GET", ROOT).json["resources"]
    assert resource["resourceID"] == RESOURCE_ID
    version = discovered(plane)
    assert (version["freshness"], version["resources"][0]["resourceID"]) == ("Current", RESOURCE_ID)
    assert version["resources"][0]["responseKind"]["kind"] == "Note"
    assert plane("GET", f"/apis/{GROUP}").json["preferredVersion"]["version"] == VERSION
    index = plane("GET", "/openapi/v3").json["paths"]
    described = plane("GET", index[f"apis/{GROUP}/{VERSION}"]["serverRelativeURL"]).json
    assert "com.example.notes.v1.Note" in described["components"]["schemas"]


def test_who_asks_is_said_by_us_alone(plane):
    plane("POST", NOTES, note("mine"))
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "notes"},
        "rules": [{"apiGroups": [GROUP], "resources": ["notes", "notes/headers"], "verbs": ["get"]}],
    }
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    assert plane("POST", f"{rbac}/clusterroles", role).status == 201
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "notes"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "notes"},
        "subjects": [{"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}],
    }
    assert plane("POST", f"{rbac}/clusterrolebindings", binding).status == 201
    token = plane("POST", "/tokens/user", {"name": "ann", "groups": ["team-a"], "validFor": "1h"}).text
    spoofed = {
        "Authorization": f"Bearer {token}",
        "X_Remote_User": "system:admin",
        "x_remote_group": "system:masters",
        "X_Remote_Extra_Scopes": "all",
        "X_Forwarded_For": "10.0.0.1",
        "Cookie": "session=1",
    }
    answer = plane("GET", f"{NOTES}/mine/headers", **spoofed)
    assert answer.status == 200, answer.body
    got = [(name.lower(), value) for name, value in answer.json]
    assert [value for name, value in got if name == "x-remote-user"] == ["ann"]
    groups = [value for name, value in got if name == "x-remote-group"]
    assert "team-a" in groups
    assert "system:authenticated" in groups
    assert "system:masters" not in groups
    names = {name for name, _ in got}
    assert names.isdisjoint({"authorization", "cookie", "x-remote-extra-scopes", "impersonate-user"})
    assert [value for name, value in got if name == "x-forwarded-for"] == ["127.0.0.1"]
    as_ann = {"Authorization": f"Bearer {token}"}
    for method, path in (
        ("GET", NOTES),
        ("POST", NOTES),
        ("DELETE", f"{NOTES}/mine"),
        ("GET", f"{ROOT}/notes"),
    ):
        refused = plane(method, path, note("x") if method == "POST" else None, **as_ann)
        assert refused.status == 403, (method, path)
        assert 'User "ann" cannot' in refused.json["message"]
    assert plane("GET", f"{NOTES}/mine", Authorization="Bearer nonsense").status == 401


def test_a_path_cannot_lead_out_of_the_group(plane):
    for path in (f"{ROOT}/%2e%2e/%2e%2e/secret", f"{ROOT}/namespaces//notes", f"{ROOT}/..%2Fx"):
        assert plane("GET", path).status in (400, 404), path


def test_an_equal_id_counts_for_a_quota_only_where_an_administrator_trusts_the_server(plane, server):
    (local,) = [
        each["resourceID"]
        for each in plane("GET", "/api/v1").json["resources"]
        if each["name"] == "configmaps"
    ]
    quotas = "/api/v1/namespaces/team-q/resourcequotas"
    assert plane("POST", "/api/v1/namespaces", _named("Namespace", "team-q")).status == 201
    assert plane("POST", f"{NOTES}", {**note("take-id"), "resourceID": local}).status == 201
    available(plane, asks=True)
    until(lambda: discovered(plane)["resources"][0]["resourceID"] == local)
    quota = {**_named("ResourceQuota", "notes"), "spec": {"hard": {f"count/notes.{GROUP}": "1"}}}
    refused = plane("POST", quotas, quota)
    assert "limits nothing" in str(refused.headers)
    for name in ("a", "b"):
        assert plane("POST", "/api/v1/namespaces/team-q/configmaps", _named("ConfigMap", name)).status == 201
    trust = {"metadata": {"annotations": {TRUST_ANNOTATION: "true"}}}
    merge = {"Content_Type": "application/merge-patch+json"}
    assert plane("PATCH", f"{API_SERVICES}/{NAME}", trust, **merge).status == 200
    third = plane("POST", "/api/v1/namespaces/team-q/configmaps", _named("ConfigMap", "c"))
    assert (third.status, "exceeded quota: notes" in third.json["message"]) == (403, True)
    assert plane("DELETE", f"{NOTES}/take-id").status == 200
    trust["metadata"]["annotations"][TRUST_ANNOTATION] = None
    assert plane("PATCH", f"{API_SERVICES}/{NAME}", trust, **merge).status == 200


def _named(kind, name):
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"group": "kuma.io"}, "spec.group"),
        ({"insecureSkipTLSVerify": True, "caBundle": None}, "spec.insecureSkipTLSVerify"),
        ({"caBundle": "bm90aGluZw=="}, "spec.caBundle"),
        ({"service": None}, "spec.service"),
        ({"service": {"namespace": "outside", "name": "a.b"}}, "spec.service.name"),
        ({"groupPriorityMinimum": 0}, "spec.groupPriorityMinimum"),
        ({"version": "v2"}, "metadata.name"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_field(plane, server, spec, field):
    document = server.document(**{"group": "wrong.example.com", **spec})
    document["metadata"]["name"] = f"v1.{document['spec']['group']}"
    answer = plane("POST", API_SERVICES, document)
    assert answer.status == 422, answer.body
    assert field in [cause["field"] for cause in answer.json["details"]["causes"]]


def test_a_definition_takes_no_version_from_another_server(plane):
    definitions = definitions_of(plane)
    spec = definition_spec(version("v0"), version(VERSION, storage=False), kind="Note", group=GROUP)
    refused = definitions.create(f"notes.{GROUP}", spec=spec)
    assert failure(refused) == (422, "Invalid"), refused.body
    assert (
        f"spec.versions[1].name: Forbidden: another server serves it, by the APIService {NAME}"
        in (refused.json["message"])
    )
    assert plane("GET", NOTES).status == 200


def test_another_server_is_asked_when_the_definition_of_its_version_has_gone(plane, server):
    group = "both.example.com"
    definitions, name = definitions_of(plane), f"widgets.{group}"
    accepted(definitions.create(name, spec=definition_spec(group=group)))
    document = server.document(group=group) | {"metadata": {"name": f"v1.{group}"}}
    assert plane("POST", API_SERVICES, document).status == 201

    def reasons():
        status = plane("GET", f"{API_SERVICES}/v1.{group}").json.get("status") or {}
        return [each["reason"] for each in status.get("conditions") or ()]

    until(lambda: reasons() == ["Local"])
    assert plane("GET", f"/apis/{group}/v1/widgets").status == 200
    assert definitions.delete(name).status == 200
    until(lambda: reasons() == ["FailedDiscoveryCheck"], "its server is asked, and serves another group")
    assert plane("GET", f"/apis/{group}/v1/widgets").status == 503
    assert plane("DELETE", f"{API_SERVICES}/v1.{group}").status == 200


def test_an_address_that_no_operator_allowed_is_never_called(plane, server):
    elsewhere = {"namespace": "outside", "name": "elsewhere", "port": server.port}
    document = server.document(group="other.example.com", service=elsewhere)
    document["metadata"]["name"] = f"{VERSION}.other.example.com"
    assert plane("POST", API_SERVICES, document).status == 201
    path = f"{API_SERVICES}/{VERSION}.other.example.com"

    def condition() -> dict[str, str]:
        return next(iter((plane("GET", path).json.get("status") or {}).get("conditions") or ()), {})

    until(lambda: "elsewhere.outside.svc" in condition().get("message", ""))
    assert (condition()["status"], condition()["reason"]) == ("False", "FailedDiscoveryCheck")
    assert "outgoingServices" in condition()["message"]
    assert plane("GET", "/apis/other.example.com/v1/notes").status == 503
    assert plane("DELETE", path).status == 200
    assert plane("GET", "/apis/other.example.com/v1/notes").status == 404


def test_a_server_with_another_certificate_is_not_believed(plane, server):
    other = aggregated.new(server._folder / "other")
    document = other.document()
    assert plane("PUT", f"{API_SERVICES}/{NAME}", document).status == 200
    until(lambda: available(plane) == "False")

    def reason() -> str:
        return plane("GET", f"{API_SERVICES}/{NAME}").json["status"]["conditions"][0]["message"]

    until(lambda: "certificate" in reason())  # at first it was not asked yet
    assert plane("PUT", f"{API_SERVICES}/{NAME}", server.document()).status == 200
    until(lambda: available(plane) == "True")


def test_a_stopped_server_is_shown_and_takes_nothing_else_down(plane, server):
    server.stop()
    until(lambda: available(plane, asks=True) == "False")
    answer = plane("GET", NOTES)
    assert (answer.status, answer.headers["Content-Type"]) == (503, "text/plain; charset=utf-8")
    assert discovered(plane) == {"version": VERSION, "freshness": "Stale", "resources": []}
    assert GROUP in json.dumps(plane("GET", "/apis").json)
    assert plane("GET", "/apis/kuma.io/v1alpha1/meshtimeouts").status == 200
    assert plane("GET", "/openapi/v3").status == 200
    checks = [each for each in plane("GET", "/_check").json["checks"] if each["name"] == "aggregation"]
    assert NAME in str(checks[0])
    server.start(plane)
    assert plane("GET", NOTES).status == 200


def test_a_removed_api_service_leaves_discovery_at_once(plane, server):
    document = server.document()
    assert plane("DELETE", f"{API_SERVICES}/{NAME}").status == 200
    assert GROUP not in json.dumps(plane("GET", "/apis").json)
    assert plane("GET", NOTES).status == 404
    assert plane("POST", API_SERVICES, document).status == 201
    until(lambda: available(plane) == "True")
    assert plane("GET", NOTES).status == 200
