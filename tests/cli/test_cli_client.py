"""Requests, pages, watches, and how an answer that is none is told."""

import json
import ssl

import pytest

from koguma.cli import watching
from koguma.cli.client import ApiClient
from koguma.cli.failures import ApiError, CommandFailure, ExitCode, InvalidParameter, ServerUnreachable
from koguma.cli.target import ConnectionOptions, ServerTarget, resolve
from koguma.model.redacted import Redacted

MESHES = {"resources": [{"name": "Mesh", "path": "meshes", "shortName": "m", "scope": "Global"}]}
PROBLEM = {
    "status": 400,
    "title": "Could not process a resource",
    "detail": "Resource is not valid",
    "instance": "abc-1",
    "invalid_parameters": [{"field": "spec.to", "reason": "must be set"}],
}


def client(fake, token=None) -> ApiClient:
    return ApiClient(ServerTarget(fake.address, "a test", token))


def test_a_request_carries_token_and_body(fake):
    fake.answer(200, {})
    client(fake, Redacted("t0ken")).send(
        "PUT", "/meshes/a", [("dryRun", "All")], {"name": "ü"}, {"If-Match": '"3"'}
    )
    asked = fake.asked[0]
    assert (asked.method, asked.path, asked.body) == ("PUT", "/meshes/a?dryRun=All", {"name": "ü"})
    assert asked.headers["Authorization"] == "Bearer t0ken"
    assert asked.headers["If-Match"] == '"3"'
    assert asked.headers["User-Agent"].startswith("koguma/")


def test_pages_are_followed_at_the_address_that_was_given(fake):
    fake.answer(200, {"items": [1, 2], "next": "http://inside:1/x?offset=2&size=1000"})
    fake.answer(200, {"items": [3], "next": None})
    assert list(client(fake).pages("/meshes", [("name", "a")])) == [1, 2, 3]
    assert [asked.path for asked in fake.asked] == [
        "/meshes?name=a&size=1000",
        "/meshes?name=a&size=1000&offset=2",
    ]


def test_an_error_body_becomes_a_refusal_with_its_fields(fake):
    fake.answer(400, PROBLEM)
    with pytest.raises(ApiError) as refused:
        client(fake).get("/x")
    assert refused.value.message == "Could not process a resource: Resource is not valid"
    assert refused.value.fields == (InvalidParameter("spec.to", "must be set"),)
    assert refused.value.request_id == "abc-1"
    assert refused.value.code is ExitCode.REFUSED


@pytest.mark.parametrize("status", [401, 403])
def test_who_may_not_gets_an_exit_code_of_its_own(fake, status):
    fake.answer(status, {"title": "Access Denied"})
    with pytest.raises(ApiError) as refused:
        client(fake).get("/x")
    assert refused.value.code is ExitCode.DENIED


def test_an_error_that_is_no_json_is_told_by_its_first_line(fake):
    fake.answer(502, b"<h1>Bad Gateway</h1>\n<p>more</p>")
    with pytest.raises(ApiError) as refused:
        client(fake).get("/x")
    assert refused.value.message == "the server answered 502: <h1>Bad Gateway</h1>"


def test_a_web_site_is_no_control_plane(fake, koguma):
    fake.answer(200, b"<html>hello</html>")
    ended = koguma("get", "meshes", "--address", fake.address)
    assert ended.code == 1
    first, hint = ended.err.splitlines()
    assert first == (
        f"error: the server at {fake.address} (from --address) is not a Koguma control plane:"
        " it answered GET /_resources with 200 text/html"
    )
    assert hint.startswith(" - name the control plane with --address, KOGUMA_ADDRESS or --context;")


def test_a_server_that_speaks_json_is_no_control_plane_for_that(fake, koguma):
    fake.answer(200, {"hello": "world"}, Server="other/1.0")
    ended = koguma("get", "meshes", "--address", fake.address)
    assert ended.code == 1
    answered = 'it answered GET /_resources with 200 application/json of "other/1.0"'
    assert f"is not a Koguma control plane: {answered}" in ended.err


def test_a_server_that_leads_elsewhere_is_named_with_the_place(fake, koguma):
    fake.answer(301, b"moved", Location="https://mesh.example/")
    ended = koguma("get", "meshes", "--address", fake.address)
    assert "with 301 text/html, to https://mesh.example/" in ended.err


def test_kumas_control_plane_is_told_from_ours(fake, koguma):
    fake.answer(404, b"404: Page Not Found")
    fake.answer(200, {"product": "Kuma", "version": "2.13.0", "hostname": "kuma-cp"})
    ended = koguma("apply", "-f", "-", "--address", fake.address, given="{type: Mesh, name: a}")
    assert (ended.code, [asked.path for asked in fake.asked]) == (1, ["/_apply?fieldValidation=Strict", "/"])
    assert "is Kuma 2.13.0, not Koguma: it has no POST /_apply" in ended.err
    assert " - use kumactl for it" in ended.err


def test_a_redirect_is_not_followed(fake):
    fake.answer(302, b"", Location="http://example.com")
    assert client(fake, Redacted("t")).get("/x").status == 302
    assert len(fake.asked) == 1


