"""Reporting: a zone tells Global the states of its proxies, at a pace that Global sets."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from koguma.model.proxy_report import ProxyReport
from koguma.sync.protocol import messages
from koguma.sync.protocol.messages import EncodedState, Message, ProxyStates

REPORT_SECONDS: Final = 1.0  # between two reports of the states of proxies
STATES_A_SECOND: Final = 2000  # that are read


class ProxyReports(Protocol):
    """What a zone reports of its proxies."""

    def start(self) -> None:
        """A connection begins: everything is new to the other side."""

    def next(self, states_max: int) -> ProxyReport | None:
        """What has changed since the last report; None where nothing has."""


class Reporting:
    """A zone's side of one connection."""

    def __init__(self, reports: ProxyReports, queue: Callable[[Iterator[Message]], None]) -> None:
        self._reports = reports
        self._queue = queue
        self._is_waiting = False  # a report, to be sent

    async def run(self) -> None:
        """Report, until cancelled; while a report waits to be sent, newer states join the next one."""
        self._reports.start()
        while True:
            n_states = self._report()
            await asyncio.sleep(REPORT_SECONDS / 4 if n_states >= messages.STATES_MAX else REPORT_SECONDS)

    def _report(self) -> int:
        """Queue what has changed; says of how many proxies."""
        report = None if self._is_waiting else self._reports.next(messages.STATES_MAX)
        if report is None:
            return 0
        self._is_waiting = True
        self._queue(self._message(report))
        return len(report.states)

    def _message(self, report: ProxyReport) -> Iterator[Message]:
        self._is_waiting = False
        states = tuple(EncodedState(*each) for each in report.states)
        yield ProxyStates(report.revision, states, tuple(report.removed))


class ReportReader:
    """Global's side of one connection: whoever reports many states has to wait."""

    def __init__(self, take: Callable[[ProxyReport], None] | None) -> None:
        self._take = take
        self._until = 0.0  # by the loop's clock: until then as many states as may be were read

    async def receive(self, message: ProxyStates) -> None:
        """Take note of states."""
        if self._take is not None:
            self._take(ProxyReport(message.revision, message.states, message.removed))
        now = asyncio.get_running_loop().time()
        self._until = max(self._until, now) + (len(message.states) + len(message.removed)) / STATES_A_SECOND
        await asyncio.sleep(max(0.0, self._until - now - 1.0))
