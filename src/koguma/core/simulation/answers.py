"""Answers: whether one may call another, and who decides it; for the API and the command line.

Callers that get the same answer are one group. `verdict` is `yes` where all such requests reach the service,
`partly` where some do, `no` where none does, and `unknown` where something decides that cannot be judged.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Final

import msgspec

from koguma.core import spiffe, world
from koguma.core.build import encoding, gateway_endpoints, tls
from koguma.core.gateways import GATEWAY
from koguma.core.incremental import Db
from koguma.core.lint import permissions
from koguma.core.meta import kri
from koguma.core.simulation import deciding, parties
from koguma.core.simulation.calls import CallOutcome, CallSimulator
from koguma.core.simulation.parties import OUTSIDE, CalledPort
from koguma.envoy import names, rbac
from koguma.envoy.simulation.traffic import ClientConnection, SimulatedRequest
from koguma.model.errors import BadRequest
from koguma.model.resource import Key
from koguma.model.schema import Json

YES, PARTLY, NO, UNKNOWN = "yes", "partly", "no", "unknown"
ELSEWHERE: Final = "elsewhere"  # it reaches others than the one proxy that was asked about
_SHOWN_MAX: Final = 20  # proxies of a group, by name
_TLS_PROTOCOLS: Final = ("https", "tls")
_PORT: Final = re.compile(r":\d+$")


class CallQuestion(msgspec.Struct, frozen=True):
    """Who calls whom, and with which request; an empty port means all, an empty host the service's name."""

    caller: str
    to: str
    port: str = ""
    request: SimulatedRequest = SimulatedRequest()


class CallGroup(msgspec.Struct, frozen=True):
    """Callers that are treated alike when they call a port, and what becomes of their requests."""

    port: CalledPort
    callers: tuple[Key, ...]
    outcomes: tuple[CallOutcome, ...]

    @property
    def verdict(self) -> str:
        """Whether the requests reach the service."""
        if any(outcome.kind == "undecided" for outcome in self.outcomes):
            return UNKNOWN
        total = sum((each.share for each in self.outcomes), Fraction(0))
        reached = sum((each.share for each in self.outcomes if each.is_reached), Fraction(0))
        return YES if reached == total else (PARTLY if reached else NO)


def groups(
    simulator: CallSimulator, question: CallQuestion, visible: frozenset[str] = parties.KINDS
) -> list[CallGroup]:
    """What becomes of a request, for each port and each group of callers that are treated alike.

    Only what is of a visible kind is found: for others it is as if there were none.
    """
    db, mesh = simulator.db, simulator.mesh
    if question.caller == OUTSIDE:
        ports = parties.called(db, mesh, question.to, question.port, world.control_plane(db).zone, visible)
        return [group for port in ports for group in _at_gateway(simulator, port, question)]
    callers = parties.callers(db, mesh, question.caller)

    def reaches(destination: Key) -> bool:
        return any(simulator.proxies.reaches(caller, destination) for caller in callers)

    ports = parties.called(db, mesh, question.to, question.port, callers[0].zone, visible, reaches)
    return [group for port in ports for group in _between(simulator, callers, port, question)]


def _between(
    simulator: CallSimulator, callers: Sequence[Key], port: CalledPort, question: CallQuestion
) -> Iterator[CallGroup]:
    if port.destination.kind == GATEWAY:
        raise BadRequest(
            f'"{question.to}" is a gateway, which is called from {OUTSIDE}; write that as the caller'
        )
    alike: dict[object, list[Key]] = {}
    for caller in callers:
        spec = simulator.proxies.shared_spec(caller)
        alike.setdefault((spec, spiffe.identity(simulator.db, caller)), []).append(caller)
    by_outcomes: dict[tuple[CallOutcome, ...], CallGroup] = {}
    for members in alike.values():
        outcomes = tuple(_call(simulator, members[0], port, question))
        key = tuple(_without_caller(each, members[0]) for each in outcomes)
        known = by_outcomes.get(key)
        joined = tuple(sorted((*known.callers, *members))) if known else tuple(members)
        by_outcomes[key] = CallGroup(port, joined, known.outcomes if known else outcomes)
    yield from by_outcomes.values()


