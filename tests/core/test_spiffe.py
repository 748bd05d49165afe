"""Who a proxy is, as URIs."""

import pytest

from koguma.core import pipeline, spiffe, world
from koguma.core.world import Inbound, Proxy, Reach, pairs
from koguma.kinds import KINDS
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kinds
from koguma.model.resource import Key
from tests import build

WEB = Key("Dataplane", "shop", "east", "", "web-1")
SERVICE, WORKLOAD = "kuma.io/service", "kuma.io/workload"


def proxy(*inbounds, labels=None, gateway=None):
    """A proxy with an inbound for each map of tags."""
    made = tuple(Inbound(str(i), "", i, "tcp", pairs(tags)) for i, tags in enumerate(inbounds, 80))
    return Proxy(
        key=WEB,
        core_name="web-1",
        labels=pairs(labels),
        inbounds=made,
        is_gateway=gateway is not None,
        is_builtin=False,
        gateway_tags=pairs(gateway),
        origin="zone",
        reach=Reach(),
    )


@pytest.mark.parametrize(
    ("found", "services"),
    [
        (proxy({SERVICE: "web"}), ("web",)),
        (proxy({SERVICE: "web"}, {SERVICE: "api"}, {SERVICE: "web"}), ("api", "web")),
        (proxy(gateway={SERVICE: "edge"}), ("edge",)),
        (proxy({SERVICE: "web"}, labels={SERVICE: "other", WORKLOAD: "another"}), ("web",)),
        (proxy({"team": "a"}, labels={SERVICE: "web", WORKLOAD: "another"}), ("web",)),
        (proxy({}, labels={WORKLOAD: "web"}), ("web",)),
        (proxy({}), ("web-1",)),
        (proxy(), ("web-1",)),
    ],
)
def test_a_proxy_speaks_for_its_tags_or_its_label_or_itself(found, services):
    assert spiffe.services(found) == services


def test_services_come_first_and_then_every_tag_once_in_order():
    found = proxy(
        {SERVICE: "web", "kuma.io/zone": "east", "version": "2"},
        {SERVICE: "admin", "kuma.io/zone": "east", "version": "1"},
    )
    assert spiffe.uris("shop", found) == (
        "spiffe://shop/admin",
        "spiffe://shop/web",
        "kuma://kuma.io/service/admin",
        "kuma://kuma.io/service/web",
        "kuma://kuma.io/zone/east",
        "kuma://version/1",
        "kuma://version/2",
    )


@pytest.mark.parametrize("own", [{}, {"kuma.io/zone": "west"}])
def test_the_zone_is_a_tag_of_every_proxy_whatever_was_written(own):
    of_sidecar = spiffe.uris("shop", proxy({SERVICE: "web", **own}))
    of_gateway = spiffe.uris("shop", proxy(gateway={SERVICE: "web", **own}))
    expected = ("spiffe://shop/web", "kuma://kuma.io/service/web", "kuma://kuma.io/zone/east")
    assert of_sidecar == of_gateway == expected


def test_what_only_a_label_says_is_no_tag():
    found = proxy({}, labels={WORKLOAD: "web"})
    assert spiffe.uris("shop", found) == ("spiffe://shop/web", "kuma://kuma.io/zone/east")


def web(*services, address="10.0.0.1"):
    inbounds = [build.inbound(service, port, protocol="") for port, service in enumerate(services, 80)]
    return build.resource(build.dataplane(address=address, mesh="shop", inbound=inbounds))


def test_the_identity_changes_with_the_tags_alone():
    db = pipeline.load(Kinds(KINDS), ControlPlaneInfo(zone="east"), [web("web")])
    db.watch(spiffe.identity, WEB)
    assert spiffe.identity(db, WEB) == (
        "spiffe://shop/web",
        "kuma://kuma.io/service/web",
        "kuma://kuma.io/zone/east",
    )
    pipeline.take(db, [web("web", address="10.0.0.2")])
    assert db.changed() == []
    pipeline.take(db, [web("web", "admin")])
    assert [asked.question for asked in db.changed()] == [spiffe.identity]
    assert spiffe.identity(db, WEB)[:2] == ("spiffe://shop/admin", "spiffe://shop/web")


def test_a_missing_proxy_has_no_identity():
    db = pipeline.load(Kinds(KINDS), ControlPlaneInfo(zone="east"), [])
    assert world.proxy(db, WEB) is None
    assert spiffe.identity(db, WEB) == ()
