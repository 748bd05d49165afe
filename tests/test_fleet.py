"""The fleet: who is let in, what is registered and removed, what each proxy is offered, and when."""

import asyncio
import http.client
import json
import ssl
from contextlib import closing

import msgspec
import pytest

from koguma.cli.proxies import refusals
from koguma.envoy.snapshot import CLUSTER, ENDPOINTS, LISTENER, SECRET
from koguma.fleet import retries
from koguma.fleet.registration import CONNECTED_TO
from koguma.fleet.sweep import Sweep
from koguma.model.errors import Forbidden, Invalid, KogumaError, NotFound, Unauthenticated
from koguma.model.labels import REGISTERED_BY
from koguma.model.resource import Key, Resource
from koguma.store.contract import Put, Transaction
from koguma.xds.contract import ProxyStatus, Rejection, ResponseCount
from tests.build import dataplane
from tests.control_plane import LocalControlPlane
from tests.kube_client import CORE, KubeClient, accepted
from tests.proxy_connections import connect, next_offer, synced, web_token
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
def plane(tmp_path):
    with LocalControlPlane(tmp_path) as running:
        yield running


def stored(plane, name="web-1"):
    return plane.plane.store.state.named("Dataplane", "default", name)


def offered(connection, type_):
    return sorted(connection.offered.of_type(type_))


def test_a_proxy_brings_its_dataplane_and_is_offered_what_it_needs(plane):
    connection = connect(plane, dataplane())
    assert stored(plane).labels[REGISTERED_BY] == "proxy"
    offer = plane.run(next_offer(connection))
    assert "kri_dp_default_default__web-1_10080" in offer.snapshot.of_type(LISTENER)
    assert offer.snapshot.failures == ()


def test_a_state_has_the_numbers_of_responses_under_the_names_that_kuma_shows(plane):
    connection = connect(plane, dataplane())
    offer, states = plane.run(next_offer(connection)), plane.plane._proxies.states
    assert (states.of(connection.key).responses, states.of(connection.key).responses_at) == ({}, None)
    counts = {CLUSTER: ResponseCount(2, 1, 1), LISTENER: ResponseCount(1, 1), SECRET: ResponseCount(1, 1)}
    report(plane, connection, synced(offer, responses=counts))
    state = states.of(connection.key)
    shown = {"total": ResponseCount(4, 3, 1), "cds": counts[CLUSTER], "lds": counts[LISTENER]}
    assert state.responses == shown
    assert state.responses_at >= state.connected_at


def test_connecting_again_writes_nothing(plane):
    connect(plane, dataplane())
    until(lambda: plane("GET", "/meshes/default/meshservices").json["total"])
    before = stored(plane).revision
    connect(plane, dataplane())
    assert stored(plane).revision == before


def test_proxies_of_a_service_share_what_they_have_alike(plane):
    refs = {"reachableBackends": {"refs": [{"kind": "MeshService", "name": "web"}]}}
    for name in ("web-1", "web-2"):
        connect(plane, dataplane(name, transparentProxying=refs), name=name)
    one, other = (stored(plane, name).spec["networking"] for name in ("web-1", "web-2"))
    assert one["inbound"][0]["tags"] is other["inbound"][0]["tags"]
    assert one["transparentProxying"] is other["transparentProxying"]
    assert one == dataplane(transparentProxying=refs)["networking"]


def test_a_known_proxy_that_brings_something_else_is_looked_at_again(plane):
    connect(plane, dataplane())
    with pytest.raises(Invalid):
        connect(plane, dataplane(port=0))
    connect(plane, dataplane(port=10081))
    assert stored(plane).spec["networking"]["inbound"][0]["port"] == 10081


def test_a_known_proxy_needs_its_token_all_the_same(plane):
    connect(plane, dataplane())
    with pytest.raises(Unauthenticated):
        connect(plane, dataplane(), shown="rubbish")
    with pytest.raises(Forbidden):
        connect(plane, dataplane(), shown=web_token(plane, tags={"kuma.io/service": ["backend"]}))


