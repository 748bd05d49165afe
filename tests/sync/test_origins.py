"""Objects of three origins side by side: who may write which, by every door, and how each is found by KRI."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.build import timeout
from tests.control_plane import LocalControlPlane
from tests.kube_client import APPLY, JSON_PATCH, MERGE
from tests.kubectl.tool import Kube, on_path, packaged
from tests.sync.test_zones import OF_ZONE, URL, Federation, _has_mesh, _names
from tests.waiting import until

KUBE = "/apis/kuma.io/v1alpha1/namespaces/kuma-system/meshtimeouts"
OF_GLOBAL, OF_EAST, OF_WEST = (
    "kri_mt_default___slow_",
    "kri_mt_default_east__mine_",
    "kri_mt_default_west_shop_theirs_",
)
PRODUCER = {
    "type": "MeshTimeout",
    "mesh": "default",
    "name": "theirs.shop",
    "labels": {**OF_ZONE, "k8s.kuma.io/namespace": "shop"},
    "spec": {"to": [{"targetRef": {"kind": "MeshService", "name": "web"}, "default": {"idleTimeout": "9s"}}]},
}


class Planes(NamedTuple):
    """Global and two zones; `foreign` are objects that were written elsewhere."""

    top: LocalControlPlane
    east: LocalControlPlane
    west: LocalControlPlane


class Foreign(NamedTuple):
    """An object at a control plane that did not write it, and the words that say who did."""

    where: str
    kri: str
    words: str


FOREIGN = [
    Foreign(
        "east",
        OF_GLOBAL,
        'MeshTimeout "slow" was written on Global: change it at Global, and it changes here',
    ),
    Foreign(
        "east",
        OF_WEST,
        'MeshTimeout "theirs" of namespace "shop" was written in zone "west": change it at the control plane'
        " of that zone, and it changes here",
    ),
    Foreign(
        "top",
        OF_EAST,
        'MeshTimeout "mine" was written in zone "east": change it at the control plane of that zone, and it'
        " changes here",
    ),
]


@pytest.fixture(scope="module")
def planes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planes]:
    federation = Federation(tmp_path_factory.mktemp("o"))
    top = federation.top
    with federation.stack, contextlib.ExitStack() as stack:
        east, west = (stack.enter_context(federation.zone(name)) for name in ("east", "west"))
        for zone in (east, west):
            until(lambda zone=zone: _has_mesh(zone), "the mesh comes from Global")
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}
        assert west("POST", "/api/v1/namespaces", namespace).status == 201
        assert west("PUT", f"{URL}/theirs.shop", PRODUCER).status == 201
        assert top("PUT", f"{URL}/slow", timeout("slow")).status == 201
        assert east("PUT", f"{URL}/mine", timeout("mine", labels=OF_ZONE)).status == 201
        until(lambda: len(_names(top)) == len(_names(east)) == 3, "all three are there")
        yield Planes(top, east, west)


def _doors(plain: Any, kube: Any, name: str) -> Iterator[tuple[str, str, Any, str]]:
    """All ways to write an object: method, path, body, content type."""
    field = {"metadata": {"labels": {"a": "b"}}}
    applied = {key: kube[key] for key in ("apiVersion", "kind", "spec")}
    applied["metadata"] = {**field["metadata"], "name": name, "namespace": kube["metadata"]["namespace"]}
    for dry in ("", "dryRun=All"):
        query = f"?{dry}" if dry else ""
        for method, path, body, media in (
            ("PUT", f"{URL}/{name}", plain, ""),
            ("PATCH", f"{URL}/{name}", {"labels": {"a": "b"}}, MERGE),
            ("DELETE", f"{URL}/{name}", None, ""),
            ("POST", "/_apply", [plain], ""),
            ("PUT", f"{KUBE}/{name}", kube, ""),
            ("PATCH", f"{KUBE}/{name}", field, MERGE),
            (
                "PATCH",
                f"{KUBE}/{name}",
                [{"op": "add", "path": "/metadata/labels/a", "value": "b"}],
                JSON_PATCH,
            ),
            ("PATCH", f"{KUBE}/{name}", {"metadata": {"finalizers": ["example.com/x"]}}, MERGE),
            ("DELETE", f"{KUBE}/{name}", None, ""),
            ("DELETE", f"{KUBE}?fieldSelector=metadata.name={name}{'&' + dry if dry else ''}", None, ""),
        ):
            yield method, path if "?" in path else path + query, body, media
        forced = f"{KUBE}/{name}?fieldManager=me&force=true{'&' + dry if dry else ''}"
        yield "PATCH", forced, applied, APPLY


@pytest.mark.parametrize("foreign", FOREIGN, ids=lambda each: f"{each.kri} at {each.where}")
@pytest.mark.parametrize("labelled", ["as read", "as its own"])
def test_what_another_wrote_is_refused_at_every_door(planes: Planes, foreign: Foreign, labelled: str) -> None:
    plane: LocalControlPlane = getattr(planes, foreign.where)
    read = plane("GET", f"/_kri/{foreign.kri}").json
    plain = {key: read[key] for key in ("type", "mesh", "name", "labels", "spec")}
    kube = plane("GET", f"{KUBE}/{read['name']}").json
    if labelled == "as its own":
        own = OF_ZONE if foreign.where == "east" else {}
        plain["labels"], kube["metadata"]["labels"] = own, {**own, "kuma.io/mesh": "default"}
    for method, path, body, media in _doors(plain, kube, read["name"]):
        headers = {"Content_Type": media} if media else {}
        refused = plane(method, path, body, **headers)
        assert refused.status in (400, 422), (method, path, refused.text)
        assert json.dumps(foreign.words)[1:-1] in refused.text, (method, path, refused.text)
    assert plane("GET", f"/_kri/{foreign.kri}").json == read


@pytest.mark.slow
def test_kubectl_says_where_it_can_be_written(
    planes: Planes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    home = tmp_path / "home"
    home.mkdir()
    kube = Kube(on_path() or packaged(), planes.east, tmp_path, home, "team-1")
    name = planes.east("GET", f"/_kri/{OF_GLOBAL}").json["name"]
    words = 'MeshTimeout "slow" was written on Global: change it at Global'
    file = tmp_path / "slow.json"
    file.write_text(
        json.dumps(planes.east("GET", f"{KUBE}/{name}").json).replace("idleTimeout", "connectionTimeout")
    )
    where = ("meshtimeout", name, "-n", "kuma-system")
    for command in (
        ("apply", "-f", str(file)),
        ("apply", "-f", str(file), "--server-side", "--force-conflicts"),
        ("apply", "-f", str(file), "--dry-run=server"),
        ("replace", "-f", str(file)),
        ("label", *where, "a=b"),
        ("patch", *where, "--type=merge", "-p", '{"spec": {"to": []}}'),
        ("delete", *where),
    ):
        done = kube.run(*command)
        assert done.code != 0, command
        assert words in done.err, (command, done.err)


@pytest.mark.parametrize(
    ("where", "kind", "instead"),
    [("east", "Mesh", "the Global control plane"), ("top", "Dataplane", "a zone control plane")],
)
def test_a_kind_of_the_other_side_is_refused_at_every_door(
    planes: Planes, where: str, kind: str, instead: str
) -> None:
    plane: LocalControlPlane = getattr(planes, where)
    words = f"On this control plane {kind} is read-only; write it on {instead}"
    networking = {"address": "10.0.0.1", "inbound": [{"port": 80, "tags": {"kuma.io/service": "w"}}]}
    document: dict[str, Any] = {"type": kind, "name": "new"}
    plural, within, spec = ("meshes", "", {}) if kind == "Mesh" else ("dataplanes", "/meshes/default", {})
    path = f"{within}/{plural}"
    kube = f"/apis/kuma.io/v1alpha1/{plural}"
    if kind == "Dataplane":
        document |= {"mesh": "default", "networking": networking}
        spec = {"networking": networking}
        kube = f"/apis/kuma.io/v1alpha1/namespaces/kuma-system/{plural}"
    body = {"apiVersion": "kuma.io/v1alpha1", "kind": kind, "metadata": {"name": "new"}, "spec": spec}
    for method, where_, sent, media in (
        ("PUT", f"{path}/new", document, ""),
        ("PATCH", f"{path}/new", {"labels": {"a": "b"}}, MERGE),
        ("DELETE", f"{path}/new", None, ""),
        ("POST", "/_apply", [document], ""),
        ("POST", kube, body, ""),
        ("PUT", f"{kube}/new", body, ""),
        ("PATCH", f"{kube}/new", {"metadata": {"labels": {"a": "b"}}}, MERGE),
        ("PATCH", f"{kube}/new?fieldManager=me", body, APPLY),
        ("DELETE", f"{kube}/new", None, ""),
        ("DELETE", kube, None, ""),
    ):
        refused = plane(method, where_, sent, **({"Content_Type": media} if media else {}))
        assert refused.status in (400, 405), (method, where_, refused.text)
        assert words in refused.text, (method, where_, refused.text)


def test_a_kri_finds_each_from_anywhere_in_both_forms(planes: Planes) -> None:
    for plane in (planes.top, planes.east):
        for kri in (OF_GLOBAL, OF_EAST, OF_WEST):
            plain = plane("GET", f"/_kri/{kri}").json
            assert plain["kri"] == kri
            assert plane("GET", f"{URL}/{plain['name']}").json == plain
            assert plane("GET", f"/_kri/{kri}?format=universal").json == plain
            kube = plane("GET", f"/_kri/{kri}?format=kubernetes").json
            assert kube["spec"] == plain["spec"]
            # Where it came from elsewhere, it is where the Kubernetes form shows it.
            if plane("GET", f"{KUBE}/{plain['name']}").status == 200 and plain["name"] != "mine":
                shown = plane("GET", f"{KUBE}/{plain['name']}").json["metadata"]
                assert (kube["metadata"]["name"], kube["metadata"]["namespace"]) == (
                    shown["name"],
                    shown["namespace"],
                )
    assert planes.west("GET", f"/_kri/{OF_EAST}").status == 404  # a zone's own policies stay there
    assert planes.west("GET", f"/_kri/{OF_WEST}?format=kubernetes").json["metadata"]["namespace"] == "shop"
    for plane in planes:
        assert plane("GET", "/_kri/kri_m____default_").json["name"] == "default"
        assert plane("GET", "/_kri/kri_m____default_?format=k8s").json["metadata"]["name"] == "default"
        assert plane("GET", "/_kri/kri_mt_default_north__slow_").status == 404


def test_what_came_by_sync_is_undone_where_it_was_written(planes: Planes) -> None:
    for plane, author, name in ((planes.east, "global", "slow"), (planes.top, "zone:east", "mine")):
        items = plane("GET", f"/_history?by={author}").json["items"]
        revision = next(each["revision"] for each in items if each["name"].startswith(f"{name}-"))
        refused = plane("POST", f"/_undo?revision={revision}&dryRun=true")
        assert refused.status == 400, refused.text
        assert "it came by sync from another control plane; undo it there" in refused.text


def test_a_set_is_pruned_of_what_was_written_on_this_side_alone(planes: Planes) -> None:
    def applied(plane: LocalControlPlane, name: str, **labels: str) -> list[tuple[str, str]]:
        document = timeout(name, labels=labels)
        sent = plane("POST", "/_apply", {"objects": [document], "set": "shared", "prune": True})
        assert sent.status == 200, sent.text
        return [(each["name"], each["action"]) for each in sent.json["results"]]

    zone, top = planes.east, planes.top
    assert applied(zone, "in-zone", **OF_ZONE) == [("in-zone", "created")]
    until(lambda: top("GET", "/_kri/kri_mt_default_east__in-zone_").status == 200, "Global has the zone's")
    assert applied(top, "on-global") == [("on-global", "created")]
    until(lambda: zone("GET", "/_kri/kri_mt_default___on-global_").status == 200, "the zone has Global's")
    assert applied(zone, "later", **OF_ZONE) == [("later", "created"), ("in-zone", "deleted")]
    assert applied(top, "on-global") == [("on-global", "unchanged")]
    assert zone("DELETE", f"{URL}/later").status == top("DELETE", f"{URL}/on-global").status == 200
    gone = "kri_mt_default_east__later_", "kri_mt_default_east__in-zone_", "kri_mt_default___on-global_"
    for plane in (top, zone):
        until(lambda plane=plane: all(plane("GET", f"/_kri/{kri}").status == 404 for kri in gone), "all gone")


def test_a_refused_kri_does_not_say_whether_there_is_such_an_object(planes: Planes) -> None:
    def refusal(kri: str) -> str:
        answer = planes.top("GET", f"/_kri/{kri}", Impersonate_User="nobody")
        assert answer.status == 403
        return str(answer.json["detail"])

    assert refusal(OF_EAST).replace("mine", "none") == refusal(OF_EAST.replace("mine", "none"))
