"""Tokens of service accounts: who may make them, whom they stand for, for whom they are, when they end."""

import base64
import json

import jwt
import pytest

from koguma.cli import main
from tests.control_plane import LocalControlPlane
from tests.kube_client import CORE, RBAC, KubeClient, accepted, bind_role, create_role, failure
from tests.waiting import until

TOKEN_REQUEST = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
TOKEN_REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
ISSUER = "https://koguma.local"


@pytest.fixture
def accounts(config_maps):
    return config_maps.other(kind="ServiceAccount")


def requested(accounts, name="bot", query=(), headers=None, **spec):
    document = {**TOKEN_REQUEST, "spec": spec}
    return accounts.send("POST", f"{name}/token", document, query, **(headers or {}))


def token_of(accounts, name="bot", **spec):
    return accepted(requested(accounts, name, **spec))["status"]["token"]


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def reviewed(plane, token, *audiences):
    document = {**TOKEN_REVIEW, "spec": {"token": token, "audiences": list(audiences)}}
    return accepted(plane("POST", "/apis/authentication.k8s.io/v1/tokenreviews", document))["status"]


def whoami(plane, token):
    document = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    return plane("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", document, **bearer(token))


def test_a_token_stands_for_its_account_and_has_its_rights(plane, accounts, config_maps):
    account = accepted(accounts.create("bot"))
    answer = requested(accounts)
    request = accepted(answer)
    assert answer.headers["Cache-Control"] == "no-store"
    assert request["spec"] == {"audiences": ["koguma", ISSUER], "expirationSeconds": 3600}
    assert request["metadata"]["name"] == "bot"
    token = request["status"]["token"]
    user = accepted(whoami(plane, token))["status"]["userInfo"]
    space = accounts.namespace
    assert user["username"] == f"system:serviceaccount:{space}:bot"
    assert user["uid"] == account["metadata"]["uid"]
    assert set(user["groups"]) >= {
        "system:serviceaccounts",
        f"system:serviceaccounts:{space}",
        "system:authenticated",
    }
    assert list(user["extra"]) == ["authentication.kubernetes.io/credential-id"]
    assert failure(config_maps.send("GET", "", **bearer(token))) == (403, "Forbidden")
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    subject = {"kind": "ServiceAccount", "name": "bot", "namespace": space}
    accepted(accounts.other(RBAC, "RoleBinding").create("bots", roleRef=ref, subjects=[subject]))
    assert config_maps.send("GET", "", **bearer(token)).status == 200
    elsewhere = config_maps.other(namespace="default")
    assert failure(elsewhere.send("GET", "", **bearer(token))) == (403, "Forbidden")


def test_a_token_ends_with_its_account_and_with_the_secret_that_it_is_bound_to(plane, accounts):
    accepted(accounts.create("bot"))
    secrets = accounts.other(kind="Secret")
    uid = accepted(secrets.create("lifeline"))["metadata"]["uid"]
    free = token_of(accounts)
    reference = {"kind": "Secret", "apiVersion": "v1", "name": "lifeline"}
    bound = token_of(accounts, boundObjectRef={**reference, "uid": uid})
    assert whoami(plane, bound).status == whoami(plane, free).status == 201
    assert failure(requested(accounts, boundObjectRef={**reference, "uid": "other"})) == (409, "Conflict")
    accepted(secrets.delete("lifeline"))
    accepted(secrets.create("lifeline"))
    assert whoami(plane, bound).status == 401
    assert whoami(plane, free).status == 201
    assert failure(requested(accounts, boundObjectRef={**reference, "name": "none"})) == (404, "NotFound")
    accepted(accounts.delete("bot"))
    assert whoami(plane, free).status == 401
    accepted(accounts.create("bot"))
    assert whoami(plane, free).status == 401
    assert "has been deleted" in reviewed(plane, free)["error"]


