"""States of proxies: what a control plane knows of those that are connected to it, or were."""

import pytest

from koguma.fleet.proxy_state import ProxyVersions, versions_of
from koguma.model.resource import Key
from tests.build import dataplane
from tests.control_plane import LocalControlPlane
from tests.proxy_connections import connect, next_offer
from tests.proxy_connections import synced as synced_with
from tests.waiting import until

WEB = Key("Dataplane", "default", "default", "", "web-1")
MTLS = {"enabledBackend": "ca-1", "backends": [{"name": "ca-1", "type": "builtin"}]}
VERSION = {
    "kumaDp": {"version": "2.13.2", "gitTag": "v2.13.2", "gitCommit": "abc", "buildDate": "today"},
    "envoy": {"version": "1.36.0", "build": "abc/1.36.0/Clean", "kumaDpCompatible": False},
    "dependencies": {"coredns": "1.12"},
}


@pytest.fixture(scope="module")
def plane(tmp_path_factory):
    with LocalControlPlane(tmp_path_factory.mktemp("p")) as running:
        yield running


def states(plane):
    return plane.plane._proxies.states


def synced(connection):
    async def report():
        secrets = {name: each.version for name, each in connection.offered.of_type("secret").items()}
        connection.report(synced_with(connection._offer, acked_versions={"secret": secrets}))

    return report()


def test_a_state_says_where_a_proxy_is_connected_what_it_has_and_which_versions_it_runs(plane):
    connection = connect(plane, dataplane(), version=VERSION)
    state = states(plane).of(WEB)
    assert (state.state, state.core_name, state.instance) == (
        "connecting",
        "web-1",
        plane.plane._proxies.fleet.context.about.instance_id,
    )
    assert state.versions.agent == "2.13.2"
    assert state.is_connected
    assert state.is_registered
    assert state.subscription
    plane.run(next_offer(connection))
    plane.run(synced(connection))
    until(lambda: states(plane).of(WEB).state == "synced")
    until(lambda: states(plane).of(WEB).revision == plane.plane._proxies.fleet.rounds.revision)
    listed = plane("GET", "/_proxies").json["items"]
    assert [(each["name"], each["agent"], each["state"]) for each in listed] == [
        ("web-1", "2.13.2", "synced")
    ]


def test_a_state_names_the_certificate_that_a_proxy_has_and_the_backends_that_it_trusts(plane):
    connection = connect(plane, dataplane())
    assert states(plane).of(WEB).certificate is None
    mesh = plane("GET", "/meshes/default").json
    assert plane("PUT", "/meshes/default", {**mesh, "mtls": MTLS}).status == 200
    until(lambda: connection.offered.of_type("secret"))
    assert states(plane).of(WEB).certificate.expires_at is None, "it was offered, and not acknowledged"
    plane.run(synced(connection))
    certificate = states(plane).of(WEB).certificate
    assert (certificate.backend, certificate.backends, certificate.n_issued) == ("ca-1", ("ca-1",), 1)
    assert certificate.issued_at < certificate.expires_at
    assert certificate.trusts == certificate.presents
    assert states(plane).of(WEB).is_certified(states(plane).clock())
    plane("PUT", "/meshes/default", mesh)


def test_a_proxy_that_leaves_is_remembered_as_disconnected_while_its_object_is_stored(plane):
    connection = connect(plane, dataplane("web-2"), name="web-2")
    key = WEB._replace(name="web-2")
    plane.run(connection.close())
    state = states(plane).of(key)
    assert state.disconnected_at >= state.connected_at
    assert key in {each.key for each in states(plane).all("default")}
    assert key not in {each.key for each in states(plane).connected()}
    plane("DELETE", "/meshes/default/dataplanes/web-2")
    assert key not in {each.key for each in states(plane).all("default")}
    connect(plane, dataplane("web-2"), name="web-2")
    assert states(plane).of(key).is_connected


def test_versions_are_taken_as_far_as_they_are_texts():
    known = versions_of({"version": VERSION}, "1.40.0")
    assert known == ProxyVersions(
        "2.13.2",
        "v2.13.2",
        "abc",
        "today",
        "1.40.0",
        "abc/1.36.0/Clean",
        dependencies={"coredns": "1.12"},
        is_envoy_compatible=False,
    )
    assert versions_of({"version": VERSION}, "1.40.0") is known, "proxies share it"
    assert versions_of(
        {"version": {"kumaDp": 7, "envoy": [], "dependencies": {"a": 1}}}, ""
    ) == ProxyVersions(dependencies={"a": ""})
    assert versions_of({"version": "x"}, "y" * 1000).envoy == f"{'y' * 199}…"
