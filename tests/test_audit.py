"""The audit log: who asked for what, in every form, also what was refused; no request waits for it."""

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from koguma.control_plane.checks import audit_checks
from koguma.model.errors import KogumaError
from koguma.runtime.audit_file import AuditFile
from koguma.runtime.audit_log import AuditLog
from tests.build import timeout
from tests.control_plane import LocalControlPlane
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["writes", "all"])
def audited(request, tmp_path_factory):
    data = tmp_path_factory.mktemp("audited")
    with LocalControlPlane(
        data, audit_log=str(data / "audit.jsonl"), audit_level=request.param, localhost_is_admin=False
    ) as plane:
        yield plane


def admin(plane):
    return {"Authorization": f"Bearer {(plane.data_dir / 'admin-token').read_text()}"}


def events(plane):
    return [json.loads(line) for line in (plane.data_dir / "audit.jsonl").read_text().splitlines()]


def event_of(plane, answer):
    """The event of a request, when it is written."""
    number = answer.headers["Koguma-Request-Id"]

    def found():
        return [event for event in events(plane) if event["request"] == number]

    (event,) = until(found)
    return event


def test_writes_of_every_form_are_there_without_bodies_and_tokens(audited):
    plane, hidden = audited, "c2VjcmV0LXRleHQ="
    secret = {"type": "Secret", "mesh": "default", "name": "s", "data": hidden}
    event = event_of(plane, plane("PUT", "/meshes/default/secrets/s", secret, **admin(plane)))
    said = {name: value for name, value in event.items() if name not in ("time", "request", "ms", "groups")}
    assert said == {
        "user": "mesh-system:admin",
        "from": "127.0.0.1",
        "verb": "update",
        "resource": "secrets",
        "mesh": "default",
        "name": "s",
        "method": "PUT",
        "path": "/meshes/default/secrets/s",
        "code": 201,
        "allowed": True,
    }
    assert "mesh-system:admin" in event["groups"]
    kube = "/apis/kuma.io/v1alpha1/namespaces/mesh-default/meshtimeouts"
    document = {
        "apiVersion": "kuma.io/v1alpha1",
        "kind": "MeshTimeout",
        "metadata": {"name": "k"},
        "spec": timeout()["spec"],
    }
    event = event_of(plane, plane("POST", f"{kube}?dryRun=All", document, **admin(plane)))
    said = [event.get(name) for name in ("verb", "group", "resource", "namespace", "mesh", "dryRun")]
    assert said == ["create", "kuma.io", "meshtimeouts", "mesh-default", "default", True]
    event = event_of(plane, plane("POST", "/_apply", timeout("a"), **admin(plane)))
    assert (event["verb"], event["path"], event["code"]) == ("create", "/_apply", 200)
    headers = {**admin(plane), "Impersonate_User": "ann"}
    event = event_of(plane, plane("DELETE", f"{kube}/k", **headers))
    assert (event["user"], event["impersonator"], event["code"]) == ("ann", "mesh-system:admin", 403)
    text = (plane.data_dir / "audit.jsonl").read_text()
    assert hidden not in text
    assert (plane.data_dir / "admin-token").read_text().strip() not in text


def test_what_was_refused_is_there_with_the_reason_in_both_forms(audited):
    plane = audited
    for path, code in (
        ("/meshes/default/secrets/s", 403),
        ("/api/v1/namespaces/default/secrets/s", 403),
        ("/_history", 403),
    ):
        event = event_of(plane, plane("GET", path))
        assert (event["code"], event["allowed"], event["user"]) == (code, False, "mesh-system:anonymous")
        assert event["refusal"]
    event = event_of(plane, plane("GET", "/meshes?token=hush", Authorization="Bearer hush"))
    assert (event["code"], event["verb"], event["resource"]) == (401, "list", "meshes")
    assert "hush" not in json.dumps(event)


def test_reads_are_there_where_that_is_chosen(audited):
    plane = audited
    read = plane("GET", "/meshes/default", **admin(plane))
    written = event_of(plane, plane("PUT", "/meshes/default/meshtimeouts/b", timeout("b"), **admin(plane)))
    earlier = [event["request"] for event in events(plane)]
    assert written["request"] in earlier
    has_read = read.headers["Koguma-Request-Id"] in earlier
    assert has_read is (plane.settings.audit_level == "all")


def test_its_figures_are_shown(audited):
    plane = audited
    checks = plane("GET", "/_check", **admin(plane)).json["checks"]
    (check,) = [each for each in checks if each["name"] == "audit"]
    assert check["status"] == "ok"
    assert "koguma_audit_dropped_total 0.0" in plane("GET", "/metrics", **admin(plane)).text


