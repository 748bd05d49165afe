"""Which objects travel, and what they are on the other side."""

import base64

import msgspec
import pytest

from koguma.identity import signing_keys
from koguma.identity.claims import ZONE
from koguma.main import all_kinds
from koguma.model import labels, names
from koguma.model.resource import Meta, Resource
from koguma.sync import mapping

KIND = all_kinds()


def _resource(kind: str = "MeshTimeout", **fields: object) -> Resource:
    zone = str(fields.get("zone", ""))
    defaults = {
        "kind": kind,
        "mesh": "default" if KIND[kind].is_mesh_scoped else "",
        "name": "slow",
        "core_name": "slow",
        "labels": {labels.ORIGIN: "zone" if zone else "global", "team": "a"},
        "spec": {"targetRef": {"kind": "Mesh"}},
        "creation_time": "2026-01-01T00:00:00Z",
    }
    return Resource(**{**defaults, **fields})  # type: ignore[arg-type]


def _down(resource: Resource, disabled: tuple[str, ...] = ()) -> Resource | None:
    travelling = mapping.downward(resource, KIND[resource.kind], disabled)
    return travelling.resource if travelling else None


def _up(resource: Resource, zone: str = "east") -> Resource | None:
    return mapping.upward(resource, KIND[resource.kind], zone)


def test_three_timeouts_of_one_name_stand_side_by_side_with_names_of_their_own() -> None:
    own = _resource(zone="east")
    of_global = _down(_resource(zone=""))
    producer = {labels.ORIGIN: "zone", labels.ROLE: "producer"}
    of_west = _down(_up(_resource(zone="west", namespace="shop", labels=producer), "west"))
    assert of_global is not None
    assert of_west is not None
    assert len({own.key, of_global.key, of_west.key}) == 3
    assert of_global.core_name == names.hashed("default", "slow")
    assert of_west.core_name == names.hashed("default", "slow", "west", "shop")
    assert [str(each.kri("mt")) for each in (own, of_global, of_west)] == [
        "kri_mt_default_east__slow_",
        "kri_mt_default___slow_",
        "kri_mt_default_west_shop_slow_",
    ]


def test_labels_say_where_an_object_came_from() -> None:
    up = _up(_resource(zone="east", namespace="shop"))
    assert up is not None
    assert up.labels == {
        "k8s.kuma.io/namespace": "shop",
        "kuma.io/display-name": "slow",
        "kuma.io/origin": "zone",
        "kuma.io/zone": "east",
        "team": "a",
    }
    down = _down(_resource())
    assert down is not None
    assert down.labels == {"kuma.io/display-name": "slow", "kuma.io/origin": "global", "team": "a"}


@pytest.mark.parametrize(
    ("resource", "travels"),
    [
        (_resource(zone="east"), True),
        (_resource(zone="west"), False),  # another zone's, which this one got from Global
        (_resource(zone=""), False),
        (_resource(zone="east", labels={labels.ORIGIN: "zone", labels.KDS_SYNC: "disabled"}), False),
        (_resource("Dataplane", zone="east"), True),
        (_resource("MeshService", zone="east"), True),
        (_resource("Mesh"), False),
        (_resource("Secret", zone="east"), False),
        (_resource("Zone"), False),
    ],
)
def test_what_a_zone_sends(resource: Resource, *, travels: bool) -> None:
    assert (_up(resource) is not None) == travels


@pytest.mark.parametrize(
    ("resource", "travels"),
    [
        (_resource(), True),
        (_resource(labels={labels.ORIGIN: "global", labels.KDS_SYNC: "disabled"}), False),
        (_resource("Mesh"), True),
        (_resource("Secret"), True),
        (_resource("MeshMultiZoneService"), True),
        (_resource("Zone"), False),
        (_resource("Config", name="kuma-cluster-id"), True),
        (_resource("Config", name="other"), False),
        (_resource("GlobalSecret", name="mine", spec={"data": ""}), True),
        (_resource("GlobalSecret", name="user-token-signing-key-1", spec={"data": ""}), False),
        (_resource("GlobalSecret", name="user-token-revocations", spec={"data": ""}), False),
        (_resource("GlobalSecret", name="admin-user-token", spec={"data": ""}), False),
        (_resource("GlobalSecret", name="service-account-token-signing-key-2", spec={"data": ""}), False),
        (_resource("GlobalSecret", name="zone-token-signing-key-1", spec={"data": "bm8ga2V5"}), False),
        (_resource("GlobalSecret", name="zone-token-revocations", spec={"data": ""}), True),
        (_resource("MeshService", zone="east"), True),
        (_resource("Dataplane", zone="east"), False),
        (_resource(zone="east"), False),  # no producer's
        (_resource(zone="east", labels={labels.ROLE: "consumer"}), False),
        (_resource(zone="east", labels={labels.ROLE: "producer"}), True),
    ],
)
def test_what_global_sends(resource: Resource, *, travels: bool) -> None:
    assert (_down(resource) is not None) == travels
    assert _down(resource, disabled=("east",)) is None or not resource.zone


