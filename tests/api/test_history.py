"""The history: who changed what, what was stored then, what differs, and what a user with few rights sees."""

import itertools
import re

import pytest

from tests.build import dataplane, mesh_service, timeout
from tests.control_plane import LocalControlPlane
from tests.waiting import until

pytestmark = pytest.mark.slow

ADMIN = "mesh-system:admin"
ARRIVING = {"spec": {"rules": [{"default": {"http": {"streamIdleTimeout": "7s"}}}]}}  # acts on inbounds


def user(plane, name):
    """The headers of a user, by a token."""
    answer = plane("POST", "/tokens/user", {"name": name, "groups": [], "validFor": "1h"})
    return {"Authorization": f"Bearer {answer.text}"}


def put(plane, document, **headers):
    path = f"/meshes/{document['mesh']}/{document['type'].lower()}s/{document['name']}"
    answer = plane("PUT", path, document, **headers)
    assert answer.status in (200, 201), answer.text
    return int(answer.headers["Koguma-Revision"])


def shown(items):
    return [(item["action"], item["name"], item["author"], item["reason"]) for item in items]


def without_times(document):
    return {name: part for name, part in document.items() if name not in ("creationTime", "modificationTime")}


def test_the_history_says_who_did_what_and_why(history_plane, own_mesh):
    plane, mesh = history_plane, own_mesh
    ed = user(plane, "ed")
    put(plane, timeout("a", mesh))
    revision = put(plane, timeout("a", mesh, "6s"), Koguma_Reason="größer".encode().decode("latin-1"), **ed)
    plane("DELETE", f"/meshes/{mesh}/meshtimeouts/a", Koguma_Reason="not needed")
    answer = plane("GET", f"/_history?mesh={mesh}&kind=MeshTimeout").json
    assert shown(answer["items"]) == [
        ("deleted", "a", ADMIN, "not needed"),
        ("changed", "a", "ed", "größer"),
        ("created", "a", ADMIN, ""),
    ]
    assert answer["items"][1]["revision"] == revision
    assert answer["items"][1]["type"] == "MeshTimeout"
    of_one = plane("GET", f"/meshes/{mesh}/meshtimeouts/a/_history").json
    assert of_one["items"] == answer["items"]
    assert len(plane("GET", f"/_history?mesh={mesh}&kind=MeshTimeout&by=ed").json["items"]) == 1
    assert len(plane("GET", f"/_history?mesh={mesh}&kind=MeshTimeout&since=1h").json["items"]) == 3
    assert (
        plane("GET", f"/_history?mesh={mesh}&kind=MeshTimeout&since=2099-01-01T00:00:00Z").json["items"] == []
    )
    page = plane("GET", f"/_history?mesh={mesh}&kind=MeshTimeout&size=2").json
    rest = plane("GET", page["next"].partition(str(plane.port))[2]).json
    assert page["items"] + rest["items"] == answer["items"]
    assert "next" not in rest


def test_what_the_control_plane_wrote_by_itself_is_told_apart(history_plane):
    own = history_plane("GET", "/_history?by=system&size=1000").json["items"]
    people = history_plane("GET", "/_history?people=true&size=1000").json["items"]
    assert {item["isControlPlane"] for item in own} == {True}
    assert {item["isControlPlane"] for item in people} == {False}
    assert {item["type"] for item in own + people} >= {"Mesh", "ClusterRole"}


@pytest.mark.parametrize(
    "query", ["since=yesterday", "size=0", "size=9999", "before=x", "people=maybe", "kind=Nothing", "b=1"]
)
def test_a_wrong_question_gets_a_clear_error(history_plane, query):
    answer = history_plane("GET", f"/_history?{query}")
    assert answer.status == 400
    assert query.partition("=")[0] in answer.text


@pytest.mark.parametrize("query", ["by=%00", "mesh=a%00", "name=%00x&kind=Mesh"])
def test_what_no_name_can_have_finds_nothing(history_plane, query):
    answer = history_plane("GET", f"/_history?{query}")
    assert (answer.status, answer.json["items"]) == (200, [])
    answer = history_plane("GET", "/meshes/red%00/meshtimeouts/a%00/_history")
    assert (answer.status, answer.json["items"]) == (200, [])


def test_a_page_before_what_is_to_come_is_the_newest(history_plane):
    newest = history_plane("GET", "/_history?size=1").json["items"]
    assert history_plane("GET", "/_history?size=1&before=999999999999").json["items"] == newest


@pytest.mark.parametrize("reason", ["x" * 1001, "a\x07b", "\xff"])
def test_a_reason_that_is_too_long_or_no_text_is_refused(history_plane, own_mesh, reason):
    mesh = own_mesh
    answer = history_plane("PUT", f"/meshes/{mesh}/meshtimeouts/a", timeout("a", mesh), Koguma_Reason=reason)
    assert answer.status == 400
    assert history_plane("GET", f"/meshes/{mesh}/meshtimeouts/a").status == 404