def test_a_watch_ends_with_the_token_that_opened_it(plane, accounts, config_maps):
    accepted(accounts.create("bot"))
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    subject = {"kind": "ServiceAccount", "name": "bot", "namespace": accounts.namespace}
    accepted(accounts.other(RBAC, "RoleBinding").create("bots", roleRef=ref, subjects=[subject]))
    token = token_of(accounts)
    with plane.watch(f"{config_maps.path}?watch=true", **bearer(token)) as watch:
        accepted(config_maps.create("a"))
        assert watch.next()["object"]["metadata"]["name"] == "a"
        accepted(accounts.delete("bot"))
        assert watch.next()["object"]["code"] == 401


def test_a_token_is_good_for_its_audiences_only(plane, accounts):
    accepted(accounts.create("bot"))
    token = token_of(accounts, audiences=["vault", "db"], expirationSeconds=600)
    refused = whoami(plane, token)
    assert refused.status == 401
    assert reviewed(plane, token, "db", "cache")["audiences"] == ["db"]
    assert "authenticated" not in reviewed(plane, token)
    assert "none of the asked audiences" in reviewed(plane, token, "cache")["error"]
    usual = reviewed(plane, token_of(accounts))
    assert usual["authenticated"] is True
    assert usual["audiences"] == ["koguma", ISSUER]


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"expirationSeconds": 599}, 422),
        ({"expirationSeconds": -1}, 422),
        ({"expirationSeconds": 0}, 422),
        ({"expirationSeconds": (1 << 32) + 1}, 422),
        ({"expirationSeconds": "1h"}, 422),
        ({"audiences": "vault"}, 422),
        ({"audiences": ["x" * 3000]}, 422),
        ({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "web"}}, 404),
        ({"boundObjectRef": {"kind": "ConfigMap", "apiVersion": "v1", "name": "web"}}, 400),
    ],
)
def test_what_cannot_be_requested(accounts, spec, code):
    accepted(accounts.create("bot"))
    assert failure(requested(accounts, **spec))[0] == code


def test_who_asks_for_a_token_needs_that_very_right(plane, accounts):
    accepted(accounts.create("bot"))
    assert failure(requested(accounts, "nobody")) == (404, "NotFound")
    user = bearer(plane("POST", "/tokens/user", {"name": "tina", "groups": [], "validFor": "1h"}).text)
    refused = requested(accounts, headers=user)
    assert failure(refused) == (403, "Forbidden")
    assert 'cannot create resource "serviceaccounts/token"' in refused.json["message"]
    bind_role(plane, "tina", "edit", accounts.namespace)
    assert failure(requested(accounts, headers=user)) == (403, "Forbidden")
    create_role(
        plane,
        f"tokens-{accounts.namespace}",
        {
            "verbs": ["create"],
            "apiGroups": [""],
            "resources": ["serviceaccounts/token"],
            "resourceNames": ["bot"],
        },
    )
    bind_role(plane, "tina", f"tokens-{accounts.namespace}", accounts.namespace)
    assert requested(accounts, headers=user).status == 201
    accepted(accounts.create("other"))
    assert failure(requested(accounts, "other", headers=user)) == (403, "Forbidden")


def test_a_token_is_revoked_as_any_other(plane, accounts):
    accepted(accounts.create("bot"))
    token = token_of(accounts)
    assert whoami(plane, token).status == 201
    asked = {"token": token}
    assert plane("POST", "/tokens/_review", asked).json["valid"] is True
    assert main(("token", "revoke", "service-account", token, "--address", plane.address)) == 0
    assert whoami(plane, token).status == 401
    review = plane("POST", "/tokens/_review", asked).json
    assert (review["valid"], review["reason"]) == (False, "token is revoked")


def test_a_dry_run_gives_no_token(accounts):
    accepted(accounts.create("bot"))
    assert accepted(requested(accounts, query={"dryRun": "All"}))["status"]["token"] == ""


