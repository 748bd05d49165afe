"""Secrets of a control plane cannot be read in what lies on its disk, and survive a restart."""

import base64
import stat

import pytest

from koguma.model.errors import KogumaError
from tests.build import timeout
from tests.control_plane import LocalControlPlane

PAYLOAD = b"the password of the payments database"
TEXT = base64.b64encode(PAYLOAD).decode()
KUBERNETES = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "db", "namespace": "default"},
    "data": {"password": TEXT},
}


def written(plane: LocalControlPlane) -> None:
    secrets = {"type": "Secret", "mesh": "default", "name": "db", "data": TEXT}
    assert plane("PUT", "/meshes/default/secrets/db", secrets).status == 201
    assert (
        plane("PUT", "/global-secrets/db", {"type": "GlobalSecret", "name": "db", "data": TEXT}).status == 201
    )
    assert plane("POST", "/api/v1/namespaces/default/secrets", KUBERNETES).status == 201
    assert plane("PUT", "/meshes/default/meshtimeouts/slow", timeout()).status == 201


def found(plane: LocalControlPlane) -> list[str]:
    kube = plane("GET", "/api/v1/namespaces/default/secrets/db").json["data"]["password"]
    plain = [plane("GET", path).json["data"] for path in ("/meshes/default/secrets/db", "/global-secrets/db")]
    return [kube, *plain]


def on_disk(data) -> bytes:
    return b"".join(file.read_bytes() for file in data.iterdir() if file.name.startswith("koguma.db"))


def store_check(plane: LocalControlPlane) -> str:
    checks = plane("GET", "/_check").json["checks"]
    return next(check["message"] for check in checks if check["name"] == "store")


def test_a_fresh_control_plane_encrypts_its_secrets(tmp_path) -> None:
    data = tmp_path / "data"
    with LocalControlPlane(data, store="") as plane:
        written(plane)
        assert TEXT.encode() not in on_disk(data)
        assert stat.S_IMODE((data / "koguma.db.key").stat().st_mode) == 0o600
        assert "Secrets are encrypted with the key " in store_check(plane)
    assert TEXT.encode() not in on_disk(data)
    assert b"idleTimeout" in on_disk(data)  # other objects are as they were
    with LocalControlPlane(data, store="") as plane:
        assert found(plane) == [TEXT] * 3


def test_secrets_of_before_are_encrypted_by_the_next_start(tmp_path) -> None:
    data = tmp_path / "data"
    with LocalControlPlane(data, store="", store_encryption=False) as plane:
        written(plane)
        assert "Secrets are not encrypted, by choice" in store_check(plane)
    assert TEXT.encode() in on_disk(data)
    assert not (data / "koguma.db.key").exists()
    with LocalControlPlane(data, store="") as plane:
        assert TEXT.encode() not in on_disk(data)
        assert found(plane) == [TEXT] * 3


def started(plane: LocalControlPlane) -> None:
    try:
        plane.__enter__()
    finally:
        plane.__exit__()


def test_a_lost_key_stops_the_start_and_names_the_file(tmp_path) -> None:
    data = tmp_path / "data"
    with LocalControlPlane(data, store="") as plane:
        written(plane)
    key = data / "koguma.db.key"
    kept = key.read_bytes()
    key.unlink()
    with pytest.raises(KogumaError) as refusal:
        started(LocalControlPlane(data, store=""))
    assert str(key) in refusal.value.detail
    assert "nothing was changed" in refusal.value.detail
    assert not key.exists()
    key.write_bytes(kept)
    key.chmod(0o600)
    with LocalControlPlane(data, store="") as plane:
        assert found(plane) == [TEXT] * 3


def test_postgres_needs_a_key_or_the_choice_to_go_without(tmp_path, postgres) -> None:
    url = postgres.database()
    with pytest.raises(KogumaError, match="--no-store-encryption"):
        started(LocalControlPlane(tmp_path / "a", store=url, store_key_file=""))
    with (
        LocalControlPlane(tmp_path / "b", store=url) as one,
        LocalControlPlane(tmp_path / "c", store=url) as two,
    ):
        written(one)
        assert found(one) == [TEXT] * 3
        assert two("GET", "/ready").status == 200
    bodies = [body for (body,) in postgres.fetch("SELECT body FROM changes", url)]
    assert not [body for body in bodies if TEXT in body]
    with LocalControlPlane(tmp_path / "d", store=url) as plane:
        assert found(plane) == [TEXT] * 3
    postgres.drop(url)
