"""The agent of `koguma dp run`: runs the Envoy of one proxy, from its bootstrap to its drain.

The agent keeps one Envoy running. It fetches a bootstrap each time that Envoy starts, serves the proxy's
readiness, answers DNS where that is enabled, and on SIGTERM deregisters the proxy and drains Envoy before it
exits.
"""

import asyncio
import contextlib
import errno
import os
import secrets
import signal
import time
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from koguma.dp import (
    addresses,
    admin,
    bootstrap,
    dataplane,
    dns_records,
    drain,
    envoy,
    machine,
    observability,
    workdir,
)
from koguma.dp.admin import Admin
from koguma.dp.admin_channel import AdminChannelClient
from koguma.dp.bootstrap import BootstrapParameters, EnvoyBuild
from koguma.dp.control_plane import ControlPlaneClient, ControlPlaneDenied, ControlPlaneUnavailable
from koguma.dp.dataplane import DataplaneProxy
from koguma.dp.dns import DnsServer, upstreams_of
from koguma.dp.envoy import EnvoyExit, EnvoyProcess
from koguma.dp.observability import MetricsCertificate, Observability
from koguma.dp.readiness import Readiness, ReadinessState
from koguma.dp.redirect_rules import DNS_PORT
from koguma.dp.startup import Startup
from koguma.dp.token_source import TokenSource
from koguma.dp.unix_http import EnvoyUnreachable
from koguma.dp.workdir import Workdir
from koguma.model.errors import KogumaError
from koguma.model.redacted import Redacted
from koguma.runtime.background import Background

INTERRUPTED: Final = 130  # the exit code that a shell reports after Ctrl-C

_RESTART_SECONDS: Final = (0.5, 30.0)
_STEADY_SECONDS: Final = 60.0  # the backoff is reset after an Envoy that ran this long
_REFUSED_SECONDS: Final = 30.0
_ABOUT_TOKEN: Final = (401, 403)  # statuses that another token may change
_DEREGISTER_SECONDS: Final = 2.0
_NOTICE_SECONDS: Final = 1.0