def _without_caller(outcome: CallOutcome, caller: Key) -> CallOutcome:
    """An outcome without what names the caller, so that those of several callers compare."""
    proxy = None if outcome.decided_at == caller else outcome.decided_at
    return msgspec.structs.replace(outcome, decided_at=proxy, request=None)


def _call(
    simulator: CallSimulator, caller: Key, port: CalledPort, question: CallQuestion
) -> Iterator[CallOutcome]:
    db = simulator.db
    listener = encoding.kri(db, port.destination, port.section)
    own = simulator.proxies.listeners(caller, port.destination)
    if listener not in own:
        listener = next((each for each in own if names.resource(each) == listener), listener)
    request = _request(question, port)
    connection = ClientConnection(port=port.number)
    outcomes = simulator.call(caller, port.destination, listener, request, connection)
    if port.proxy is None:
        yield from outcomes
        return
    concerning = [each for each in outcomes if _concerns(each, port.proxy, caller)]
    yield from concerning or [CallOutcome(Fraction(1), ELSEWHERE, decided_at=caller, by=port.proxy.name)]


def _concerns(outcome: CallOutcome, proxy: Key, caller: Key) -> bool:
    """Whether an outcome is about one proxy that is called: it serves the request, or one of both ends it."""
    if outcome.endpoints:
        return proxy.name in dict(outcome.endpoints)
    return outcome.decided_at in (proxy, caller)


def _request(question: CallQuestion, port: CalledPort) -> SimulatedRequest:
    """The request with a host, which may also be given as a header."""
    request = question.request
    host = request.host or dict(request.headers).get("host") or port.destination.name
    return msgspec.structs.replace(request.without("host"), host=host)


def _at_gateway(simulator: CallSimulator, port: CalledPort, question: CallQuestion) -> Iterator[CallGroup]:
    """What a gateway does with a request of a client outside of the mesh."""
    _check_gateway(port, question)
    db = simulator.db
    request = _request(question, port)
    listener = encoding.kri(db, port.destination, str(port.number))
    is_tls = port.protocol in _TLS_PROTOCOLS
    server_name = _PORT.sub("", request.host) if is_tls else ""
    connection = ClientConnection(port=port.number, is_tls=is_tls, server_name=server_name)
    alike: dict[object, list[Key]] = {}
    for key in _serving(db, port, question):
        alike.setdefault(simulator.proxies.shared_spec(key), []).append(key)
    for members in alike.values():
        outcomes = simulator.call(members[0], port.destination, listener, request, connection)
        yield CallGroup(port, tuple(members), tuple(outcomes))


def _check_gateway(port: CalledPort, question: CallQuestion) -> None:
    if port.destination.kind != GATEWAY:
        raise BadRequest(f'only a gateway can be called from {OUTSIDE}; "{question.to}" is none')


def _serving(db: Db, port: CalledPort, question: CallQuestion) -> tuple[Key, ...]:
    found = tuple(gateway_endpoints.proxies(db, port.destination))
    if not found:
        raise BadRequest(f'no proxy serves the gateway "{question.to}"; start one with its tags')
    return found


def shown(db: Db, question: CallQuestion, found: Sequence[CallGroup]) -> dict[str, Json]:
    """The answer as JSON: the verdict of all groups together, and each group with its outcomes."""
    return {
        "from": question.caller,
        "to": question.to,
        "verdict": together(group.verdict for group in found),
        "groups": [_group(db, group) for group in found],
    }


def together(verdicts: Iterable[str]) -> str:
    """The verdict about several groups of callers."""
    found = set(verdicts)
    return found.pop() if len(found) == 1 else (UNKNOWN if UNKNOWN in found else PARTLY)


def zones(db: Db, mesh: str, question: CallQuestion, visible: frozenset[str] = parties.KINDS) -> list[str]:
    """The zones of the proxies that a question is about: of the callers, or of a gateway's own."""
    if question.caller != OUTSIDE:
        return sorted({key.zone for key in parties.callers(db, mesh, question.caller)})
    ports = parties.called(db, mesh, question.to, question.port, world.control_plane(db).zone, visible)
    for port in ports:
        _check_gateway(port, question)
    return sorted({key.zone for port in ports for key in _serving(db, port, question)})


