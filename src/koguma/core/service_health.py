"""Service health: all endpoints of a destination, whether they serve, and why requests to it fail.

Put together from what is stored and from what Envoys answered. It is the answer to "503, is the application
down?": every reason stands in it, the nearest to the cause first.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from koguma.core import endpoint_health, other_zones, serving, world
from koguma.core.build import encoding
from koguma.core.endpoint_health import CallersWord, HealthWord, TwoLooks
from koguma.core.incremental import Db
from koguma.core.serving import ServingInbound
from koguma.envoy import stats
from koguma.envoy.cluster_hosts import Hosts
from koguma.envoy.stats import Figures, Sample
from koguma.model.resource import Key

DOWN: Final = "down"
DEGRADED: Final = "degraded"
NO_ENDPOINTS: Final = "no-endpoints"

_SERVES: Final = (endpoint_health.HEALTHY, endpoint_health.UNKNOWN, endpoint_health.SUSPECT)
_BREAKERS: Final[Mapping[str, str]] = {
    "circuit_breakers.default.cx_open": "maxConnections",
    "circuit_breakers.default.rq_pending_open": "maxPendingRequests",
    "circuit_breakers.default.rq_open": "maxRequests",
}


class EnvoyAnswers(msgspec.Struct, frozen=True):
    """What one Envoy has answered, twice: endpoints of clusters, and figures."""

    name: str  # of its proxy
    hosts_before: Hosts = {}
    hosts: Hosts = {}
    figures_before: Sample = {}
    figures: Sample = {}

    def looks(self, cluster: str) -> Mapping[str, TwoLooks]:
        """The endpoints of a cluster by address."""
        before = {host.address: host for host in self.hosts_before.get(cluster, ())}
        return {
            host.address: TwoLooks(before.get(host.address), host) for host in self.hosts.get(cluster, ())
        }

    def figure(self, cluster: str, name: str) -> int:
        """A figure of a cluster in the newest answer."""
        return self.figures.get((stats.CLUSTER, cluster), Figures())[name]

    def increase(self, cluster: str) -> Figures:
        """What was counted between the two answers."""
        scope = stats.CLUSTER, cluster
        return stats.increase(self.figures_before.get(scope, Figures()), self.figures.get(scope, Figures()))


class Connection(msgspec.Struct, frozen=True):
    """Whether a proxy is connected to a control plane."""

    is_connected: bool
    text: str = ""  # since when it is not, or that nobody knows


class Observations(msgspec.Struct, frozen=True):
    """What Envoys answered about a service, and how long the two looks were apart."""

    seconds: float
    callers: Sequence[EnvoyAnswers] = ()
    serving: Mapping[Key, EnvoyAnswers] = {}
    connections: Mapping[Key, Connection] = {}


class EndpointReport(msgspec.Struct, frozen=True, rename="camel"):
    """An endpoint: who serves it, its state, and by whose word."""

    port: str
    address: str
    state: str
    proxy: str = ""
    kri: str = ""
    service: str = ""
    zone: str = ""
    is_offered: bool = True  # callers get it as an endpoint
    application: str = ""  # where the application listens
    words: tuple[HealthWord, ...] = ()
    callers: CallersWord = CallersWord()


class ServiceReport(msgspec.Struct, frozen=True, rename="camel"):
    """A destination: its state, a sentence, the reasons, and its endpoints."""

    state: str
    summary: str
    reasons: tuple[str, ...]
    endpoints: tuple[EndpointReport, ...]
    n_callers: int  # of the proxies that were asked: those that have it as a destination


def report(db: Db, destination: Key, seen: Observations) -> ServiceReport:
    """The endpoints of a destination as everybody who was asked sees them."""
    inside = tuple(
        _of_inbound(db, destination, inbound, seen) for inbound in serving.inbounds(db, destination)
    )
    known = {(each.port, each.address) for each in inside}
    endpoints = (*inside, *_outside(db, destination, seen, known))
    obstacles = serving.obstacles(db, destination)
    state, summary = _verdict(endpoints, obstacles)
    names = frozenset(clusters(db, destination).values())
    n_callers = sum(not names.isdisjoint(each.hosts) for each in seen.callers)
    reasons = (*obstacles, *_reasons_of_callers(db, destination, seen, endpoints))
    if not n_callers:
        reasons += (f"none of the {len(seen.callers)} proxies that answered calls it",)
    return ServiceReport(state, summary, reasons, endpoints, n_callers)


def clusters(db: Db, destination: Key) -> Mapping[str, str]:
    """The names by which callers' Envoys know a destination, by port."""
    known = world.destination(db, destination)
    names = (
        ((port.section, encoding.kri(db, destination, port.section)) for port in known.ports) if known else ()
    )
    return {section: name for section, name in names if name}


def _of_inbound(db: Db, destination: Key, inbound: ServingInbound, seen: Observations) -> EndpointReport:
    cluster = clusters(db, destination).get(inbound.port, "")
    looks = [found for each in seen.callers if (found := each.looks(cluster).get(inbound.address))]
    callers = endpoint_health.callers_word(looks)
    words = tuple(_words(inbound, callers, seen))
    return EndpointReport(
        port=inbound.port,
        address=inbound.address,
        state=endpoint_health.state(words),
        proxy=inbound.core_name,
        kri=inbound.kri,
        service=inbound.service.name,
        zone=inbound.proxy.zone,
        is_offered=not inbound.withheld,
        application=inbound.application,
        words=tuple(word for word in words if word.text),
        callers=callers,
    )


