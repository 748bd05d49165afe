"""Files on the machines of proxies, and patches of their configuration, need rights of their own."""

import pytest

from koguma.kube import rbac_defaults
from koguma.kube.rbac_defaults import PROXY_FILES, USE
from koguma.main import all_kinds
from koguma.model import typed_parts
from koguma.model.typed_parts import PROXY_ADDRESS, PROXY_FILE
from tests.control_plane import LocalControlPlane
from tests.kube_client import bind_role, create_role

KINDS = all_kinds()
RBAC = "/apis/rbac.authorization.k8s.io/v1"
KUBE = "/apis/kuma.io/v1alpha1/namespaces/mesh-default"
PLAIN = "/meshes/default"
DRY = "dryRun=All"
FILE = "/var/log/koguma/a.log"


@pytest.fixture
def plane(tmp_path):
    with LocalControlPlane(tmp_path) as plane:
        bind_role(plane, "editor", "edit")
        bind_role(plane, "keeper", "admin")
        yield plane


def allow(plane, user, *names):
    rule = {"verbs": [USE], "apiGroups": ["koguma.io"], "resources": [PROXY_FILES]}
    create_role(plane, "files", {**rule, **({"resourceNames": list(names)} if names else {})})
    bind_role(plane, user, "files")


def log(path, plain="a line"):
    backend = {"type": "File", "file": {"path": path, "format": {"type": "Plain", "plain": plain}}}
    return {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"backends": [backend]}}]}


def health(path):
    return {"to": [{"targetRef": {"kind": "Mesh"}, "default": {"tcp": {}, "eventLogPath": path}}]}


def external(path):
    match = {"type": "InternalVIP", "value": "a.ext", "port": 80, "protocol": "http"}
    destination = {"type": "Regular", "endpoints": [{"address": "10.0.0.1"}, {"address": f"unix://{path}"}]}
    return {"match": [match], "destination": destination}


SPECS = {"MeshAccessLog": log, "MeshHealthCheck": health, "MeshExternalService": external}


def test_every_kind_that_names_files_or_sockets_of_proxies_is_in_this_table():
    markers = frozenset({PROXY_FILE, PROXY_ADDRESS})
    assert {kind.name for kind in KINDS if typed_parts.holds(kind.spec, markers)} == set(SPECS)


def doors(kind, spec):
    """Every way to try to write a policy: method, path, body, headers."""
    plural = KINDS[kind].plural
    plain = {"type": kind, "mesh": "default", "name": "a", "spec": spec}
    kube = {
        "apiVersion": "kuma.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": "a", "namespace": "mesh-default"},
        "spec": spec,
    }
    clean = {**kube, "apiVersion": "koguma.io/v1"}
    return (
        ("PUT", f"{PLAIN}/{plural}/a?{DRY}", plain, {}),
        ("POST", f"/_apply?{DRY}", [plain], {}),
        ("POST", f"/_apply?{DRY}", [kube], {}),
        ("POST", f"{KUBE}/{plural}?{DRY}", kube, {}),
        ("POST", f"/apis/koguma.io/v1/namespaces/mesh-default/{plural}?{DRY}", clean, {}),
        (
            "PATCH",
            f"{KUBE}/{plural}/a?fieldManager=t&{DRY}",
            kube,
            {"Content_Type": "application/apply-patch+yaml"},
        ),
    )


@pytest.mark.parametrize("kind", SPECS)
def test_a_file_or_a_socket_needs_its_right_at_every_door(plane, kind):
    for method, path, body, headers in doors(kind, SPECS[kind](FILE)):
        refused = plane(method, path, body, Impersonate_User="editor", **headers)
        assert refused.status == 403, (path, refused.body)
        assert f'use proxyfiles.koguma.io \\"{FILE}\\"'.encode() in refused.body, refused.body
        assert b"--clusterrole=admin" in refused.body, "who can allow it, and how"
        allowed = plane(method, path, body, Impersonate_User="keeper", **headers)
        assert allowed.status in (200, 201), (path, allowed.body)


