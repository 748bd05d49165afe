"""A zone that was alone joins a Global with its objects kept, works there, and leaves again."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from koguma.cli import main
from tests import build
from tests.build import timeout
from tests.control_plane import LocalControlPlane
from tests.sync.test_zones import URL, Federation, _checks, _is_connected, _token, federation  # noqa: F401
from tests.waiting import until

SHOP = {"type": "Mesh", "name": "shop", "mtls": build.builtin_mtls()}


class JoiningZone:
    """The zone east: started alone or with a settings file; its store stays."""

    def __init__(self, federation: Federation, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
        self.federation, self.capsys = federation, capsys
        self.directory = federation.directory
        self.token = self.directory / "east.token"
        self.token.write_text(_token(federation.top, "east"))
        self.settings = self.directory / "cp.yaml"
        self.settings.write_text("# of east\nzoneName: east\nlogLevel: error\n")

    def __call__(self) -> LocalControlPlane:
        store = f"sqlite:///{self.directory / 'east.db'}"
        return LocalControlPlane(self.directory / "east", file=str(self.settings), store=store)

    def koguma(self, plane: LocalControlPlane, *words: str) -> tuple[int, str]:
        self.capsys.readouterr()
        code = main([*words, "--address", plane.address])
        printed = self.capsys.readouterr()
        return int(code), printed.out + printed.err

    def join(self, plane: LocalControlPlane, *words: str, token: Path | None = None) -> tuple[int, str]:
        where = ("--global-address", f"grpcs://127.0.0.1:{self.federation.sync_port}")
        ca = ("--global-ca", str(self.directory / "global" / "ca.pem"))
        return self.koguma(
            plane, "zone", "join", *where, *ca, "--zone-token-file", str(token or self.token), *words
        )


@pytest.fixture
def zone(federation: Federation, capsys: pytest.CaptureFixture[str]) -> JoiningZone:  # noqa: F811
    return JoiningZone(federation, capsys)


def _all(plane: LocalControlPlane, path: str) -> dict[str, Any]:
    return {item["name"]: item for item in plane("GET", path).json["items"]}


@pytest.mark.expected_errors("shown nothing")
def test_a_zone_joins_with_its_objects_and_leaves_with_those_of_global(
    zone: JoiningZone, tmp_path: Path
) -> None:
    secrets = _joins(zone, tmp_path)
    written = yaml.safe_load(zone.settings.read_text())
    assert written["zoneName"] == "east"
    assert written["zoneTokenFile"] == str(zone.token)
    assert zone.settings.read_text().startswith("# of east\n")
    _takes_part(zone, secrets)
    assert "globalAddress" not in zone.settings.read_text()
    _leaves(zone)


def _joins(zone: JoiningZone, tmp_path: Path) -> set[str]:
    """Its own Mesh goes to Global first; the data of the Secrets of that mesh."""
    top = zone.federation.top
    assert top("PUT", f"{URL}/slow", timeout("slow")).status == 201
    with zone() as alone:
        assert alone("PUT", "/meshes/shop", SHOP).status == 201
        until(lambda: len(_all(alone, "/meshes/shop/secrets")) == 3, "the mesh has its CA")
        assert alone("PUT", f"{URL}/slow", timeout("slow", idle="7s")).status == 201
        assert (
            alone("PUT", "/meshes/shop/meshtimeouts/mine", {**timeout("mine"), "mesh": "shop"}).status == 201
        )
        secrets = _all(alone, "/meshes/shop/secrets")
        # What is in the way is named, and nothing is changed.
        code, text = zone.join(alone, "--dry-run")
        assert code == 1
        assert "Mesh/shop is not on Global: bring it there first" in text
        assert "MeshTimeout/slow of mesh default stays beside Global's of that name" in text
        code, text = zone.join(alone)
        assert code == 1
        assert "koguma apply -f for-global.yaml" in text
        assert top("GET", "/zones").json["total"] == 0
        # Without the right token it learns nothing.
        wrong = tmp_path / "west.token"
        wrong.write_text(_token(top, "west"))
        code, text = zone.join(alone, "--dry-run", token=wrong)
        assert (code, "is different than in token: west" in text) == (4, True)
        # Bring it to Global, and try again.
        file = tmp_path / "for-global.yaml"
        assert zone.join(alone, "--dry-run", "--for-global", str(file))[0] == 1
        assert (file.stat().st_mode & 0o777) == 0o600
        code, text = zone.koguma(top, "apply", "-f", str(file))
        assert code == 0, text
        assert {each["data"] for each in _all(top, "/meshes/shop/secrets").values()} == {
            each["data"] for each in secrets.values()
        }
        code, text = zone.join(alone, "--dry-run")
        assert code == 0, text
        assert "becomes Global's, and is changed there from then on: " in text
        assert "Mesh/shop" in text
        code, text = zone.join(alone, "--write", str(zone.settings))
        assert code == 0, text
    return {each["data"] for each in secrets.values()}


def _takes_part(zone: JoiningZone, secrets: set[str]) -> None:
    """Its objects are on Global, and nothing of them has changed."""
    top = zone.federation.top
    with zone() as joined:
        until(lambda: _is_connected(joined), "it is connected")
        until(
            lambda: "kri_mt_shop_east__mine_" in str(top("GET", "/meshtimeouts").json),
            "its policy is on Global",
        )
        until(
            lambda: "kri_mt_default___slow_" in str(joined("GET", "/meshtimeouts").json), "Global's is here"
        )
        assert joined("GET", f"{URL}/slow").json["spec"]["to"][0]["default"] == {"idleTimeout": "7s"}
        assert {each["data"] for each in _all(joined, "/meshes/shop/secrets").values()} >= secrets
        refusals = [check["message"] for check in _checks(joined, "sync")]
        assert all("dataplane-token-signing-key-default" in text for text in refusals), refusals
        # The mesh is Global's now: changed there, it changes here, and not the other way round.
        assert joined("PUT", "/meshes/shop", SHOP).status == 405
        changed = {**SHOP, "routing": {"zoneEgress": True}}
        assert top("PUT", "/meshes/shop", changed).status == 200
        until(lambda: "zoneEgress" in joined("GET", "/meshes/shop").text, "the change comes")
        assert zone.join(joined, "--dry-run")[0] == 1
        # Leaving takes a restart first, and says so.
        code, text = zone.koguma(joined, "zone", "leave", "--keep", "--write", str(zone.settings))
        assert (code, "Start the control plane without" in text) == (1, True)


def _leaves(zone: JoiningZone) -> None:
    """What came from Global is its own from then on."""
    with zone() as left:
        assert zone.koguma(left, "zone", "leave")[0] == 2
        code, text = zone.koguma(left, "zone", "leave", "--keep", "--dry-run")
        assert (code, "MeshTimeout slow is kept as slow-" in text) == (0, True), text
        assert "kri_mt_default___slow_" in left("GET", "/meshtimeouts").text
        code, text = zone.koguma(left, "zone", "leave", "--keep")
        assert code == 0, text
        names = _all(left, "/meshes/default/meshtimeouts")
        assert {item["labels"]["kuma.io/origin"] for item in names.values()} == {"zone"}
        assert names["slow"]["spec"]["to"][0]["default"] == {"idleTimeout": "7s"}
        assert len([name for name in names if name.startswith("slow-")]) == 1
        assert left("PUT", "/meshes/shop", SHOP).status == 200
        assert zone.koguma(left, "zone", "leave", "--remove")[0] == 0  # there is nothing more


def test_a_zone_that_just_starts_with_a_global_loses_nothing(zone: JoiningZone) -> None:
    top = zone.federation.top
    with zone() as alone:
        assert (
            alone(
                "PUT", "/meshes/default", {"type": "Mesh", "name": "default", "mtls": build.builtin_mtls()}
            ).status
            == 200
        )
        code, text = zone.join(alone, "--dry-run")
        assert (code, "Mesh/default differs from Global's" in text, "/mtls" in text) == (1, True, True)
    address = f"grpcs://127.0.0.1:{zone.federation.sync_port}"
    ca = zone.directory / "global" / "ca.pem"
    zone.settings.write_text(
        f"zoneName: east\nglobalAddress: {address}\nglobalCa: {ca}\nzoneTokenFile: {zone.token}\n"
    )
    with zone() as joined:
        until(
            lambda: "has one of its own that differs" in str(_checks(joined, "sync")), "the mesh is refused"
        )
        assert "mtls" in joined("GET", "/meshes/default").text
        assert "has one of its own that differs" in str(_checks(top, "sync"))
    zone.settings.write_text("zoneName: east\n")
    with zone() as alone:  # Global's is taken where the operator says so
        code, text = zone.join(alone, "--take-global")
        assert code == 0, text
        assert "koguma cp run --mode zone --zone-name east --global-address" in text
        assert "mtls" not in alone("GET", "/meshes/default").text
        # Removed is what came from Global, but for what the zone's own objects are in.
        code, text = zone.koguma(alone, "zone", "leave", "--remove")
        assert (code, alone("GET", "/meshes/default").status) == (0, 200), text


def test_who_may_not_restore_a_backup_may_not_do_it_either(zone: JoiningZone, tmp_path: Path) -> None:
    lines = {"Content_Type": "application/x-ndjson"}
    with zone() as alone:
        head = b'{"globalId": "x", "globalVersion": "1"}\n'
        for path, body, headers in (
            ("/_zone/join", head, lines),
            ("/_zone/leave", b'{"objects": "keep"}', {}),
        ):
            assert alone("POST", path, body, Impersonate_User="dora", **headers).status == 403
            assert alone("POST", path, b'{"objects": 7}', **headers).status == 400
            assert zone.federation.top("POST", path, body, **headers).status == 405
        assert alone("POST", "/_zone/join", head + b"[" * 5000, **lines).status == 400
        assert alone("POST", "/_zone/join", {}).status == 415
        joins = ("zone", "join", "--zone-token-file", str(zone.token), "--global-address")
        code, text = zone.koguma(alone, *joins, "http://x")
        assert (code, "grpcs://HOST:5685" in text) == (2, True)
        code, text = zone.koguma(alone, *joins, "grpcs://127.0.0.1:1")
        assert (code, "does not answer at" in text) == (3, True)
        code, text = zone.koguma(zone.federation.top, *joins, "grpcs://127.0.0.1:1")
        assert (code, "this control plane is Global" in text) == (1, True)
        code, text = zone.join(alone, token=tmp_path / "none")
        assert (code, "cannot be read" in text) == (1, True)