@pytest.mark.parametrize(
    ("brings", "words", "refusal"),
    [
        (dataplane("web-2"), 'name is "web-2", but the proxy connected as "web-1"', Invalid),
        (dataplane() | {"mesh": "other"}, 'mesh is "other", but the proxy connected as "default"', Invalid),
        (dataplane(port=0), "networking.inbound[0].port", Invalid),
        (dataplane(fantasy=1), 'unknown field "fantasy"', Invalid),
    ],
)
def test_a_dataplane_that_may_not_be_stored_keeps_its_proxy_out(plane, brings, words, refusal):
    with pytest.raises(refusal) as refused:
        connect(plane, brings)
    text = "; ".join(f"{found.field} {found.message}" for found in refused.value.violations)
    assert words in text
    assert stored(plane) is None


def test_a_full_quota_keeps_new_proxies_out_and_known_ones_in(plane):
    quotas = KubeClient(plane, "mesh-default", CORE, "ResourceQuota")
    accepted(quotas.create("q", spec={"hard": {"count/dataplanes.koguma.io": "1"}}))
    connect(plane, dataplane())
    with pytest.raises(Forbidden, match="exceeded quota: q, requested: count/dataplanes"):
        connect(plane, dataplane("web-2"), name="web-2")
    assert stored(plane, "web-2") is None
    connect(plane, dataplane())


def test_nobody_is_let_in_without_a_token_that_is_for_it(plane):
    with pytest.raises(Unauthenticated):
        connect(plane, dataplane(), shown="")
    with pytest.raises(Unauthenticated):
        connect(plane, dataplane(), shown="rubbish")
    with pytest.raises(Forbidden) as refused:
        connect(plane, dataplane(), shown=web_token(plane, name="web-2"))
    assert "web-2" in str(refused.value)
    with pytest.raises(Forbidden):
        connect(plane, dataplane(), shown=web_token(plane, tags={"kuma.io/service": ["backend"]}))
    assert stored(plane) is None
    connect(plane, dataplane(), shown=web_token(plane, tags={"kuma.io/service": ["web"]}))
    assert stored(plane) is not None


def test_a_proxy_that_brings_nothing_must_be_known(plane):
    with pytest.raises(NotFound) as refused:
        connect(plane)
    assert 'there is no Dataplane "web-1" in mesh "default"' in str(refused.value.violations)
    with pytest.raises(NotFound) as refused:
        connect(plane, mesh="nowhere")
    assert 'there is no mesh "nowhere"' in refused.value.detail
    assert plane("PUT", "/meshes/default/dataplanes/web-1", dataplane()).status == 201
    connection = connect(plane)
    assert offered(connection, LISTENER) or plane.run(next_offer(connection))
    plane.run(connection.close())
    assert REGISTERED_BY not in stored(plane).labels, "what a user wrote stays as it was"


def test_what_a_proxy_registered_goes_some_time_after_it(plane, monkeypatch):
    monkeypatch.setattr("koguma.fleet.fleet.DEREGISTRATION_SECONDS", 0.2)
    connection = connect(plane, dataplane())
    plane.run(connection.close())
    until(lambda: stored(plane) is None, "the Dataplane is removed")


def test_a_proxy_that_comes_back_in_time_stays(plane, monkeypatch):
    monkeypatch.setattr("koguma.fleet.fleet.DEREGISTRATION_SECONDS", 0.3)
    connection = connect(plane, dataplane())
    plane.run(connection.close())
    again = connect(plane, dataplane())
    plane.run(connection.close())  # a late word about the old stream changes nothing
    assert plane.plane._proxies.fleet.roster.get(again.key) is again
    with pytest.raises(AssertionError):
        until(lambda: stored(plane) is None, "", 0.6)


def test_a_proxy_that_moved_to_another_control_plane_is_not_removed_by_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr("koguma.fleet.fleet.DEREGISTRATION_SECONDS", 0.2)
    with LocalControlPlane(tmp_path) as plane:
        connection = connect(plane, dataplane())
        here = stored(plane).annotations[CONNECTED_TO]
        assert here == plane.plane._proxies.fleet.context.about.instance_id
        owned_by(plane, "another")

        plane.run(connection.close())
        with pytest.raises(AssertionError):
            until(lambda: stored(plane) is None, "", 0.5)


