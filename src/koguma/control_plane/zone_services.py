"""Zone services: what Global knows of its zones, shared by all control planes of its store."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Final

from koguma.api.proxy_plans import ZoneSources
from koguma.application.context import Context
from koguma.control_plane import proxy_checks
from koguma.control_plane.metrics import Gauge
from koguma.control_plane.sync_services import Run
from koguma.fleet import zone_state
from koguma.fleet.admin_channels import AdminChannels
from koguma.fleet.envoy_views import EnvoyViews
from koguma.fleet.reported_states import ReportedStates
from koguma.fleet.roster import Roster
from koguma.fleet.shared_states import SharedStates
from koguma.fleet.zone_arrivals import ZoneArrivals
from koguma.fleet.zone_questions import ZoneQuestions
from koguma.fleet.zone_state import ZoneError, ZoneState
from koguma.kinds.zone import KIND as ZONE_KIND
from koguma.runtime.checks import Check
from koguma.sync.connection import PeerState
from koguma.sync.global_server import GlobalServer, ZoneReport
from koguma.sync.questions import RefusedQuestion
from koguma.xds.contract import ResponseCount

_SHOWN_MAX: Final = 20


class ZoneServices:
    """The states of zones and of their proxies on a Global control plane, and questions to zones."""

    def __init__(self, context: Context, server: GlobalServer, clock: Callable[[], datetime]) -> None:
        self._context = context
        self._instance = context.about.instance_id
        self._server = server
        self.states = SharedStates(context, clock)
        self._reported = server.proxies = ReportedStates(context, clock)
        self.states.attach_zones(self._zones, self._reported)
        self.questions = ZoneQuestions(server.ask, RefusedQuestion, self.states)
        self.arrivals = ZoneArrivals(context, self.states, self.questions.arrival, server.receipt)
        self.sources = ZoneSources(server, self.questions)
        # No proxy is connected to Global: whoever asks for one asks its zone.
        self.views = EnvoyViews(
            Roster(), AdminChannels(context.background), context.background, self.questions
        )

    async def start(self, run: Run) -> None:
        """Read what other control planes of Global know, and write what this one knows."""
        await self.states.start()
        for name, work in self.states.tasks.items():
            run(name, work)

    def checks(self) -> Iterator[Check]:
        """What an operator should know of the proxies of zones."""
        yield from proxy_checks.of_instances(self.states.instances(), "", is_global=True)
        if problem := self.states.problem:
            hint = "look at the control planes of these zones: they work on, and connect again by themselves"
            yield Check("zones", "warning", problem, hint)
        yield from self._check_of_zones(problem)
        yield from proxy_checks.of_proxies(list(self.states.connected()))

    def _check_of_zones(self, told: str) -> Iterator[Check]:
        """Who is connected, and who is not: but for zones of which it is `told` already."""
        away = dict(self.states.offline_zones())
        for zone, since in away.items():
            last = self._server.last_error(zone)
            text = zone_state.offline(zone, since) + (f": {last[1]}" if last else "")
            if text not in told:
                hint = f"look at its control plane, or, if it is gone for good: koguma delete zone {zone}"
                yield Check("zones", "warning", text, hint)
        here = sorted(
            each.name for each in self._context.state.listed(ZONE_KIND.name) if each.name not in away
        )
        if here:
            shown = ", ".join(here[:_SHOWN_MAX]) + (", ..." if len(here) > _SHOWN_MAX else "")
            yield Check("zones", "ok", f"{len(here)} connected: {shown}")

    def gauges(self) -> Iterator[Gauge]:
        """Figures for the metrics page."""
        text = (
            "Proxies of all zones that are online; each control plane of Global says the same, so take one."
        )
        yield "koguma_fleet_proxies", text, "gauge", len(self.states.connected_keys)

    def _zones(self) -> Mapping[str, ZoneState]:
        return {zone: self._state(zone, report) for zone, report in self._server.reports().items()}

    def _state(self, zone: str, report: ZoneReport) -> ZoneState:
        state, error = report.state, self._server.last_error(zone)
        greeting, refused = state.greeting, (*state.refused_there, *state.refused_here)
        return ZoneState(
            zone=zone,
            instance=self._instance,
            zone_instance=greeting.instance,
            subscription=state.id,
            connected_at=state.connected_at,
            disconnected_at=report.disconnected_at,
            last_message_at=state.last_message_at,
            version=greeting.version,
            revision=self._reported.revision(zone),
            config=greeting.config,
            n_lacking=state.n_lacking,
            behind_since=state.behind_since,
            counts=_counts(state),
            n_refused=len(refused),
            refusal=f"{refused[0].key}: {refused[0].reason}" if refused else "",
            last_error=ZoneError(*error) if error is not None else None,
        )


def _counts(state: PeerState) -> dict[str, ResponseCount]:
    return {
        kind: ResponseCount(count.sent, count.acknowledged, count.refused)
        for kind, count in state.counts.items()
    }
