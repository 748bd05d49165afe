"""A control plane whose disk is full: what clients, operators and monitoring are told."""

import time

import pytest

from tests.build import timeout
from tests.control_plane import LocalControlPlane
from tests.small_disk import small_disk


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", 32) as found:
        yield found


def written_until_refused(plane: LocalControlPlane):
    for number in range(200):
        answer = plane(
            "PUT",
            f"/meshes/default/meshtimeouts/t{number}",
            timeout(f"t{number}", labels={"a": "x" * 60}),
        )
        if answer.status >= 300:
            return answer
    raise AssertionError("everything was stored")


def test_a_full_disk_is_answered_with_507_and_shown_to_operators(disk) -> None:
    with LocalControlPlane(disk.path / "data", store="") as plane:
        assert plane("PUT", "/meshes/default/meshtimeouts/old", timeout("old")).status == 201
        assert plane("GET", "/ready").status == 200
        disk.fill()
        refused = written_until_refused(plane)
        assert (refused.status, refused.json["title"]) == (507, "Insufficient Storage")
        assert "koguma.db is full" in refused.json["detail"]
        through_kubernetes = plane(
            "POST",
            "/api/v1/namespaces",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-new"}},
        )
        assert through_kubernetes.status == 507
        assert through_kubernetes.json["reason"] == "InsufficientStorage"
        ready = plane("GET", "/ready")
        assert ready.status == 503
        assert "koguma.db is full" in ready.json["reason"]
        probe = plane("GET", "/readyz")
        assert (probe.status, probe.text.splitlines()[-1]) == (500, "readyz check failed")
        assert "[-]store-room failed: " in probe.text
        assert plane("GET", "/readyz/store-room").status == 500
        assert plane("GET", "/readyz?exclude=store-room").text == "ok"
        assert plane("GET", "/livez").text == "ok"
        checks = {check["name"]: check for check in plane("GET", "/_check").json["checks"]}
        assert checks["store"]["status"] == "error"
        assert "koguma.db is full" in checks["store"]["message"]
        assert b"koguma_store_full 1.0" in plane("GET", "/metrics").body
        assert plane("GET", "/meshes/default/meshtimeouts/old").status == 200
        assert plane("DELETE", "/meshes/default/meshtimeouts/old").status == 200
        assert plane("GET", "/meshes/default/meshtimeouts/old").status == 404
        disk.free()
        ends_at = time.monotonic() + 60
        while plane("GET", "/ready").status != 200:
            assert time.monotonic() < ends_at, "it does not notice that there is room again"
            time.sleep(0.1)
        assert b"koguma_store_full 0.0" in plane("GET", "/metrics").body
        assert plane("PUT", "/meshes/default/meshtimeouts/new", timeout("new")).status == 201
