"""A real Envoy takes what every case of `cases/build` gives it: nothing is refused, all listeners listen."""

import asyncio
import json
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from building import CASES, encoder, proxies

from koguma.core.build import network as network_of
from koguma.core.build import snapshot
from koguma.envoy.snapshot import CLUSTER, SECRET, Bundle, Snapshot, XdsResource, bundle
from koguma.identity import sds
from koguma.identity.sds import SdsSecret
from koguma.model.redacted import Redacted
from koguma.xds.limits import XdsLimits
from tests.envoy.some_certificates import certificate, pem
from tests.ports import free_port
from tests.xds.fake_gate import FakeGate, serving
from tests.xds.real_envoy import RunningEnvoy, envoy

pytestmark = pytest.mark.slow

NOW = XdsLimits(drain_seconds=0.0)
FIXED_PORTS = ("25001", "25006", "25053")


def secrets() -> Bundle:
    """A certificate, and the CA that vouches for it."""
    ca = certificate(())
    own, key = pem(certificate(("spiffe://default/it",), ca))
    made = (
        SdsSecret(sds.identity_name("default"), "1", own, Redacted(key)),
        SdsSecret(sds.trust_name("default"), "1", pem(ca)[0]),
    )
    return bundle(encoder().resource(SECRET, each.name, each.data()) for each in made)


def snapshots(folder: Path, *, binding: bool) -> Iterator[tuple[str, Snapshot]]:
    """What proxies of every case get that bind virtual addresses, or do not; an Envoy never changes in that.

    Each is on addresses of this machine that are its own.
    """
    ports = {name: str(free_port()) for name in FIXED_PORTS}
    known, networks = secrets(), count(os.getpid())
    for case in CASES:
        for key in proxies(case.database()):
            network, workdir = next(networks), folder / str(next(networks))
            workdir.mkdir()
            own = f"127.{network // 200 % 200 + 1}.{network % 200 + 1}."
            db = case.database({"127.0.0.": own, "/workdir": str(workdir), **ports})
            made = snapshot.of(db, key)
            assert made is not None
            if network_of.node_metadata(db, key).binds_outbounds is not binding:
                continue
            yield f"{case.path.stem}: {key.name}", Snapshot((*made.bundles, known))


def can_come(made: Snapshot, resource: XdsResource) -> bool:
    """Whether all that a resource needs could be made; without a cluster Envoy answers 503 for it alone."""
    failed = {each.id for each in made.failures}
    needs = [need for need in resource.needs if need[0] != CLUSTER]
    needed = [each for each in map(made.get, needs) if each is not None]
    return failed.isdisjoint((resource.id, *needs)) and all(can_come(made, each) for each in needed)


async def listening(proxy: RunningEnvoy) -> dict[str, str]:
    """The listeners of an Envoy, each with what is wrong with it."""
    dump = json.loads(await proxy.ask("/config_dump?resource=dynamic_listeners"))
    return {
        each.get("name"): each.get("error_state", {}).get("details")
        or ("" if "active_state" in each else "warming")
        for each in dump.get("configs", ())
        if set(each) - {"@type", "name", "client_status"} != {"draining_state"}
    }


async def settled(proxy: RunningEnvoy, names: set[str]) -> dict[str, str]:
    """The listeners when all of them are active, or after a while."""
    found: dict[str, str] = {}
    for _ in range(3000):
        found = await listening(proxy)
        if found == dict.fromkeys(names, ""):
            break
        await asyncio.sleep(0.02)
    return found


async def refused(proxy: RunningEnvoy) -> dict[str, str]:
    lines = (await proxy.ask("/stats?filter=update_rejected&usedonly")).splitlines()
    return {name: count for name, count in (line.split(": ") for line in lines) if count != "0"}


@pytest.mark.parametrize("binding", [False, True], ids=["local", "virtual"])
async def test_an_envoy_takes_whatever_a_case_gives_it(tmp_path_factory, binding):
    tmp_path = tmp_path_factory.mktemp("e")  # short: the path of a socket has at most 107 bytes
    gate = FakeGate()
    async with serving(gate, NOW) as (_, port), envoy(tmp_path, port, "DELTA_GRPC") as proxy:
        connection = await gate.connection()
        for revision, (name, made) in enumerate(snapshots(tmp_path, binding=binding), start=1):
            connection.offer(revision, made)
            names = {name for name, resource in made.of_type("listener").items() if can_come(made, resource)}
            assert await settled(proxy, names) == dict.fromkeys(names, ""), name
            await connection.until("synced", acked=revision)
            assert connection.statuses[-1].rejections == (), name
        assert await refused(proxy) == {}
        assert "LIVE" in await proxy.ask("/ready")