def owned_by(plane, owner):
    """The Dataplane as it is while another control plane has its proxy."""

    async def move():
        now = stored(plane)
        other = msgspec.structs.replace(now, annotations={**now.annotations, CONNECTED_TO: owner})
        await plane.plane.store.write(Transaction((Put(other, now.revision),), "test", "moved"))

    plane.run(move())


def test_a_known_proxy_that_comes_to_us_is_let_in_at_once_and_claimed_soon(tmp_path, monkeypatch):
    monkeypatch.setattr("koguma.fleet.registration.CLAIM_SECONDS", 1.0)
    with LocalControlPlane(tmp_path) as plane:
        connect(plane, dataplane())
        here = stored(plane).annotations[CONNECTED_TO]
        owned_by(plane, "another")
        connection = connect(plane, dataplane())
        assert connection.proxy.annotations[CONNECTED_TO] == here
        assert stored(plane).annotations[CONNECTED_TO] == "another"
        until(lambda: stored(plane).annotations[CONNECTED_TO] == here, "it is ours")


def test_a_proxy_that_leaves_before_it_is_claimed_is_deregistered_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("koguma.fleet.registration.CLAIM_SECONDS", 60)
    monkeypatch.setattr("koguma.fleet.fleet.DEREGISTRATION_SECONDS", 0.2)
    with LocalControlPlane(tmp_path) as plane:
        connect(plane, dataplane())
        owned_by(plane, "another")
        connection = connect(plane, dataplane())
        plane.run(connection.close())
        until(lambda: stored(plane) is None, "it is gone")


def test_what_another_claims_first_stays_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr("koguma.fleet.registration.CLAIM_SECONDS", 0.3)
    with LocalControlPlane(tmp_path) as plane:
        connect(plane, dataplane())
        owned_by(plane, "another")
        connect(plane, dataplane())
        owned_by(plane, "a third")
        until(lambda: not plane.plane._proxies.fleet._registration._claims, "nothing is left to claim")
        assert stored(plane).annotations[CONNECTED_TO] == "a third"


def test_what_was_left_behind_by_a_former_run_is_swept_away(tmp_path):
    store = f"sqlite:///{tmp_path / 'mesh.db'}"
    with LocalControlPlane(tmp_path / "a", store=store) as first:
        for name in ("web-1", "web-2"):
            connect(first, dataplane(name), name=name)
    with LocalControlPlane(tmp_path / "a", store=store) as second:
        assert stored(second, "web-2") is not None
        connect(second, dataplane())
        fleet, times = second.plane._proxies.fleet, iter((0.0, 89.0, 91.0))
        sweep = Sweep(fleet._registration, fleet.states, lambda: next(times))
        for _ in range(2):
            second.run(sweep.round())
            assert stored(second, "web-2") is not None
        second.run(sweep.round())
        assert stored(second) is not None
        assert stored(second, "web-2") is None


def is_complete(service):
    """Whether the control plane has made a service of both proxies, and has nothing more to say of it."""
    ports = {} if service is None else {port["targetPort"] for port in service.spec["ports"]}
    return ports in ({80, 81}, {"http"}) and "vips" in (service.status or {})


BINDING = ["feature-access-log-pipe", "feature-bind-outbounds"]


