"""A control plane, put together from all packages, started and stopped."""

import asyncio
import functools
import gc
import os
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from koguma import __version__, kinds, plugins
from koguma.access import authorizer
from koguma.access.authorizer import Attempt, Authorizer
from koguma.access.token_keys import TokenKeys, TokenVerifier
from koguma.api import openapi, routes
from koguma.api.apply import Apply
from koguma.api.arrival import ArrivalPage
from koguma.api.audit import Audit
from koguma.api.authn import Authenticator
from koguma.api.backup import Backup
from koguma.api.call import Call, answer
from koguma.api.can import Can
from koguma.api.dispatch import Dispatch, Route
from koguma.api.envoy_views import EnvoyPages
from koguma.api.global_insight import GlobalInsight
from koguma.api.health import Checks, Health
from koguma.api.history import History
from koguma.api.inspect import Inspect
from koguma.api.kube.account_tokens import AccountTokens
from koguma.api.kube.form import KubeForm
from koguma.api.metrics import Gauges, Metrics
from koguma.api.open_watches import OpenWatches
from koguma.api.overviews import Overviews
from koguma.api.plain import PlainObjects
from koguma.api.plain_encoder import PlainEncoder
from koguma.api.plan import Plans
from koguma.api.proxies import Proxies
from koguma.api.proxy_answers import ProxyAnswers
from koguma.api.proxy_plans import ProxyPlans
from koguma.api.server import HttpServer
from koguma.api.service_endpoints import ServiceEndpoints
from koguma.api.storage_migration import StorageMigrations
from koguma.api.survey_answers import Surveys
from koguma.api.system import System
from koguma.api.tokens import TokenIssuer
from koguma.api.tracing import Tracer
from koguma.api.traffic import Top
from koguma.api.undo import Undo
from koguma.api.watch import Watches
from koguma.api.zone_answers import ZoneAnswers
from koguma.api.zone_membership import ZoneMembership
from koguma.api.zone_proxies import ZoneProxies
from koguma.application import past_engines
from koguma.application.context import Context, InstanceInfo
from koguma.application.conversions import Conversions
from koguma.application.live_catalog import LiveCatalog
from koguma.application.live_engine import LiveEngine
from koguma.application.trial_engine import TrialEngine
from koguma.control_plane import metrics, server_certificate, telemetry
from koguma.control_plane.checks import HealthChecks, audit_checks
from koguma.control_plane.proxy_services import ProxyServices, virtual_ranges
from koguma.control_plane.server_certificate import ServerIdentity
from koguma.control_plane.sync_services import SyncServices
from koguma.control_plane.zone_services import ZoneServices
from koguma.envoy import schema
from koguma.envoy.patch_check import PatchChecker
from koguma.fleet.arrival import Arrivals
from koguma.fleet.envoy_views import EnvoyViews
from koguma.fleet.insights.insights import Insights
from koguma.fleet.programmed import ProgrammedConditions
from koguma.fleet.proxy_view import proxy_json
from koguma.fleet.shared_states import SharedStates
from koguma.fleet.zone_arrivals import ZoneArrivals
from koguma.identity import files, signing_keys
from koguma.kube.kinds import NATIVE_KINDS
from koguma.model import duration
from koguma.model.errors import KogumaError
from koguma.model.internal_kinds import INTERNAL_KINDS
from koguma.model.schema import Json
from koguma.reconcile import initial_objects
from koguma.reconcile.aggregated_roles import RoleAggregator
from koguma.reconcile.aggregated_servers import AggregatedServers
from koguma.reconcile.gateway_api_statuses import GatewayApiStatuses
from koguma.reconcile.housekeeping import Housekeeper
from koguma.reconcile.namespace_contents import NamespaceContents
from koguma.reconcile.quotas import QuotaStatuses
from koguma.reconcile.services import ServiceGenerator
from koguma.runtime import allowed_hosts, data_directory, garbage_collection, service_addresses
from koguma.runtime.audit_log import AuditLog
from koguma.runtime.background import Background
from koguma.runtime.checks import Check
from koguma.runtime.clock import now
from koguma.runtime.outgoing_calls import OutgoingCalls
from koguma.runtime.settings import Settings
from koguma.store import Store, key_file_of, log_at
from koguma.store.keys import KeyCommand, KeyFile
from koguma.store.sealing import Sealing

_log = structlog.get_logger("koguma")