def _words(inbound: ServingInbound, callers: CallersWord, seen: Observations) -> Iterator[HealthWord]:
    if inbound.withheld:
        since = f"; it has been so since {inbound.modified_at} or earlier" if inbound.modified_at else ""
        by = "probe" if inbound.is_probed else "dataplane"
        yield HealthWord(by, endpoint_health.NOT_READY, f"{inbound.withheld}{since}")
    connection = seen.connections.get(inbound.proxy)
    if connection is not None and not connection.is_connected:
        serves = callers.lately.requests > callers.lately.errors
        state = endpoint_health.HEALTHY if serves else endpoint_health.NOT_CONNECTED
        yield HealthWord("connection", state, connection.text)
    own = seen.serving.get(inbound.proxy)
    look = own.looks(inbound.kri).get(inbound.application) if own else None
    if look is not None:
        yield from endpoint_health.of_application(look, inbound.application, seen.seconds)
    yield from endpoint_health.of_callers(callers, seen.seconds)


def _outside(
    db: Db, destination: Key, seen: Observations, known: set[tuple[str, str]]
) -> Iterator[EndpointReport]:
    """Endpoints that no inbound is: outside of the mesh, zone proxies on the way there, or gone since.

    It is what callers have; where none has any, what is written.
    """
    egresses, written = serving.egresses(db, destination), serving.outside(db, destination)
    zones = other_zones.called(db, destination)
    for port, cluster in clusters(db, destination).items():
        looks: dict[str, list[TwoLooks]] = {}
        for caller in seen.callers:
            for address, look in caller.looks(cluster).items():
                looks.setdefault(address, []).append(look)
        for address in sorted(looks) or written.get(port, ()):
            if (port, address) in known:
                continue
            callers = endpoint_health.callers_word(looks.get(address, ()))
            elsewhere = zones.get(address)
            words = tuple(endpoint_health.of_callers(callers, seen.seconds))
            if elsewhere and elsewhere.obstacle:
                words = (HealthWord("zone", endpoint_health.NOT_READY, elsewhere.obstacle), *words)
            yield EndpointReport(
                port=port,
                address=address,
                state=endpoint_health.state(words),
                proxy=elsewhere.core_name if elsewhere else egresses.get(address, ""),
                zone=elsewhere.zone if elsewhere else "",
                words=tuple(word for word in words if word.text),
                callers=callers,
            )


def _reasons_of_callers(
    db: Db, destination: Key, seen: Observations, endpoints: Sequence[EndpointReport]
) -> Iterator[str]:
    """Why requests fail at callers, whatever the endpoints are."""
    for port, cluster in clusters(db, destination).items():
        n_offered = sum(each.is_offered for each in endpoints if each.port == port)
        calling = [each for each in seen.callers if cluster in each.hosts]
        for reason in _reasons_of_cluster(calling, cluster, n_offered, seen.seconds):
            yield f"port {port}: {reason}"


def _reasons_of_cluster(
    calling: Sequence[EnvoyAnswers], cluster: str, n_offered: int, seconds: float
) -> Iterator[str]:
    """Open circuit breakers, panic, and callers without endpoints."""
    of_callers, lately = f"of {len(calling)} callers", f"in the last {seconds:g} s"
    for breaker, field in _BREAKERS.items():
        n_open = sum(bool(each.figure(cluster, breaker)) for each in calling)
        if n_open:
            yield f"the circuit breaker of {n_open} {of_callers} is open: they have reached {field}"
    increases = [each.increase(cluster) for each in calling]
    n_refused = sum(each["upstream_rq_pending_overflow"] + each["upstream_cx_overflow"] for each in increases)
    if n_refused:
        yield f"circuit breakers refused {n_refused} requests {lately}"
    n_panicking = sum(bool(each["lb_healthy_panic"]) for each in increases)
    if n_panicking and n_offered:
        yield f"{n_panicking} {of_callers} are in panic mode: so few endpoints are healthy that they call all"
    n_empty = sum(not each.hosts[cluster] for each in calling)
    if n_empty and n_offered:
        yield f"{n_empty} {of_callers} have no endpoint, though there are {n_offered}"
    n_unserved = sum(each["upstream_cx_none_healthy"] for each in increases)
    if n_unserved:
        yield f"{n_unserved} requests found no healthy endpoint {lately}"


def _verdict(endpoints: Sequence[EndpointReport], obstacles: Sequence[str]) -> tuple[str, str]:
    if not endpoints:
        return NO_ENDPOINTS, f"nobody serves it: {obstacles[0] if obstacles else 'it has no endpoints'}"
    good = [each for each in endpoints if each.state in _SERVES]
    bad = [each for each in endpoints if each.state not in _SERVES]
    count = f"{len(good)} of {len(endpoints)} endpoint{'s' if len(endpoints) != 1 else ''}"
    if not bad:
        doubtful = [each for each in good if each.state != endpoint_health.HEALTHY]
        if not doubtful:
            return endpoint_health.HEALTHY, f"{count} healthy"
        return endpoint_health.UNKNOWN, f"{count} without a known fault; nobody has called all of them lately"
    states: dict[str, int] = {}
    for each in bad:
        states[each.state] = states.get(each.state, 0) + 1
    faults = ", ".join(f"{n} {state}" for state, n in states.items())
    return (DEGRADED if good else DOWN), f"{count} serve; {faults}"