@pytest.mark.parametrize(
    ("seconds", "features", "explicit", "runs"),
    [
        (3, BINDING, False, 0),
        (3, ["feature-access-log-pipe"], True, 0),
        (3, [], False, 1),  # it is another agent than ours, and gets what it is to have all the same
        (0, BINDING, False, 1),
    ],
)
def test_what_known_proxies_share_is_there_before_they_come_back(
    tmp_path, monkeypatch, seconds, features, explicit, runs
):
    monkeypatch.setattr("koguma.fleet.rounds.PREPARED_SECONDS_MAX", seconds)
    store = f"sqlite:///{tmp_path / 'mesh.db'}"
    outbound = [{"port": 9000, "tags": {"kuma.io/service": "web"}}] if explicit else []
    brought = {
        name: dataplane(name, port=port, outbound=outbound) for name, port in (("web-1", 80), ("web-2", 81))
    }

    # As `koguma dp run` says it where nobody chose directories; another agent says nothing.
    metadata = {"features": features, **({"accessLogDirectories": ["/var/log/koguma"]} if features else {})}

    def come(plane):
        connections = [connect(plane, brought[name], name=name, **metadata) for name in brought]
        until(lambda: all(connection.snapshot is not None for connection in connections))
        return [connection.snapshot for connection in connections]

    with LocalControlPlane(tmp_path / "a", store=store) as first:
        come(first)
        until(lambda: is_complete(first.plane.store.state.named("MeshService", "default", "web")))
        settled = come(first)
    with LocalControlPlane(tmp_path / "a", store=store) as second:
        ran = second.plane._proxies.fleet.rounds._engine._db.runs
        before = ran["outbound.resources"]
        assert come(second) == settled
        assert ran["outbound.resources"] - before == runs


def test_the_newest_offer_wins_and_equal_ones_are_not_told(plane):
    connection = connect(plane, dataplane())
    first = plane.run(next_offer(connection))
    policy = {
        "type": "MeshTimeout",
        "mesh": "default",
        "name": "slow",
        "spec": {
            "targetRef": {"kind": "Dataplane"},
            "rules": [{"default": {"http": {"requestTimeout": "7s"}}}],
        },
    }
    assert plane("PUT", "/meshes/default/meshtimeouts/slow", policy).status == 201
    second = plane.run(next_offer(connection))
    assert second.revision > first.revision
    changed = {piece.id for piece in second.snapshot} - {
        p.id for p in first.snapshot if p in set(second.snapshot)
    }
    assert changed == {("routes", "kri_dp_default_default__web-1_10080")}


def test_a_mesh_with_mtls_gives_certificates_of_the_proxy_itself(plane):
    backend = {"name": "ca-1", "type": "builtin"}
    mesh = {"type": "Mesh", "name": "default", "mtls": {"enabledBackend": "ca-1", "backends": [backend]}}
    assert plane("PUT", "/meshes/default", mesh).status == 200
    connection = connect(plane, dataplane())
    until(lambda: offered(connection, SECRET) == ["identity_cert:secret:default", "mesh_ca:secret:default"])


def report(plane, connection, status):
    async def tell():
        connection.report(status)

    plane.run(tell())


def test_certificates_from_before_count_again_only_when_inbounds_use_them(plane):
    backends = [{"name": "ca-1", "type": "builtin", "mode": "PERMISSIVE"}]
    mtls = {"enabledBackend": "ca-1", "backends": backends}

    def switch(**spec):
        assert plane("PUT", "/meshes/default", {"type": "Mesh", "name": "default", **spec}).status == 200
        until(lambda: bool(offered(connection, SECRET)) == bool(spec))

    def take():
        new = {name: piece.version for name, piece in connection.offered.of_type(SECRET).items()}
        secrets = new or connection.secrets_acked  # Envoy drops them only when what used them is drained
        report(plane, connection, synced(connection._offer, acked_versions={SECRET: secrets}))

    certified = plane.plane._proxies._certificates.certified
    connection = connect(plane, dataplane())
    switch(mtls=mtls)
    take()
    assert certified() == {connection.key}
    switch()
    take()
    assert not certified()
    switch(mtls=mtls)
    assert not certified(), "callers would come with TLS to an inbound that does not have it yet"
    take()
    assert certified() == {connection.key}


def test_a_proxy_is_called_once_it_has_taken_its_configuration(plane):
    caller = connect(
        plane,
        dataplane("job-1", "job", outbound=[{"port": 9000, "tags": {"kuma.io/service": "web"}}]),
        name="job-1",
        shown=web_token(plane, tags={"kuma.io/service": ["job"]}),
    )
    connection = connect(plane, dataplane())
    offer = plane.run(next_offer(connection))
    name = "kri_msvc_default_default__web_10080"
    until(lambda: name in offered(caller, ENDPOINTS))
    endpoints = lambda: caller.offered.get((ENDPOINTS, name)).body  # noqa: E731
    assert b"127.0.0.1" not in endpoints()
    report(plane, connection, synced(offer))
    until(lambda: b"127.0.0.1" in endpoints())
    plane.run(connection.close())
    connect(plane, dataplane())
    assert b"127.0.0.1" in endpoints(), "the same run that comes back has been called all the time"