def test_others_verify_a_token_with_the_published_keys(plane, accounts):
    accepted(accounts.create("bot"))
    token = token_of(accounts, audiences=["vault"])
    configuration = plane("GET", "/.well-known/openid-configuration").json
    assert configuration["issuer"] == ISSUER
    assert configuration["jwks_uri"] == f"{ISSUER}/openid/v1/jwks"
    keys = jwt.PyJWKSet.from_dict(plane("GET", "/openid/v1/jwks").json)
    header = jwt.get_unverified_header(token)
    claims = jwt.decode(token, keys[header["kid"]].key, ["RS256"], audience="vault", issuer=ISSUER)
    assert claims["sub"] == f"system:serviceaccount:{accounts.namespace}:bot"
    assert claims["kubernetes.io"]["serviceaccount"]["name"] == "bot"
    headers = {"X_Forwarded_For": "192.0.2.1"}
    assert plane("GET", "/openid/v1/jwks", **headers).status == 403
    assert plane("GET", "/openid/v1/jwks", **bearer(token_of(accounts))).status == 200


def test_a_key_is_rotated_without_ending_tokens_and_is_retired_with_them(plane, accounts):
    accepted(accounts.create("bot"))
    old = token_of(accounts)
    name = "service-account-token-signing-key"
    first = plane("GET", f"/global-secrets/{name}-1").json["data"]
    fresh = plane("GET", "/global-secrets/user-token-signing-key-1").json["data"]
    second = {"type": "GlobalSecret", "name": f"{name}-2", "data": fresh}
    assert plane("PUT", f"/global-secrets/{name}-2", second).status == 201
    new = token_of(accounts)
    assert jwt.get_unverified_header(new)["kid"] == "2"
    assert [key["kid"] for key in plane("GET", "/openid/v1/jwks").json["keys"]] == ["1", "2"]
    assert whoami(plane, old).status == whoami(plane, new).status == 201
    assert plane("DELETE", f"/global-secrets/{name}-1").status == 200
    assert whoami(plane, old).status == 401
    assert whoami(plane, new).status == 201
    again = {"type": "GlobalSecret", "name": f"{name}-1", "data": first}
    assert plane("PUT", f"/global-secrets/{name}-1", again).status == 201
    assert plane("DELETE", f"/global-secrets/{name}-2").status == 200


def test_a_token_of_an_account_is_no_user_token_nor_the_other_way_round(plane, accounts):
    """Even signed with the right key of the other purpose, since its claims are not those."""
    accepted(accounts.create("bot"))
    token_of(accounts)
    keys = {
        purpose: base64.b64decode(plane("GET", f"/global-secrets/{purpose}-token-signing-key-1").json["data"])
        for purpose in ("user", "service-account")
    }
    times = {"jti": "1", "iat": 0, "nbf": 0, "exp": 4102444800}
    account = {"namespace": accounts.namespace, "serviceaccount": {"name": "bot", "uid": "1"}}
    as_account = {**times, "aud": ["koguma"], "sub": "x", "kubernetes.io": account}
    as_admin = {**times, "Name": "mesh-system:admin", "Groups": ["mesh-system:admin"]}
    for claims, purpose in (
        (as_account, "user"),
        (as_admin, "service-account"),
        ({**as_admin, **as_account}, "user"),
        ({**as_admin, **as_account}, "service-account"),
        (as_account, "service-account"),  # of an account with another uid
    ):
        forged = jwt.encode(claims, keys[purpose], "RS256", headers={"kid": "1"})
        assert whoami(plane, forged).status == 401, (json.dumps(claims), purpose)


def test_every_control_plane_of_a_store_knows_the_tokens(tmp_path, postgres):
    url = postgres.database()
    with (
        LocalControlPlane(tmp_path / "one", store=url) as one,
        LocalControlPlane(tmp_path / "two", store=url) as two,
    ):
        accounts = KubeClient(one, "team", CORE, "ServiceAccount")
        accepted(accounts.create("bot"))
        token = token_of(accounts)
        until(lambda: reviewed(two, token).get("authenticated"), "the other one has it, too")
        assert reviewed(two, token)["user"]["username"] == "system:serviceaccount:team:bot"
        accepted(KubeClient(two, "team", CORE, "ServiceAccount").delete("bot"))
        assert whoami(two, token).status == 401
