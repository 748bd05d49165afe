"""A watch ends as soon as whoever opened it may no longer have it, in both forms."""

import base64
import json

import pytest

from tests.build import secret
from tests.control_plane import LocalControlPlane
from tests.kube_client import bind_role, create_role

pytestmark = pytest.mark.slow

RBAC = "/apis/rbac.authorization.k8s.io/v1"
PLAIN = "/meshes/default/secrets?watch=true"
KUBE = "/apis/kuma.io/v1alpha1/namespaces/mesh-default/secrets?watch=true&resourceVersion=0"
FORMS = pytest.mark.parametrize("path", [PLAIN, KUBE])


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("open-watches")) as plane:
        rules = [{"apiGroups": ["*"], "resources": ["secrets"], "verbs": ["watch"]}]
        create_role(plane, "watcher", *rules)
        yield plane


def token(plane, user, valid_for="1h"):
    answer = plane("POST", "/tokens/user", {"name": user, "groups": ["devs"], "validFor": valid_for})
    assert answer.status == 200, answer.body
    return answer.body.decode()


def watched(plane, path, text):
    return plane.watch(path, Authorization=f"Bearer {text}")


def write_secret(plane, name):
    assert plane("PUT", f"/meshes/default/secrets/{name}", secret(name)).status == 201


def last(lines):
    """What the watch says at its end: the words of its ERROR and its status."""
    while (event := lines.next())["type"] != "ERROR":
        pass
    found = event.get("object") or event
    return found.get("code") or found["status"], found.get("message") or found["detail"]


def revoke(plane, text):
    claims = base64.urlsafe_b64decode(text.split(".")[1] + "==")
    jti = json.loads(claims)["jti"]
    data = base64.b64encode(jti.encode()).decode()
    secret = {"type": "GlobalSecret", "name": "user-token-revocations", "data": data}
    assert plane("PUT", "/global-secrets/user-token-revocations", secret).status in (200, 201)


@FORMS
def test_a_revoked_token_ends_a_quiet_watch(plane, path):
    user = f"ann-{len(path)}"
    bind_role(plane, user, "watcher")
    text = token(plane, user)
    with watched(plane, path, text) as lines:
        assert lines.status == 200
        revoke(plane, text)
        assert last(lines)[0] == 401


@FORMS
def test_nothing_written_after_a_revocation_is_told(plane, path):
    user = f"bob-{len(path)}"
    bind_role(plane, user, "watcher")
    text = token(plane, user)
    with watched(plane, path, text) as lines:
        revoke(plane, text)
        write_secret(plane, f"new-{len(path)}")
        seen = []
        while (event := lines.next())["type"] != "ERROR":
            seen.append(event)
    assert not any(f"new-{len(path)}" in str(event) for event in seen)


@FORMS
def test_an_expired_token_ends_its_watch(plane, path):
    user = f"cid-{len(path)}"
    bind_role(plane, user, "watcher")
    with watched(plane, path, token(plane, user, "2s")) as lines:
        assert last(lines)[0] == 401


@FORMS
def test_a_right_that_is_taken_away_ends_the_watch(plane, path):
    user = f"dan-{len(path)}"
    bind_role(plane, user, "watcher")
    with watched(plane, path, token(plane, user)) as lines:
        assert plane("DELETE", f"{RBAC}/clusterrolebindings/{user}-watcher").status == 200
        assert last(lines)[0] == 403


@FORMS
def test_others_watches_go_on(plane, path):
    user, other = f"eve-{len(path)}", f"fay-{len(path)}"
    bind_role(plane, user, "watcher")
    bind_role(plane, other, "watcher")
    with watched(plane, path, token(plane, other)) as lines:
        revoke(plane, token(plane, user))
        write_secret(plane, f"told-{len(path)}")
        while f"told-{len(path)}" not in str(event := lines.next()):
            assert event["type"] != "ERROR"