def test_the_file_is_its_owners_and_follows_a_rotation(tmp_path):
    path = tmp_path / "audit.jsonl"
    log = AuditLog(AuditFile(str(path)))
    log.start()
    log.add({"n": 1})
    until(lambda: log.n_written == 1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.rename(tmp_path / "audit.jsonl.1")
    log.add({"n": 2})
    until(lambda: log.n_written == 2)
    log.add({"n": 3})
    log.stop()
    assert (tmp_path / "audit.jsonl.1").read_text() == '{"n":1}\n'
    assert path.read_text() == '{"n":2}\n{"n":3}\n'


def test_a_full_queue_and_a_full_disk_drop_and_count(tmp_path):
    log = AuditLog(AuditFile(str(tmp_path / "never-started")), queue_max=2)
    for number in range(5):
        log.add({"n": number})
    assert log.n_dropped == 3
    full = AuditLog(AuditFile("/dev/full"))
    full.start()
    full.add({"n": 1})
    until(lambda: full.n_dropped == 1)
    assert "No space left" in full.problem.text
    full.stop()


def test_what_to_do_follows_from_what_is_wrong(tmp_path):
    def hint(log):
        (check,) = audit_checks(log)
        assert check.status == "warning"
        assert log.problem is None or log.problem.text in check.message
        return check.hint

    full = AuditLog(AuditFile("/dev/full"))
    log = AuditLog(AuditFile(str(tmp_path / "logs" / "audit.jsonl")))
    log.output.path.parent.mkdir()
    for each in (full, log):
        each.start()
    full.add({"n": 1})
    until(lambda: full.problem)
    assert hint(full) == "make room on its disk"
    full.stop()
    log.output.path.parent.rename(tmp_path / "moved")
    log.add({"n": 1})
    until(lambda: log.problem)
    assert hint(log).startswith(f"create the directory {tmp_path / 'logs'}")
    (tmp_path / "logs").write_text("a file")
    log.add({"n": 2})
    until(lambda: "Not a directory" in log.problem.text)
    assert hint(log).startswith("create the directory")
    (tmp_path / "logs").unlink()
    log.output.path.mkdir(parents=True)
    log.add({"n": 3})
    until(lambda: "Is a directory" in log.problem.text)
    assert "name another file" in hint(log)
    log.output.path.rmdir()
    log.add({"n": 4})
    until(lambda: log.n_written)
    assert hint(log).startswith("it is written now")
    log.stop()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EACCES, "let the user that runs"),
        (errno.EPERM, "let the user that runs"),
        (errno.EROFS, "read-only"),
    ],
)
def test_what_to_do_where_it_may_not_be_written(tmp_path, monkeypatch, number, words):
    """Root may write everything, so the refusal is raised here."""
    log = AuditLog(AuditFile(str(tmp_path / "audit.jsonl")))
    log.start()

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", refuse)
    log.add({"n": 1})
    until(lambda: log.problem)
    monkeypatch.undo()
    (check,) = audit_checks(log)
    assert words in check.hint
    log.stop()


def test_a_file_that_cannot_be_opened_refuses_the_start(tmp_path):
    with pytest.raises(KogumaError, match="cannot be written: No such file or directory"):
        AuditLog(AuditFile(str(Path(tmp_path) / "missing" / "audit.jsonl"))).start()


def test_a_name_that_is_no_text_is_refused_in_words_and_ends_no_audit(audited):
    plane = audited
    for headers in ({}, admin(plane)):
        answer = plane("GET", "/meshes", **headers, **{"Impersonate-User": "d\xffra"})  # sent as Latin-1
        assert (answer.status, "Impersonate-User must be UTF-8" in answer.text) == (400, True), answer.text
    answer = plane("PUT", "/meshes/m", {}, **admin(plane), **{"Content-Type": "\xff"})
    assert (answer.status, event_of(plane, answer)["code"]) == (415, 415)
    assert event_of(plane, plane("DELETE", "/meshes/none", **admin(plane)))["code"] == 404


def test_what_is_no_text_is_replaced(tmp_path):
    log = AuditLog(AuditFile(str(tmp_path / "audit.jsonl")))
    log.start()
    log.add({"user": "d\udcffra"})
    log.add({"user": "dora"})
    log.stop()
    lines = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert [json.loads(line)["user"] for line in lines] == ["d?ra", "dora"]


@pytest.mark.expected_errors("audit events cannot be written")
def test_an_event_that_cannot_be_encoded_is_counted_and_ends_nothing(tmp_path):
    log = AuditLog(AuditFile(str(tmp_path / "audit.jsonl")))
    log.start()
    log.add({"user": object()})
    until(lambda: log.n_dropped == 1)
    (check,) = audit_checks(log)
    assert (check.status, "TypeError" in check.message) == ("warning", True)
    log.add({"user": "ann"})
    until(lambda: log.n_written == 1)
    log.stop()
    assert log.output.path.read_text() == '{"user":"ann"}\n'


def test_a_line_that_a_full_disk_cut_spoils_no_other(tmp_path, monkeypatch):
    room, write = [12], os.write

    def write_what_fits(file, data):
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = write(file, data[: room[0]])
        room[0] -= done
        return done

    monkeypatch.setattr(os, "write", write_what_fits)
    log = AuditLog(AuditFile(str(tmp_path / "audit.jsonl")))
    log.start()
    log.add({"n": 1})  # eight bytes with its end
    log.add({"n": 2})
    until(lambda: log.n_dropped)
    room[0] = 1_000
    log.add({"n": 3})
    log.stop()
    assert (tmp_path / "audit.jsonl").read_text() == '{"n":1}\n{"n"\n{"n":3}\n'
    assert (log.n_written, log.n_dropped) == (2, 1)
