"""Zone services: what Global knows of its zones, shared by all control planes of its store."""

from collections.abc import Callable, Mapping
from datetime import datetime

from koguma.application.context import Context
from koguma.control_plane.sync_services import Run
from koguma.fleet.shared_states import SharedStates
from koguma.fleet.zone_state import ZoneError, ZoneState
from koguma.sync.connection import PeerState
from koguma.sync.global_server import GlobalServer, ZoneReport
from koguma.xds.contract import ResponseCount


class ZoneServices:
    """The states of zones on a Global control plane."""

    def __init__(self, context: Context, server: GlobalServer, clock: Callable[[], datetime]) -> None:
        self._instance = context.about.instance_id
        self._server = server
        self.states = SharedStates(context, clock)
        self.states.attach_zones(self._zones)

    async def start(self, run: Run) -> None:
        """Read what other control planes of Global know, and write what this one knows."""
        await self.states.start()
        for name, work in self.states.tasks.items():
            run(name, work)

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
