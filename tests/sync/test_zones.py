"""Global and two zones, as real control planes: objects of all origins side by side, everywhere alike."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koguma.model.resource import Resource
from koguma.store import Put, Transaction
from tests.build import dataplane, timeout
from tests.control_plane import LocalControlPlane
from tests.waiting import until

pytestmark = pytest.mark.slow

URL = "/meshes/default/meshtimeouts"
OF_ZONE = {"kuma.io/origin": "zone"}


def _token(plane: LocalControlPlane, zone: str, scope: tuple[str, ...] = ("cp",)) -> str:
    answer = plane("POST", "/tokens/zone", {"zone": zone, "scope": list(scope), "validFor": "1h"})
    assert answer.status == 200, answer.body
    return answer.text


class Federation:
    """A Global and what zones need to join it."""

    def __init__(self, directory: Path, **flags: Any) -> None:
        self.directory = directory
        self.stack = contextlib.ExitStack()
        self.top = self.stack.enter_context(self.new_global(**flags))
        self.sync_port = self.top.plane.ports["sync"]

    def new_global(self, **flags: Any) -> LocalControlPlane:
        store = f"sqlite:///{self.directory / 'global.db'}"
        usual = {"mode": "global", "sync_port": getattr(self, "sync_port", 0), "store": store}
        return LocalControlPlane(self.directory / "global", **{**usual, **flags})

    def zone(self, name: str, token: str = "", *, number: str = "", **flags: Any) -> LocalControlPlane:
        """A control plane of a zone; with numbers there may be several, on a store that is given."""
        file = self.directory / f"{name}.token"
        file.write_text(token or _token(self.top, name))
        return LocalControlPlane(
            self.directory / f"{name}{number}",
            zone_name=name,
            global_address=f"grpcs://127.0.0.1:{self.sync_port}",
            zone_token_file=str(file),
            **{
                "global_ca": str(self.directory / "global" / "ca.pem"),
                "store": f"sqlite:///{self.directory / f'{name}.db'}",
                **flags,
            },
        )


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with contextlib.ExitStack() as stack:
        federation = Federation(tmp_path)
        stack.push(federation.stack)
        yield federation


def _names(plane: LocalControlPlane) -> dict[str, str]:
    """The identifiers of all timeouts, by their names here."""
    items = plane("GET", "/meshtimeouts").json["items"]
    return {item["name"]: item["kri"] for item in items if "all-default" not in item["name"]}


def _checks(plane: LocalControlPlane, name: str) -> list[dict[str, str]]:
    return [check for check in plane("GET", "/_check").json["checks"] if check["name"] == name]


def _is_connected(plane: LocalControlPlane) -> bool:
    return [check["status"] for check in _checks(plane, "global")] == ["ok"]


def _has_mesh(plane: LocalControlPlane) -> bool:
    return bool(plane("GET", "/meshes/default").status == 200)


def test_timeouts_of_three_origins_stand_side_by_side(federation: Federation) -> None:
    top = federation.top
    with federation.zone("east") as east, federation.zone("west") as west:
        for zone in (east, west):
            until(lambda zone=zone: _has_mesh(zone), "the mesh comes from Global")
        producer = {
            "type": "MeshTimeout",
            "mesh": "default",
            "name": "slow.shop",
            "labels": {**OF_ZONE, "k8s.kuma.io/namespace": "shop"},
            "spec": {
                "to": [
                    {"targetRef": {"kind": "MeshService", "name": "web"}, "default": {"idleTimeout": "9s"}}
                ]
            },
        }
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}
        assert west("POST", "/api/v1/namespaces", namespace).status == 201
        assert top("PUT", f"{URL}/slow", timeout("slow")).status == 201
        assert east("PUT", f"{URL}/slow", timeout("slow", labels=OF_ZONE)).status == 201
        assert west("PUT", f"{URL}/slow.shop", producer).status == 201
        of_global, of_east, of_west = (
            "kri_mt_default___slow_",
            "kri_mt_default_east__slow_",
            "kri_mt_default_west_shop_slow_",
        )
        until(lambda: len(_names(top)) == 3, "Global has all three")
        until(lambda: len(_names(east)) == 3, "east has all three")
        until(lambda: len(_names(west)) == 2, "west has its own and Global's")
        assert set(_names(top).values()) == set(_names(east).values()) == {of_global, of_east, of_west}
        assert set(_names(west).values()) == {of_global, of_west}
        assert _names(east)["slow"] == of_east
        for plane in (top, east):
            for identifier in (of_global, of_east, of_west):
                assert plane("GET", f"/_kri/{identifier}").json["kri"] == identifier
        # Wherever an object is seen, it is the same, but for how it is named and when it came.
        for identifier in (of_global, of_west):
            seen = [plane("GET", f"/_kri/{identifier}").json for plane in (top, east, west)]
            assert len({json.dumps(each["spec"], sort_keys=True) for each in seen}) == 1
            assert len({each["creationTime"] for each in seen}) == 1
        # A change and a deletion travel too.
        assert west("DELETE", f"{URL}/slow.shop").status == 200
        assert top("PUT", f"{URL}/slow", timeout("slow", idle="7s")).status == 200
        until(lambda: len(_names(east)) == 2, "the deleted one is gone")
        spec = east("GET", f"/_kri/{of_global}").json["spec"]
        until(
            lambda: "7s" in str(east("GET", f"/_kri/{of_global}").json["spec"]),
            f"the change is there: {spec}",
        )


def test_each_side_refuses_to_write_what_the_other_owns(federation: Federation) -> None:
    top = federation.top
    with federation.zone("east") as east:
        until(lambda: _has_mesh(east), "the mesh comes from Global")
        refused = east("PUT", "/meshes/mine", {"type": "Mesh", "name": "mine"})
        assert refused.status == 405
        assert "Global" in refused.text
        assert top("PUT", f"{URL}/slow", timeout("slow")).status == 201
        until(lambda: len(_names(east)) == 1, "the timeout comes from Global")
        name = next(iter(_names(east)))
        changed = east("PUT", f"{URL}/{name}", timeout(name, idle="8s", labels=OF_ZONE))
        assert changed.status == 400
        assert east("DELETE", f"{URL}/{name}").status == 400
        assert east("PUT", f"{URL}/mine", timeout("mine", labels=OF_ZONE)).status == 201
        until(lambda: len(_names(top)) == 2, "the zone's is on Global")
        theirs = next(name for name in _names(top) if name != "slow")
        assert top("PUT", f"{URL}/{theirs}", timeout(theirs, idle="8s")).status == 400
        assert top("DELETE", f"{URL}/{theirs}").status == 400


def test_a_zone_works_on_while_global_is_away_and_catches_up(federation: Federation) -> None:
    top = federation.top
    with federation.zone("east") as east:
        until(lambda: _has_mesh(east), "the mesh comes from Global")
        federation.stack.close()
        until(lambda: not _is_connected(east), "Global is known to be away")
        assert east("PUT", f"{URL}/mine", timeout("mine", labels=OF_ZONE)).status == 201
        assert "works on" in _checks(east, "global")[0]["hint"]
        with federation.new_global() as top:
            assert top("PUT", f"{URL}/slow", timeout("slow")).status == 201
            until(lambda: len(_names(top)) == 2, "the zone's write is on Global")
            until(lambda: len(_names(east)) == 2, "Global's write is in the zone")
            assert _is_connected(east)


def test_a_mesh_that_global_deletes_goes_with_what_zones_have_in_it(federation: Federation) -> None:
    top, url = federation.top, "/meshes/other/meshtimeouts"
    mesh = {"type": "Mesh", "name": "other"}
    with federation.zone("east") as east:
        assert top("PUT", "/meshes/other", mesh).status == 201
        until(lambda: east("GET", "/meshes/other").status == 200, "the mesh comes from Global")
        own = timeout("mine", "other", labels=OF_ZONE)
        assert east("PUT", f"{url}/mine", own).status == 201
        until(lambda: "other_east__mine" in top("GET", url).text, "the zone's is on Global")
        assert top("DELETE", "/meshes/other").status == 200
        until(lambda: east("GET", "/meshes/other").status == 404, "the zone deletes it")
        assert east("GET", "/_kri/kri_mt_other_east__mine_").status == 404
        assert top("PUT", "/meshes/other", mesh).status == 201
        until(lambda: east("GET", "/meshes/other").status == 200, "it comes again")
        for plane in (top, east):
            assert "mine" not in plane("GET", url).text
        assert [each["message"] for each in _checks(top, "sync")] == []


def test_a_mesh_that_global_deletes_stays_while_a_zone_has_proxies_in_it(federation: Federation) -> None:
    top, mesh = federation.top, {"type": "Mesh", "name": "other"}
    kept = 'Mesh "other" was deleted on Global: it stays while Dataplanes of this side are in it'

    def is_told() -> bool:
        return any(each["message"].startswith(kept) for each in _checks(east, "sync"))

    with federation.zone("east") as east:
        assert top("PUT", "/meshes/other", mesh).status == 201
        until(lambda: east("GET", "/meshes/other").status == 200, "the mesh comes from Global")
        assert east("PUT", "/meshes/other/dataplanes/web-1", dataplane("web-1", mesh="other")).status == 201
        until(lambda: "web-1" in top("GET", "/meshes/other/dataplanes").text, "Global has the proxy")
        assert top("DELETE", "/meshes/other").status == 400
        withheld = {**mesh, "labels": {"kuma.io/kds-sync": "disabled"}}
        assert top("PUT", "/meshes/other", withheld).status == 200
        until(is_told, "the zone says why it keeps the mesh")
        assert east("GET", "/meshes/other/dataplanes/web-1").status == 200
        assert east("DELETE", "/meshes/other/dataplanes/web-1").status == 200
    with federation.zone("east") as east:
        until(lambda: east("GET", "/meshes/other").status == 404, "it goes with the next connection")


def test_objects_of_zones_in_a_mesh_that_is_not_there_are_shown_on_global(federation: Federation) -> None:
    top = federation.top
    with federation.zone("east") as east:
        until(lambda: _has_mesh(east), "the mesh comes from Global")
        lost = Resource(
            kind="MeshTimeout",
            mesh="nowhere",
            core_name="lost",
            name="lost",
            zone="east",
            labels={**OF_ZONE, "kuma.io/zone": "east"},
            creation_time="2026-01-01T00:00:00Z",
            spec=timeout("lost")["spec"],
        )
        east.run(east.plane.store.write(Transaction((Put(lost),), "test")))
        text = '1 objects of zones are in the mesh "nowhere", which does not exist here'
        until(lambda: text in [each["message"] for each in _checks(top, "sync")], "Global shows it")


def test_secrets_of_global_stay_there(federation: Federation) -> None:
    with federation.zone("east") as east:
        until(lambda: _has_mesh(east), "the mesh comes from Global")
        until(
            lambda: "zone-token-signing-public-key-1" in str(east("GET", "/globalsecrets").json),
            "the key that verifies zone tokens comes",
        )
        names = {item["name"]: item["data"] for item in east("GET", "/globalsecrets").json["items"]}
        theirs = {
            item["name"]: item["data"] for item in federation.top("GET", "/globalsecrets").json["items"]
        }
        assert "zone-token-signing-key-1" not in names
        for secret in ("user-token-signing-key-1", "admin-user-token"):
            assert names.get(secret) != theirs[secret]
        refused = east("POST", "/tokens/zone", {"zone": "east", "validFor": "1h"})
        assert refused.status == 405
        assert "tokens of zones are issued on Global" in refused.text


@pytest.mark.expected_errors("not let in")
def test_a_zone_without_a_good_token_is_not_let_in(federation: Federation) -> None:
    for token, words in (
        (_token(federation.top, "west"), "zone from requestor: east is different than in token: west"),
        (_token(federation.top, "east", ("ingress",)), "out of token's scope"),
        ("nonsense", "token"),
    ):
        with federation.zone("east", token) as east:
            until(lambda words=words: words in str(_checks(east, "global")), f"it says: {words}")
            (check,) = _checks(east, "global")
            assert "does not let this zone in" in check["message"]
            assert "koguma token zone --zone east --scope cp" in check["hint"]
            assert east("GET", "/meshes/default").status == 404


@pytest.mark.parametrize("content", [b"", b"ab\xff\xfe", b"two\nlines", "tökén".encode(), b"a\0b"])
def test_a_file_that_holds_no_token_is_named_and_read_again(federation: Federation, content: bytes) -> None:
    with federation.zone("east", token="none") as east:
        file = federation.directory / "east.token"
        file.write_bytes(content)
        words = f"{file} has no token; `koguma token zone --zone ZONE --scope cp` issues one"
        until(lambda: words in _checks(east, "global")[0]["message"], "the file is named")
        file.write_text(_token(federation.top, "east"))
        until(lambda: _is_connected(east), "a good token is read")


def test_a_ca_file_without_a_certificate_is_named(federation: Federation) -> None:
    key = federation.directory / "global" / "ca-key.pem"
    with federation.zone("east", global_ca=str(key)) as east:
        until(
            lambda: "has no certificate in PEM form" in _checks(east, "global")[0]["message"], "it is named"
        )


def test_an_odd_object_is_refused_by_itself_and_shown_on_both_sides(federation: Federation) -> None:
    top = federation.top
    with federation.zone("east") as east:
        until(lambda: _has_mesh(east), "the mesh comes from Global")
        # A Secret of the zone's own has the name.
        secret = {"type": "Secret", "mesh": "default", "name": "mine", "data": "eA=="}
        assert east("PUT", "/meshes/default/secrets/mine", secret).status == 201
        assert top("PUT", "/meshes/default/secrets/mine", {**secret, "data": "eQ=="}).status == 201
        assert top("PUT", f"{URL}/slow", timeout("slow")).status == 201
        until(lambda: len(_names(east)) == 1, "the others are not held up")
        for plane in (top, east):
            until(lambda plane=plane: _checks(plane, "sync") != [], "the refusal is shown")
            assert 'its name "mine" is taken' in str(_checks(plane, "sync"))
        assert east("DELETE", "/meshes/default/secrets/mine").status == 200
        assert top("PUT", "/meshes/default/secrets/mine", {**secret, "data": "eg=="}).status == 200
        until(lambda: _checks(east, "sync") == [], "the next version is taken")
        assert east("GET", "/meshes/default/secrets/mine").json["data"] == "eg=="


def test_a_zone_that_is_switched_off_is_not_seen_by_others(federation: Federation) -> None:
    top = federation.top
    with federation.zone("east") as east, federation.zone("west") as west:
        for zone in (east, west):
            until(lambda zone=zone: _has_mesh(zone), "the mesh comes from Global")
        service = {
            "type": "MeshService",
            "mesh": "default",
            "name": "web",
            "labels": OF_ZONE,
            "spec": {"selector": {"dataplaneTags": {"app": "web"}}, "ports": [{"port": 80}]},
        }
        assert east("PUT", "/meshes/default/meshservices/web", service).status == 201

        def services(plane: LocalControlPlane) -> list[Any]:
            return list(plane("GET", "/meshservices").json["items"])

        until(lambda: len(services(west)) == 1, "west sees it")
        assert top("PUT", "/zones/east", {"type": "Zone", "name": "east", "enabled": False}).status == 200
        until(lambda: services(west) == [], "west does not see it any more")
        assert len(services(top)) == len(services(east)) == 1
        assert top("PUT", "/zones/east", {"type": "Zone", "name": "east", "enabled": True}).status == 200
        until(lambda: len(services(west)) == 1, "west sees it again")


def test_a_zone_of_another_version_checks_what_it_gets_by_its_own_rules(federation: Federation) -> None:
    top = federation.top
    odd = Resource(
        kind="MeshTimeout",
        mesh="default",
        name="odd",
        core_name="odd",
        labels={"kuma.io/origin": "global"},
        spec={"to": [{"targetRef": {"kind": "Mesh"}, "default": {"idleTimeout": "soon"}}]},
    )
    top.run(top.plane.store.write(Transaction((Put(odd),), "an older version")))
    with federation.zone("east") as east:
        until(lambda: len(_names(east)) == 1, "of the same version it is taken as it is")
        assert _checks(east, "sync") == []
    msgspec.structs.force_setattr(top.plane._sync.server._context.about, "version", "0.0.1")
    with federation.zone("west") as west:
        until(lambda: _checks(west, "sync") != [], "of another version it is checked")
        assert "idleTimeout" in str(_checks(west, "sync"))
        assert _names(west) == {}
