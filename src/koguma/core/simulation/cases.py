"""Cases: what `koguma test` reads, and whether the simulation does what a case expects.

    type: MeshTest                 # only read by `koguma test`; never stored
    name: checkout
    mesh: default
    cases:
    - name: beta users get version 2
      from: web                    # a service, a Dataplane or a KRI; `outside` in front of a gateway
      request: {to: backend, port: http, method: GET, path: /v2, headers: {x-beta: "true"}}
      expect: {reaches: {backend-v2: 100}, timeout: 5s, retries: 2}
    - from: job
      request: {to: backend}
      expect: {denied: {by: only-web}}

An expectation says as much as it names: what it does not name may be anything. All proxies of `from` must
behave as expected.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from koguma.core import world
from koguma.core.incremental import Db
from koguma.core.simulation import answers, parties
from koguma.core.simulation.answers import CallGroup, CallQuestion
from koguma.core.simulation.calls import CallOutcome, CallSimulator
from koguma.envoy.simulation.traffic import METHOD_WORDS, SimulatedRequest, is_method
from koguma.model import duration, kri, schema
from koguma.model.errors import BadRequest, NotFound
from koguma.model.schema import Json, Spec, doc
from koguma.model.violation import Violation, child, item

_TOLERANCE: Final = Fraction(1, 1000)  # in percent: 33.3333 is a third


class RequestCase(Spec):
    """A request."""

    to: Annotated[str, doc("What is called: a service, a gateway, a Dataplane, KIND/NAME or a KRI.")]
    port: Annotated[str | int, doc("Its port, by name or number; needed where there are several.")] = ""
    method: Annotated[str, doc("The method.")] = "GET"
    path: Annotated[str, doc("The path, with a query if there is one.")] = "/"
    host: Annotated[str, doc("The host; the name of the service by default.")] = ""
    headers: Annotated[dict[str, str], doc("The headers.")] = msgspec.field(default_factory=dict)


class DenialExpectation(Spec):
    """Who denies a request."""

    by: Annotated[str, doc("The policy, by name or KRI.")]


class RedirectExpectation(Spec):
    """Where a request is redirected to."""

    status: Annotated[int | None, doc("The status.")] = None
    location: Annotated[str | None, doc("The header `location`.")] = None


class CaseExpectation(Spec):
    """What becomes of a request; what is not named may be anything."""

    reaches: Annotated[
        str | dict[str, int | float] | None,
        doc("The service or Dataplane that gets it; or several, each with its share in percent."),
    ] = None
    denied: Annotated[bool | DenialExpectation | None, doc("Whether a permission denies it.")] = None
    status: Annotated[int | None, doc("The status of an answer that no service gave.")] = None
    redirected: Annotated[RedirectExpectation | None, doc("Where it is redirected to.")] = None
    outcome: Annotated[str | None, doc("The outcome in the words of `koguma can`: `no endpoints`.")] = None
    timeout: Annotated[str | None, doc("The limit for the whole request; 0s is none.")] = None
    idle_timeout: Annotated[str | None, doc("The limit for a silent stream or connection.")] = None
    connect_timeout: Annotated[str | None, doc("The limit for a connection to be made.")] = None
    per_try_timeout: Annotated[str | None, doc("The limit for each try.")] = None
    retries: Annotated[int | None, doc("How often it is tried again.")] = None
    mirrors: Annotated[tuple[str, ...] | None, doc("The services that get a copy.")] = None
    path: Annotated[str | None, doc("The path that the service gets.")] = None
    host: Annotated[str | None, doc("The host that the service gets.")] = None
    headers: Annotated[
        dict[str, str | None], doc("Headers that the service gets; null for one that it does not get.")
    ] = msgspec.field(default_factory=dict)
    response_headers: Annotated[
        dict[str, str | None], doc("Headers that proxies add to the response; null for one that they do not.")
    ] = msgspec.field(default_factory=dict)


class MeshTestCase(Spec):
    """A request, and what is expected of it."""

    from_: Annotated[str, doc("Who calls: a service, a Dataplane or a KRI; `outside` for nobody.")] = (
        msgspec.field(name="from")
    )
    request: Annotated[RequestCase, doc("The request.")]
    expect: Annotated[CaseExpectation, doc("What becomes of it.")]
    name: Annotated[str, doc("What the case is about.")] = ""


class MeshTestDocument(Spec):
    """Cases about one mesh."""

    type: Annotated[str, doc("`MeshTest`.")]
    name: Annotated[str, doc("What the cases are about.")]
    cases: Annotated[tuple[MeshTestCase, ...], doc("The cases.")]
    mesh: Annotated[str, doc("The mesh.")] = "default"


class CaseFailure(NamedTuple):
    """An expectation that does not hold: its path in the case, both values, and the group of callers."""

    path: str
    expected: str
    actual: str
    group: CallGroup | None = None
    outcome: CallOutcome | None = None


_DURATIONS: Final = ("timeout", "idle_timeout", "connect_timeout", "per_try_timeout")


def read(value: Json) -> tuple[MeshTestDocument | None, tuple[Violation, ...]]:
    """The cases in a document, or all that is wrong with it."""
    violations = tuple(schema.checker(MeshTestDocument)(value))
    if violations:
        return None, violations
    document: MeshTestDocument = schema.read(MeshTestDocument, value)
    violations = tuple(
        violation
        for index, case in enumerate(document.cases)
        for violation in _violations(case, item("cases", index))
    )
    return (None if violations else document), violations


def _violations(case: MeshTestCase, path: str) -> Iterator[Violation]:
    request, expect = child(path, "request"), child(path, "expect")
    if not case.request.path.startswith("/"):
        yield Violation(child(request, "path"), "must start with a slash", "format")
    if not is_method(case.request.method):
        yield Violation(child(request, "method"), METHOD_WORDS, "format")
    for field in _DURATIONS:
        value = getattr(case.expect, field)
        if value is not None and not duration.is_duration(value):
            name = _camel(field)
            yield Violation(child(expect, name), f'must be a duration such as 5s, not "{value}"', "duration")
    shares = case.expect.reaches if isinstance(case.expect.reaches, Mapping) else {}
    if case.expect.reaches in ("", {}) or any(share < 0 for share in shares.values()):
        text = "must name who gets the requests, with a share of 0 to 100 percent"
        yield Violation(child(expect, "reaches"), text, "range")
    if sum(shares.values()) > 100 + _TOLERANCE:
        yield Violation(child(expect, "reaches"), "the shares are more than 100 percent together", "range")
    if case.expect == CaseExpectation():
        yield Violation(expect, "expects nothing; name what becomes of the request", "required")
    if case.expect.reaches is not None and case.expect.denied not in (None, False):
        yield Violation(child(expect, "denied"), "what is denied reaches nothing", "exclusive")


def _camel(field: str) -> str:
    first, *rest = field.split("_")
    return first + "".join(word.capitalize() for word in rest)


def failures(simulator: CallSimulator, case: MeshTestCase) -> Iterator[CaseFailure]:
    """The expectations of a case that do not hold."""
    request = case.request
    headers = tuple((name.lower(), value) for name, value in request.headers.items())
    sent = SimulatedRequest(request.method, request.path, request.host, headers)
    question = CallQuestion(case.from_, request.to, str(request.port), sent)
    try:
        found = answers.groups(simulator, question)
    except (NotFound, BadRequest) as error:
        yield CaseFailure("request" if "port" in error.detail else "", "a request", error.detail)
        return
    ports = sorted({group.port.section for group in found})
    if len(ports) > 1:
        yield CaseFailure("request.port", f"one of {', '.join(ports)}", "no port")
        return
    try:
        expect = _with_short_kinds(simulator.db, case.expect)
    except BadRequest as error:
        yield CaseFailure("expect", "an object", error.detail)
        return
    for group in found:
        yield from _group_failures(expect, group)


def _with_short_kinds(db: Db, expect: CaseExpectation) -> CaseExpectation:
    """An expectation in which kinds of objects are as they are in KRIs: `msvc/backend`."""

    def short(word: str) -> str:
        kind, name = parties.kind_and_name(db, word) if not kri.is_kri(word) else ("", word)
        return f"{world.kind_of(db, kind).short}/{name}" if kind else name

    reaches, denied = expect.reaches, expect.denied
    if isinstance(reaches, str):
        reaches = short(reaches)
    elif reaches is not None:
        reaches = {short(word): share for word, share in reaches.items()}
    if isinstance(denied, DenialExpectation):
        denied = DenialExpectation(by=short(denied.by))
    mirrors = None if expect.mirrors is None else tuple(map(short, expect.mirrors))
    return msgspec.structs.replace(expect, reaches=reaches, denied=denied, mirrors=mirrors)


def _group_failures(expect: CaseExpectation, group: CallGroup) -> Iterator[CaseFailure]:
    undecided = next((each for each in group.outcomes if each.kind == "undecided"), None)
    if undecided is not None:
        yield CaseFailure("expect", "an outcome", f"undecided: {undecided.text}", group, undecided)
        return
    yield from _where(expect, group)
    yield from _without_effect(expect, group)
    for outcome in group.outcomes:
        for field, expected, actual in _settings(expect, outcome):
            yield CaseFailure(f"expect.{field}", expected, actual, group, outcome)


def _where(expect: CaseExpectation, group: CallGroup) -> Iterator[CaseFailure]:
    """What is expected of where requests go, and whether they are denied."""
    first = group.outcomes[0] if group.outcomes else None
    actual = summary(group)
    if expect.reaches is not None:
        shares = {expect.reaches: 100} if isinstance(expect.reaches, str) else expect.reaches
        wrong = [name for name, share in shares.items() if not _is_share(group, name, share)]
        if wrong or (isinstance(expect.reaches, str) and group.verdict != answers.YES):
            yield CaseFailure("expect.reaches", _shares(shares), actual, group, _culprit(group))
    denied = [each for each in group.outcomes if each.kind == "denied"]
    if expect.denied is False and denied:
        yield CaseFailure("expect.denied", "nobody denies it", actual, group, denied[0])
    elif expect.denied not in (None, False) and len(denied) != len(group.outcomes):
        yield CaseFailure("expect.denied", "it is denied", actual, group, _culprit(group))
    elif isinstance(expect.denied, DenialExpectation):
        others = [each for each in denied if not is_named(expect.denied.by, each.by)]
        if others:
            yield CaseFailure("expect.denied.by", expect.denied.by, others[0].by, group, others[0])
    if expect.outcome is not None and any(each.kind != expect.outcome for each in group.outcomes):
        yield CaseFailure("expect.outcome", expect.outcome, actual, group, first)


def _without_effect(expect: CaseExpectation, group: CallGroup) -> Iterator[CaseFailure]:
    """What is expected of requests that go on, or that arrive, where none of them does."""
    found = {_camel(field): getattr(expect, field) for field in (*_DURATIONS, "retries")}
    found["mirrors"] = None if expect.mirrors is None else ", ".join(expect.mirrors) or "none"
    if any(each.destination for each in group.outcomes):
        found = {}
    if not any(_has_response(each) for each in group.outcomes):
        found |= {
            f"responseHeaders.{name}": value or "absent" for name, value in expect.response_headers.items()
        }
    if not any(each.is_reached for each in group.outcomes):
        found |= {"path": expect.path, "host": expect.host}
        found |= {f"headers.{name}": value or "absent" for name, value in expect.headers.items()}
    for field, value in found.items():
        if value is not None:
            yield CaseFailure(f"expect.{field}", str(value), summary(group), group, _culprit(group))


def _has_response(outcome: CallOutcome) -> bool:
    """Whether routes act on the response: to requests that they send on or answer."""
    return bool(outcome.destination) or outcome.kind in ("answered", "redirected")


def _culprit(group: CallGroup) -> CallOutcome | None:
    """The outcome that says most about why requests do not go where they should."""
    return next((each for each in group.outcomes if not each.is_reached), None) or next(
        iter(group.outcomes), None
    )


def _is_share(group: CallGroup, name: str, expected: float) -> bool:
    """Whether a service, or a proxy, gets that share of the requests."""
    reached = [each for each in group.outcomes if each.is_reached]
    by_service = sum((each.share for each in reached if is_named(name, each.destination)), Fraction(0))
    by_proxy = sum(
        (share for each in reached for proxy, share in each.endpoints if name in (proxy, f"dp/{proxy}")),
        Fraction(0),
    )
    wanted = Fraction(str(expected))
    return any(abs(share * 100 - wanted) < _TOLERANCE for share in {by_service or by_proxy})


def is_named(word: str, identifier: str) -> bool:
    """Whether a word means an object: its KRI, its name, or its short kind and its name."""
    if word == identifier or not kri.is_kri(identifier):
        return word == identifier
    parsed = kri.parse(identifier)
    kind, _, name = word.rpartition("/")
    whole = str(parsed.with_section(""))
    return kind in ("", parsed.short) and name in (parsed.name, f"{parsed.name}.{parsed.namespace}", whole)


def summary(group: CallGroup) -> str:
    """What becomes of the requests of a group, in one line."""
    return ", ".join(_outcome(each) for each in group.outcomes) or "nothing"


def _outcome(outcome: CallOutcome) -> str:
    share = "" if outcome.share == 1 else f"{answers.percent(outcome.share):g} % "
    if outcome.is_reached:
        return f"{share}reaches {_shown(outcome.destination) or outcome.endpoints[0][0]}"
    by = f" by {_shown(outcome.by)}" if outcome.by else ""
    status = f" with {outcome.status}" if outcome.status else ""
    return f"{share}{outcome.kind}{by}{status}"


def _shown(identifier: str) -> str:
    if not kri.is_kri(identifier):
        return identifier
    parsed = kri.parse(identifier)
    return f"{parsed.name}:{parsed.section}" if parsed.section else parsed.name


def _shares(shares: Mapping[str, Any]) -> str:
    return ", ".join(f"{share:g} % reaches {name}" for name, share in shares.items())


def _settings(expect: CaseExpectation, outcome: CallOutcome) -> Iterator[tuple[str, str, str]]:
    """Values that differ from what is expected: field, expected and actual."""
    yield from _answer(expect, outcome)
    if outcome.destination:
        yield from _route(expect, outcome)
    if _has_response(outcome):
        yield from _response(expect, outcome)
    if outcome.is_reached and outcome.request is not None:
        yield from _request(expect, outcome.request)


def _answer(expect: CaseExpectation, outcome: CallOutcome) -> Iterator[tuple[str, str, str]]:
    """What is expected of an answer that no service gives."""
    if expect.status is not None and (outcome.is_reached or outcome.status != expect.status):
        yield "status", str(expect.status), str(outcome.status or "the answer of the service")
    if expect.redirected is not None:
        redirect = expect.redirected
        if redirect.status not in (None, outcome.status) or outcome.kind != "redirected":
            yield "redirected.status", str(redirect.status or "a redirect"), _outcome(outcome)
        elif redirect.location not in (None, outcome.location):
            yield "redirected.location", str(redirect.location), outcome.location


def _route(expect: CaseExpectation, outcome: CallOutcome) -> Iterator[tuple[str, str, str]]:
    """What is expected of the route by which the request goes on."""
    actual = answers.settings(outcome)
    for field in _DURATIONS:
        expected, name = getattr(expect, field), _camel(field)
        if expected is not None and not _is_duration(expected, actual[name]):
            yield name, expected, actual[name] or "none"
    if expect.retries is not None and expect.retries != actual["retries"]:
        yield "retries", str(expect.retries), str(actual["retries"])
    if expect.mirrors is not None and not _are_named(expect.mirrors, actual["mirrors"]):
        yield "mirrors", ", ".join(expect.mirrors) or "none", ", ".join(actual["mirrors"]) or "none"


def _response(expect: CaseExpectation, outcome: CallOutcome) -> Iterator[tuple[str, str, str]]:
    added = _added(outcome)
    for name, value in expect.response_headers.items():
        if added.get(name.lower()) != value:
            yield f"responseHeaders.{name}", value or "absent", added.get(name.lower()) or "absent"


def _added(outcome: CallOutcome) -> dict[str, str]:
    """The headers that proxies add to a response; a service may add more."""
    added: dict[str, str] = {}
    for name, value in outcome.side.response_headers:
        if name.startswith("-"):
            added.pop(name[1:], None)
        else:
            added[name] = value
    return added


def _request(expect: CaseExpectation, request: SimulatedRequest) -> Iterator[tuple[str, str, str]]:
    if expect.path not in (None, request.path):
        yield "path", str(expect.path), request.path
    if expect.host not in (None, request.host):
        yield "host", str(expect.host), request.host
    for name, value in expect.headers.items():
        actual = request.header(name.lower())
        if actual != value:
            yield (
                f"headers.{name}",
                "absent" if value is None else value,
                "absent" if actual is None else actual,
            )


def _is_duration(expected: str, actual: str) -> bool:
    return duration.nanoseconds(expected) == duration.nanoseconds(actual or "0s")


def _are_named(words: tuple[str, ...], identifiers: list[str]) -> bool:
    return len(words) == len(identifiers) and all(
        any(is_named(word, each) for each in identifiers) for word in words
    )