def proxies(plane, query=""):
    return plane("GET", f"/_proxies{query}").json


def test_the_api_tells_how_far_proxies_are_and_what_they_refused(plane):
    connection = connect(plane, dataplane())
    offer = plane.run(next_offer(connection))
    (shown,) = proxies(plane)["items"]
    assert (shown["name"], shown["state"], shown["envoy"]) == ("web-1", "connecting", "1.40.0")
    assert shown["kri"] == "kri_dp_default_default__web-1_"
    report(plane, connection, synced(offer))
    until(lambda: proxies(plane)["items"][0]["revision"] >= offer.revision)
    assert proxies(plane)["items"][0]["behindSeconds"] == 0
    name = "kri_dp_default_default__web-1_10080"
    words, versions = "Error adding/updating cluster(s)", ("1", "2")
    refused = Rejection(CLUSTER, (name, "_kuma_x"), words, offer.revision, versions)
    report(plane, connection, ProxyStatus("nack", offer.revision, 0, (refused,)))
    (shown,) = proxies(plane, "?state=nack")["items"]
    assert shown["rejections"] == [
        {
            "type": "cluster",
            "names": [name, "_kuma_x"],
            "text": "Error adding/updating cluster(s)",
            "revision": offer.revision,
            "objects": [name],
        }
    ]
    assert proxies(plane, "?state=synced")["items"] == []
    assert proxies(plane, "?mesh=nowhere")["title"] == "Failed to retrieve Mesh"
    assert "must be one of" in proxies(plane, "?state=sleepy")["detail"]
    checks = [check for check in plane("GET", "/_check").json["checks"] if check["status"] == "error"]
    assert any(name in str(check) for check in checks)


def test_a_change_refused_for_a_passing_reason_is_tried_again_until_it_is_taken(plane, monkeypatch):
    monkeypatch.setattr(retries, "FIRST_SECONDS", 0.1)
    connection = connect(plane, dataplane())
    name = "kri_dp_default_default__web-1_10080"
    offer = plane.run(next_offer(connection))
    report(plane, connection, synced(offer))
    version = lambda: connection.offered.get((LISTENER, name)).version  # noqa: E731
    old = version()
    rules = [{"default": {"connectionTimeout": "7s", "http": {"requestHeadersTimeout": "3s"}}}]
    policy = {"type": "MeshTimeout", "mesh": "default", "name": "t", "spec": {"rules": rules}}
    plane("PUT", "/meshes/default/meshtimeouts/t", policy)
    until(lambda: version() != old)
    new, revision = version(), connection._offer.revision
    words = "cannot bind '127.0.0.1:10080': Address already in use"
    refusal = ProxyStatus("nack", revision, 0, (Rejection(LISTENER, (name,), words, revision, (new,)),))
    for _ in range(2):
        report(plane, connection, refusal)
        until(lambda: version() == old)
        report(plane, connection, synced(connection._offer))
        assert proxies(plane)["items"][0]["state"] == "nack"
        until(lambda: connection.is_retrying and version() == new)
    report(plane, connection, synced(connection._offer))
    assert proxies(plane)["items"][0]["state"] == "synced"
    assert version() == new


def test_the_configuration_of_a_proxy_can_be_read(plane):
    connection = connect(plane, dataplane())
    plane.run(next_offer(connection))
    answer = plane("GET", "/meshes/default/dataplanes/web-1/_config")
    assert answer.status == 200
    listeners = answer.json["xds"]["type.googleapis.com/envoy.config.listener.v3.Listener"]
    assert listeners["kri_dp_default_default__web-1_10080"]["trafficDirection"] == "INBOUND"
    assert plane("GET", "/meshes/default/dataplanes/web-9/_config").status == 404


