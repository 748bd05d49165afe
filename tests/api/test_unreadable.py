"""An object that is stored and cannot be read: it hides no other, and can be deleted or written again."""

import sqlite3

import pytest

from tests.build import timeout
from tests.control_plane import LocalControlPlane

URL = "/meshes/default/meshtimeouts"


@pytest.fixture
def damaged(tmp_path):
    """A control plane whose store has one damaged row."""
    store = f"sqlite:///{tmp_path / 'koguma.db'}"
    with LocalControlPlane(tmp_path, store=store) as plane:
        for name in ("broken", "sound"):
            assert plane("PUT", f"{URL}/{name}", timeout(name)).status == 201
    with sqlite3.connect(tmp_path / "koguma.db") as database:
        database.execute("UPDATE changes SET body = '{' WHERE core_name = 'broken'")
    database.close()
    with LocalControlPlane(tmp_path, store=store) as plane:
        yield plane


def test_the_others_are_there_and_it_is_named(damaged):
    assert "sound" in [item["name"] for item in damaged("GET", URL).json["items"]]
    answer = damaged("GET", f"{URL}/broken")
    assert answer.status == 500
    assert 'MeshTimeout "broken"' in answer.json["detail"]
    assert "delete it, or write it again" in answer.json["detail"]
    (check,) = [check for check in damaged("GET", "/_check").json["checks"] if check["name"] == "objects"]
    assert check["status"] == "error"


def test_it_can_be_deleted(damaged):
    assert damaged("DELETE", f"{URL}/broken").status == 200
    assert damaged("GET", f"{URL}/broken").status == 404


def test_it_can_be_written_again(damaged):
    assert damaged("PUT", f"{URL}/broken", timeout("broken")).status in (200, 201)
    assert damaged("GET", f"{URL}/broken").json["spec"] == timeout()["spec"]


def test_it_can_be_applied_again(damaged):
    assert damaged("POST", "/_apply", [timeout("broken")]).status == 200
    assert damaged("GET", f"{URL}/broken").status == 200