def test_a_server_that_is_not_there_is_named_with_what_to_try(koguma):
    ended = koguma("get", "meshes", "--address", "http://127.0.0.1:1")
    assert ended.code == 3
    first, second = ended.err.splitlines()
    assert (
        first
        == "error: cannot reach the control plane at http://127.0.0.1:1 (from --address): Connection refused"
    )
    assert "koguma cp run" in second


def test_https_to_an_http_port_says_so(fake, koguma):
    ended = koguma("get", "meshes", "--address", fake.address.replace("http", "https"))
    assert ended.code == 3
    assert "does not answer as https" in ended.err


def test_a_ca_file_that_is_none_is_named(fake, koguma, tmp_path):
    file = tmp_path / "ca.pem"
    file.write_text("nothing")
    ended = koguma("get", "meshes", "--address", "https://127.0.0.1:1", "--ca-file", str(file))
    assert ended.code == 3
    assert str(file) in ended.err


def test_certificates_are_checked():
    client_ = ApiClient(ServerTarget("https://127.0.0.1:1", "a test"))
    from koguma.cli.client import _tls_context

    context = _tls_context(client_.target)
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_the_request_id_is_shown_when_asked_for(fake, koguma):
    for words in ((), ("-v",)):
        fake.answer(200, MESHES)
        fake.answer(404, {**PROBLEM, "status": 404})
        ended = koguma("get", "mesh", "a", "--address", fake.address, *words)
        assert ended.code == 1
        assert ("abc-1" in ended.err) == bool(words)
        assert " - spec.to: must be set" in ended.err


def test_what_the_server_says_cannot_steer_the_terminal(fake, koguma):
    fake.answer(200, MESHES)
    fake.answer(404, {"title": "\x1b[2Jgone", "detail": "a\nb"})
    assert koguma("get", "mesh", "a", "--address", fake.address).err == "error: mesh/a: ?[2Jgone: a?b\n"


def ndjson(*events) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


ADDED = {"type": "ADDED", "revision": 2, "object": {"type": "Mesh", "name": "a"}}
BOOKMARK = {"type": "BOOKMARK", "revision": 5}
CHANGED = {"type": "MODIFIED", "revision": 7, "object": {"type": "Mesh", "name": "a"}}
GONE = {"type": "ERROR", "status": 410, "title": "Gone", "detail": "revision 7 is too old"}


def test_a_watch_goes_on_from_the_last_revision(fake, monkeypatch, capsys):
    monkeypatch.setattr(watching, "_FIRST_PAUSE_SECONDS", 0.0)
    fake.answer(200, ndjson(ADDED, BOOKMARK, CHANGED))
    fake.answer(503, {"title": "Service unavailable", "detail": "stopping"})
    fake.answer(200, ndjson(CHANGED, GONE))
    events = watching.changes(client(fake), "/meshes", [])
    assert [next(events)["type"] for _ in range(4)] == ["ADDED", "BOOKMARK", "MODIFIED", "MODIFIED"]
    with pytest.raises(ApiError, match="revision 7 is too old"):
        next(events)
    again = "/meshes?revision=7&watch=true"
    assert [asked.path for asked in fake.asked] == ["/meshes?watch=true", again, again]
    assert "connecting again" in capsys.readouterr().err


def test_a_watch_goes_on_with_the_token_that_its_file_has_now(fake, monkeypatch, tmp_path):
    monkeypatch.setattr(watching, "_FIRST_PAUSE_SECONDS", 0.0)
    file = tmp_path / "token"
    file.write_text("first\n")
    target = resolve(ConnectionOptions(fake.address, str(file)), {"XDG_CONFIG_HOME": str(tmp_path)})
    fake.answer(200, ndjson(ADDED, BOOKMARK))
    fake.answer(401, {"title": "Unauthenticated"})
    fake.answer(200, ndjson(CHANGED))
    events = watching.changes(ApiClient(target), "/meshes", [])
    assert [next(events)["type"] for _ in range(2)] == ["ADDED", "BOOKMARK"]
    (tmp_path / "next").write_text("second\n")
    (tmp_path / "next").rename(file)
    assert next(events)["type"] == "MODIFIED"
    sent = [asked.headers["Authorization"] for asked in fake.asked]
    assert sent == ["Bearer first", "Bearer second", "Bearer second"]
    file.write_text("")  # as while it is being written
    assert target.current_token == Redacted("first")


def test_a_watch_that_never_started_fails_at_once():
    nobody = ApiClient(ServerTarget("http://127.0.0.1:1", "a test"))
    with pytest.raises(ServerUnreachable):
        next(watching.changes(nobody, "/meshes", []))


def test_a_watch_that_may_not_be_is_refused(fake):
    fake.answer(403, {"title": "Access Denied"})
    with pytest.raises(ApiError, match="Access Denied"):
        next(watching.changes(client(fake), "/meshes", []))


def test_without_the_list_of_kinds_our_own_is_used(fake, koguma):
    fake.answer(403, {"title": "Access Denied"})
    fake.answer(200, {"items": [{"type": "MeshTimeout", "name": "x", "mesh": "default"}], "next": None})
    ended = koguma("get", "mt", "-o", "name", "--address", fake.address)
    assert (ended.code, ended.out) == (0, "meshtimeout/x\n")


def test_failures_are_exceptions_with_words():
    assert str(CommandFailure("a", code=ExitCode.USAGE)) == "a"