def test_a_proxy_has_a_revision_only_once_it_was_offered_what_it_changed(plane):
    fleet, offers = plane.plane._proxies.fleet, []
    connections = [connect(plane, dataplane(name), name=name) for name in ("a", "b", "c")]
    until(lambda: all(connection.offered.bundles for connection in connections))

    def noted(offer):
        waiting = [
            state
            for state in fleet.states.connected()
            if fleet.roster[state.key]._offer.revision < offer.revision
        ]
        offers.append((offer.revision, [state.revision for state in waiting]))

    async def settle():
        for connection in connections:
            connection.report(synced(connection._offer))
            connection.watch_offers(noted)

    plane.run(settle())
    spec = {"targetRef": {"kind": "Mesh"}, "rules": [{"default": {"http": {"requestTimeout": "7s"}}}]}
    policy = {"type": "MeshTimeout", "mesh": "default", "name": "all", "spec": spec}
    before = plane.plane.store.state.revision
    plane("PUT", "/meshes/default/meshtimeouts/all", policy)
    until(lambda: len([revision for revision, _ in offers if revision > before]) >= 3)
    news = [(revision, waiting) for revision, waiting in offers if revision > before]
    assert any(waiting for _, waiting in news)
    assert all(view < revision for revision, waiting in news for view in waiting)


def test_the_loop_ends_when_it_is_told_to_while_it_is_being_woken(plane):
    backend = {"name": "ca-1", "type": "builtin"}
    mesh = {"type": "Mesh", "name": "default", "mtls": {"enabledBackend": "ca-1", "backends": [backend]}}
    plane("PUT", "/meshes/default", mesh)
    fleet = plane.plane._proxies.fleet
    connection = connect(plane, dataplane())
    until(lambda: offered(connection, SECRET))  # from now on certificates are due some time

    async def ends(n_steps):
        loop = asyncio.create_task(fleet.rounds.run())
        await asyncio.sleep(0.05)
        fleet.rounds.wake()
        for _ in range(n_steps):
            await asyncio.sleep(0)
        loop.cancel()
        done, _ = await asyncio.wait({loop}, timeout=60)
        return bool(done)

    assert [plane.run(ends(n_steps)) for n_steps in range(5)] == [True] * 5


def unbuilt_service(plane, endpoint=None):
    """Write an external service; without an endpoint it cannot be built."""
    spec = {"match": {"type": "HostnameGenerator", "port": 80, "protocol": "http"}}
    spec |= {"endpoints": [endpoint]} if endpoint else {"extension": {"type": "Nowhere", "config": {}}}
    document = {"type": "MeshExternalService", "mesh": "default", "name": "bad", "spec": spec}
    assert plane("PUT", "/meshes/default/meshexternalservices/bad", document).status in (200, 201)


def of_proxies(plane):
    (proxy,) = plane("GET", "/_proxies").json["items"]
    return proxy, [check for check in plane("GET", "/_check").json["checks"] if check["name"] == "proxies"]


@pytest.mark.expected_errors("a part of the configuration cannot be built")
@pytest.mark.parametrize(
    ("has", "instead", "refusal"),
    [
        (
            "none",
            "proxies go without it, and have all else",
            "web-1 has no cluster kri_extsvc_default_default__bad_80:",
        ),
        (
            "the version before",
            "proxies keep the version before",
            "web-1 keeps its former cluster kri_extsvc_default_default__bad_80:",
        ),
    ],
)
def test_what_cannot_be_built_is_shown_and_kept_only_where_it_was(plane, has, instead, refusal):
    outbound = [{"port": 9000, "backendRef": {"kind": "MeshExternalService", "name": "bad", "port": 80}}]
    unbuilt_service(plane)
    connection = connect(plane, dataplane(outbound=outbound))
    offer = plane.run(next_offer(connection))
    name = "kri_extsvc_default_default__bad_80"
    before = {CLUSTER: {name: "1"}} if has != "none" else {}
    report(plane, connection, synced(offer, acked_versions=before))
    proxy, (check,) = of_proxies(plane)
    (failure,) = proxy["failures"]
    assert (failure["type"], failure["name"], failure["has"]) == (CLUSTER, name, has)
    assert failure["origin"] == 'MeshExternalService "bad" (mesh default zone default)'
    assert 'no plugin "Nowhere" is installed' in check["message"]
    assert check["hint"] == f'{instead}; look at MeshExternalService "bad" (mesh default zone default)'
    assert next(refusals([proxy])).strip() == refusal
    unbuilt_service(plane, {"address": "1.1.1.1", "port": 80})
    until(lambda: of_proxies(plane)[0]["failures"] == [], "it is mended")


