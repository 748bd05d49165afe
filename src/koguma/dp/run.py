"""Runs a proxy: Envoy beside a service, from its bootstrap to its drain, and what it needs meanwhile.

The agent keeps one Envoy alive. It asks the control plane for a bootstrap each time that Envoy starts, says
through a socket whether the proxy is ready, answers DNS where that is wanted, and when it is told to end it
takes the proxy out of the mesh before it lets Envoy go.
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
    drain,
    envoy,
    machine,
    observing,
    records,
    workdir,
)
from koguma.dp.admin import Admin
from koguma.dp.bootstrap import EnvoyVersion, Setup
from koguma.dp.control_plane import Away, ControlPlane, Denied
from koguma.dp.dataplane import Proxy
from koguma.dp.dns import DnsServer, upstreams_of
from koguma.dp.envoy import Ended, EnvoyProcess
from koguma.dp.observing import Certificate, Observing
from koguma.dp.readiness import Readiness, State
from koguma.dp.redirect_rules import DNS_PORT
from koguma.dp.startup import Startup
from koguma.dp.token_source import TokenSource
from koguma.dp.unix_http import Silent
from koguma.dp.workdir import Workdir
from koguma.model.errors import KogumaError
from koguma.model.redacted import Redacted
from koguma.runtime.background import Background

INTERRUPTED: Final = 130  # as a shell reports an end by Ctrl-C

_RESTART_SECONDS: Final = (0.5, 30.0)
_STEADY_SECONDS: Final = 60.0  # an Envoy that lived this long did not fail at its start
_REFUSED_SECONDS: Final = 30.0
_ABOUT_TOKEN: Final = (401, 403)  # answers that another token may change
_DEREGISTER_SECONDS: Final = 2.0
_NOTICE_SECONDS: Final = 1.0

_log = structlog.get_logger("koguma.dp")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """All that is chosen when a proxy is started; `token` is asked whenever it is needed."""

    proxy: Proxy
    envoy: envoy.Settings
    address: str
    token: Callable[[], Redacted | None]
    ca_file: str = ""
    workdir: str = ""
    bind_outbounds: bool = False
    has_dns: bool = False
    dns_port: int | None = None  # None: the usual one, or a free one where that is taken
    dns_upstreams: tuple[tuple[str, int], ...] = ()
    readiness_port: int = 0
    metrics_certificate: Certificate | None = None
    log_directories: tuple[str, ...] = bootstrap.LOG_DIRECTORIES
    gives_data: bool = False
    memory_bytes_max: int = 0  # for Envoy; 0: what the machine says


class Agent:
    """One proxy, from start to end."""

    def __init__(self, options: Options, tell: Callable[[str], None]) -> None:
        self._instance = secrets.token_hex(6)
        proxy = options.proxy.as_instance(self._instance)
        self._options = options = msgspec.structs.replace(options, proxy=proxy)
        self._tell = tell
        self._token = TokenSource(options.token)
        self._plane = ControlPlane(options.address, options.ca_file, self._token)
        self._readiness = Readiness()
        self._observing = Observing(options.envoy.binary, options.metrics_certificate)
        self._dns: DnsServer | None = None
        self._dns_port = 0
        self._names_known = asyncio.Event()
        self._warned: set[str] = set()
        self._version = EnvoyVersion()
        self._process: EnvoyProcess | None = None
        self._is_known = False  # to the control plane, which has given us a bootstrap
        self._was_ready = False
        self._background = Background()
        self._stopping = asyncio.Event()
        self._at_once = asyncio.Event()

    def stop(self) -> None:
        """End in good order; at once when asked a second time."""
        (self._at_once if self._stopping.is_set() else self._stopping).set()

    async def run(self) -> int:
        """Run until told to stop; the exit code says how it ended."""
        options = self._options
        await addresses.refuse_if_taken(options.proxy)
        self._version = await envoy.version(options.envoy.binary)
        if not self._version.is_compatible:
            found, wanted = self._version.version, f"{bootstrap.ENVOY_MINOR}x"
            _log.warning("configuration is written for another version of Envoy", found=found, wanted=wanted)
        directory = workdir.opened(options.workdir, options.proxy.name, os.environ)
        if directory.warning:
            _log.warning("the workdir is not private", warning=directory.warning)
        try:
            await self._start_dns()
            await self._readiness.start(directory.readiness, options.readiness_port)
            await self._observing.start(directory)
            return await self._serve(directory)
        finally:
            if self._process is not None and self._process.is_running:
                await self._process.kill()
            await self._observing.stop()
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
            if options.proxy.may_be_transparent and machine.has_ipv6():  # queries over IPv6 are sent there
                await server.also(dataplane.LOOPBACK_IPV6, self._dns_port)
        except OSError as error:
            where, why = f"{dataplane.LOOPBACK}:{port}", os.strerror(error.errno or 0)
            hint = "choose another port with --dns-port, or do without DNS with --no-dns"
            raise KogumaError(f"cannot answer DNS on {where}: {why}; {hint}") from error
        self._dns = server

    async def _start_on(self, server: DnsServer, port: int) -> int:
        """Let the server listen, and say where.

        A port that nobody chose may be another one: other proxies of the machine answer DNS too. Where the
        kernel redirects queries, or may do so, the port is one that was agreed upon.
        """
        options = self._options
        try:
            return await server.start(dataplane.LOOPBACK, port)
        except OSError as error:
            is_agreed = options.dns_port is not None or options.proxy.may_be_transparent
            if is_agreed or error.errno != errno.EADDRINUSE:
                raise
            return await server.start(dataplane.LOOPBACK, 0)

    async def _serve(self, directory: Workdir) -> int:
        work = [asyncio.create_task(self._supervise(directory), name="Envoy")]
        work.append(asyncio.create_task(self._observing.run(directory), name="observing"))
        work.append(asyncio.create_task(self._token.follow(directory.token), name="token"))
        if self._dns is not None:
            work.append(asyncio.create_task(self._follow_names(directory, self._dns), name="DNS"))
        told = asyncio.create_task(self._stopping.wait(), name="stop")
        try:
            await asyncio.wait({*work, told}, return_when=asyncio.FIRST_COMPLETED)
            for task in work:
                if task.done():
                    task.result()  # it never ends but by an error, and that ends us
        finally:
            await _cancelled(*work, told)
        return await self._end(directory)

    async def _follow_names(self, directory: Workdir, server: DnsServer) -> None:
        await records.follow(directory.dynamic_config, server, self._names_known)

    async def _supervise(self, directory: Workdir) -> None:
        """Keep an Envoy running, with a new bootstrap each time: its token or the CA may be others now."""
        pauses = bootstrap.delays(*_RESTART_SECONDS)
        while True:
            self._readiness.state = State.STARTING
            self._process = await self._started(directory)
            watching = self._background.once("readiness of Envoy", self._watch(directory, self._process))
            try:
                ended = await self._process.wait()
            finally:
                await _cancelled(watching)
            if ended.seconds >= _STEADY_SECONDS:
                pauses = bootstrap.delays(*_RESTART_SECONDS)
            await self._recover(ended, next(pauses))

    async def _started(self, directory: Workdir) -> EnvoyProcess:
        options = self._options
        setup = Setup(
            workdir=str(directory.path),
            envoy=self._version,
            bind_outbounds=options.bind_outbounds,
            dns_port=self._dns_port,
            readiness_port=options.readiness_port,
            is_ipv6=machine.has_ipv6(),
            system_ca=machine.ca_file(),
            log_directories=options.log_directories,
            gives_data=options.gives_data,
            memory_bytes_max=options.memory_bytes_max or machine.memory_bytes_max(),
        )
        content = await self._fetched(setup)
        self._is_known = True
        self._token.write(directory.token)
        directory.write_bootstrap(content)
        environment = observing.environment(os.environ, content)
        made = await EnvoyProcess.start(options.envoy, directory.bootstrap, environment, self._token.masked)
        _log.info("Envoy started", pid=made.pid, version=self._version.version, workdir=str(directory.path))
        return made

    async def _fetched(self, setup: Setup) -> Redacted:
        """The bootstrap. Who was let in before and is refused now waits for another token.

        At the first start a refusal ends us, so that whoever starts the proxy sees it at once.
        """
        plane, proxy = self._plane, self._options.proxy
        while True:
            try:
                return await bootstrap.fetch(
                    plane, lambda: bootstrap.request(proxy, setup, plane.ca(), plane.token()), self._warn
                )
            except Denied as denied:
                if not self._is_known or denied.answered not in _ABOUT_TOKEN:
                    raise
                hint = "it is asked again when the token changes, and now and then"
                _log.error("the control plane refuses the proxy", why=denied.detail, hint=hint)
                await self._token.changed(_REFUSED_SECONDS)

    def _warn(self, text: str) -> None:
        """Say what the control plane finds odd about this proxy; once, however often Envoy starts."""
        if text not in self._warned:
            self._warned.add(text)
            self._tell_of(f"warning: {text}")

    def _tell_of(self, text: str) -> None:
        proxy = self._options.proxy
        self._tell(f"koguma dp: {proxy.name} (mesh {proxy.mesh}) {text}")

    async def _recover(self, ended: Ended, pause: float) -> None:
        self._readiness.state = State.STARTING
        is_told = ended.refusal or not ended.last_lines
        last = {} if is_told else {"last_lines": list(ended.last_lines)}
        _log.error(ended.told, restart_in=f"{pause:g}s", **last)
        await asyncio.sleep(pause)

    async def _watch(self, directory: Workdir, process: EnvoyProcess) -> None:
        """Wait until the proxy is ready; from then on its process is trusted to say when it no longer is."""
        asked, begun_at = Admin(directory.admin), time.monotonic()
        names_known = self._names_known if self._dns is not None else None
        await Startup(asked, process.refused_listeners, names_known, self._tell_of).finish()
        self._readiness.state = State.READY
        facts = "listeners are not known"
        with contextlib.suppress(Silent):
            facts = admin.told(await asked.listeners())
        if self._dns is not None:
            facts += f"; answers DNS at {addresses.shown(dataplane.LOOPBACK, self._dns_port)}"
        again = " again" if self._was_ready else ""
        self._was_ready = True
        self._tell_of(f"is ready{again}: {facts}")
        _log.info("the proxy is ready", pid=process.pid, seconds=round(time.monotonic() - begun_at, 2))

    async def _end(self, directory: Workdir) -> int:
        was_ready = self._readiness.state is State.READY
        self._readiness.state = State.TERMINATING
        finishing = asyncio.create_task(self._finish(directory, was_ready=was_ready), name="drain")
        hurried = asyncio.create_task(self._at_once.wait(), name="hurry")
        await asyncio.wait({finishing, hurried}, return_when=asyncio.FIRST_COMPLETED)
        is_finished = finishing.done()
        await _cancelled(hurried, *(() if is_finished else (finishing,)))
        if is_finished:
            finishing.result()
            return 0
        _log.warning("the proxy ends at once")
        return INTERRUPTED

    async def _finish(self, directory: Workdir, *, was_ready: bool) -> None:
        """Leave the mesh, let Envoy finish what it does, and end it."""
        process, proxy, limit = self._process, self._options.proxy, self._options.envoy.drain_seconds
        if process is None or not process.is_running:
            await self._deregister()
            return
        _log.info("the proxy drains", limit=f"{limit:g}s")
        leaving = asyncio.create_task(self._deregister(), name="deregister")
        if was_ready and limit > 0:
            notice = _NOTICE_SECONDS if proxy.is_called else 0.0
            is_quiet = await drain.drain(Admin(directory.admin), lambda: process.is_running, limit, notice)
            if not is_quiet:
                _log.warning("some calls had not ended", limit=f"{limit:g}s")
        await leaving
        await process.stop()
        _log.info("the proxy has ended")

    async def _deregister(self) -> None:
        proxy = self._options.proxy
        if proxy.resource is None or not self._is_known:
            return
        body = {"mesh": proxy.mesh, "name": proxy.name, "instance": self._instance}
        try:
            await self._plane.post("/deregister", body, _DEREGISTER_SECONDS)
        except (Away, Denied) as error:
            _log.warning("could not deregister; the control plane will notice by itself", why=str(error))


async def _cancelled(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def serve(options: Options, tell: Callable[[str], None]) -> int:
    """Run a proxy until a signal says stop; a second one ends it at once."""
    agent = Agent(options, tell)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, agent.stop)
    return await agent.run()
