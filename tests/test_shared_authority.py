"""The CA that control planes share: made once, brought by who had one, written to every data directory."""

import base64
import concurrent.futures
import hashlib
import json
import socket
import ssl
import urllib.request

import pytest

from koguma.identity import certificates, files
from koguma.model.internal_kinds import CONTROL_PLANE_CA, INTERNAL_KINDS
from koguma.runtime.clock import now
from tests.control_plane import LocalControlPlane

pytestmark = pytest.mark.slow


def _key_lines(plane: LocalControlPlane) -> list[str]:
    """What nobody may read: the lines of the CA's key, and the same as base64."""
    pem = (plane.data_dir / "ca-key.pem").read_text()
    return [*pem.splitlines()[1:-1], base64.b64encode(pem.encode()).decode()[:60]]


def _without_ca(exported: bytes) -> bytes:
    """The same backup by a release that kept no CA in the store."""
    lines = [line for line in exported.splitlines() if CONTROL_PLANE_CA.encode() not in line[:200]]
    head = json.loads(exported.splitlines()[0])
    head["sets"] = [each for each in head["sets"] if each["kind"] != CONTROL_PLANE_CA]
    body = b"".join(line + b"\n" for line in (json.dumps(head).encode(), *lines[1:-1]))
    end = {"objects": len(lines) - 2, "sha256": hashlib.sha256(body).hexdigest()}
    return body + json.dumps(end).encode()


def test_the_first_one_brings_its_ca_and_all_others_take_it_over(postgres, tmp_path):
    names = (socket.gethostname(),)
    before = files.server_credentials(tmp_path / "a", names, now())  # a data directory of an earlier release
    other = files.server_credentials(tmp_path / "c", (), now())
    store = postgres.database()
    with (
        LocalControlPlane(tmp_path / "a", store=store) as first,
        LocalControlPlane(tmp_path / "b", store=store, hostnames=("b.example",)) as second,
        LocalControlPlane(tmp_path / "c", store=store) as third,
    ):
        served = [(plane.data_dir / "tls.pem").read_text() for plane in (first, second, third)]
        assert [(plane.data_dir / "ca.pem").read_text() for plane in (first, second, third)] == [
            before.ca
        ] * 3
        assert served[0] == before.certificate, "who trusts it is not disturbed"
        assert len(set(served)) == 3, "each has a certificate of its own"
        assert all(certificates.is_issued_by(each, before.ca) for each in served)
        assert certificates.covers(served[1], ["b.example"])
        assert not certificates.covers(served[0], ["b.example"])
        assert (tmp_path / "c" / "ca.pem.old").read_text() == other.ca
        (warning,) = [check for check in third("GET", "/_check").json["checks"] if "another CA" in str(check)]
        assert "ca.pem.old" in str(warning)
        trusted = ssl.create_default_context(cadata=before.ca)
        for plane in (first, second, third):
            with urllib.request.urlopen(
                f"https://127.0.0.1:{plane.tls_port}/healthy", context=trusted
            ) as page:
                assert page.status == 200
    with LocalControlPlane(tmp_path / "c", store=store) as again:
        assert "another CA" not in again("GET", "/_check").text


def test_two_that_start_at_once_have_one(postgres, tmp_path):
    store = postgres.database()
    planes = [LocalControlPlane(tmp_path / name, store=store) for name in "ab"]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(LocalControlPlane.__enter__, planes))
        list(pool.map(lambda plane: plane.__exit__(), planes))
    one, other = ((tmp_path / name / "ca.pem").read_text() for name in "ab")
    assert one == other