def test_a_proxy_that_can_get_nothing_says_why(plane):
    connection = connect(plane, dataplane())
    plane.run(next_offer(connection))

    async def spoil():
        now = stored(plane)
        await plane.plane.store.write(
            Transaction(
                (Put(msgspec.structs.replace(now, spec={"networking": 5}), now.revision),), "test", ""
            )
        )

    plane.run(spoil())
    until(lambda: of_proxies(plane)[0]["failures"], "there is a reason")
    proxy, (check,) = of_proxies(plane)
    (failure,) = proxy["failures"]
    assert (failure["type"], failure["name"]) == ("proxy", "web-1")
    assert "cannot be read as it is stored" in failure["text"]
    assert check["hint"].startswith("it gets nothing new; look at Dataplane")
    (check,) = [check for check in plane("GET", "/_check").json["checks"] if check["name"] == "objects"]
    assert check["message"].startswith('Dataplane "web-1" (mesh default zone default) cannot be read: ')
    assert next(refusals([proxy])).startswith("\nweb-1 gets nothing new")


def refusals_of_each_server(plane):
    """Knock in every way in which a proxy may be refused; each under a name that says how."""
    plane("PUT", "/meshes/other", {"type": "Mesh", "name": "other"})
    body = {"mesh": "other", "validFor": "1h"}
    foreign = plane("POST", "/tokens/dataplane", body).body.decode()
    knocks = {
        "rubbish": {"shown": "rubbish"},
        "foreign": {"shown": foreign},
        "stranger": {"shown": web_token(plane, name="web-9")},
        "unknown": {"brings": None},
        "homeless": {"mesh": "nowhere"},
        "replaced": {"brings": dataplane("replaced") | {"labels": {"koguma.io/instance": "old"}}},
    }
    reasons: dict[str, str] = {}
    for run in ("old", "new"):
        connect(plane, dataplane("replaced") | {"labels": {"koguma.io/instance": run}}, name="replaced")
    for name, more in knocks.items():
        with pytest.raises(KogumaError) as raised:
            connect(plane, **{"brings": dataplane(name), "name": name, **more})
        reasons[name] = str(raised.value)
    context = ssl.create_default_context(cafile=str(plane.data_dir / "ca.pem"))
    for name, shown in (("tokenless", ""), ("bootstrapped", "rubbish")):
        request = {"mesh": "default", "name": name, "workdir": "/run/x", "dataplaneToken": shown}
        with closing(
            http.client.HTTPSConnection("127.0.0.1", plane.plane.ports["dp"], context=context)
        ) as https:
            https.request("POST", "/bootstrap", json.dumps(request), {"Content-Type": "application/json"})
            response = https.getresponse()
            assert response.status in (401, 422)
            reasons[name] = response.read().decode()
    return reasons


def test_a_refusal_through_any_door_is_shown_with_its_reason(plane):
    reasons = refusals_of_each_server(plane)
    shown = {proxy["name"]: proxy for proxy in plane("GET", "/_proxies").json["refused"]}
    assert {name: proxy["reason"] for name, proxy in shown.items()} == reasons
    assert reasons["unknown"] == 'there is no Dataplane "unknown" in mesh "default"'
    assert {name for name in reasons if shown[name]["door"] == "bootstrap"} == {"tokenless", "bootstrapped"}
    of_mesh = plane("GET", "/_proxies?mesh=other").json
    assert (of_mesh["total"], of_mesh["refused"]) == (0, [])
    checks = [check for check in plane("GET", "/_check").json["checks"] if check["name"] == "refused proxies"]
    assert {check["status"] for check in checks} == {"error"}
    assert len(checks) == len(reasons)
    metrics = plane("GET", "/metrics").body.decode()
    assert "koguma_proxies_refused 8.0" in metrics
    assert "koguma_proxy_refusals_total 8.0" in metrics
    connect(plane, dataplane("rubbish"), name="rubbish")
    assert "rubbish" not in {proxy["name"] for proxy in plane("GET", "/_proxies").json["refused"]}


