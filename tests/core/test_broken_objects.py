"""One broken object, whatever it is, takes away its own part: a new proxy gets all the rest, and is synced.

All the ways that are known are tried, and others at random: any field of any object of a mesh is spoilt, once
so that the object would still be admitted, and once as only a store could hold it.
"""

import copy
import json
from collections.abc import Iterator
from random import Random
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
import random_meshes
from building import KINDS, database, objects, of, proxies, stored
from external_services import VIP, regular
from hypothesis import given

from koguma.core import problems, services, world
from koguma.core.build import network, snapshot
from koguma.core.incremental import Db
from koguma.envoy.snapshot import CLUSTER, LISTENER, ROUTES, Snapshot
from koguma.model.errors import Invalid
from koguma.model.resource import Resource
from koguma.xds.contract import Offer, ProxyStatus
from koguma.xds.protocol.session import DeltaSession
from tests import build
from tests.xds.simulated_envoy import Envoy

pytestmark = pytest.mark.slow

MESH = """
type: Mesh
name: default
---
type: Dataplane
mesh: default
name: web
networking:
  address: 127.0.0.2
  inbound: [{name: http, port: 21080, tags: {kuma.io/service: web, kuma.io/protocol: http}}]
  outbound:
    - {address: 127.0.0.1, port: 23080, backendRef: {kind: MeshService, name: good, port: 80}}
    - {address: 127.0.0.1, port: 23081, backendRef: {kind: MeshExternalService, name: bad, port: 80}}
---
type: MeshService
mesh: default
name: good
spec:
  selector: {dataplaneTags: {kuma.io/service: web}}
  ports: [{port: 80, targetPort: 21080, appProtocol: http}]
---
type: MeshHTTPRoute
mesh: default
name: split
spec:
  to:
    - targetRef: {kind: MeshService, name: good}
      rules:
        - matches: [{path: {type: PathPrefix, value: /}}]
          default:
            backendRefs:
              - {kind: MeshService, name: good, port: 80, weight: 1}
              - {kind: MeshExternalService, name: bad, weight: 1}
"""
GOOD, BAD = "kri_msvc_default_east__good_80", "kri_extsvc_default_east__bad_80"
VIRTUAL = {"type": "HostnameGenerator", "port": 80, "protocol": "http"}
# What an external service may say that cannot be built, and some words of the reason.
UNBUILT: dict[str, tuple[dict[str, Any], str]] = {
    "an extension that nobody has": (
        {"extension": {"type": "Nowhere", "config": {}}},
        'no plugin "Nowhere" is installed',
    ),
    "endpoints that cannot be mixed": (
        regular(match=VIP, endpoints=[{"address": "a.com", "port": 80}, {"address": "unix:///x"}]),
        "domains and unix sockets",
    ),
    "a certificate that is not there": (
        {
            "endpoints": [{"address": "1.1.1.1", "port": 80}],
            "tls": {
                "enabled": True,
                "verification": {"caCert": {"type": "Secret", "secretRef": {"kind": "Secret", "name": "no"}}},
            },
        },
        'there is no Secret "no"',
    ),
}


def taken(found: Snapshot) -> tuple[Envoy, ProxyStatus]:
    """A new Envoy after it was offered a snapshot, and how far it then is."""
    envoy, session, now = Envoy(), DeltaSession(30.0), 0.0
    envoy.inbox.extend(session.offer(Offer(1, found), now))
    for _ in range(1_000):
        if envoy.outbox:
            envoy.inbox.extend(session.receive(envoy.outbox.popleft(), now))
        elif envoy.inbox:
            envoy.read()
        elif session.next_tick is not None:
            now = session.next_tick
            envoy.inbox.extend(session.tick(now))
        else:
            return envoy, session.status
    raise AssertionError("they talk without an end")


def external(said: dict[str, Any]) -> Resource:
    return stored(build.external_service("bad", **{"match": VIRTUAL, **said}))


@pytest.mark.parametrize("how", UNBUILT)
def test_a_new_proxy_gets_all_but_an_external_service_that_cannot_be_built(how: str):
    said, reason = UNBUILT[how]
    found = of(database([*objects(MESH), external(said)]), "web")
    (failure,) = found.failures
    assert failure.id == (CLUSTER, BAD)
    assert reason in failure.text
    assert failure.origin == 'MeshExternalService "bad" (mesh default zone east)'
    envoy, status = taken(found)
    assert status.state == "synced"
    assert set(envoy.has[CLUSTER]) == {GOOD, "kri_dp_default_east__web_http"}
    assert {GOOD, BAD} <= set(envoy.has[LISTENER])
    assert {GOOD, BAD} <= set(envoy.has[ROUTES])