def test_nobody_reads_it_through_the_api_and_the_database_has_it_sealed(tmp_path):
    with LocalControlPlane(tmp_path / "d", store=f"sqlite:///{tmp_path}/d.db") as plane:
        secret = _key_lines(plane)
        paths = ["/_resources", "/openapi.json", "/config", "/_check", "/metrics", "/api/v1", "/apis"]
        for listed in plane("GET", "/_resources").json["resources"]:
            path = listed["path"]
            paths += [f"/{path}", f"/{path}?size=1000", f"/{path}/ca"]
        paths += [f"/{CONTROL_PLANE_CA}", f"/{CONTROL_PLANE_CA}/ca", f"/global-secrets/{CONTROL_PLANE_CA}"]
        for group in plane("GET", "/apis").json["groups"]:
            version = group["preferredVersion"]["groupVersion"]
            served = plane("GET", f"/apis/{version}").json["resources"]
            paths += [f"/apis/{version}/{each['name']}" for each in served if "/" not in each["name"]]
        served = plane("GET", "/api/v1").json["resources"]
        paths += [f"/api/v1/{each['name']}" for each in served if "/" not in each["name"]]
        answers = {path: plane("GET", path) for path in dict.fromkeys(paths)}
        assert sum(answer.status == 200 for answer in answers.values()) > 40
        assert [path for path, answer in answers.items() if any(line in answer.text for line in secret)] == []
        exported = plane("GET", "/_export")
        assert any(line in exported.text for line in secret), "or else a restored store had another CA"
        assert exported.status == 200
    for file in tmp_path.glob("d.db*"):
        stored = file.read_bytes()
        assert not any(line.encode() in stored for line in secret), file
    assert CONTROL_PLANE_CA.encode() in (tmp_path / "d.db").read_bytes()


def test_a_backup_brings_the_ca_along_and_an_old_one_leaves_it(tmp_path):
    with LocalControlPlane(tmp_path / "a") as plane:
        exported = plane("GET", "/_export").body
    with LocalControlPlane(tmp_path / "b", store=f"sqlite:///{tmp_path}/b.db") as other:
        headers = {"Content-Type": "application/x-ndjson"}
        done = other("POST", "/_import?prune=true", exported, **headers)
        assert done.status == 200, done.text
        token = {"Authorization": f"Bearer {(tmp_path / 'a' / 'admin-token').read_text()}"}
        assert "the store has another CA by now" in other("GET", "/_check", **token).text
        older = _without_ca(exported)
        assert other("POST", "/_import?prune=true", older, **headers, **token).status == 200
    with LocalControlPlane(tmp_path / "b", store=f"sqlite:///{tmp_path}/b.db"):
        pass
    assert (tmp_path / "b" / "ca.pem").read_text() == (tmp_path / "a" / "ca.pem").read_text()


def test_a_ca_is_rotated_in_three_steps_each_of_which_is_taken_once(tmp_path):
    def start(step):
        store = f"sqlite:///{tmp_path}/r.db"
        with LocalControlPlane(tmp_path / "r", store=store, ca_rotation=step) as plane:
            assert "another CA" not in plane("GET", "/_check").text
            ca, served = ((plane.data_dir / name).read_text() for name in ("ca.pem", "tls.pem"))
            trusted = ssl.create_default_context(cadata=ca)
            with urllib.request.urlopen(
                f"https://127.0.0.1:{plane.tls_port}/healthy", context=trusted
            ) as page:
                assert page.status == 200
            return ca, served

    old, _ = start("none")
    both, _ = start("begin")
    assert both.startswith(old)
    new = both.removeprefix(old)
    for step, expected, issuer in (
        ("begin", old + new, old),
        ("use", new + old, new),
        ("use", new + old, new),
        ("none", new + old, new),
        ("end", new, new),
        ("end", new, new),
        ("use", new, new),
    ):
        ca, served = start(step)
        assert ca == expected, step
        assert certificates.is_issued_by(served, issuer), step
    given_up, _ = start("begin")
    assert given_up.startswith(new)
    assert start("end")[0] == new


def test_a_ca_without_its_key_stays_where_it_is(tmp_path):
    own = files.server_credentials(tmp_path / "e", (socket.gethostname(),), now())
    (tmp_path / "e" / "ca-key.pem").unlink()
    with LocalControlPlane(tmp_path / "e") as plane:
        assert "has no key here" in plane("GET", "/_check").text
        assert (plane.data_dir / "tls.pem").read_text() == own.certificate
    assert (tmp_path / "e" / "ca.pem").read_text() == own.ca


def test_no_kind_can_have_the_name_of_an_internal_one():
    assert all("-" in name and "." not in name for name in INTERNAL_KINDS)