def test_the_annotation_of_kubectl_is_a_reason_once(history_plane, own_mesh):
    mesh = own_mesh
    path = f"/apis/kuma.io/v1alpha1/namespaces/mesh-{mesh}/meshtimeouts"
    metadata = {"name": "k", "annotations": {"kubernetes.io/change-cause": "a new release"}}
    spec = timeout("k", mesh)["spec"]
    document = {"apiVersion": "kuma.io/v1alpha1", "kind": "MeshTimeout", "metadata": metadata, "spec": spec}
    assert history_plane("POST", path, document).status == 201
    change = {"metadata": {"labels": {"team": "blue"}}}
    media = {"Content_Type": "application/merge-patch+json"}
    assert history_plane("PATCH", f"{path}/k", change, **media).status == 200
    items = history_plane("GET", f"/meshes/{mesh}/meshtimeouts/k/_history").json["items"]
    assert [item["reason"] for item in items] == ["", "a new release"]


def test_objects_and_lists_are_shown_as_they_were(history_plane, own_mesh):
    plane, mesh = history_plane, own_mesh
    base = f"/meshes/{mesh}/meshtimeouts"
    first = put(plane, timeout("a", mesh, "1s"))
    then = plane("GET", f"{base}/a").json
    second = put(plane, timeout("a", mesh, "2s"))
    put(plane, timeout("b", mesh))
    plane("DELETE", f"{base}/a")
    assert plane("GET", f"{base}/a").status == 404
    assert plane("GET", f"{base}/a?at={first}").json == then
    assert plane("GET", f"/_kri/{then['kri']}?at={first}").json == then
    assert plane("GET", f"{base}/a?at={second}").json["spec"] != then["spec"]
    assert [item["name"] for item in plane("GET", f"{base}?at={second}").json["items"]] == ["a"]
    assert [item["name"] for item in plane("GET", f"{base}?at=0s").json["items"]] == ["b"]
    assert plane("GET", f"{base}/b?at={second}").status == 404
    assert plane("GET", f"{base}?at={first - 1}").json["total"] == 0
    assert plane("GET", f"{base}?at=1h").status == 404  # its mesh was not there
    missing = plane("GET", f"{base}?at=99999999")
    assert (missing.status, "the newest is" in missing.text) == (404, True)
    assert plane("GET", f"{base}?at=noon").status == 400
    assert plane("GET", f"{base}?watch=true&at=1").status == 400
    assert plane("GET", f"/meshes/{mesh}/dataplane-insights?at={first}").status == 405


def test_what_acted_on_a_proxy_then_is_shown(history_plane, own_mesh):
    plane, mesh = history_plane, own_mesh
    put(plane, dataplane("web-1", mesh=mesh))
    before = put(plane, mesh_service("backend", mesh=mesh))
    after = put(plane, timeout("slow", mesh))
    put(plane, timeout("slow", mesh, "9s"))
    base = f"/meshes/{mesh}/dataplanes/web-1"

    def idle(at):
        rules = plane("GET", f"{base}/_rules{at}")
        assert rules.status == 200, rules.text
        return "9s" if '"9s"' in rules.text else "5s" if '"5s"' in rules.text else ""

    assert [idle(f"?at={before}"), idle(f"?at={after}"), idle("")] == ["", "5s", "9s"]
    earlier = plane("GET", f"{base}/_layout?at={before}").json["outbounds"]
    assert f"kri_msvc_{mesh}_default__backend_80" in [each["kri"] for each in earlier]
    selected = f"/meshes/{mesh}/meshtimeouts/slow/_resources/dataplanes"
    assert plane("GET", f"{selected}?at={after}").json["total"] == 1
    assert plane("GET", f"{selected}?at={before}").status == 404
    put(plane, {**timeout("slow", mesh), **ARRIVING})
    xds = [plane("GET", f"{base}/_config{at}") for at in ("", f"?at={after}", f"?at={before}")]
    assert [answer.status for answer in xds] == [200, 200, 200]
    assert xds[0].json.keys() == xds[1].json.keys()
    assert ['"7s"' in answer.text for answer in xds] == [True, False, False]


def test_how_many_proxies_a_change_touched_is_counted_when_asked(history_plane, own_mesh):
    plane, mesh = history_plane, own_mesh
    for name in ("web-1", "web-2"):
        put(plane, dataplane(name, mesh=mesh))
    put(plane, {**timeout("slow", mesh), **ARRIVING})
    put(plane, {**timeout("slow", mesh), **ARRIVING, "labels": {"a": "b"}})
    items = plane("GET", f"/_history?mesh={mesh}&by={ADMIN}&proxies=true").json["items"]
    counted = [
        (item["name"], item["proxies"]) for item in items if item["type"] in ("Dataplane", "MeshTimeout")
    ]
    assert counted == [("slow", 0), ("slow", 2), ("web-2", 1), ("web-1", 1)]
    rita = user(plane, "rita")
    put(plane, timeout("own", "red"))
    (item,) = plane("GET", "/_history?mesh=red&size=1&proxies=true", **rita).json["items"]
    assert item["proxies"] == 0  # she may not list proxies


