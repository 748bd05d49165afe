"""Identity by token: what becomes a proxy's identity is what its token, or an operator's Dataplane, says."""

import json

import pytest

from koguma.identity.claims import DataplaneClaims
from koguma.identity.dataplane_auth import IdentityNotInToken, check_identity
from koguma.xds.contract import ConnectRequest
from tests import build
from tests.control_plane import LocalControlPlane
from tests.waiting import until

SERVICE, WORKLOAD, ZONE = "kuma.io/service", "kuma.io/workload", "kuma://kuma.io/zone/default"
PROTOCOL = "kuma://kuma.io/protocol/http"


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("identity")) as running:
        yield running


def resource(*services, gateway="", name="api-1", namespace="", **labels):
    inbounds = [build.inbound(service, 80 + n, protocol="") for n, service in enumerate(services)]
    networking = {"inbound": inbounds, **({"gateway": {"tags": {SERVICE: gateway}}} if gateway else {})}
    own = {label.replace("_", "/"): value for label, value in labels.items()}
    return build.resource(build.dataplane(name, labels=own, **networking), namespace=namespace)


def claims(*services, **more):
    return DataplaneClaims(mesh="default", tags={SERVICE: services} if services else {}, **more)


@pytest.mark.parametrize(
    ("said", "proxy"),
    [
        (claims("api"), resource("api")),
        (claims("api", "admin"), resource("api", "admin", **{"kuma.io_service": "api"})),
        (claims("edge"), resource(gateway="edge")),
        (claims(workload="api"), resource("api", **{"kuma.io_workload": "api"})),
        (claims("api"), resource(**{"kuma.io_workload": "api", "kuma.io_service": "api"})),
        (claims("api", workload="jobs"), resource("api", **{"kuma.io_workload": "jobs"})),
        (claims(name="api-1"), resource()),
    ],
)
def test_a_token_is_good_for_what_it_names(said, proxy):
    check_identity(said, proxy)


@pytest.mark.parametrize(
    ("said", "proxy", "missing", "flags"),
    [
        (claims(), resource("api"), 'service "api"', "--name api-1 --service api"),
        (claims(name="api-1"), resource("api"), 'service "api"', "--name api-1 --service api"),
        (claims("api"), resource("api", "pay"), 'service "pay"', "--name api-1 --service api --service pay"),
        (claims("api"), resource("api", gateway="pay"), 'service "pay"', "--service api --service pay"),
        (
            claims(workload="web"),
            resource("payments", **{"kuma.io_workload": "web"}),
            'service "payments"',
            "--name api-1 --service payments --workload web",
        ),
        (claims(name="api-1"), resource(**{"kuma.io_service": "pay"}), 'service "pay"', "--service pay"),
        (claims(name="api-1"), resource(**{"kuma.io_workload": "pay"}), 'workload "pay"', "--workload pay"),
        (
            claims("api", workload="jobs"),
            resource("api", **{"kuma.io_workload": "api"}),
            'workload "api"',
            "--service api",
        ),
        (claims(), resource(), 'the proxy is "api-1"', "--name api-1 --valid-for"),
        (
            claims(name="pay.evil"),
            resource(name="pay", namespace="evil"),
            'the proxy is "pay"',
            "--service pay",
        ),
    ],
)
def test_what_a_token_does_not_name_is_refused_with_the_command_for_one_that_does(
    said, proxy, missing, flags
):
    with pytest.raises(IdentityNotInToken) as refused:
        check_identity(said, proxy)
    text = str(refused.value)
    assert missing in text
    assert f"koguma token dataplane --mesh default --name {proxy.core_name}" in text
    assert flags in text


def document(name, **tags):
    return build.dataplane(name, inbound=[build.inbound(tags=tags)])


def connect(plane, name, shown, brings=None):
    metadata = {"dataplane.resource": json.dumps(brings)} if brings else {}
    hello = ConnectRequest("default", name, shown, metadata, "1.40.0")
    return plane.run(plane.plane._proxies.fleet.connect(hello))


def uris(connection):
    return until(lambda: connection.spiffe_ids, "it is known who it is")


def test_a_certificate_names_the_tags_that_the_token_names(plane):
    web = {SERVICE: ["web"]}
    connection = connect(plane, "a-1", plane.dataplane_token(tags=web), document("a-1", version="v1"))
    assert uris(connection) == ("spiffe://default/web", "kuma://kuma.io/service/web", ZONE)
    connection = connect(
        plane, "a-2", plane.dataplane_token(tags={**web, "version": ["v1"]}), document("a-2", version="v1")
    )
    assert uris(connection) == (
        "spiffe://default/web",
        "kuma://kuma.io/service/web",
        ZONE,
        "kuma://version/v1",
    )


def test_a_certificate_names_all_that_an_operator_wrote(plane):
    assert plane("PUT", "/meshes/default/dataplanes/b-1", document("b-1", version="v1")).status == 201
    for brings in (None, document("b-1", version="v1")):
        found = uris(connect(plane, "b-1", plane.dataplane_token(name="b-1"), brings))
        assert found == (
            "spiffe://default/web",
            PROTOCOL,
            "kuma://kuma.io/service/web",
            ZONE,
            "kuma://version/v1",
        )


def test_nobody_registers_with_a_token_for_a_name_alone(plane):
    with pytest.raises(IdentityNotInToken):
        connect(plane, "c-1", plane.dataplane_token(name="c-1"), document("c-1"))
    assert plane.plane.store.state.named("Dataplane", "default", "c-1") is None
    (refused,) = [each for each in plane("GET", "/_proxies").json["refused"] if each["name"] == "c-1"]
    made = "koguma token dataplane --mesh default --name c-1 --service web --valid-for 720h"
    assert refused["hint"].startswith(f"`{made}` makes a token for it")


def test_a_token_for_a_name_alone_does_not_take_what_was_registered(plane):
    connection = connect(plane, "d-1", plane.dataplane_token(tags={SERVICE: ["web"]}), document("d-1"))
    shown = plane.dataplane_token(name="d-1")
    for brings in (None, document("d-1")):
        with pytest.raises(IdentityNotInToken):
            connect(plane, "d-1", shown, brings)
    assert plane.plane._proxies.fleet.roster.get(connection.key) is connection


def test_operators_may_leave_it_to_proxies_who_they_are(tmp_path):
    with LocalControlPlane(tmp_path, identity_from_token=False) as plane:
        found = uris(connect(plane, "e-1", plane.dataplane_token(name="e-1"), document("e-1", version="v1")))
    assert found == (
        "spiffe://default/web",
        PROTOCOL,
        "kuma://kuma.io/service/web",
        ZONE,
        "kuma://version/v1",
    )
