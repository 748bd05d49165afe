"""The simulation says what real Envoys do, for meshes and requests at random."""

import asyncio
import os
from collections.abc import Sequence
from random import Random

import pytest

from koguma.core import world
from koguma.core.incremental import Db
from koguma.core.simulation import answers
from koguma.core.simulation.answers import CallQuestion
from koguma.core.simulation.calls import CallOutcome, CallSimulator
from koguma.core.simulation.parties import OUTSIDE
from koguma.envoy import rbac
from koguma.envoy.simulation.traffic import SimulatedRequest
from koguma.envoy.snapshot import XdsResource
from koguma.model.errors import Invalid
from koguma.model.resource import Resource
from tests.core import building
from tests.simulation import random_calls, real_mesh
from tests.simulation.real_mesh import Observed, RealMesh

pytestmark = [pytest.mark.slow, pytest.mark.property]

MESHES = 600 if os.environ.get("KOGUMA_SOAK") else 30
REQUESTS = 12
TRIES = 4  # of a request that may end in several ways


def _objects(random: Random, mesh: RealMesh, number: int) -> list[Resource]:
    protocols = {service: random.choice(("http", "http", "http", "tcp")) for service in ("a", "b")}
    written = [random_calls.mesh(random), *mesh.dataplanes(number, protocols)]
    made = [building.stored(each) for each in written]
    edge = random_calls.gateway(random, mesh.gateway_port(number))
    for policy in (*edge, *random_calls.policies(random)):
        try:
            made.append(building.stored(policy))
        except Invalid:
            continue  # as a server would refuse it
    return made


def expected(outcome: CallOutcome) -> list[Observed]:
    """What a caller would see of an outcome; one for each endpoint."""
    if not outcome.is_reached:
        by = outcome.by or rbac.DEFAULT
        # The header comes from the proxy of the service, which reads requests only where that speaks HTTP.
        is_named = outcome.kind == "denied" and outcome.status == 403
        return [Observed(outcome.status, denied_by=by if is_named else "", location=outcome.location)]
    request = outcome.request
    assert request is not None
    headers = tuple((name, request.header(name)) for name in ("x-a", "x-b", "x-c"))
    endpoints = [name if name.startswith(("a-", "b-")) else "ext" for name, _ in outcome.endpoints]
    return [Observed(200, endpoint, request.path, request.host, headers) for endpoint in endpoints]


async def _compare(
    mesh: RealMesh, number: int, simulator: CallSimulator, caller: str, to: str, request: SimulatedRequest
) -> list[CallOutcome]:
    question = CallQuestion(caller, to, request=request)
    (group,) = answers.groups(simulator, question)
    assert answers.shown(simulator.db, question, [group])["verdict"] == group.verdict
    possible = [each for outcome in group.outcomes for each in expected(outcome)]
    for _ in range(TRIES if len(possible) > 1 else 1):
        seen = await _observe(mesh, number, caller, to, request, possible)
        assert seen in possible, (number, caller, to, request, group.outcomes)
    return list(group.outcomes)


async def _observe(
    mesh: RealMesh, number: int, caller: str, to: str, request: SimulatedRequest, possible: Sequence[Observed]
) -> Observed:
    """What happens; again where it is not as expected, since workers of Envoys get news a moment later."""
    seen = await mesh.send(number, caller, to, request)
    for _ in range(100):
        if seen in possible:
            break
        await asyncio.sleep(0.05)
        seen = await mesh.send(number, caller, to, request)
    return seen


def _without_subsets(resource: XdsResource | None) -> object:
    """A resource; a cluster without the sets of tags by which routes of others select endpoints."""
    data = building.decoded(resource) if resource else {}
    return {name: value for name, value in data.items() if name != "lb_subset_config"}


def _check_parts(db: Db, simulator: CallSimulator) -> None:
    """What the simulation builds in order to call one destination is a part of what the proxy gets."""
    for name in random_calls.CALLERS:
        key = building.proxy(db, name)
        everything = real_mesh.whole(db, simulator, key)
        for destination in world.destinations(db, "default"):
            part = simulator.proxies.configuration(key, destination.key)
            for each in part:
                assert _without_subsets(each) == _without_subsets(everything.get(each.id))


async def test_it_says_what_real_envoys_do(tmp_path_factory):
    folder = tmp_path_factory.mktemp("e")  # short: the path of a socket has at most 107 bytes
    kinds: dict[str, int] = {}
    async with real_mesh.running(folder) as mesh:
        for number in range(MESHES):
            random = Random(number)
            db = building.database(_objects(random, mesh, number))
            simulator = CallSimulator(db, "default")
            await mesh.take(db, simulator)
            _check_parts(db, simulator)
            for _ in range(REQUESTS):
                caller, to = random.choice(random_calls.CALLERS), random.choice(random_calls.DESTINATIONS)
                request = random_calls.request(random)
                if random.random() < 0.3:
                    caller, to, request = OUTSIDE, "edge", random_calls.outside_request(random)
                for outcome in await _compare(mesh, number, simulator, caller, to, request):
                    kinds[outcome.kind] = kinds.get(outcome.kind, 0) + 1
    assert {"reached", "denied", "redirected", "answered", "aborted"} <= kinds.keys(), kinds
