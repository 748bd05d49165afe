"""Who may do what: tokens, rules, and pages that must not."""

import base64
import http.client
import ssl
from contextlib import closing

import pytest

from koguma.access.authorizer import Attempt, Authorizer, builtin_roles
from koguma.access.user import User
from koguma.main import all_kinds
from koguma.model.access import Binding, Role, Rule
from tests.build import timeout
from tests.control_plane import LocalControlPlane


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A control plane where localhost is nobody special, with a few rules."""
    data = tmp_path_factory.mktemp("guarded")
    file = data / "settings.yaml"
    file.write_text(
        """
        access:
          roles:
            - name: red-timeouts
              rules: [{verbs: [get, list, update, create], resources: [meshtimeouts], meshes: [red]}]
            - name: one-timeout
              rules: [{verbs: [get], resources: [meshtimeouts], names: [hidden-2]}]
          bindings:
            - {role: view, groups: [viewers]}
            - {role: red-timeouts, users: [rita]}
            - {role: one-timeout, users: [nina]}
        """
    )
    with LocalControlPlane(data, str(file), localhost_is_admin=False) as plane:
        for mesh in ("red", "blue"):
            document = {"type": "Mesh", "name": mesh, "skipCreatingInitialPolicies": ["*"]}
            assert plane("PUT", f"/meshes/{mesh}", document, **admin(plane)).status == 201
        yield plane


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def admin(plane):
    return bearer((plane.data_dir / "admin-token").read_text())


def user(plane, name, *groups, valid_for="1h"):
    body = {"name": name, "groups": list(groups), "validFor": valid_for}
    answer = plane("POST", "/tokens/user", body, **admin(plane))
    assert answer.status == 200
    return bearer(answer.body.decode())


def test_without_a_token_nobody_may_do_anything(guarded):
    answer = guarded("GET", "/meshes")
    assert (answer.status, answer.json["title"]) == (403, "Access Denied")
    assert answer.json["detail"] == (
        'user "mesh-system:anonymous/mesh-system:unauthenticated" cannot list meshes.rest.koguma.io:'
        " no access rule allows it; no token was sent: an administrator issues one with"
        " `koguma token user --name NAME --valid-for 24h`, and --token-file sends it; on the control"
        " plane's own machine its owner needs none: `koguma` finds api.sock in the data directory"
        " (KOGUMA_DATA_DIR), and curl takes it with --unix-socket"
    )
    assert guarded("GET", "/").status == 200
    assert guarded("GET", "/ready").status == 200
    assert guarded("GET", "/metrics").status == 403
    assert guarded("GET", "/config").status == 403


def test_no_body_is_read_for_who_may_write_nothing(guarded):
    broken = b"{" * 1000
    for path in ("/_apply", "/tokens/user", "/tokens/dataplane", "/tokens/zone"):
        assert guarded("POST", path, broken).status == 403
        assert guarded("POST", path, broken, **user(guarded, "vera", "viewers")).status == 403
    assert guarded("PUT", "/meshes/x", broken).status == 403


def test_the_admin_token_opens_everything(guarded):
    assert (guarded.data_dir / "admin-token").stat().st_mode & 0o777 == 0o600
    assert guarded("GET", "/who-am-i", **admin(guarded)).json["name"] == "mesh-system:admin"
    assert guarded("GET", "/globalsecrets", **admin(guarded)).status == 200


def test_a_viewer_reads_all_but_secrets_and_writes_nothing(guarded):
    viewer = user(guarded, "vera", "viewers")
    assert guarded("GET", "/meshes", **viewer).status == 200
    assert guarded("PUT", "/meshes/x", {"type": "Mesh", "name": "x"}, **viewer).status == 403
    secrets = guarded("GET", "/globalsecrets", **viewer)
    assert secrets.status == 403
    assert 'cannot access the resource of type "GlobalSecret"' in secrets.json["detail"]


def test_a_rule_can_be_for_one_mesh(guarded):
    rita = user(guarded, "rita")
    assert guarded("PUT", "/meshes/red/meshtimeouts/a", timeout("a", "red"), **rita).status == 201
    assert guarded("PUT", "/meshes/blue/meshtimeouts/a", timeout("a", "blue"), **rita).status == 403
    assert guarded("DELETE", "/meshes/red/meshtimeouts/a", **rita).status == 403
    assert guarded("POST", "/_apply", [timeout("b", "red")], **rita).status == 200
    assert guarded("POST", "/_apply", [timeout("b", "blue")], **rita).status == 403
    assert guarded("GET", "/_kri/kri_mt_red_default__a_", **rita).status == 200
    assert guarded("GET", "/_kri/kri_m____red_", **rita).status == 403
    assert guarded("GET", "/meshtimeouts", **rita).status == 403


def test_names_are_hinted_at_only_to_who_may_list_them(guarded):
    url = "/meshes/red/meshtimeouts"
    assert guarded("PUT", f"{url}/hidden-1", timeout("hidden-1", "red"), **admin(guarded)).status == 201
    nina = user(guarded, "nina")
    ((_, known),) = guarded("GET", f"{url}/hidden-2", **admin(guarded)).fields
    assert 'did you mean "hidden-1"?' in known
    ((_, told),) = guarded("GET", f"{url}/hidden-2", **nina).fields
    assert told == 'there is no MeshTimeout "hidden-2" in mesh "red"'


def test_a_bad_token_is_an_error_and_not_anonymous(guarded):
    for value in ("Bearer nonsense", "Basic YTpi", "Bearer"):
        answer = guarded("GET", "/", Authorization=value)
        assert answer.status == 200  # the index asks nobody who they are
        refused = guarded("GET", "/meshes", Authorization=value)
        assert (refused.status, refused.json["title"]) == (401, "Invalid authentication data")


def test_a_revoked_token_stops_at_once(guarded):
    body = {"name": "eve", "groups": ["viewers"], "validFor": "1h"}
    token = guarded("POST", "/tokens/user", body, **admin(guarded)).body.decode()
    assert guarded("GET", "/meshes", **bearer(token)).status == 200
    payload = token.split(".")[1]
    claims = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
    jti = claims.split(b'"jti":"')[1].split(b'"')[0]
    secret = {
        "type": "GlobalSecret",
        "name": "user-token-revocations",
        "data": base64.b64encode(jti).decode(),
    }
    assert guarded("PUT", "/globalsecrets/user-token-revocations", secret, **admin(guarded)).status == 201
    assert guarded("GET", "/meshes", **bearer(token)).status == 401


def test_tokens_for_proxies_and_zones(guarded):
    body = {"name": "web-1", "mesh": "red", "validFor": "1h"}
    proxy = guarded("POST", "/tokens/dataplane", body, **admin(guarded))
    assert proxy.status == 200
    assert guarded("GET", "/meshes", **bearer(proxy.body.decode())).status == 401
    assert (
        guarded("POST", "/tokens/zone", {"zone": "east", "scope": ["ingress"]}, **admin(guarded)).status
        == 200
    )
    assert guarded("POST", "/tokens/dataplane", body, **user(guarded, "vera", "viewers")).status == 403
    refused = guarded("POST", "/tokens/user", {"name": "", "validFor": ""}, **admin(guarded))
    assert (refused.status, refused.json["title"]) == (400, "Invalid request")
    assert {field for field, _ in refused.fields} == {"name", "validFor"}
    nowhere = guarded("POST", "/tokens/dataplane", {"mesh": "nowhere"}, **admin(guarded))
    assert (nowhere.status, nowhere.json["title"]) == (404, "Signing Key not found")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Host": "evil.example:5681"},
        {"X_Forwarded_For": "10.0.0.1"},
        {"Forwarded": "for=10.0.0.1"},
        {"X_Real_IP": "10.0.0.1"},
        {"X_Forwarded_Proto": "https"},
        {"X_Envoy_Internal": "true"},
        {"X_Request_Id": "7c7e1d4e"},
        {"Via": "1.1 edge"},
        {"True_Client_IP": "10.0.0.1"},
    ],
)
def test_a_web_page_or_a_proxy_is_not_the_local_admin(plane, headers):
    assert plane("GET", "/meshes", **headers).status == 403
    assert plane("PUT", "/meshes/forged", {"type": "Mesh", "name": "forged"}, **headers).status == 403
    assert plane("POST", "/tokens/user", {"name": "x", "validFor": "1h"}, **headers).status == 403
    assert plane("GET", "/meshes/forged").status == 404


def test_no_answer_tells_a_browser_that_others_may_read_it(plane):
    for answer in (
        plane("GET", "/meshes", Origin="http://evil.example"),
        plane("OPTIONS", "/meshes", Origin="http://evil.example", Access_Control_Request_Method="PUT"),
    ):
        assert answer.status >= 400
        assert not any(name.lower().startswith("access-control") for name in answer.headers)


def test_a_form_cannot_post_even_without_an_origin(plane):
    form = b'{"objects": [], "x": "="}'
    for media in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert plane("POST", "/_apply", form, Content_Type=media).status == 415
        assert plane("POST", "/tokens/user", form, Content_Type=media).status == 415


def test_a_page_of_our_own_origin_is_fine(plane):
    host = f"127.0.0.1:{plane.port}"
    assert (
        plane("GET", "/meshes", Origin=f"http://{host}", Host=host, Sec_Fetch_Site="same-origin").status
        == 200
    )


def test_tls_with_the_self_made_authority(plane):
    context = ssl.create_default_context(cafile=str(plane.data_dir / "ca.pem"))
    with closing(http.client.HTTPSConnection("localhost", plane.tls_port, context=context)) as connection:
        connection.request("GET", "/who-am-i")
        assert b"mesh-system:admin" in connection.getresponse().read()
    for name in ("ca-key.pem", "tls-key.pem", "admin-token"):
        assert (plane.data_dir / name).stat().st_mode & 0o777 == 0o600


def test_rules_say_no_unless_one_says_yes():
    kinds = all_kinds()
    role = Role(name="one", rules=(Rule(verbs=("get",), resources=("meshes",), names=("a",)),))
    access = Authorizer((*builtin_roles(kinds), role), (Binding(role="one", users=("u",)),))
    user = User("u")
    assert access.allows(user, Attempt("get", "meshes", "a"))
    assert not access.allows(user, Attempt("get", "meshes", "b"))
    assert not access.allows(user, Attempt("list", "meshes"))
    assert not access.allows(user, Attempt("get", "meshes", "a", group="kuma.io"))
    assert not access.allows(User("v"), Attempt("get", "meshes", "a"))
    with pytest.raises(ValueError, match='role "nope", which does not exist'):
        Authorizer((), (Binding(role="nope"),))
