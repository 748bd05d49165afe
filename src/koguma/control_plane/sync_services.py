"""Sync services: what a control plane runs for sync: Global's port for zones, or a zone's way to Global."""

from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from datetime import datetime
from typing import Any, Final

from koguma.access.token_keys import TokenKeys
from koguma.application.context import Context
from koguma.control_plane.metrics import Gauge
from koguma.control_plane.server_certificate import ServerIdentity
from koguma.fleet.shared_states import SharedStates
from koguma.fleet.state_reports import StateReports
from koguma.model.errors import KogumaError
from koguma.runtime.checks import Check
from koguma.runtime.settings import Settings
from koguma.sync import stream_service
from koguma.sync.connection import Duties, PeerState
from koguma.sync.global_server import GlobalServer
from koguma.sync.protocol.messages import Refusal, ZoneQuestion
from koguma.sync.zone_client import GlobalAddress, ZoneClient

_SHOWN_MAX: Final = 10

Answer = Callable[[str, bytes, int, float], Awaitable[bytes]]  # to a question: name, body, bytes, seconds
Run = Callable[[str, Callable[[], Coroutine[Any, Any, None]]], None]


class SyncServices:
    """Global's server, or a zone's client, or neither where a zone is alone."""

    def __init__(
        self, context: Context, keys: TokenKeys, settings: Settings, clock: Callable[[], datetime]
    ) -> None:
        self._context = context
        self._settings = settings
        here = context.control_plane
        self.server = GlobalServer(context, keys, clock) if here.is_global else None
        target = GlobalAddress(
            settings.global_address, settings.global_ca, settings.zone_token_file, settings.accept_global
        )
        self.client = ZoneClient(context, target, clock) if here.federated else None

    def serve_global(self, answer: Answer, states: SharedStates) -> None:
        """Answer Global's questions, and report the states of this zone's proxies to it."""
        if self.client is not None:

            async def answered(question: ZoneQuestion) -> bytes:
                return await answer(question.name, question.body, question.bytes_max, question.seconds_max)

            self.client.duties = Duties(answers=answered, reports=StateReports(states))

    @property
    def doubt(self) -> str:
        """Why this zone keeps what Global does not have any more; empty where it does not."""
        return self.client.doubt if self.client is not None else ""

    async def had_before(self, revision: int) -> int:
        """A revision of this zone's store at which nothing of one of Global's had come; 0: not known."""
        return await self.client.had_before(revision) if self.client is not None else 0

    async def start(self, identity: ServerIdentity, run: Run) -> dict[str, int]:
        """Listen for zones, or connect to Global; returns the ports."""
        if self.client is not None:
            run("objects for Global", self.client.publish)
            run("connection to Global", self.client.stay_connected)
        if self.server is None:
            return {}
        settings = self._settings
        run("objects for zones", self.server.publish)
        run("review of zones' tokens", self.server.review)
        try:
            port = await self.server.listen(
                settings.sync_host, settings.sync_port, identity.certificate, identity.key
            )
        except OSError as error:
            where = f"{settings.sync_host}:{settings.sync_port}"
            hint = "stop what uses it, or choose another port with --sync-port"
            raise KogumaError(f"cannot listen on {where} for zones: {error}; {hint}") from error
        return {"sync": port}

    async def stop(self) -> None:
        """End all streams."""
        if self.server is not None:
            await self.server.stop()

    def checks(self) -> Iterator[Check]:
        """What an operator should know."""
        if self.client is not None:
            yield from self._check_of_global(self.client)
        if self.server is not None:
            for zone, state in self.server.states().items():
                yield from _refusals(f'zone "{zone}"', state)
            yield from self._check_of_meshes()

    def _check_of_meshes(self) -> Iterator[Check]:
        """Objects of zones in meshes that are not on Global: nobody can look at them below their mesh."""
        state = self._context.state
        meshes = {mesh.name for mesh in state.listed("Mesh")}
        lost = Counter(key.mesh for key in state.stored_keys() if key.mesh and key.mesh not in meshes)
        for mesh, count in sorted(lost.items()):
            text = f'{count} objects of zones are in the mesh "{mesh}", which does not exist here'
            yield Check("sync", "warning", text, "create the mesh, or delete these objects in their zones")

    def _check_of_global(self, client: ZoneClient) -> Iterator[Check]:
        state = client.state
        if state is not None:
            text = f"connected to {self._settings.global_address}, version {state.greeting.version}"
            yield Check("global", "ok", text)
            if client.doubt:
                text = f"{client.doubt}; {state.n_surplus} objects that it does not have are kept"
                hint = f"bring them back on Global, or give them up: start with --accept-global {client.seen}"
                yield Check("sync", "warning", text, hint)
            yield from _refusals("Global", state)
            return
        if client.is_waiting and client.last_error is not None:
            yield Check("global", "ok", client.last_error[1])
            return
        why = (
            f" since {client.last_error[0]:%Y-%m-%dT%H:%M:%SZ}: {client.last_error[1]}"
            if client.last_error
            else ""
        )
        what = "does not let this zone in" if client.is_refused else "is away"
        what = "is not connected" if client.has_bad_files else what
        text = f"{self._settings.global_address} {what}{why}"
        yield Check("global", "warning", text, f"the zone works on with what it has; {self._remedy(client)}")

    def _remedy(self, client: ZoneClient) -> str:
        """What lets a zone in that is not connected."""
        if client.is_refused:
            command = f"koguma token zone --zone {self._settings.zone_name} --scope cp"
            return f"write a good token to the file of --zone-token-file; on Global: {command}"
        if client.has_bad_files:
            return "correct the file: it is read again for each connection"
        if client.last_error and stream_service.UNTRUSTED in client.last_error[1]:
            return stream_service.TRUST_HINT
        return "it connects again by itself"

    def gauges(self) -> Iterator[Gauge]:
        """Figures for the metrics page."""
        if self.server is not None:
            n_zones = len(self.server.states())
            yield "koguma_zones_connected", "Zones that are connected here.", "gauge", n_zones
        if self.client is not None:
            is_connected = int(self.client.state is not None)
            yield "koguma_global_connected", "1 while Global is connected.", "gauge", is_connected


def _refusal(refusal: Refusal, where: str, peer: str) -> Check:
    if refusal.is_of_removal:
        text = f"{refusal.key} was deleted on {peer}: {refusal.reason}"
        return Check("sync", "warning", text, f"stop these proxies, or write it on {peer} again")
    text = f"{refusal.key} was {where} {peer}: {refusal.reason}"
    return Check("sync", "warning", text, "correct it where it was written; it is then sent again")


def _refusals(peer: str, state: PeerState) -> Iterator[Check]:
    for where, refused in (("refused by", state.refused_there), ("refused from", state.refused_here)):
        for refusal in refused[:_SHOWN_MAX]:
            yield _refusal(refusal, where, peer)
        if len(refused) > _SHOWN_MAX:
            text = f"{len(refused) - _SHOWN_MAX} more objects were {where} {peer}"
            yield Check("sync", "warning", text, "begin with the first ones")
