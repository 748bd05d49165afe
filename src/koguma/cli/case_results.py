"""Case results: the cases of `koguma test` evaluated, each failure with who set what, and where."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from time import perf_counter
from typing import Any, Final, NamedTuple

from koguma.cli import explanation, inputs, offline
from koguma.cli.explanation import ExplainedField, FilesInspect
from koguma.cli.failures import CommandFailure
from koguma.cli.offline import LoadedFiles
from koguma.cli.simulated_mesh import Simulators
from koguma.core.build import encoding
from koguma.core.simulation import answers, cases
from koguma.core.simulation.cases import CaseFailure, MeshTestCase, MeshTestDocument
from koguma.model import duration, kri
from koguma.model.documents import Document
from koguma.model.violation import child, item

Json = Any

# The fields of policies and of route rules that set what a case may expect.
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "timeout": ("http.requestTimeout", "timeouts.request"),
    "idleTimeout": ("http.streamIdleTimeout", "idleTimeout"),
    "connectTimeout": ("connectionTimeout",),
    "perTryTimeout": ("http.perTryTimeout", "timeouts.backendRequest", "grpc.perTryTimeout"),
    "retries": ("http.numRetries", "grpc.numRetries", "retry.attempts"),
    "mirrors": ("filters",),
    "path": ("filters",),
    "host": ("filters",),
    "headers": ("filters",),
    "responseHeaders": ("filters",),
}

_OF_ARRIVAL: Final = ("path", "host", "headers")  # of requests that reach a service
_REQUEST: Final = (
    "mirrors",
    "path",
    "host",
    "headers",
    "responseHeaders",
)  # set by filters, which are shown whole


class FailedExpectation(NamedTuple):
    """An expectation that does not hold: its place, its field, both values, and why."""

    place: str
    field: str
    expected: str
    actual: str
    because: tuple[str, ...] = ()


class CaseResult(NamedTuple):
    """A case, its place, how long it took, and the expectations that do not hold."""

    suite: str
    name: str
    place: str
    took: timedelta
    failures: tuple[FailedExpectation, ...]


def read(paths: Sequence[str]) -> tuple[list[Document], list[tuple[Document, MeshTestDocument]]]:
    """The objects and the cases in files; a failure that lists all that is wrong with cases."""
    everything = inputs.read_with_tests(paths)
    tests: list[tuple[Document, MeshTestDocument]] = []
    problems: list[str] = []
    for document in filter(inputs.is_test, everything):
        test, violations = cases.read(document.value)
        problems += [
            ": ".join(filter(None, (inputs.place(document, each.field), each.field, each.message)))
            for each in violations
        ]
        if test is not None:
            tests.append((document, test))
    if problems:
        raise CommandFailure("the cases cannot be read", tuple(problems))
    if not tests:
        raise CommandFailure(
            f"there are no cases in {', '.join(paths)}; write objects of `type: {inputs.TEST}`,"
            " as docs/testing-policies.md shows"
        )
    return [each for each in everything if not inputs.is_test(each)], tests


def evaluated(
    loaded: LoadedFiles, simulators: Simulators, tests: Sequence[tuple[Document, MeshTestDocument]]
) -> Iterator[CaseResult]:
    """All cases, one after the other."""
    for document, test in tests:
        simulator = simulators.of(test.mesh)
        for index, case in enumerate(test.cases):
            start, path = perf_counter(), item("cases", index)
            failed = (_failed(loaded, document, path, each) for each in cases.failures(simulator, case))
            failures = tuple(dict.fromkeys(failed))  # shares of requests often fail for one reason
            name = case.name or _title(case)
            took = timedelta(seconds=perf_counter() - start)
            yield CaseResult(test.name, name, inputs.place(document, path), took, failures)


def _title(case: MeshTestCase) -> str:
    request = case.request
    port = f":{request.port}" if request.port else ""
    return f"{case.from_} to {request.to}{port}: {request.method} {request.path}"


def _failed(loaded: LoadedFiles, document: Document, path: str, failure: CaseFailure) -> FailedExpectation:
    field = child(path, failure.path) if failure.path else path
    because = tuple(dict.fromkeys(_because(loaded, failure)))
    return FailedExpectation(
        inputs.place(document, field), failure.path, failure.expected, failure.actual, because
    )


def _because(loaded: LoadedFiles, failure: CaseFailure) -> Iterator[str]:
    """Why it is as it is: who decided, who set the value, by which route; and for which callers."""
    group, outcome = failure.group, failure.outcome
    if group is None or outcome is None:
        return
    caller = group.callers[0]
    source = FilesInspect(loaded.db, offline.known_kinds(), caller, loaded.documents)
    word = failure.path.removeprefix("expect.").partition(".")[0]
    shown = answers.outcome_json(loaded.db, outcome, caller)
    is_set = outcome.is_reached or (outcome.destination and word not in _OF_ARRIVAL)
    if word in _FIELDS and is_set:
        outbound = encoding.kri(loaded.db, group.port.destination, group.port.section)
        yield from _setters(source, outbound, outcome.route, word, failure.actual)
    else:
        yield shown["reason"]
        for origin in shown.get("decidedBy") or ():
            yield f"decided by {origin['kri']}, {source.place(origin)}"
    if kri.is_kri(outcome.route):
        yield f"by route {outcome.route}, {source.place({'kri': outcome.route, 'path': 'spec.to'})}"
    yield from (f"fault: {text}" for text in outcome.side.faults)
    if len(group.callers) > 1 or caller.name not in shown["reason"]:
        yield f"for calls of {', '.join(key.name for key in group.callers[:5])}"


def _setters(source: FilesInspect, outbound: str, route: str, word: str, actual: str) -> Iterator[str]:
    """Who set a value, in the words of `koguma explain`.

    A policy of another package may set it by a field that is not known here: then whoever has this value.
    """
    try:
        rows = list(explanation.rows(source, [outbound]))
    except AssertionError:  # the proxy does not call it by an outbound of its own
        rows = []
    of_route = [row for row in rows if row.route == route] if route else []
    usual = [row for row in of_route or rows if _is_field(row, _FIELDS[word])]
    if word in _REQUEST:
        setting = usual
    else:
        with_value = [row for row in usual if _is_value(row.value, actual) and not row.is_replaced]
        rules = [rule for row in usual for rule in row.instead if _is_value(rule["value"], actual)]
        yield from (f"{_text(rule['value'])} is set by {rule['kri']}, {source.place(rule)}" for rule in rules)
        others = [row for row in of_route or rows if _is_value(row.value, actual)]
        setting = (with_value or ([] if rules else others))[:1]
    for row in setting:
        setter = f"set by {row.origin['kri']}, {source.place(row.origin)}"
        yield f"{row.kind} {row.field} = {_text(row.value)}, {setter}"
    if not rows:
        yield "no policy sets it"


def _is_field(row: ExplainedField, fields: Sequence[str]) -> bool:
    return any(row.field == field or row.field.startswith((f"{field}.", f"{field}[")) for field in fields)


def _is_value(value: Json, actual: str) -> bool:
    if isinstance(value, str) and duration.is_duration(value) and duration.is_duration(actual):
        return duration.nanoseconds(value) == duration.nanoseconds(actual)
    return str(value) == actual


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