def test_what_a_proxy_has_of_it_stays_when_it_breaks():
    good = external({"endpoints": [{"address": "1.1.1.1", "port": 80}]})
    envoy, session = Envoy(), DeltaSession(30.0)
    for number, service in enumerate((good, external(UNBUILT["an extension that nobody has"][0])), start=1):
        made = of(database([*objects(MESH), service]), "web")
        envoy.inbox.extend(session.offer(Offer(number, made), 0.0))
        while envoy.outbox or envoy.inbox:
            if envoy.outbox:
                envoy.inbox.extend(session.receive(envoy.outbox.popleft(), 0.0))
            else:
                envoy.read()
    assert session.status.state == "synced"
    assert BAD in envoy.has[CLUSTER]


def spoilt(one: Resource) -> Resource:
    """The same object with a spec that no kind can read."""
    return msgspec.structs.replace(one, spec=dict.fromkeys((*one.spec, "to", "networking", "data"), 5))


def _examples() -> Iterator[Resource]:
    """One object of every kind of which tests know any."""
    random = Random(1)
    for _ in range(300):
        found = random_meshes.resource(random)
        if found is not None:
            yield found
    yield from random_meshes.SHOWN


EXAMPLES = {one.key.kind: one for one in _examples()}


def test_there_is_an_example_of_each_policy():
    assert {kind.name for kind in KINDS if kind.policy} <= EXAMPLES.keys()


@pytest.mark.parametrize("kind", sorted(EXAMPLES))
def test_an_object_that_cannot_be_read_is_as_if_it_were_not_there(kind: str):
    bad = msgspec.structs.replace(spoilt(EXAMPLES[kind]), name="spoilt", core_name="spoilt")
    db, without = database([*objects(MESH), bad]), of(database(objects(MESH)), "web")
    found = of(db, "web")
    assert list(found) == list(without)
    assert taken(found)[1].state == "synced"
    if bad.mesh == "default":
        told = [each for each in problems.of_mesh(db, "default") if bad.key in each.objects]
        assert [each.code for each in told] == [problems.INVALID]
        assert "cannot be read as it is stored" in told[0].message
        assert problems.of_object(db, bad.key) == tuple(told)


VALUES = ("", None, 0, -1, 1 << 40, "x" * 300, "ä ö/\x00", "127.0.0.1", [], {}, True, "1.5s", 3.5)
VALUES += (["x"], {"a": 1}, "%FOO%", "{{", "http", "MeshService")


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        yield (*path, name)
        yield from _places(each, (*path, name))


def with_another_value(random: Random, one: Resource) -> Resource:
    """An object in which something, anywhere, is something else."""
    spec = json.loads(msgspec.json.encode(one.spec))
    path = random.choice(list(_places(spec)) or [("x",)])
    inside = spec
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = copy.deepcopy(random.choice(VALUES))
    return msgspec.structs.replace(one, spec=spec)


def _admitted(one: Resource) -> Resource | None:
    """The object as somebody would write it; None where that is refused."""
    spec = one.spec if one.kind in ("Mesh", "Dataplane", "Secret") else {"spec": one.spec}
    scope = {"mesh": one.mesh} if one.mesh else {}
    try:
        made = stored({"type": one.kind, "name": one.name, **scope, "labels": dict(one.labels), **spec})
    except Invalid:
        return None
    return msgspec.structs.replace(made, status=one.status, zone=one.zone)


def _meshes(random: Random, *, admitted: bool) -> Db:
    """A mesh with one broken object, whose proxies are connected."""
    found = [one for one in (random_meshes.resource(random) for _ in range(14)) if one is not None]
    there = {one.key: one for one in found} or {EXAMPLES["Dataplane"].key: EXAMPLES["Dataplane"]}
    one = random.choice(list(there.values()))
    for _ in range(40 if admitted else 1):
        bad: Resource | None = with_another_value(random, one)
        bad = _admitted(bad) if admitted and bad else bad
        if bad is not None:
            there[one.key] = bad
            break
    db = database(there.values())
    for key in proxies(db):
        db.set(network.NODE_METADATA, key, random_meshes.node_metadata(random))
    return db


@pytest.mark.property
@pytest.mark.parametrize("admitted", [True, False])
@given(st.integers(0, 1 << 32))
def test_every_new_proxy_is_synced_whatever_single_object_is_broken(admitted: bool, seed: int):  # noqa: FBT001
    db = _meshes(Random(seed), admitted=admitted)
    for key in proxies(db):
        found = snapshot.of(db, key)
        if found is None:
            # Without its mesh nobody knows whether calls must be encrypted, without a MeshGateway what its
            # proxies serve: a proxy keeps what it has.
            unread = world.UNREADABLE.keys(db)
            meshes = {each.mesh or each.name for each in unread if each.kind in ("Mesh", "MeshGateway")}
            assert key.mesh in meshes or (meshes and not key.mesh)
        else:
            assert taken(found)[1].state == "synced"
    for mesh in ("default", random_meshes.OTHER):
        problems.of_mesh(db, mesh)
        services.desired(db, mesh)