class ControlPlane:
    """A running control plane: store, API, proxies, and the writers that act by themselves."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._warnings: list[Check] = []
        self._plugin_failures: dict[str, str] = {}  # the last one of each policy that a package brought
        self._plugins = plugins.load(kinds.KINDS, plugins.installed(), self._warn_of_plugin)
        self.kinds = self._plugins.kinds
        self.background = Background(now)
        self._sealing = self._new_sealing()
        log = log_at(settings.store_url, self._sealing)
        self.store = Store(log, now, background=self.background)
        self.catalogs = LiveCatalog()
        self.metrics = Metrics()
        self._calls = OutgoingCalls(
            allowed_hosts.of(settings.outgoing_hosts), service_addresses.by_host(settings.outgoing_services)
        )
        self.ports: dict[str, int] = {}
        self._not_ready = "starting"
        self._tasks: list[asyncio.Task[None]] = []
        self._open_watches = OpenWatches()
        self._http: HttpServer | None = None
        self._services: ServiceGenerator | None = None
        self._proxies: ProxyServices | None = None
        self._insights = Insights(
            self.kinds,
            settings.control_plane,
            lambda: self.store.state,
            lambda: self._states,
            time.monotonic,
        )
        self._sync: SyncServices | None = None
        self._zones: ZoneServices | None = None
        self._tracer: Tracer | None = None
        self._audit: AuditLog | None = None
        self._patch_checks: PatchChecker | None = None

    async def start(self) -> None:
        """Open the store, fill a new one, and listen."""
        data_dir = _existing(Path(self.settings.data_dir))
        asyncio.get_running_loop().set_exception_handler(self.background.on_loop_error)
        loading = self.background.once("messages of Envoy", self._load_envoy())
        await self.store.open()
        engine = self._new_engine()
        context, keys = self._new_context(engine)
        self._audit = telemetry.audit_log(self.settings, context.about)
        self._tracer = telemetry.tracer(self.settings, context.about)
        await initial_objects.fill(context, self.settings)
        await initial_objects.fill_kubernetes(context)
        self._warn(await initial_objects.fill_zone(context))
        self._warn(await initial_objects.admin_token(context, keys, data_dir, now()))
        identity = await server_certificate.identity_of(self.settings, data_dir, self.store)
        for warning in identity.warnings:
            self._warn(warning)
        if not context.control_plane.is_global:
            self._proxies = ProxyServices(context, engine, keys, self.settings, now)
        self._sync = SyncServices(context, keys, self.settings, now)
        if self._sync.server is not None:
            self._zones = ZoneServices(context, self._sync.server, now)
        self._http = HttpServer(self._dispatch(context, keys, self._checks(context, engine, identity)).handle)
        await self._http.start()
        await loading  # proxies need it too; before requests come, so that no patch is stored unseen
        await self._listen(self._http, identity.tls)
        self._start_tasks(context, identity)
        if self._zones is not None:
            await self._zones.start(self._run)
        self.ports |= await self._sync.start(identity, self._run)
        if self._proxies is not None:
            await self._proxies.start(identity)
            self.ports |= self._proxies.ports
        gc.collect()
        if self._proxies is not None:
            await self._proxies.let_in()
        garbage_collection.begin()
        self._not_ready = ""

    def _start_tasks(self, context: Context, identity: ServerIdentity) -> None:
        history = _span(self.settings.history)
        short = past_engines.short_kinds(self.kinds)
        self._run("compaction of the history", lambda: self.store.compact_forever(short, history))
        self._run("housekeeping", Housekeeper(context).run)
        self._run("aggregated roles", RoleAggregator(context).run)
        if self.settings.gate("NamespaceContents"):
            ca = identity.ca or identity.certificate
            self._run("contents of namespaces", NamespaceContents(context, ca).run)
        self._run("statuses of quotas", QuotaStatuses(context, now).run)
        self._run("statuses of the Gateway API", GatewayApiStatuses(context, now).run)
        self._run("review of watches", self._open_watches.run)
        # It returns at once where the C library has nothing to offer.
        self._tasks.append(
            self.background.forever("free memory", garbage_collection.return_free_memory, may_end=True)
        )
        if not context.control_plane.is_global:
            self._services = ServiceGenerator(context, now, _span(self.settings.service_grace))
            self._run("service generator", self._services.run)

    def _run(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._tasks.append(self.background.forever(name, work))

    async def _load_envoy(self) -> None:
        """Check MeshProxyPatches against the messages of the Envoy of this machine, if there is one."""
        try:
            known = await asyncio.to_thread(lambda: schema.load(schema.find_envoy()))
        except KogumaError:
            return  # `ProxyServices` reports it
        self._patch_checks = PatchChecker(known)

    async def stop(self) -> None:
        """End watches, finish requests, then close the store."""
        self._not_ready = "stopping"
        if self._proxies is not None:
            await self._proxies.stop()
        if self._sync is not None:
            await self._sync.stop()
        if self._zones is not None:
            await self._zones.states.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.store.end_watches()
        if self._http is not None:
            await self._http.stop()
        if self._tracer is not None:
            await self._tracer.stop()
        if self._audit is not None:
            await asyncio.to_thread(self._audit.stop)
        await self._calls.close()
        await self.store.close()
        await self.background.stop()

    def _new_context(self, engine: LiveEngine) -> tuple[Context, TokenKeys]:
        settings = self.settings
        roles = (*authorizer.builtin_roles(self.kinds), *settings.access.roles)
        bindings = (*authorizer.BUILTIN_BINDINGS, *settings.access.bindings)
        rules = Authorizer(roles, bindings, authorizer.stored_in(lambda: self.store.state))
        hostname = socket.gethostname()
        about = InstanceInfo(
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
            database=engine.database,
            beside=engine.beside,
            background=self.background,
            patch_checks=lambda: self._patch_checks,
            catalogs=self.catalogs,
            conversions=Conversions(self._calls),
            calls=self._calls,
            trials=TrialEngine(virtual_ranges(settings)),
            computed=self._insights,
        )
        return context, TokenKeys(lambda: self.store.state)

    def _new_sealing(self) -> Sealing:
        """How Secrets are encrypted in the store."""
        settings = self.settings
        secret = {kind.stored_as for kind in (*self.kinds, *NATIVE_KINDS) if kind.admin_only}
        secret |= INTERNAL_KINDS
        source: KeyFile | KeyCommand | None = None
        if settings.store_key_command:
            source = KeyCommand(settings.store_key_command)
        elif path := settings.store_key_file or key_file_of(settings.store_url):
            source = KeyFile(path, is_default=not settings.store_key_file)
        return Sealing(secret, source, is_on=settings.store_encryption)

    def _new_engine(self) -> LiveEngine:
        readable = plugins.for_engine(self._plugins, self._plugin_failures.__setitem__)
        return LiveEngine(self.store, readable, self.settings.control_plane)

    @property
    def proxy_address(self) -> str:
        """Where proxies connect, for the line that says that all is ready."""
        port = self.ports.get("dp")
        return f"; proxies: https://{self.settings.dp_host}:{port}" if port else ""

    def _shown_settings(self) -> Mapping[str, Json]:
        names = {
            "apiPort": "api",
            "apiTlsPort": "api-tls",
            "dpPort": "dp",
            "xdsPort": "xds",
            "syncPort": "sync",
        }
        used = {setting: self.ports.get(name) for setting, name in names.items()}
        return {**self.settings.shown(), **{name: port for name, port in used.items() if port}}

    def _dispatch(self, context: Context, keys: TokenKeys, checks: Checks) -> Dispatch:
        shown = PlainEncoder(context)
        objects = PlainObjects(context, shown)
        opened = self._open_watches
        watches = Watches(context, opened, shown)
        issuer = self.settings.service_account_issuer
        verifier = TokenVerifier(keys, now, (issuer,))
        tokens = AccountTokens(context, keys, verifier.reviewed, now, issuer)
        with_ids = self.settings.gate("ResourceID")
        readiness = {"started": lambda: self._not_ready, "store-room": lambda: self.store.full}
        servers = AggregatedServers(context, now)
        self._run("aggregated servers", servers.run)
        programmed = ProgrammedConditions(self._arrivals, self.kinds, now)
        kube = KubeForm(context, now, tokens, opened, readiness, servers, programmed, resource_ids=with_ids)
        self.metrics.registry.register(Gauges(lambda: self._gauges(len(opened))))
        health = Health(context.access, self.metrics, self._unready, checks)
        description = functools.cache(lambda: openapi.encoded(self.kinds))  # few ask, and it takes 0.1 s

        async def show_openapi(call: Call) -> web.StreamResponse:
            context.access.check(call.user, Attempt("get", path="/openapi.json"))
            call.is_compressible = True
            return answer(await asyncio.to_thread(description))

        answers = ProxyAnswers(context, lambda: self._zones.questions if self._zones else None)
        plans = ProxyPlans(context, lambda: self._zones.sources if self._zones else None)
        can = Can(context, lambda: self._zones.questions if self._zones else None)
        self._answer_global(context, answers, plans, can)
        proxies = Proxies(context, answers, self._shown_proxies, self._refused_proxies, self._proxies_problem)
        insight = GlobalInsight(context, self._insights, now)
        arrival = ArrivalPage(context, self._arrivals, self._zone_arrivals, self._is_stopping)
        pages = {
            "healthy": (health.healthy, True),
            "ready": (health.ready, True),
            "metrics": (health.metrics, False),
            "_check": (health.check, False),
            "_proxies": (proxies.list, False),
            "_arrival": (arrival.show, False),
            "global-insight": (insight.show, False),
            "global-insights": (insight.totals, False),
            "openapi.json": (show_openapi, False),
        }
        system = System(context, objects, resource_ids=with_ids)
        fixed = routes.fixed(
            system,
            Plans(context, Apply(context, objects), plans),
            Backup(context, objects),
            StorageMigrations(context),
            TokenIssuer(context, keys, now),
            ZoneMembership(context, objects),
            pages,
        )
        authenticator = Authenticator(verifier.user, self.settings.localhost_is_admin)
        variable = (
            routes.overviews(self.kinds, Overviews(context, self._insights)),
            routes.objects(self.kinds, objects, watches),
            *self._routes_to_proxies(context, proxies, answers),
            routes.histories(self.kinds, History(context), Undo(context, objects, plans)),
            routes.answers(self.kinds, can),
            *kube.routes,
        )
        return Dispatch(
            (fixed, *variable),
            authenticator,
            context.access,
            self.metrics,
            self._tracer,
            kube.current_pages,
            Audit(self._audit, self.settings.audit_level) if self._audit else None,
        )

    def _routes_to_proxies(
        self, context: Context, proxies: Proxies, answers: ProxyAnswers
    ) -> tuple[Route, ...]:
        """The paths of which a proxy, its Envoy or its zone answers."""
        surveys = Surveys(lambda: self._views, lambda: self._states)
        pages = EnvoyPages(context, lambda: self._views)
        zone_proxies = ZoneProxies(context, answers)
        return (
            routes.inspect(self.kinds, Inspect(context, answers), proxies, zone_proxies, pages),
            routes.surveys(self.kinds, Top(context, surveys), ServiceEndpoints(context, surveys)),
        )

    def _checks(self, context: Context, engine: LiveEngine, identity: ServerIdentity) -> Checks:
        checks = HealthChecks(
            context,
            self.settings,
            engine,
            self._sealing,
            identity=identity,
            plugin_failures=self._plugin_failures,
            service_problems=lambda: self._services.problems if self._services else (),
        )
        return lambda: checks.all(self._warnings, self._fleet_checks())

    def _fleet_checks(self) -> Iterator[Check]:
        yield from audit_checks(self._audit) if self._audit else ()
        yield from self._sync.checks() if self._sync else ()
        yield from self._proxies.checks() if self._proxies else ()
        yield from self._zones.checks() if self._zones else ()

    def _gauges(self, n_watches: int) -> Iterator[metrics.Gauge]:
        proxies = self._proxies.gauges() if self._proxies else iter(())
        sync = self._sync.gauges() if self._sync else iter(())
        zones = self._zones.gauges() if self._zones else iter(())
        audit = metrics.audit_gauges(self._audit) if self._audit else iter(())
        return metrics.gauges(self.store, self.background, n_watches, chain(proxies, sync, zones, audit))

    @property
    def _states(self) -> SharedStates | None:
        """What is known of proxies and zones."""
        holder = self._proxies or self._zones
        return holder.states if holder is not None else None

    @property
    def _views(self) -> EnvoyViews | None:
        """What Envoys show; None where there are no proxies."""
        holder = self._proxies or self._zones
        return holder.views if holder is not None else None

    def _answer_global(self, context: Context, answers: ProxyAnswers, plans: ProxyPlans, can: Can) -> None:
        """Let a zone answer Global's questions about its proxies, and report how they are."""
        client = self._sync.client if self._sync is not None else None
        if self._sync is not None and self._proxies is not None and client is not None:
            zone, arrivals = context.control_plane.zone, self._proxies.arrivals
            planned = functools.partial(plans.received, client)
            own = ZoneAnswers(zone, answers, lambda: self._views, arrivals, self._sync, planned, can.received)
            self._sync.serve_global(own.answer, self._proxies.states)

    def _unready(self) -> str:
        return self._not_ready or self.store.full

    def _shown_proxies(self, mesh: str) -> Iterator[Mapping[str, Json]]:
        states, at = self._states, now()
        return (proxy_json(state, at) for state in states.connected(mesh)) if states else iter(())

    def _proxies_problem(self) -> str:
        return self._states.problem if self._states is not None else ""

    def _arrivals(self) -> Arrivals | None:
        return self._proxies.arrivals if self._proxies else None

    def _zone_arrivals(self) -> ZoneArrivals | None:
        return self._zones.arrivals if self._zones else None

    def _is_stopping(self) -> bool:
        return self._not_ready == "stopping"

    def _refused_proxies(self, mesh: str) -> Iterator[Mapping[str, Json]]:
        return self._proxies.refused_as_json(mesh) if self._proxies else iter(())

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
        self._warn(text, "plugins", "correct the package or remove it, then restart the control plane")


def _span(text: str) -> timedelta:
    return timedelta(seconds=duration.seconds(text))


def _existing(directory: Path) -> Path:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory
