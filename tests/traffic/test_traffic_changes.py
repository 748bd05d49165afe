"""No request fails by a change: random changes under load, each of which leaves a permitted path."""

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import build
from tests.live_mesh import LiveMesh
from tests.waiting import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
N_CHANGES = 200
N_CHANGES_LONG = 10_000
N_REQUESTS_MIN = 20_000
PAUSE_SECONDS = 0.03  # so that changes meet requests all the way


@contextlib.contextmanager
def program(module, *words):
    process = subprocess.Popen(
        [sys.executable, "-m", f"tests.traffic.{module}", *map(str, words)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def loaded(port, at_least=0):
    """Calls while the block runs; what came of them is in the list afterwards."""
    seen = []
    with program("load_generator", port, at_least) as process:
        yield seen
        process.send_signal(signal.SIGTERM)
        seen.append(json.loads(process.communicate(timeout=90)[0]))


@pytest.fixture(scope="module")
def services():
    with contextlib.ExitStack() as stack:
        started = {name: stack.enter_context(program("quick_server", name)) for name in ("v1", "v2")}
        yield {name: int(process.stdout.readline()) for name, process in started.items()}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory, services):
    mtls = {"enabledBackend": "ca-1", "backends": [{"name": "ca-1", "type": "builtin"}]}
    with LiveMesh(tmp_path_factory.mktemp("mesh")) as running:
        running.request("PUT", "/meshes/default", {"type": "Mesh", "name": "default", "mtls": mtls})
        running.apply(permission(["web"]), service())
        running.backends = {
            version: running.sidecar(
                f"backend-{version}", "backend", target=port, tags={"version": version}, serves=False
            )
            for version, port in services.items()
        }
        running.web = running.sidecar("web-1", "web", outbounds=["backend"], serves=False)
        until(lambda: running.web.call("backend").status == 200)
        yield running


def service():
    return build.mesh_service("backend", build.port(name="http", targetPort="http"))


def permission(names):
    allow = [{"spiffeID": {"type": "Exact", "value": f"spiffe://default/{name}"}} for name in names]
    return {
        "type": "MeshTrafficPermission",
        "name": "who",
        "spec": {"rules": [{"default": {"allow": allow}}]},
    }


def to_backend(kind, name, **entry):
    spec = {"to": [{"targetRef": {"kind": "MeshService", "name": "backend"}, **entry}]}
    return {"type": kind, "name": name, "spec": spec}


def split(dice):
    first = dice.randint(0, 10)
    refs = [
        {"kind": "MeshServiceSubset", "name": "backend", "tags": {"version": version}, "weight": weight}
        for version, weight in (("v1", first), ("v2", 10 - first))
    ]
    header = {"name": "x-step", "value": str(dice.random())}
    modifier = {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [header]}}
    path = dice.choice(["/", "/load", "/other"])
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": path}}],
        "default": {"backendRefs": refs, "filters": [modifier] if dice.random() < 0.5 else []},
    }
    return to_backend("MeshHTTPRoute", f"split-{dice.randint(0, 2)}", rules=[rule])


def timeout(dice):
    conf = {
        "connectionTimeout": f"{dice.randint(5, 60)}s",
        "http": {"requestTimeout": f"{dice.randint(5, 60)}s"},
    }
    return to_backend("MeshTimeout", f"limits-{dice.randint(0, 2)}", default=conf)


def retry(dice):
    return to_backend("MeshRetry", "again", default={"http": {"numRetries": dice.randint(1, 9)}})


def balancing(dice):
    kind = dice.choice(["RoundRobin", "LeastRequest", "Random"])
    return to_backend("MeshLoadBalancingStrategy", "balance", default={"loadBalancer": {"type": kind}})


def permitted(dice):
    return permission(["web", *dice.sample(["a", "b", "c", "d"], dice.randint(0, 4))])


def stranger(dice):
    inbound = {"port": 1000 + dice.randint(0, 9), "tags": {"kuma.io/service": f"s-{dice.randint(0, 5)}"}}
    networking = {"address": "127.0.0.9", "inbound": [inbound]}
    return {"type": "Dataplane", "name": f"stranger-{dice.randint(0, 9)}", "networking": networking}


def listed(dice):
    """The service is written again with another label: its object changes, and nothing that matters."""
    return {**service(), "labels": {"step": str(dice.randint(0, 99))}}


CHANGES = (split, split, split, timeout, retry, balancing, permitted, stranger, listed)
PLURALS = {
    "MeshHTTPRoute": "meshhttproutes",
    "MeshTimeout": "meshtimeouts",
    "MeshRetry": "meshretries",
    "MeshLoadBalancingStrategy": "meshloadbalancingstrategies",
    "Dataplane": "dataplanes",
}


def test_no_request_fails_by_a_change(mesh):
    counts = changed_under_load(mesh, N_CHANGES)
    assert set(counts) == {"200"}, counts
    assert counts["200"] >= N_REQUESTS_MIN, counts


@pytest.mark.soak
def test_no_request_fails_by_ten_thousand_changes(mesh):
    counts = changed_under_load(mesh, N_CHANGES_LONG)
    assert set(counts) == {"200"}, counts


def changed_under_load(mesh, n_changes):
    """Change something again and again while requests go on; how often each answer came."""
    dice = random.Random(20_261_115)
    there = {}
    with loaded(mesh.web.outbounds["backend"], N_REQUESTS_MIN) as seen:
        for _ in range(n_changes):
            if there and dice.random() < 0.2:
                kind, name = dice.choice(sorted(there))
                del there[kind, name]
                mesh.delete(PLURALS[kind], name)
                continue
            written = dice.choice(CHANGES)(dice)
            mesh.apply(written)
            if written["type"] in PLURALS:
                there[written["type"], written["name"]] = True
            time.sleep(PAUSE_SECONDS)
        for kind, name in there:
            mesh.delete(PLURALS[kind], name)
        mesh.wait_until_synced()
    (counts,) = seen
    return counts


def test_no_request_fails_while_everything_is_restarted_in_turn(mesh, services):
    with loaded(mesh.web.outbounds["backend"]) as seen:
        for _ in range(2):
            mesh.control_plane.stop()
            mesh.start_control_plane()
            until(lambda: len(mesh.proxies()) == 3)
        for version, backend in list(mesh.backends.items()):
            assert backend.stop() == 0
            mesh.backends[version] = mesh.sidecar(
                f"backend-{version}",
                "backend",
                target=services[version],
                tags={"version": version},
                serves=False,
            )
            mesh.wait_until_synced()
            time.sleep(0.5)
    (counts,) = seen
    assert set(counts) == {"200"}, counts
