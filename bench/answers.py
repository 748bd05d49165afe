"""Answers: how long a user waits for an answer about a mesh, and how that compares with compiling it.

    python -m bench.answers [--proxies N --services S --json] [PART...]

1,000 proxies of 200 services with mTLS, 400 policies and a permission. Each part is one function that takes
the mesh and gives figures; a further answer is one more function in `PARTS`. `cold` is the first question to
an engine that has loaded the objects and compiled nothing, as offline; `warm` one whose answers are there, as
in a control plane. Times are CPU time: the machine is shared.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from bench import answers_plan
from bench import compile as mesh_of_compile
from koguma.core import admission, pipeline
from koguma.core.build import encoding, network, snapshot
from koguma.core.incremental import Db
from koguma.core.simulation import answers, cases
from koguma.core.simulation.answers import CallQuestion
from koguma.core.simulation.calls import CallSimulator
from koguma.core.simulation.cases import MeshTestCase
from koguma.envoy import schema
from koguma.envoy.encode import Encoder
from koguma.envoy.simulation.traffic import SimulatedRequest
from koguma.main import all_kinds
from koguma.model import forms
from koguma.model.kind import Kinds
from koguma.model.resource import Resource

N_CASES = 100
_POLICIES_PLANNED = 100
_MESH = {
    "type": "Mesh",
    "name": "default",
    "mtls": {"enabledBackend": "ca", "backends": [{"name": "ca", "type": "builtin"}]},
}
_ALLOW = {
    "type": "MeshTrafficPermission",
    "mesh": "default",
    "name": "all",
    "spec": {"from": [{"targetRef": {"kind": "Mesh"}, "default": {"action": "Allow"}}]},
}


class AnswerFigure(msgspec.Struct, frozen=True):
    """One measured time, and what it should be at most; zero where nothing is promised."""

    what: str
    milliseconds: float
    limit_ms: float = 0.0


class BenchMesh(msgspec.Struct, frozen=True):
    """The objects of a mesh, from which any number of engines can be loaded."""

    n_proxies: int
    n_services: int
    kinds: Kinds
    resources: tuple[Resource, ...]
    encoder: Encoder

    def engine(self) -> Db:
        """An engine with all objects and no answers."""
        db = pipeline.load(self.kinds, mesh_of_compile.CONTROL_PLANE, self.resources)
        db.set(encoding.ENCODER, "envoy", self.encoder)
        return db

    def names(self, number: int) -> tuple[str, str]:
        """A caller and a service that it calls."""
        return f"dp-{number % self.n_proxies}", f"svc-{(number * 7 + 3) % self.n_services}"


def bench_mesh(n_proxies: int, n_services: int) -> BenchMesh:
    """A mesh of that size."""
    kinds = all_kinds()
    written = [_MESH, _ALLOW, *_documents(n_proxies, n_services)]
    resources = tuple(
        _with_address(
            admission.admitted(forms.read(each, kinds), None, mesh_of_compile.CONTROL_PLANE).resource
        )
        for each in written
    )
    return BenchMesh(n_proxies, n_services, kinds, resources, Encoder(schema.load(schema.find_envoy())))


def _documents(n_proxies: int, n_services: int) -> Iterator[dict[str, Any]]:
    for document in mesh_of_compile.documents(n_proxies, n_services, 2 * n_services):
        if document["type"] != "Mesh":
            yield document


def _with_address(resource: Resource) -> Resource:
    """A service with the virtual address that a control plane would give it."""
    if resource.kind != "MeshService":
        return resource
    number = int(resource.name.removeprefix("svc-"))
    status = {"vips": [{"ip": f"241.0.{number // 250}.{number % 250 + 1}"}], "tls": {"status": "Ready"}}
    return msgspec.structs.replace(resource, status=status)


def _milliseconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return (time.process_time() - start) * 1000


def compiled(mesh: BenchMesh) -> Iterator[AnswerFigure]:
    """The compile alone, with which answers compare: all proxies from nothing."""
    db = mesh.engine()
    keys = [resource.key for resource in mesh.resources if resource.kind == "Dataplane"]
    with db.change() as change:
        for key in keys:
            change.set(network.NODE_METADATA, key, mesh_of_compile.NODE)
    yield AnswerFigure(
        "compile of all proxies", _milliseconds(lambda: [snapshot.of(db, key) for key in keys])
    )


def can(mesh: BenchMesh) -> Iterator[AnswerFigure]:
    """`koguma can`: one caller, then all proxies of a service as callers."""
    db = mesh.engine()
    caller, to = mesh.names(1)

    def ask(who: str) -> None:
        question = CallQuestion(who, to, request=SimulatedRequest(path="/v2/x"))
        found = answers.groups(CallSimulator(db, "default"), question)
        assert found, question
        answers.shown(db, question, found)

    yield AnswerFigure("can, cold", _milliseconds(lambda: ask(caller)), 1000)
    yield AnswerFigure("can, warm", _milliseconds(lambda: ask(caller)), 1000)
    yield AnswerFigure("can, all proxies of a service", _milliseconds(lambda: ask("svc-1")), 1000)


def test_cases(mesh: BenchMesh) -> Iterator[AnswerFigure]:
    """100 cases of `koguma test`, of 20 callers, after loading: cold, then once more."""
    db = mesh.engine()
    written = []
    for number in range(N_CASES):
        caller, to = mesh.names(number % 20)
        request = {"to": to, "path": f"/v{number}"}
        written.append({"from": caller, "request": request, "expect": {"denied": False}})
    read = [msgspec.convert(each, MeshTestCase) for each in written]

    def run() -> None:
        simulator = CallSimulator(db, "default")
        failed = [failure for case in read for failure in cases.failures(simulator, case)]
        assert not failed, failed[:1]

    yield AnswerFigure(f"test, {N_CASES} cases, cold", _milliseconds(run), 1000)
    yield AnswerFigure(f"test, {N_CASES} cases, warm", _milliseconds(run), 1000)


def plans(mesh: BenchMesh) -> Iterator[AnswerFigure]:
    """Plans of a change for ten proxies and for all, each beside its compile alone; and an explanation."""
    figures = answers_plan.measured(mesh.n_proxies, mesh.n_services, _POLICIES_PLANNED)
    yield AnswerFigure("plan: the first, compiles all", figures["first_s"] * 1000)
    for name in ("ten", "all"):
        figure = figures[f"plan_{name}"]
        yield AnswerFigure(f"plan: touches {figure['proxies']}", figure["ms"], 1000)
        yield AnswerFigure(f"the compile alone: touches {figure['proxies']}", figure["compile_ms"])
    yield AnswerFigure("explain: a field of Envoy", figures["explain"]["ms"], 1000)


PARTS: Mapping[str, Callable[[BenchMesh], Iterator[AnswerFigure]]] = {
    "compile": compiled,
    "can": can,
    "test": test_cases,
    "plan": plans,
}


def main() -> int:
    """Measure, print, and say by the exit code whether all limits are kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--proxies", type=int, default=1000)
    parser.add_argument("--services", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    mesh = bench_mesh(given.proxies, given.services)
    figures = [figure for part in given.parts or PARTS for figure in PARTS[part](mesh)]
    if given.json:
        print(json.dumps([msgspec.to_builtins(figure) for figure in figures]))
    else:
        for figure in figures:
            limit = f" (limit {figure.limit_ms:g})" if figure.limit_ms else ""
            print(f"{figure.what:40} {figure.milliseconds:10.1f} ms{limit}")
    return 0 if all(not figure.limit_ms or figure.milliseconds < figure.limit_ms for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