def test_who_may_not_see_a_mesh_does_not_see_who_was_refused_there(tmp_path):
    with LocalControlPlane(tmp_path, localhost_is_admin=False) as plane:
        admin = {"Authorization": f"Bearer {(tmp_path / 'admin-token').read_text().strip()}"}
        with pytest.raises(Unauthenticated):
            connect(plane, dataplane(), shown="rubbish")
        assert [proxy["name"] for proxy in plane("GET", "/_proxies", **admin).json["refused"]] == ["web-1"]
        assert plane("GET", "/_proxies").json.get("refused", []) == []


@pytest.fixture
def with_spoilt_objects(tmp_path):
    """A control plane that has one object of each kind in its store that nobody can read."""
    with LocalControlPlane(tmp_path) as running:
        kinds = [kind for kind in running.plane.kinds if kind.is_mesh_scoped and not kind.read_only]
        spoilt = [
            Resource(
                kind=kind.name,
                mesh="default",
                zone="default",
                name="spoilt",
                core_name="spoilt",
                spec=dict.fromkeys(("targetRef", "to", "networking", "data", "spec", "match", "selector"), 5),
            )
            for kind in kinds
        ]

        async def write():
            puts = tuple(Put(resource, 0) for resource in spoilt)
            await running.plane.store.write(Transaction(puts, "test", ""))

        running.run(write())
        yield running


def test_objects_that_cannot_be_read_keep_no_proxy_waiting(with_spoilt_objects):
    plane = with_spoilt_objects
    connection = connect(plane, dataplane())
    assert "kri_dp_default_default__web-1_10080" in plane.run(next_offer(connection)).snapshot.of_type(
        LISTENER
    )
    checks = [check for check in plane("GET", "/_check").json["checks"] if check["name"] == "objects"]
    assert {check["status"] for check in checks} == {"error"}
    named = {check["message"].split()[0] for check in checks}
    assert {kind.name for kind in plane.plane.kinds if kind.policy} <= named
    for name in sorted(named):
        path = f"/meshes/default/{plane.plane.kinds[name].plural}/spoilt"
        assert plane("DELETE", path).status == 200, name
    assert not [check for check in plane("GET", "/_check").json["checks"] if check["name"] == "objects"]


def test_a_mesh_that_cannot_be_read_takes_nothing_from_its_proxies(plane):
    backend = {"name": "ca-1", "type": "builtin"}
    mesh = {"type": "Mesh", "name": "default", "mtls": {"enabledBackend": "ca-1", "backends": [backend]}}
    assert plane("PUT", "/meshes/default", mesh).status == 200
    connection = connect(plane, dataplane())
    until(lambda: len(offered(connection, SECRET)) == 2)
    before = connection.offered

    async def spoil():
        now = plane.plane.store.state.get(Key("Mesh", "", "", "", "default"))
        put = Put(msgspec.structs.replace(now, spec={"mtls": 5}), now.revision)
        await plane.plane.store.write(Transaction((put,), "test", ""))

    plane.run(spoil())
    until(lambda: of_proxies(plane)[0]["failures"], "there is a reason")
    assert "its Mesh is gone, or cannot be read" in of_proxies(plane)[0]["failures"][0]["text"]
    assert connection.offered is before
    assert plane("PUT", "/meshes/default", mesh).status == 200
    until(lambda: of_proxies(plane)[0]["failures"] == [], "it is mended")
    assert offered(connection, SECRET) == ["identity_cert:secret:default", "mesh_ca:secret:default"]
