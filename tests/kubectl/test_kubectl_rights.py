"""Rights with the real kubectl: what no rule opens is closed, also on other paths to the same objects."""

import json

import jwt
import pytest

from tests.kubectl.documents import route, timeout

pytestmark = pytest.mark.slow

KNOWS_WHOAMI = 27
CREATES_TOKENS = 24


@pytest.fixture
def reader(kube):
    """A ClusterRole that is bound in the test's namespace to its user."""
    name = f"{kube.namespace}-reader"
    kube("create", "clusterrole", name, "--verb=get,list,watch", "--resource=meshtimeouts.kuma.io")
    kube.applied(timeout())
    kube.applied(route())
    kube("create", "rolebinding", "readers", f"--clusterrole={name}", "--user=ann", "--group=readers")
    yield kube
    kube("delete", "clusterrole", name)


def denied(verb, plural, group, where):
    return f'cannot {verb} resource "{plural}" in API group "{group}" {where}'


def test_a_user_sees_what_is_bound_and_nothing_else(reader):
    ann, here = reader.of_user("ann"), f'in the namespace "{reader.namespace}"'
    assert ann("get", "mt", "-o", "name") == "meshtimeout.kuma.io/slow"
    refused = ann.refused("get", "mhttpr")
    assert (
        f'meshhttproutes.kuma.io is forbidden: User "ann" {denied("list", "meshhttproutes", "kuma.io", here)}'
        in refused
    )
    alias = ann.refused("get", "meshtimeouts.koguma.io")
    assert f'User "ann" {denied("list", "meshtimeouts", "koguma.io", here)}' in alias
    assert denied("get", "meshtimeouts", "koguma.io", here) in ann.refused(
        "get", "meshtimeouts.koguma.io/slow"
    )
    assert denied("list", "meshtimeouts", "kuma.io", "at the cluster scope") in ann.refused("get", "mt", "-A")
    assert denied("delete", "meshtimeouts", "kuma.io", here) in ann.refused("delete", "mt", "slow")
    patch = ("patch", "mt", "slow", "--type=merge", "-p", "{}")
    assert denied("patch", "meshtimeouts", "kuma.io", here) in ann.refused(*patch)
    assert denied("create", "meshtimeouts", "kuma.io", here) in ann.refused(
        "create", "-f", "-", "--validate=false", stdin=json.dumps(timeout("mine"))
    )
    assert denied("list", "secrets", "", here) in ann.refused("get", "secrets")
    rest = f"/meshes/default/meshtimeouts/slow.{reader.namespace}"
    assert "Forbidden" in ann.refused("get", "--raw", rest)
    everything = ann.refused("get", "--raw", "/config")
    assert "Forbidden" in everything


def test_rights_that_are_taken_away_are_gone_at_once(reader):
    ann = reader.of_user("ann")
    assert ann("auth", "can-i", "list", "mt") == "yes"
    reader("delete", "rolebinding", "readers")
    assert ann.run("auth", "can-i", "list", "mt").out == "no\n"
    assert "Forbidden" in ann.refused("get", "mt")


def test_everybody_can_ask_what_he_may(reader):
    ann = reader.of_user("ann", "devs")
    assert ann("auth", "can-i", "get", "meshtimeouts.kuma.io") == "yes"
    assert ann.run("auth", "can-i", "get", "meshtimeouts.koguma.io").out == "no\n"
    assert ann.run("auth", "can-i", "delete", "mt/slow").code == 1
    assert ann.run("auth", "can-i", "list", "mt", "-A").out == "no\n"
    assert ann("auth", "can-i", "get", "/apis/kuma.io") == "yes"
    assert ann.run("auth", "can-i", "get", "/config").out == "no\n"
    listed = ann.run("auth", "can-i", "--list").rows
    assert ["meshtimeouts.kuma.io", "[]", "[]", "[get", "list", "watch]"] in listed
    assert len(listed) == len({tuple(row) for row in listed})
    assert ["*.*", "[]", "[]", "[*]"] in reader.run("auth", "can-i", "--list").rows
    assert reader("auth", "can-i", "*", "*") == "yes"
    if reader.minor >= KNOWS_WHOAMI:
        assert ["Username", "ann"] in ann.run("auth", "whoami").rows
        who = json.loads(ann("auth", "whoami", "-o", "json"))["status"]["userInfo"]
        assert {"devs", "system:authenticated"} <= set(who["groups"])


def test_the_administrator_can_act_as_others_and_they_cannot(reader):
    bot = f"system:serviceaccount:{reader.namespace}:bot"
    assert reader("get", "mt", "-o", "name", "--as=ann") == "meshtimeout.kuma.io/slow"
    assert reader("get", "mt", "-o", "name", "--as=bob", "--as-group=readers") == "meshtimeout.kuma.io/slow"
    assert 'User "bob" cannot list' in reader.refused("get", "mt", "--as=bob")
    assert reader.run("auth", "can-i", "list", "mt", "--as=bob").out == "no\n"
    assert f'User "{bot}" cannot list' in reader.refused("get", "mt", f"--as={bot}")
    reader(
        "create",
        "rolebinding",
        "bots",
        f"--clusterrole={reader.namespace}-reader",
        f"--serviceaccount={reader.namespace}:bot",
    )
    assert reader("get", "mt", "-o", "name", f"--as={bot}") == "meshtimeout.kuma.io/slow"
    ann = reader.of_user("ann")
    refused = ann.refused("get", "mt", "--as=mesh-system:admin")
    assert 'cannot impersonate resource "users"' in refused