def test_a_zone_gets_only_the_half_of_a_zone_token_key_that_verifies() -> None:
    data = signing_keys.generate().reveal()
    secret = _resource("GlobalSecret", name=ZONE.key_name(3), core_name=ZONE.key_name(3), spec={"data": data})
    sent = _down(secret)
    assert sent is not None
    assert sent.name == sent.core_name == "zone-token-signing-public-key-3"
    assert b"PRIVATE" not in base64.b64decode(sent.spec["data"])
    ring = signing_keys.key_ring(ZONE, {sent.name: sent.spec["data"]})
    assert list(ring.verifiers) == ["3"]
    assert ring.signer is None


def test_a_producers_policy_for_one_zone_goes_to_that_zone_only() -> None:
    subset = {"targetRef": {"kind": "MeshSubset", "tags": {"kuma.io/zone": "north"}}}
    policy = _resource(zone="east", labels={labels.ROLE: "producer"}, spec=subset)
    travelling = mapping.downward(policy, KIND["MeshTimeout"])
    assert travelling is not None
    assert travelling.only_to == "north"


def test_the_status_goes_up_and_not_down() -> None:
    service = _resource("MeshService", zone="east", status={"vips": [{"ip": "241.0.0.1"}]})
    up = _up(service)
    assert up is not None
    assert up.status == service.status
    down = _down(up)
    assert down is not None
    assert down.status is None


def test_the_content_is_the_same_on_both_sides() -> None:
    up = _up(_resource(zone="east", uid="1", revision=7, annotations={"note": "mine"}))
    assert up is not None
    content = mapping.content(up)
    stored = msgspec.structs.replace(
        mapping.received(content),
        uid="2",
        revision=99,
        generation=3,
        modification_time="2026-02-01T00:00:00Z",
        meta=Meta(finalizers=("x",)),
    )
    assert mapping.content(stored) == content
    assert mapping.came_from_zone(stored, KIND["MeshTimeout"])
    assert not mapping.came_from_zone(_resource(zone=""), KIND["MeshTimeout"])


def test_what_came_from_global_is_known_by_its_labels() -> None:
    kind = KIND["MeshTimeout"]
    down = _down(_resource())
    assert down is not None
    assert mapping.came_from_global(down, kind, "east")
    assert not mapping.came_from_global(_resource(zone="east"), kind, "east")
    assert not mapping.came_from_global(_resource(zone="", labels={labels.ORIGIN: "zone"}), kind, "east")


def test_passing_through_global_keeps_the_name() -> None:
    policy = _resource(zone="west", namespace="shop", labels={labels.ORIGIN: "zone", labels.ROLE: "producer"})
    up = _up(policy, "west")
    assert up is not None
    down = _down(up)
    assert down is not None
    assert (down.key, down.core_name) == (policy.key, up.core_name)


def test_an_ingress_is_awaited_until_it_is_ready() -> None:
    registered = {labels.ORIGIN: "zone", labels.REGISTERED_BY: "proxy", labels.INSTANCE: "run-1"}
    starting = _resource("ZoneIngress", zone="east", labels=registered, spec={"networking": {}})
    assert mapping.is_awaited(starting)
    assert not mapping.is_awaited(_resource("ZoneIngress", zone="east", spec={"networking": {}}))
    ready = msgspec.structs.replace(starting, annotations={labels.READY: labels.ready_mark(registered)})
    assert not mapping.is_awaited(ready)
    up = _up(ready)
    assert up is not None
    assert _down(up) is not None
    assert _down(up, ("east",)) is None


def _service(spec: dict[str, object], status: dict[str, object] | None) -> Resource:
    return _resource("MeshService", zone="east", spec={"ports": [{"port": 80}], **spec}, status=status)


def test_other_zones_learn_whether_a_service_can_be_called_and_who_its_proxies_are() -> None:
    identities = [{"type": "ServiceTag", "value": "web"}]
    known = {"state": "Available", "identities": identities, "vips": [{"ip": "241.0.0.1"}]}
    up = _up(_service({}, known))
    assert up is not None
    assert up.spec == {"ports": [{"port": 80}], "state": "Available", "identities": identities}
    down = _down(up)
    assert down is not None
    assert (down.spec, down.status) == (up.spec, None)
    assert _up(up) == up  # Global asks the same of what it has got


def test_identities_that_somebody_wrote_are_taken_instead() -> None:
    written = [{"type": "SpiffeID", "value": "spiffe://default/other"}]
    known = {"state": "Unavailable", "identities": [{"type": "ServiceTag", "value": "web"}]}
    up = _up(_service({"identities": written, "state": "Available"}, known))
    assert up is not None
    assert (up.spec["identities"], up.spec["state"]) == (written, "Unavailable")
