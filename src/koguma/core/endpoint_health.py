"""Endpoint health: whether an endpoint of a service serves, and by whose word.

There are up to four: the Dataplane (its probe, its proxy that drains) or the zone of the service, the proxy's
connection, the proxy's own Envoy, which connects to the application, and the Envoys of callers, which eject
and check. Counters count since an Envoy's start; a second look some seconds later says what is true now.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from koguma.envoy.cluster_hosts import Host

HEALTHY: Final = "healthy"
NOT_READY: Final = "not-ready"
APPLICATION_DOWN: Final = "application-down"
EJECTED: Final = "ejected"
CHECK_FAILED: Final = "check-failed"
FAILING: Final = "failing"
NOT_CONNECTED: Final = "not-connected"
SUSPECT: Final = "suspect"
UNKNOWN: Final = "unknown"

# The first that applies is shown: what is nearest to the cause.
STATES: Final = (
    NOT_READY,
    APPLICATION_DOWN,
    NOT_CONNECTED,
    CHECK_FAILED,
    EJECTED,
    FAILING,
    SUSPECT,
    HEALTHY,
    UNKNOWN,
)


class Counts(msgspec.Struct, frozen=True, rename="camel"):
    """What Envoys have counted for an endpoint."""

    requests: int = 0
    errors: int = 0
    connections: int = 0
    connect_failures: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.requests + other.requests,
            self.errors + other.errors,
            self.connections + other.connections,
            self.connect_failures + other.connect_failures,
        )


class TwoLooks(msgspec.Struct, frozen=True):
    """An endpoint as one Envoy sees it, now and some seconds before; None where it did not have it then."""

    before: Host | None
    now: Host

    @property
    def total(self) -> Counts:
        """What was counted since the endpoint came to this Envoy."""
        return _counts(self.now)

    @property
    def lately(self) -> Counts:
        """What was counted between the two looks."""
        old, new = _counts(self.before) if self.before else Counts(), self.total
        if new.requests < old.requests or new.connections < old.connections:
            return new  # Envoy was started anew
        return Counts(
            new.requests - old.requests,
            max(new.errors - old.errors, 0),
            new.connections - old.connections,
            max(new.connect_failures - old.connect_failures, 0),
        )


def _counts(host: Host) -> Counts:
    # Requests for which no connection came about are errors, and are not in rq_total.
    requests = max(host["rq_total"], host["rq_success"] + host["rq_error"])
    return Counts(requests, host["rq_error"], host["cx_total"], host["cx_connect_fail"])


class HealthWord(msgspec.Struct, frozen=True):
    """What somebody says about an endpoint: the state that follows, and a sentence."""

    by: str  # dataplane, connection, application, callers
    state: str
    text: str


class CallersWord(msgspec.Struct, frozen=True, rename="camel"):
    """What the callers that were asked say about an endpoint, added up."""

    asked: int = 0  # of those that have it as an endpoint
    healthy: int = 0
    ejected: int = 0
    failed_check: int = 0
    total: Counts = Counts()
    lately: Counts = Counts()


def callers_word(looks: Sequence[TwoLooks]) -> CallersWord:
    """What callers say together."""
    return CallersWord(
        asked=len(looks),
        healthy=sum(each.now.is_healthy for each in looks),
        ejected=sum(each.now.is_ejected for each in looks),
        failed_check=sum(each.now.fails_active_check for each in looks),
        total=sum((each.total for each in looks), Counts()),
        lately=sum((each.lately for each in looks), Counts()),
    )


def of_callers(callers: CallersWord, seconds: float) -> Iterator[HealthWord]:
    """What follows from what callers say."""
    if callers.failed_check:
        text = f"fails the active health check of {_share(callers.failed_check, callers.asked)}"
        yield HealthWord("callers", CHECK_FAILED, f"{text}, so they send it nothing")
    if callers.ejected:
        text = f"is ejected (outlier detection) by {_share(callers.ejected, callers.asked)}"
        yield HealthWord("callers", EJECTED, f"{text}: {_errors(callers.total)} since their start")
    if callers.lately.connect_failures:
        text = f"{callers.lately.connect_failures} connections of callers to it failed"
        yield HealthWord(
            "callers", FAILING, f"{text} in the last {seconds:g} s: nobody listens there, or a firewall"
        )
    elif callers.lately.errors:
        yield HealthWord("callers", FAILING, f"{_errors(callers.lately)} in the last {seconds:g} s")
    elif callers.lately.requests or callers.healthy == callers.asked > 0:
        yield HealthWord("callers", HEALTHY, "")


def _share(count: int, asked: int) -> str:
    return f"{count} of {asked} caller{'s' if asked != 1 else ''}"


def _errors(counts: Counts) -> str:
    return f"{counts.errors} of {counts.requests} requests failed"


def of_application(look: TwoLooks, address: str, seconds: float) -> Iterator[HealthWord]:
    """What follows from what the endpoint's own Envoy says about the application beside it."""
    total, lately = look.total, look.lately
    failed = f"of its Envoy to {address} failed"
    if lately.connect_failures and lately.connect_failures >= lately.connections:
        text = f"all {lately.connect_failures} connections {failed} in the last {seconds:g} s"
        yield HealthWord("application", APPLICATION_DOWN, f"{text}: the application does not listen")
    elif total.connect_failures and total.connect_failures >= total.connections:
        text = f"all {total.connect_failures} connections {failed} since its start"
        yield HealthWord("application", APPLICATION_DOWN, f"{text}: the application does not listen")
    elif lately.connect_failures:
        text = f"{lately.connect_failures} of {lately.connections} connections {failed}"
        yield HealthWord("application", FAILING, f"{text} in the last {seconds:g} s")
    elif total.connect_failures and not look.now["cx_active"] and not lately.requests:
        text = f"{total.connect_failures} of {total.connections} connections {failed} since its start"
        yield HealthWord("application", SUSPECT, f"{text}, none is open now, and nobody has called it since")
    elif lately.errors:
        yield HealthWord(
            "application", FAILING, f"{_errors(lately)} in the last {seconds:g} s at the application"
        )
    elif lately.requests:
        yield HealthWord("application", HEALTHY, "")


def state(words: Iterable[HealthWord]) -> str:
    """The state that the words about an endpoint have together."""
    said = {word.state for word in words}
    return next((each for each in STATES if each in said), UNKNOWN)