def test_streams_of_the_process_need_no_right_and_what_was_there_may_stay(plane):
    path = f"{PLAIN}/meshaccesslogs/a"

    def write(spec, user):
        body = {"type": "MeshAccessLog", "mesh": "default", "name": "a", "spec": spec}
        return plane("PUT", path, body, Impersonate_User=user).status

    assert write(log("/dev/stdout"), "editor") == 201
    assert write(log(FILE), "editor") == 403
    assert write(log(FILE), "keeper") == 200
    assert write(log(FILE, "another line"), "editor") == 200
    assert write(log("/var/log/koguma/b.log"), "editor") == 403


def test_a_socket_needs_its_right_and_what_was_there_may_stay(plane):
    path, socket = f"{PLAIN}/meshexternalservices/a", "/var/run/docker.sock"

    def write(spec, user):
        body = {"type": "MeshExternalService", "mesh": "default", "name": "a", "spec": spec}
        return plane("PUT", path, body, Impersonate_User=user)

    only_addresses = external(socket)
    del only_addresses["destination"]["endpoints"][1]
    assert write(only_addresses, "editor").status == 201, "other addresses need no right"
    refused = write(external(socket), "editor")
    assert refused.status == 403
    assert "spec.destination.endpoints[1].address" in refused.json["detail"]
    patch = [{"op": "replace", "path": "/spec/destination/endpoints/0/address", "value": f"unix://{socket}"}]
    headers = {"Content_Type": "application/json-patch+json", "Impersonate_User": "editor"}
    for door in (path, f"{KUBE}/meshexternalservices/a"):
        assert plane("PATCH", door, patch, **headers).status == 403
    assert write(external(socket), "keeper").status == 200
    renamed = external(socket)
    renamed["match"][0]["value"] = "b.ext"
    assert write(renamed, "editor").status == 200
    assert write(external("/run/containerd/containerd.sock"), "editor").status == 403


def test_a_role_may_allow_one_file_and_reviews_say_so(plane):
    allow(plane, "editor", FILE)

    def may(name):
        attributes = {"verb": USE, "group": "koguma.io", "resource": PROXY_FILES, "name": name}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        return plane("POST", path, body, Impersonate_User="editor").json["status"]["allowed"]

    assert may(FILE)
    assert not may("/etc/passwd")
    path, body = f"{PLAIN}/meshaccesslogs/a", {"type": "MeshAccessLog", "mesh": "default", "name": "a"}
    assert plane("PUT", path, {**body, "spec": log(FILE)}, Impersonate_User="editor").status == 201
    assert plane("PUT", path, {**body, "spec": log("/etc/x")}, Impersonate_User="editor").status == 403


def test_edit_does_not_write_patches_and_admin_does(plane):
    change = {"cluster": {"operation": "Add", "value": "name: a\nconnect_timeout: 5s\ntype: STATIC"}}
    spec = {"default": {"appendModifications": [change]}}
    for method, path, body, headers in doors("MeshProxyPatch", spec):
        assert plane(method, path, body, Impersonate_User="editor", **headers).status == 403, path
        allowed = plane(method, path, body, Impersonate_User="keeper", **headers)
        assert allowed.status in (200, 201), (path, allowed.body)
    assert plane("GET", f"{PLAIN}/meshproxypatches", Impersonate_User="editor").status == 200


def test_an_older_stores_edit_role_loses_patches_where_nobody_changed_it(tmp_path):
    store = f"sqlite:///{tmp_path}/store.db"
    with LocalControlPlane(tmp_path, store=store) as plane:
        path = f"{RBAC}/clusterroles/system:aggregate-to-edit"
        role = plane("GET", path).json
        old = rbac_defaults.retired_rules(KINDS)
        own = {"verbs": ["create"], "apiGroups": ["kuma.io"], "resources": ["meshproxypatches"]}
        kept = [rule for rule in role["rules"] if "meshtimeouts" not in rule["resources"]]
        assert plane("PUT", path, {**role, "rules": [*old, *kept, own]}).status == 200
    with LocalControlPlane(tmp_path, store=store) as plane:
        rules = plane("GET", path).json["rules"]
        patching = [rule for rule in rules if "meshproxypatches" in rule["resources"]]
        assert patching == [own], "what somebody wrote himself stays"
        assert any("meshtimeouts" in rule["resources"] for rule in rules)