def test_nobody_gives_more_rights_than_he_has(reader):
    here = reader.namespace
    reader(
        "create", "role", "binder", "--verb=create,get", "--resource=rolebindings.rbac.authorization.k8s.io"
    )
    reader("create", "rolebinding", "binders", "--role=binder", "--user=ann")
    ann = reader.of_user("ann")
    own = ("create", "rolebinding", "friends", f"--clusterrole={here}-reader", "--user=bob")
    assert ann(*own).endswith("created")
    more = ann.refused("create", "rolebinding", "masters", "--clusterrole=cluster-admin", "--user=bob")
    assert "attempting to grant RBAC permissions not currently held" in more
    wrong = ann.refused("create", "role", "more", "--verb=get", "--resource=secrets")
    assert denied("create", "roles", "rbac.authorization.k8s.io", f'in the namespace "{here}"') in wrong


def test_reconcile_adds_what_is_missing_and_no_more(reader):
    group, here = "rbac.authorization.k8s.io", {"name": "given", "namespace": reader.namespace}
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]
    role = {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": here, "rules": rules}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": here,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "given"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "ann"}],
    }
    both = json.dumps({"apiVersion": "v1", "kind": "List", "items": [role, binding]})
    reader("auth", "reconcile", "-f", "-", stdin=both)
    made = reader.get("rolebinding", "given")
    reader("auth", "reconcile", "-f", "-", stdin=both)
    assert reader.get("rolebinding", "given") == made
    reader("set", "subject", "rolebinding", "given", "--user=bob")
    subjects = reader.get("rolebinding", "given")["subjects"]
    assert [each["name"] for each in subjects] == ["ann", "bob"]
    other = json.dumps({"roleRef": {"name": "other"}})
    refused = reader.refused("patch", "rolebinding", "given", "--type=merge", "-p", other)
    assert "cannot change roleRef" in refused


def test_a_token_that_does_not_hold_is_refused(kube):
    refused = kube.refused("get", "cm", "--token=nonsense")
    assert "You must be logged in to the server" in refused


def test_a_key_in_an_object_is_hidden_and_survives_every_way_to_write_it(kube):
    key = "-----BEGIN PRIVATE KEY-----\nVeryPrivateText\n-----END PRIVATE KEY-----\n"
    certificate = {"clientCert": {"inlineString": "a certificate"}, "clientKey": {"inlineString": key}}
    name, kind, here = f"{kube.namespace}-bank", "meshexternalservices.kuma.io", ("-n", "mesh-default")
    service = {
        "apiVersion": "kuma.io/v1alpha1",
        "kind": "MeshExternalService",
        "metadata": {"name": name, "namespace": "mesh-default"},
        "spec": {
            "match": {"type": "HostnameGenerator", "port": 443, "protocol": "tcp"},
            "endpoints": [{"address": "bank.example.com", "port": 443}],
            "tls": {"enabled": True, "verification": certificate},
        },
    }
    kube("apply", "-f", "-", stdin=json.dumps(service))
    role = f"{kube.namespace}-services"
    kube("create", "clusterrole", role, "--verb=get,list,watch,update,patch", f"--resource={kind}")
    kube("create", "rolebinding", role, f"--clusterrole={role}", "--user=ann", *here)
    ann = kube.of_user("ann")

    def stored():
        document = json.loads(kube("get", kind, name, *here, "-o", "json"))
        return document["spec"]["tls"]["verification"]["clientKey"], document["spec"]["endpoints"][0]["port"]

    assert "VeryPrivateText" not in ann("get", kind, name, *here, "-o", "yaml")
    ann("edit", kind, name, *here, editor="sed -i 's/port: 443/port: 444/'")
    assert stored() == ({"inlineString": key}, 444)
    ann("patch", kind, name, *here, "--type=merge", "-p", '{"metadata":{"labels":{"a":"b"}}}')
    document = json.loads(ann("get", kind, name, *here, "-o", "json"))
    del document["metadata"]["resourceVersion"]
    document["spec"]["endpoints"][0]["port"] = 445
    ann("replace", "-f", "-", stdin=json.dumps(document))
    assert stored() == ({"inlineString": key}, 445)
    document["spec"]["endpoints"][0]["port"] = 446
    ann("apply", "-f", "-", stdin=json.dumps(document))
    assert stored() == ({"inlineString": key}, 446)
    kube("apply", "-f", "-", stdin=json.dumps(service))
    assert stored() == ({"inlineString": key}, 443)
    kube("delete", kind, name, *here)
    kube("delete", "rolebinding", role, *here)
    kube("delete", "clusterrole", role)


def test_a_token_of_a_service_account_is_used_as_any_other(kube):
    if kube.minor < CREATES_TOKENS:
        assert "unknown flag" in kube.refused("create", "token", "bot", "--duration=10m")
        return
    kube("create", "serviceaccount", "bot")
    kube("create", "rolebinding", "bots", "--clusterrole=view", f"--serviceaccount={kube.namespace}:bot")
    kube("create", "secret", "generic", "lifeline")
    words = ("--bound-object-kind=Secret", "--bound-object-name=lifeline", "--duration=10m")
    token = kube("create", "token", "bot", *words)
    bot = kube.with_token("bot", token)
    assert bot("get", "configmaps", "-o", "name") is not None
    assert "cannot create resource" in bot.refused("create", "configmap", "x")
    if kube.minor >= KNOWS_WHOAMI:
        assert f"system:serviceaccount:{kube.namespace}:bot" in bot("auth", "whoami")
    claims = jwt.decode(
        kube("create", "token", "bot", "--audience=vault"), options={"verify_signature": False}
    )
    assert claims["aud"] == ["vault"]
    kube("delete", "secret", "lifeline")
    assert "the Secret that the token is bound to has been deleted" in bot.refused("get", "configmaps")
    assert 'TokenRequest.authentication.k8s.io "bot" is invalid' in kube.refused(
        "create", "token", "bot", "--duration=9m"
    )