def test_what_differs_between_two_revisions(history_plane, own_mesh):
    plane, mesh = history_plane, own_mesh
    first = put(plane, timeout("a", mesh, "1s"))
    put(plane, timeout("b", mesh))
    put(plane, timeout("a", mesh, "2s"))
    plane("DELETE", f"/meshes/{mesh}/meshtimeouts/b")
    put(plane, timeout("c", mesh))
    answer = plane("GET", f"/_differences?from={first}").json
    seen = {(each["name"], each["action"]) for each in answer["items"] if each.get("mesh") == mesh}
    assert seen == {("a", "changed"), ("c", "created")}
    (changed,) = [each for each in answer["items"] if (each["name"], each.get("mesh")) == ("a", mesh)]
    assert ["1s" in str(changed["before"]), "2s" in str(changed["after"])] == [True, True]
    back = plane("GET", f"/_differences?from={answer['to']}&to={first}").json
    seen = {(each["name"], each["action"]) for each in back["items"] if each.get("mesh") == mesh}
    assert seen == {("a", "changed"), ("c", "deleted")}
    assert plane("GET", "/_differences").status == 400
    assert plane("GET", "/_differences?from=1&to=99999999").status == 400


def test_a_user_with_few_rights_learns_nothing_of_the_rest(history_plane):
    """Through every door to the past, with objects that are there and that are gone."""
    plane = history_plane
    rita, vera = user(plane, "rita"), user(plane, "vera")
    secret = {"type": "Secret", "mesh": "red", "name": "hush", "data": "aHVzaA=="}
    assert plane("PUT", "/meshes/red/secrets/hush", secret, Koguma_Reason="hush-reason").status == 201
    start = put(plane, timeout("mine", "red"))
    blue = put(plane, timeout("theirs", "blue"))
    last = put(plane, timeout("gone", "blue"))
    plane("DELETE", "/meshes/blue/meshtimeouts/gone")
    seen = plane("GET", "/_history?size=1000", **rita).json["items"]
    assert {(item["type"], item["mesh"]) for item in seen} == {("MeshTimeout", "red")}
    for headers in (rita, vera):
        assert "hush" not in plane("GET", "/_history?size=1000", **headers).text
        assert "hush" not in plane("GET", f"/_differences?from={start - 1}", **headers).text
        for path in ("/meshes/red/secrets/hush", "/meshes/red/secrets/hush/_history", "/meshes/red/secrets"):
            assert (
                plane("GET", f"{path}{'' if 'history' in path else f'?at={start}'}", **headers).status == 403
            )
    for name in ("theirs", "gone"):
        path = f"/meshes/blue/meshtimeouts/{name}"
        for door in (f"{path}?at={last}", f"{path}/_history", f"{path}/_resources/dataplanes?at={last}"):
            assert plane("GET", door, **rita).status == 403, door
        assert plane("GET", f"{path}?at={last}", **vera).status == 200
    assert {
        each["mesh"] for each in plane("GET", f"/_differences?from={start - 1}", **rita).json["items"]
    } == {"red"}
    undone = plane("POST", f"/_undo?revision={blue}&dryRun=All", **rita)
    assert (undone.status, "theirs" in undone.text) == (403, False)
    assert plane("POST", f"/_undo?revision={blue}", **vera).status == 403
    nobody = {"Authorization": "Bearer x"}
    assert plane("GET", "/_history", **nobody).status == 401
    own = plane("POST", f"/_undo?revision={start}", **rita)
    assert (own.status, plane("GET", "/meshes/red/meshtimeouts/mine").status) == (200, 404)


def test_further_back_than_the_history_is_kept_the_answer_names_the_oldest_revision(tmp_path):
    with LocalControlPlane(tmp_path, history="1s") as plane:
        for idle in ("1s", "2s", "3s"):
            put(plane, timeout("a", "default", idle))
            secret = {"type": "Secret", "mesh": "default", "name": "s", "data": f"c2Vj{idle}E="}
            assert plane("PUT", "/meshes/default/secrets/s", secret).status in (200, 201)

        def oldest():
            put(plane, timeout("b", "default", f"{next(numbers)}s"))  # what is newest is never removed
            return plane("GET", "/_history?size=1").json["oldest"]

        numbers = itertools.count(1)
        revision = until(oldest)
        gone = plane("GET", "/meshes/default/meshtimeouts/a?at=1")
        assert gone.status == 410
        (named,) = re.findall(r"the oldest revision to ask for is (\d+)", gone.json["detail"])
        # More of the history may be removed between two requests.
        assert revision <= int(named) <= plane("GET", "/_history?size=1").json["oldest"]
        assert plane("GET", f"/_differences?from={revision - 1}").status == 410
        assert plane("POST", "/_undo?revision=1").status in (400, 410)
        newest = plane("GET", "/_history?size=1").json["items"][0]["revision"]
        assert plane("GET", f"/meshes/default/meshtimeouts/a?at={newest}").status == 200
        assert plane("GET", f"/meshes/default/secrets/s?at={newest}").json["data"] == "c2Vj3sE="
