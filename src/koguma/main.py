"""Puts a control plane together and runs it. The only module that knows all others."""

import asyncio
import contextlib
import functools
import gc
import os
import secrets
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

import structlog
from aiohttp import web

from koguma import __version__, kinds, plugins
from koguma.access import authorizer
from koguma.access.authorizer import Access, Attempt
from koguma.access.token_keys import TokenKeys, TokenVerifier
from koguma.api import openapi, routes, server, tracing
from koguma.api.apply import Apply
from koguma.api.authn import Authenticator
from koguma.api.call import Call, answer
from koguma.api.dispatch import Dispatch
from koguma.api.health import Health
from koguma.api.inspect import Inspect
from koguma.api.kube.form import KubeForm
from koguma.api.metrics import Gauges, Metrics
from koguma.api.open_watches import OpenWatches
from koguma.api.plain import Objects
from koguma.api.proxies import Proxies
from koguma.api.server import HttpServer
from koguma.api.shown import Shown
from koguma.api.system import System
from koguma.api.tokens import TokenIssuer
from koguma.api.tracing import Tracer
from koguma.api.watch import Watches
from koguma.application import secret_access
from koguma.application.context import About, Context
from koguma.application.live_engine import LiveEngine
from koguma.application.secret_access import LapsedReference
from koguma.control_plane.proxy_services import ProxySide, ServerIdentity
from koguma.core import services, world
from koguma.core.problems import of_proxies
from koguma.envoy import schema
from koguma.envoy.patch_check import PatchChecker
from koguma.identity import certificates, files, signing_keys
from koguma.kube.kinds import NATIVE_KINDS
from koguma.model import duration
from koguma.model.errors import Invalid, KogumaError
from koguma.model.kind import Kinds
from koguma.model.redacted import masked_url
from koguma.model.schema import Json
from koguma.reconcile import initial_objects
from koguma.reconcile.housekeeping import Housekeeper
from koguma.reconcile.services import ServiceGenerator
from koguma.runtime import data_directory, garbage_collection, logs
from koguma.runtime.background import Background
from koguma.runtime.checks import Check
from koguma.runtime.settings import Settings
from koguma.store import Store, key_file_of, log_at, migrate
from koguma.store.keys import KeyCommand, KeyFile
from koguma.store.sealing import Sealing

# The compile works beside the loop. Whoever waits for Python gets it after this long, and with 5 ms, which is
# usual, thousands of small waits of the loop add up to seconds.
SWITCH_SECONDS: Final = 0.0005

_ODD_MAX: Final = 20  # problems of Dataplanes that a check shows

_log = structlog.get_logger("koguma")


def all_kinds() -> Kinds:
    """Built-in kinds, and the policies of every installed package that offers the entry point."""
    return plugins.load(kinds.KINDS, plugins.installed(), _warn_in_log).kinds


def _warn_in_log(text: str) -> None:
    _log.warning("plugin", warning=text)


def now() -> datetime:
    """The shell's clock."""
    return datetime.now(UTC)