_log = structlog.get_logger("koguma.dp")


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a proxy; `token` is called whenever the token is needed."""

    proxy: DataplaneProxy
    envoy: envoy.EnvoySettings
    addresses: tuple[str, ...]  # of control planes of one store
    token: Callable[[], Redacted | None]
    ca_file: str = ""
    workdir: str = ""
    bind_outbounds: bool = False
    has_dns: bool = False
    dns_port: int | None = None  # None: the default one, or a free one where that is taken
    dns_upstreams: tuple[tuple[str, int], ...] = ()
    readiness_port: int = 0
    metrics_certificate: MetricsCertificate | None = None
    log_directories: tuple[str, ...] = bootstrap.LOG_DIRECTORIES
    allows_data_sources: bool = False
    memory_bytes_max: int = 0  # of Envoy; 0: the limit of the cgroup


class Agent:
    """Runs one proxy; `report` prints a line for whoever started it."""

    def __init__(self, options: RunOptions, report: Callable[[str], None]) -> None:
        self._instance = secrets.token_hex(6)
        proxy = options.proxy.as_instance(self._instance)
        self._options = options = msgspec.structs.replace(options, proxy=proxy)
        self._report_line = report
        self._token = TokenSource(options.token)
        self._plane = ControlPlaneClient(options.addresses, options.ca_file, self._token)
        self._channel = AdminChannelClient(self._plane, proxy.parameters(self._instance), self._token.masked)
        self._readiness = Readiness()
        self._observability = Observability(options.envoy.binary, options.metrics_certificate)
        self._dns: DnsServer | None = None
        self._dns_port = 0
        self._names_known = asyncio.Event()
        self._warned: set[str] = set()
        self._version = EnvoyBuild()
        self._process: EnvoyProcess | None = None
        self._registered = asyncio.Event()  # the control plane has given us a bootstrap
        self._was_ready = False
        self._background = Background()
        self._stopping = asyncio.Event()
        self._at_once = asyncio.Event()

    def stop(self) -> None:
        """Drain and end; at once when called a second time."""
        (self._at_once if self._stopping.is_set() else self._stopping).set()

    async def run(self) -> int:
        """Run until `stop` is called; returns the exit code."""
        options = self._options
        await addresses.refuse_if_taken(options.proxy)
        self._version = await envoy.version(options.envoy.binary)
        if not self._version.is_compatible:
            expected = f"{bootstrap.ENVOY_MINOR}x"
            _log.warning(
                "configuration is written for another version of Envoy",
                version=self._version.version,
                expected=expected,
            )
        directory = workdir.create(options.workdir, options.proxy.name, os.environ)
        if directory.warning:
            _log.warning("the workdir is not private", warning=directory.warning)
        try:
            await self._start_dns()
            await self._readiness.start(directory.readiness, options.readiness_port)
            await self._observability.start(directory)
            return await self._serve(directory)
        finally:
            if self._process is not None and self._process.is_running:
                await self._process.kill()
            await self._observability.stop()
            await self._readiness.stop()
            if self._dns is not None:
                await self._dns.stop()
            directory.remove()

    async def _start_dns(self) -> None:
        options = self._options
        if not options.has_dns:
            return
        server = DnsServer(options.dns_upstreams or upstreams_of(machine.resolv_conf()))
        port = DNS_PORT if options.dns_port is None else options.dns_port
        try:
            self._dns_port = await self._start_on(server, port)
            if options.proxy.may_be_transparent and machine.has_ipv6():  # IPv6 queries are redirected to ::1
                await server.listen_also(dataplane.LOOPBACK_IPV6, self._dns_port)
        except OSError as error:
            where, why = f"{dataplane.LOOPBACK}:{port}", os.strerror(error.errno or 0)
            hint = "choose another port with --dns-port, or do without DNS with --no-dns"
            raise KogumaError(f"cannot answer DNS on {where}: {why}; {hint}") from error
        self._dns = server

    async def _start_on(self, server: DnsServer, port: int) -> int:
        """Let the DNS server listen; returns its port.

        Where the default port is taken, by another proxy of the machine, a free one is used; but not where
        --dns-port chose the port or the kernel may redirect queries to it.
        """
        options = self._options
        try:
            return await server.start(dataplane.LOOPBACK, port)
        except OSError as error:
            is_fixed = options.dns_port is not None or options.proxy.may_be_transparent
            if is_fixed or error.errno != errno.EADDRINUSE:
                raise
            return await server.start(dataplane.LOOPBACK, 0)

    async def _serve(self, directory: Workdir) -> int:
        tasks = [asyncio.create_task(self._supervise(directory), name="Envoy")]
        tasks.append(asyncio.create_task(self._observability.run(directory), name="observability"))
        tasks.append(asyncio.create_task(self._token.follow(directory.token), name="token"))
        channel = self._channel.run(directory.admin, self._registered)
        tasks.append(asyncio.create_task(channel, name="admin channel"))
        if self._dns is not None:
            tasks.append(asyncio.create_task(self._follow_names(directory, self._dns), name="DNS"))
        stopped = asyncio.create_task(self._stopping.wait(), name="stop")
        try:
            await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()  # a task ends only by an error, which ends the agent
        finally:
            await _cancel(*tasks, stopped)
        return await self._stop(directory)

    async def _follow_names(self, directory: Workdir, server: DnsServer) -> None:
        await dns_records.follow(directory.dynamic_config, server, self._names_known)

    async def _supervise(self, directory: Workdir) -> None:
        """Keep an Envoy running, with a new bootstrap each time: the token or the CA may have changed."""
        pauses = bootstrap.delays(*_RESTART_SECONDS)
        while True:
            self._readiness.state = ReadinessState.STARTING
            self._process = await self._start_envoy(directory)
            startup = self._background.once("readiness of Envoy", self._wait_ready(directory, self._process))
            try:
                envoy_exit = await self._process.wait()
            finally:
                await _cancel(startup)
            if envoy_exit.seconds >= _STEADY_SECONDS:
                pauses = bootstrap.delays(*_RESTART_SECONDS)
            await self._pause_after(envoy_exit, next(pauses))

    async def _start_envoy(self, directory: Workdir) -> EnvoyProcess:
        options = self._options
        parameters = BootstrapParameters(
            workdir=str(directory.path),
            envoy=self._version,
            bind_outbounds=options.bind_outbounds,
            dns_port=self._dns_port,
            readiness_port=options.readiness_port,
            is_ipv6=machine.has_ipv6(),
            system_ca=machine.ca_file(),
            log_directories=options.log_directories,
            allows_data_sources=options.allows_data_sources,
            memory_bytes_max=options.memory_bytes_max or machine.memory_bytes_max(),
        )
        content = await self._fetch_bootstrap(parameters)
        self._registered.set()
        self._token.write(directory.token)
        directory.write_bootstrap(content)
        environment = observability.environment(os.environ, content)
        process = await EnvoyProcess.start(
            options.envoy, directory.bootstrap, environment, self._token.masked
        )
        _log.info(
            "Envoy started", pid=process.pid, version=self._version.version, workdir=str(directory.path)
        )
        return process

    async def _fetch_bootstrap(self, parameters: BootstrapParameters) -> Redacted:
        """Get the bootstrap. A proxy that was accepted before and is refused now waits for another token.

        At the first start a refusal ends the agent, so that whoever starts the proxy sees it at once.
        """
        plane, proxy = self._plane, self._options.proxy
        while True:
            try:
                return await bootstrap.fetch(
                    plane,
                    lambda address: bootstrap.request(
                        proxy, parameters, plane.ca(), plane.token(), plane.others(address)
                    ),
                    self._warn,
                )
            except ControlPlaneDenied as denied:
                if not self._registered.is_set() or denied.http_status not in _ABOUT_TOKEN:
                    raise
                hint = "it is asked again when the token changes, and now and then"
                _log.error("the control plane refuses the proxy", why=denied.detail, hint=hint)
                await self._token.changed(_REFUSED_SECONDS)

    def _warn(self, text: str) -> None:
        """Report a warning of the control plane about this proxy; once, however often Envoy starts."""
        if text not in self._warned:
            self._warned.add(text)
            self._report(f"warning: {text}")

    def _report(self, text: str) -> None:
        proxy = self._options.proxy
        self._report_line(f"koguma dp: {proxy.name} ({proxy.place}) {text}")

    async def _pause_after(self, envoy_exit: EnvoyExit, pause: float) -> None:
        self._readiness.state = ReadinessState.STARTING
        has_reason = envoy_exit.refusal or not envoy_exit.last_lines
        last = {} if has_reason else {"last_lines": list(envoy_exit.last_lines)}
        _log.error(envoy_exit.message, restart_in=f"{pause:g}s", **last)
        await asyncio.sleep(pause)

    async def _wait_ready(self, directory: Workdir, process: EnvoyProcess) -> None:
        """Wait until the proxy is ready; from then on it is ready until its process exits."""
        envoy_admin, begun_at = Admin(directory.admin), time.monotonic()
        names_known = self._names_known if self._dns is not None else None
        await Startup(envoy_admin, process.listener_errors, names_known, self._report).finish()
        self._readiness.state = ReadinessState.READY
        facts = "listeners are not known"
        with contextlib.suppress(EnvoyUnreachable):
            facts = admin.summary(await envoy_admin.listeners())
        if self._dns is not None:
            facts += f"; answers DNS at {addresses.shown(dataplane.LOOPBACK, self._dns_port)}"
        again = " again" if self._was_ready else ""
        self._was_ready = True
        self._report(f"is ready{again}: {facts}")
        _log.info("the proxy is ready", pid=process.pid, seconds=round(time.monotonic() - begun_at, 2))

    async def _stop(self, directory: Workdir) -> int:
        was_ready = self._readiness.state is ReadinessState.READY
        self._readiness.state = ReadinessState.TERMINATING
        draining = asyncio.create_task(self._drain(directory, was_ready=was_ready), name="drain")
        interrupted = asyncio.create_task(self._at_once.wait(), name="second signal")
        await asyncio.wait({draining, interrupted}, return_when=asyncio.FIRST_COMPLETED)
        is_drained = draining.done()
        await _cancel(interrupted, *(() if is_drained else (draining,)))
        if is_drained:
            draining.result()
            return 0
        _log.warning("the proxy ends without draining")
        return INTERRUPTED

    async def _drain(self, directory: Workdir, *, was_ready: bool) -> None:
        """Deregister the proxy, let active requests finish, and end Envoy."""
        process, proxy, limit = self._process, self._options.proxy, self._options.envoy.drain_seconds
        if process is None or not process.is_running:
            await self._deregister()
            return
        _log.info("the proxy drains", limit=f"{limit:g}s")
        deregistration = asyncio.create_task(self._deregister(), name="deregister")
        if was_ready and limit > 0:
            notice = _NOTICE_SECONDS if proxy.accepts_traffic else 0.0
            is_idle = await drain.drain(Admin(directory.admin), lambda: process.is_running, limit, notice)
            if not is_idle:
                _log.warning("some requests had not ended", limit=f"{limit:g}s")
        await deregistration
        await process.stop()
        _log.info("the proxy has ended")

    async def _deregister(self) -> None:
        proxy = self._options.proxy
        if proxy.resource is None or not self._registered.is_set():
            return
        body = proxy.parameters(self._instance)
        try:
            await self._plane.post("/deregister", lambda _address: body, _DEREGISTER_SECONDS)
        except (ControlPlaneUnavailable, ControlPlaneDenied) as error:
            _log.warning("could not deregister; the control plane will notice by itself", why=str(error))


async def _cancel(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def serve(options: RunOptions, report: Callable[[str], None]) -> int:
    """Run a proxy until SIGINT or SIGTERM; a second signal ends it at once."""
    agent = Agent(options, report)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, agent.stop)
    return await agent.run()