def _group(db: Db, group: CallGroup) -> dict[str, Json]:
    callers = [deciding.shown(db, key) for key in group.callers]
    return {
        "port": kri(db, group.port.destination, group.port.section),
        "callers": {"total": len(callers), "names": callers[:_SHOWN_MAX]},
        "verdict": group.verdict,
        "outcomes": [outcome_json(db, each, group.callers[0]) for each in group.outcomes],
    }


def outcome_json(db: Db, outcome: CallOutcome, caller: Key) -> dict[str, Json]:
    """One outcome: what becomes of a share of the requests, and who decided it."""
    proxy = outcome.decided_at
    deciders = outcome.side.permits if outcome.is_reached else (outcome.by,)
    origins = [
        origin
        for name in dict.fromkeys(deciders)
        for origin in deciding.origins(db, name, proxy, outcome.listener, caller)
    ]
    values: dict[str, Json] = {
        "outcome": outcome.kind,
        "share": percent(outcome.share),
        "reason": reason(db, outcome),
        "destination": outcome.destination,
        "endpoints": {name: percent(share) for name, share in outcome.endpoints},
        "proxy": deciding.shown(db, proxy) if proxy and not outcome.is_reached else "",
        "decidedBy": origins,
        "status": outcome.status,
        "location": outcome.location,
        "route": outcome.route,
        **settings(outcome),
        "limits": [*outcome.side.limits],
        "faults": [*outcome.side.faults],
        "notes": [*outcome.side.notes],
    }
    kept = ("outcome", "share", "reason")
    return {name: value for name, value in values.items() if value or name in kept}


def settings(outcome: CallOutcome) -> dict[str, Json]:
    """What the caller's route and cluster set; nothing where the request reached no cluster."""
    effects = outcome.effects
    if not outcome.destination:
        return {}
    return {
        "timeout": effects.timeout,
        "idleTimeout": effects.idle_timeout,
        "connectTimeout": outcome.connect_timeout,
        "retries": effects.retries,
        "perTryTimeout": effects.per_try_timeout,
        "mirrors": [name for name, share in effects.mirrors if share],
    }


def percent(share: Fraction) -> float | int:
    """A share in percent; a whole number where it is one."""
    value = share * 100
    return int(value) if value.denominator == 1 else round(float(value), 4)


def reason(db: Db, outcome: CallOutcome) -> str:
    """Why it ends so, in one sentence."""
    proxy = outcome.decided_at
    at = deciding.shown(db, proxy) if proxy else ""
    texts: Mapping[str, str] = {
        "denied": f"{outcome.by} denies it at {at}",
        "answered": f"{outcome.by or at} answers it itself with {outcome.status}: {outcome.text}".rstrip(
            ": "
        ),
        "redirected": f"{outcome.by or at} redirects it with {outcome.status} to {outcome.location}",
        "aborted": f"{outcome.by} aborts it with {outcome.status} at {at}",
        "no listener": f"{at} does not call {outcome.by}: it is not among what the proxy can reach",
        "no filter chain": f"the listener {outcome.by} of {at} takes no such connection",
        "no route": f"{at} has no route for it: {outcome.text}",
        "no cluster": f"{at} has no cluster {outcome.by}",
        "no endpoints": f"{outcome.by} has no endpoints",
        ELSEWHERE: f"{at} sends no such request to {outcome.by}",
        "tls error": f"TLS fails at {at}: {outcome.text}",
        "undecided": f"it depends on what cannot be simulated: {outcome.text}, at {at}",
    }
    if outcome.kind == "denied" and outcome.by in ("", rbac.DEFAULT):
        kinds = " or ".join(permissions.kinds(db)) or "policy"
        return f"the mesh has mTLS, and no {kinds} allows this caller at {at}"
    if outcome.is_reached:
        return _allowed(db, outcome)
    return texts[outcome.kind]


def _allowed(db: Db, outcome: CallOutcome) -> str:
    if outcome.side.permits:
        return f"{', '.join(dict.fromkeys(outcome.side.permits))} allows it"
    proxy = outcome.decided_at
    mesh = proxy.mesh if proxy else ""
    if mesh and tls.mtls(db, mesh) is None:
        return "the mesh has no mTLS, so that permissions do not act"
    return "no permission is asked for on this way"