class ControlPlane:
    """A running control plane: store, API, and what keeps them in order."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._warnings: list[Check] = []
        self._failures: dict[str, str] = {}  # the last one of each policy that a package brought
        self._found = plugins.load(kinds.KINDS, plugins.installed(), self._warn_of_plugin)
        self.kinds = self._found.kinds
        self.background = Background(now)
        self._secrets = self._sealing()
        log = log_at(settings.store_url, self._secrets)
        self.store = Store(log, now, background=self.background)
        self.metrics = Metrics()
        self.ports: dict[str, int] = {}
        self._not_ready = "starting"
        self._tasks: list[asyncio.Task[None]] = []
        self._open_watches = OpenWatches()
        self._http: HttpServer | None = None
        self._services: ServiceGenerator | None = None
        self._proxies: ProxySide | None = None
        self._tracer: Tracer | None = None
        self._certificate = ""
        self._engine: LiveEngine | None = None
        self._patch_checks: PatchChecker | None = None
        self._lapsed: Callable[[], Iterable[LapsedReference]] = tuple

    async def start(self) -> None:
        """Open the store, fill a new one, and listen."""
        data_dir = _made(Path(self.settings.data_dir))
        asyncio.get_running_loop().set_exception_handler(self.background.on_loop_error)
        loading = self.background.once("messages of Envoy", self._load_envoy())
        await self.store.open()
        control = self._engine = self._control()
        context, keys = self._context(control)
        self._lapsed = functools.partial(secret_access.lapsed, context)
        self._tracer = self._traces(context.about)
        await initial_objects.fill(context, self.settings)
        await initial_objects.fill_kubernetes(context)
        self._warn(await initial_objects.fill_zone(context))
        self._warn(await initial_objects.admin_token(context, keys, data_dir, now()))
        tls, identity = self._tls(data_dir)
        if not context.control_plane.is_global:
            self._proxies = ProxySide(context, control, keys, self.settings, now)
        self._http = HttpServer(self._dispatch(context, keys).handle)
        await self._http.start()
        await loading  # proxies need it too; before requests come, so that no patch is stored unseen
        await self._listen(self._http, tls)
        self._start_tasks(context)
        if self._proxies is not None:
            await self._proxies.start(identity, tls)
            self.ports |= self._proxies.ports
        gc.collect()
        if self._proxies is not None:
            await self._proxies.let_in()
        garbage_collection.begin()
        self._not_ready = ""

    def _start_tasks(self, context: Context) -> None:
        history = _span(self.settings.history)
        short = frozenset(kind.stored_as for kind in (*self.kinds, *NATIVE_KINDS) if kind.short_history)
        self._run("compaction of the history", lambda: self.store.compact_forever(short, history))
        self._run("housekeeping", Housekeeper(context).run)
        self._run("review of watches", self._open_watches.run)
        # It returns at once where the C library has nothing to offer.
        self._tasks.append(self.background.forever("free memory", garbage_collection.give_back, may_end=True))
        if not context.control_plane.is_global:
            self._services = ServiceGenerator(context, now, _span(self.settings.service_grace))
            self._run("service generator", self._services.run)

    def _run(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._tasks.append(self.background.forever(name, work))

    async def _load_envoy(self) -> None:
        """Have patches judged by the messages of the Envoy that is here, if one is."""
        try:
            known = await asyncio.to_thread(lambda: schema.load(schema.find_envoy()))
        except KogumaError:
            return  # told where proxies would need it
        self._patch_checks = PatchChecker(known)

    async def stop(self) -> None:
        """End watches, finish requests, then close the store."""
        self._not_ready = "stopping"
        if self._proxies is not None:
            await self._proxies.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.store.end_watches()
        if self._http is not None:
            await self._http.stop()
        if self._tracer is not None:
            await self._tracer.stop()
        await self.store.close()
        await self.background.stop()

    def _context(self, control: LiveEngine) -> tuple[Context, TokenKeys]:
        settings = self.settings
        roles = (*authorizer.builtin_roles(self.kinds), *settings.access.roles)
        bindings = (*authorizer.BUILTIN_BINDINGS, *settings.access.bindings)
        rules = Access(roles, bindings, authorizer.stored_in(lambda: self.store.state))
        hostname = socket.gethostname()
        about = About(
            hostname=hostname,
            instance_id=f"{hostname}-{secrets.token_hex(2)}",
            cluster_id=lambda: initial_objects.cluster_id(context),
            version=__version__,
            settings=self._shown_settings,
        )
        context = Context(
            kinds=self.kinds,
            control_plane=settings.control_plane,
            store=self.store,
            access=rules,
            about=about,
            signing_key=lambda: signing_keys.generate().reveal(),
            database=control.database,
            background=self.background,
            patch_checks=lambda: self._patch_checks,
        )
        return context, TokenKeys(lambda: self.store.state)

    def _sealing(self) -> Sealing:
        """How Secrets are encrypted in the store."""
        settings = self.settings
        secret = {kind.stored_as for kind in (*self.kinds, *NATIVE_KINDS) if kind.admin_only}
        source: KeyFile | KeyCommand | None = None
        if settings.store_key_command:
            source = KeyCommand(settings.store_key_command)
        elif path := settings.store_key_file or key_file_of(settings.store_url):
            source = KeyFile(path, is_default=not settings.store_key_file)
        return Sealing(secret, source, is_on=settings.store_encryption)

    def _control(self) -> LiveEngine:
        readable = plugins.for_engine(self._found, self._failures.__setitem__)
        return LiveEngine(self.store, readable, self.settings.control_plane)

    def _traces(self, about: About) -> Tracer | None:
        settings = self.settings
        if not settings.traces_url:
            return None
        described = {
            "service.name": "koguma",
            "service.version": about.version,
            "service.instance.id": about.instance_id,
            "host.name": about.hostname,
            "koguma.mode": settings.mode,
            "koguma.zone": settings.control_plane.zone,
        }
        return tracing.tracer(settings.traces_url, settings.traces_ratio, described)

    @property
    def door(self) -> str:
        """Where proxies connect, for the line that says all is ready."""
        port = self.ports.get("dp")
        return f"; proxies: https://{self.settings.dp_host}:{port}" if port else ""

    def _shown_settings(self) -> Mapping[str, Json]:
        names = {"apiPort": "api", "apiTlsPort": "api-tls", "dpPort": "dp", "xdsPort": "xds"}
        used = {setting: self.ports.get(name) for setting, name in names.items()}
        return {**self.settings.shown(), **{name: port for name, port in used.items() if port}}

    def _dispatch(self, context: Context, keys: TokenKeys) -> Dispatch:
        shown = Shown(context)
        objects = Objects(context, shown)
        opened = self._open_watches
        watches = Watches(context, opened, shown)
        verifier = TokenVerifier(keys, now)
        with_ids = self.settings.gate("ResourceID")
        kube = KubeForm(context, now, verifier.user, opened, resource_ids=with_ids)
        self.metrics.registry.register(Gauges(lambda: self._numbers(len(opened))))
        health = Health(context.access, self.metrics, self._unready, self._checks)
        description = openapi.encoded(self.kinds)

        async def show_openapi(call: Call) -> web.StreamResponse:
            context.access.check(call.user, Attempt("get", path="/openapi.json"))
            return answer(description)

        proxies = Proxies(context, self._shown_proxies, self._refused_proxies)
        pages = {
            "healthy": (health.healthy, True),
            "ready": (health.ready, True),
            "readyz": (health.ready, True),
            "metrics": (health.metrics, False),
            "_check": (health.check, False),
            "_proxies": (proxies.list, False),
            "openapi.json": (show_openapi, False),
        }
        system = System(context, objects, resource_ids=with_ids)
        issuer = TokenIssuer(context, keys, now)
        fixed = routes.fixed(system, Apply(context, objects), issuer, pages)
        authenticator = Authenticator(verifier.user, self.settings.localhost_is_admin)
        variable = (
            routes.objects(self.kinds, objects, watches),
            routes.inspect(self.kinds, Inspect(context), proxies),
            kube.route,
        )
        return Dispatch((fixed, *variable), authenticator, context.access, self.metrics, self._tracer)

    def _unready(self) -> str:
        return self._not_ready or self.store.full

    def _shown_proxies(self, mesh: str) -> Iterator[Mapping[str, Json]]:
        return self._proxies.shown(mesh) if self._proxies else iter(())

    def _refused_proxies(self, mesh: str) -> Iterator[Mapping[str, Json]]:
        return self._proxies.shown_refused(mesh) if self._proxies else iter(())

    def _tls(self, data_dir: Path) -> tuple[ssl.SSLContext, ServerIdentity]:
        settings = self.settings
        if settings.tls_cert_file:
            return self._given_tls(Path(settings.tls_cert_file), Path(settings.tls_key_file))
        names = (socket.gethostname(), *settings.hostnames)
        made = files.server_credentials(data_dir, names, now())
        for warning in made.warnings:
            self._warn(warning)
        self._certificate = made.certificate
        context = server.tls_context(str(made.certificate_path), str(made.key_path))
        return context, ServerIdentity(made.certificate, made.key, made.ca)

    def _given_tls(self, certificate: Path, key: Path) -> tuple[ssl.SSLContext, ServerIdentity]:
        try:
            self._certificate, given = certificate.read_text(), files.read_private(key).text
        except OSError as error:
            raise KogumaError(f"cannot read {error.filename}: {error.strerror}") from error
        problems = list(certificates.problems(self._certificate, given, now()))
        if problems:
            raise KogumaError(f"the certificate {certificate} cannot be used: {'; '.join(problems)}")
        identity = ServerIdentity(self._certificate, given, "")
        return server.tls_context(str(certificate), str(key)), identity

    async def _listen(self, http: HttpServer, tls: ssl.SSLContext) -> None:
        settings = self.settings
        path = Path(settings.data_dir) / data_directory.ADMIN_SOCKET
        try:
            await http.listen_at(path)
        except OSError as error:
            hint = f"use the administrator's token: --token-file {path.with_name(files.ADMIN_TOKEN)}"
            self._warn(f"cannot listen on {path}: {error.strerror}", "local admin", hint)
        for name, port, context in (
            ("api", settings.api_port, None),
            ("api-tls", settings.api_tls_port, tls),
        ):
            try:
                self.ports[name] = await http.listen(settings.api_host, port, context)
            except OSError as error:
                flag = "--api-port" if context is None else "--api-tls-port"
                where, why = f"{settings.api_host}:{port}", os.strerror(error.errno or 0)
                hint = f"stop what uses it, or choose another port with {flag}"
                raise KogumaError(f"cannot listen on {where}: {why}; {hint}") from error

    def _warn(self, text: str, about: str = "start", hint: str = "") -> None:
        if text:
            self._warnings.append(Check(about, "warning", text, hint))
            _log.warning(about, warning=text)

    def _warn_of_plugin(self, text: str) -> None:
        self._warn(text, "policies", "correct the package or remove it, then restart the control plane")

    def _numbers(self, n_watches: int) -> Iterator[tuple[str, str, str, float]]:
        store = self.store
        yield "koguma_store_revision", "Newest revision that is known here.", "gauge", store.state.revision
        yield "koguma_store_writes", "Transactions that were written.", "counter", store.writes
        yield "koguma_store_batches", "Group commits.", "counter", store.batches
        yield "koguma_store_conflicts", "Appends where another was first.", "counter", store.conflicts
        yield "koguma_store_lost", "Appends whose outcome had to be looked up.", "counter", store.lost
        yield "koguma_store_full", "Whether there is no room to store more.", "gauge", bool(store.full)
        if self._proxies is not None:
            yield from self._proxies.numbers()
        yield "koguma_api_watches", "Watches that are open.", "gauge", n_watches
        failed = self.background.n_failures
        yield "koguma_background_failures", "Times that work in the background failed.", "counter", failed

    async def _checks(self) -> Sequence[Check]:
        return [
            await self._store_check(),
            *self._schema_check(),
            self._certificate_check(),
            *self._unreadable(),
            *await self._unfit(),
            *self._warnings,
            *self._plugin_checks(),
            *self._service_checks(),
            *await self._dataplane_checks(),
            *self._secret_reference_checks(),
            *(self._proxies.checks() if self._proxies else ()),
            *self._background_checks(),
        ]

    async def _store_check(self) -> Check:
        where = masked_url(self.settings.store_url)
        try:
            await self.store.ping()
        except KogumaError as error:
            return Check("store", "error", f"{where}: {error.detail}", "start the database; nothing is lost")
        if self.store.full:
            return Check("store", "error", f"{where}: {self.store.full}", "reads and proxies go on meanwhile")
        text = f"{where}: revision {self.store.state.revision}, history from {self.store.state.compacted}"
        summary = self._secrets.summary
        return Check("store", "ok", f"{text}; {summary}" if summary else text)

    def _schema_check(self) -> Iterator[Check]:
        dialect = {"sqlite": "sqlite", "postgresql": "postgres", "postgres": "postgres"}.get(
            self.settings.store_url.partition(":")[0]
        )
        if dialect:  # what is not of this version does not start
            yield Check("migrations", "ok", f"schema version {migrate.migrations(dialect)[-1].version}")

    def _certificate_check(self) -> Check:
        end = certificates.expires_at(self._certificate)
        text = f"the API's certificate is valid until {end:%Y-%m-%d}"
        if certificates.needs_renewal(self._certificate, now()):
            hint = "restart the control plane: it renews its own; replace a given one"
            return Check("certificate", "warning", text, hint)
        return Check("certificate", "ok", text)

    def _unreadable(self) -> Iterator[Check]:
        for broken in self.store.state.unreadable.values():
            text = f"{broken.key} cannot be read: {broken.error}"
            yield Check("objects", "error", text, "delete it, or write it again")

    async def _unfit(self) -> list[Check]:
        """Objects that the store can read, and their kinds cannot: they act nowhere."""
        found = world.UNREADABLE.items(await self._engine.database()) if self._engine else ()
        hint = "delete it, or write it again"
        return [Check("objects", "error", f"{key} cannot be read: {why}", hint) for key, why in found]

    def _plugin_checks(self) -> Iterator[Check]:
        for name, failure in sorted(self._failures.items()):
            text = f"objects of {name} have no effect where it cannot read them: {failure}"
            yield Check("policies", "warning", text, "correct the package, or write the objects again")

    def _background_checks(self) -> Iterator[Check]:
        hint = "it goes on by itself; please report this with the log of the control plane"
        for failed in self.background.failures:
            status: Literal["warning", "error"] = "error" if self.background.is_recent(failed) else "warning"
            times = "once" if failed.count == 1 else f"{failed.count} times"
            last = f"{failed.last_at:%Y-%m-%dT%H:%M:%SZ}: {failed.reason}"
            yield Check("background", status, f"{failed.task} failed {times}, last at {last}", hint)

    def _service_checks(self) -> Iterator[Check]:
        for problem in self._services.problems if self._services else ():
            if problem.rule != services.HAND_MADE:
                yield Check("services", "warning", f"{problem.about}: {problem.message}")

    def _secret_reference_checks(self) -> Iterator[Check]:
        """References to Secrets that whoever wrote them may not read any more."""
        found = list(self._lapsed())
        for each in found[:_ODD_MAX]:
            yield Check("secrets", "warning", str(each), secret_access.LAPSED_HINT)
        left = len(found) - _ODD_MAX
        if left > 0:
            yield Check("secrets", "warning", f"{left} more like these", "begin with the first ones")

    async def _dataplane_checks(self) -> Sequence[Check]:
        """What is odd about Dataplanes; most of them no person writes, so that nobody else would be told."""
        if self._engine is None:
            return ()
        found, _ = await self._engine.beside(of_proxies)
        shown = [
            Check("dataplanes", each.severity, each.message, f"docs/lint.md has more under {each.code}")
            for each in found[:_ODD_MAX]
        ]
        left = len(found) - len(shown)
        more = Check("dataplanes", "warning", f"{left} more like these", "begin with the first ones")
        return [*shown, more] if left else shown


def _span(text: str) -> timedelta:
    return timedelta(seconds=duration.seconds(text))


def _made(directory: Path) -> Path:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


async def serve(settings: Settings) -> int:
    """Run until a signal says stop."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    plane = ControlPlane(settings)
    try:
        await plane.start()
        host = settings.api_host if settings.api_host != "0.0.0.0" else "localhost"  # noqa: S104 - for people
        print(  # noqa: T201 - the one line that says it is ready
            f"koguma {__version__} is ready: http://{host}:{plane.ports['api']}"
            f" https://{host}:{plane.ports['api-tls']} ({masked_url(settings.store_url)}){plane.door}",
            flush=True,
        )
        _log.info("control plane started", mode=settings.mode, pid=os.getpid(), **plane.ports)
        await stopping.wait()
        _log.info("control plane stops")
    finally:
        await plane.stop()
    return 0


def run(settings: Settings) -> int:
    """Run a control plane in this process; the exit code says how it ended."""
    logs.configure(settings.log_level, settings.log_format)
    garbage_collection.look_seldom()
    garbage_collection.keep_no_large()
    sys.setswitchinterval(SWITCH_SECONDS)
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: PLC0415 - only where it is installed

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    try:
        return asyncio.run(serve(settings))
    except Invalid as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the command's own answer
    except KogumaError as error:
        print(f"error: {error.detail}", file=sys.stderr)  # noqa: T201
    return 1
