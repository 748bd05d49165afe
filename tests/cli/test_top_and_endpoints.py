"""What `top` and `get endpoints` print, and what they refuse; a real control plane without proxies."""

import json

import pytest

from koguma.cli import service_endpoints, top
from tests import build

RATES = {"requests": 12.34, "errors": 0.5, "connections": 0, "connectFailures": 0, "resets": 0}
ASKED = {
    "of": 300,
    "asked": 100,
    "answered": 99,
    "isSample": True,
    "unanswered": [{"name": "x", "reason": "gone"}],
}


def answer(*items, by="services"):
    return {"mesh": "shop", "by": by, "seconds": 2.0, "proxies": ASKED, "items": list(items)}


def test_a_table_of_services():
    row = {"name": "backend", "callers": 3, **RATES, "p50Ms": 0.4, "p99Ms": 1234.5}
    first, _, header, shown, _, unanswered = top.lines(answer(row))
    assert first.endswith("mesh shop, 99 of 300 proxies (a sample; --limit asks more), over 2 s")
    assert header.split()[:3] == ["SERVICE", "REQ/S", "5XX/S"]
    assert shown.split() == ["backend", "12.3", "0.5", "-", "-", "-", "0.4ms", "1.23s", "3"]
    assert unanswered == "x did not answer: gone"


def test_a_table_of_proxies():
    served = {**RATES, "p50Ms": None, "p99Ms": 42.4}
    row = {"name": "web-1", "served": served, "called": {**served, "requests": 0}}
    _, _, header, shown, *_ = top.lines(answer(row, by="proxies"))
    assert header.startswith("PROXY   IN REQ/S")
    assert shown.split() == ["web-1", "12.3", "0.5", "-", "-", "-", "42ms", "-", "0.5", "-"]


def test_nothing_that_a_proxy_is_named_controls_the_terminal():
    asked = {**ASKED, "unanswered": [{"name": "a\x1b[2J", "reason": "b\nc"}]}
    assert [*top.lines({**answer(), "proxies": asked})][-1] == "a?[2J did not answer: b?c"


def test_top_of_a_mesh_without_proxies(cli, mesh):
    ended = cli("top", "--once", "-m", mesh, "--interval", "0.1")
    assert (ended.code, "no proxy has answered" in ended.out) == (0, True)
    shown = json.loads(cli("top", "proxies", "--once", "-o", "json", "-m", mesh).out)
    assert (shown["by"], shown["items"]) == ("proxies", [])
    missing = cli("top", "--once", "-m", "nowhere")
    assert (missing.code, 'there is no mesh "nowhere"' in missing.err) == (1, True)


def test_endpoints_of_all_kinds_of_services(cli, control_plane, mesh):
    objects = [
        build.mesh_service("backend", mesh=mesh),
        build.external_service("backend", mesh=mesh, endpoints=[{"address": "127.0.0.1", "port": 9}]),
        build.mesh_service("other", mesh=mesh),
    ]
    assert control_plane("POST", "/_apply", {"objects": objects}).status == 200
    ended = cli("get", "endpoints", "backend", "-m", mesh)
    assert ended.code == 0
    assert (
        f"MeshService backend (mesh {mesh}): no-endpoints: nobody serves it: its selector fits" in ended.out
    )
    assert f"MeshExternalService backend (mesh {mesh})" in ended.out
    one = cli("get", "endpoints", "meshservice/backend", "-m", mesh, "-o", "json")
    assert json.loads(one.out)["type"] == "MeshService"
    many = cli("get", "endpoints", "backend", "other", "-m", mesh, "-o", "json")
    assert len(json.loads(many.out)["items"]) == 3
    assert cli("get", "endpoints", "other", "-m", mesh, "-o", "yaml").out.startswith("type: MeshService")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["bckend"], 'did you mean "backend"?'),
        (["dataplane/web-1"], "Dataplane is no service"),
        (["nonsense/web-1"], 'unknown kind "nonsense"'),
        ([], "name a service"),
        (["backend", "-w"], "leave out -l, -w and -A"),
        (["backend", "-o", "name"], "-o name is for objects"),
    ],
)
def test_what_get_endpoints_refuses(cli, control_plane, mesh, words, text):
    document = build.mesh_service("backend", mesh=mesh)
    assert control_plane("PUT", f"/meshes/{mesh}/meshservices/backend", document).status == 201
    ended = cli("get", "endpoints", *words, "-m", mesh)
    assert ended.code != 0
    assert text in ended.err


def test_an_endpoint_with_all_that_is_said_about_it():
    counts = {"requests": 9, "errors": 4, "connections": 1, "connectFailures": 0}
    callers = {"asked": 5, "healthy": 2, "ejected": 3, "failedCheck": 0, "total": counts, "lately": counts}
    endpoint = {
        "port": "http",
        "address": "10.0.0.1:80",
        "state": "ejected",
        "proxy": "backend-1",
        "zone": "east",
        "kri": "kri_dp",
        "service": "backend",
        "isOffered": True,
        "application": "127.0.0.1:8080",
        "words": [{"by": "callers", "state": "ejected", "text": "is ejected by 3 of 5 callers"}],
        "callers": callers,
    }
    service = {
        "type": "MeshService",
        "name": "backend",
        "mesh": "shop",
        "state": "down",
        "seconds": 1.0,
        "summary": "0 of 1 endpoint serve",
        "reasons": ["port http: panic"],
        "endpoints": [endpoint],
        "callers": {**ASKED, "calling": 5},
        "servers": {**ASKED, "unanswered": []},
    }
    shown = [*service_endpoints.lines(service, wide=True)]
    assert shown[0] == "MeshService backend (mesh shop): down: 0 of 1 endpoint serve"
    assert shown[1] == "  port http: panic"
    assert shown[4].split()[:8] == ["http", "10.0.0.1:80", "backend-1", "east", "ejected", "2/5", "9", "4"]
    assert shown[6:8] == ["backend-1 (10.0.0.1:80): ejected", "  callers: is ejected by 3 of 5 callers"]
    assert shown[-2].startswith("answers of 99 of 300 proxies that may call it (calling: 5) and 99 of 300")
    assert shown[-1] == "  x did not answer: gone"
