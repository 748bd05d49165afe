"""Checks of a control plane: what `koguma check` shows of its own parts; those of proxies are beside."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Literal

from koguma.application import secret_access
from koguma.application.context import Context
from koguma.application.live_engine import LiveEngine
from koguma.control_plane.server_certificate import ServerIdentity
from koguma.core import services, world
from koguma.core.problems import Problem, of_gateways, of_proxies
from koguma.core.services import ReconcileProblem
from koguma.identity import certificates
from koguma.kube import webhook_rules
from koguma.kube.kinds import apiregistration, webhooks
from koguma.model.errors import KogumaError
from koguma.model.redacted import masked_url
from koguma.reconcile import shared_authority
from koguma.runtime.audit_log import AuditLog
from koguma.runtime.checks import Check
from koguma.runtime.clock import now
from koguma.runtime.settings import Settings
from koguma.store import migrate, store_format
from koguma.store.sealing import Sealing

_SHOWN_MAX: Final = 20  # checks of one sort; the rest is counted
_AUDIT_HINT: Final = (
    "it is written now; there was a moment when it could not be, which the log of the control plane names, or"
    " when requests came faster than their events could be written"
)


class HealthChecks:
    """Looks at the store, the API's certificate, stored objects, plugins and background tasks."""

    def __init__(
        self,
        context: Context,
        settings: Settings,
        engine: LiveEngine,
        sealing: Sealing,
        *,
        identity: ServerIdentity,
        plugin_failures: Mapping[str, str],
        service_problems: Callable[[], Iterable[ReconcileProblem]],
    ) -> None:
        self._context = context
        self._settings = settings
        self._engine = engine
        self._sealing = sealing
        self._identity = identity
        self._plugin_failures = plugin_failures
        self._service_problems = service_problems

    async def all(self, warnings: Iterable[Check], proxies: Iterable[Check]) -> Sequence[Check]:
        """Everything, with the warnings of the start and what was found about proxies in their places."""
        return [
            await self._store(),
            *self._schema(),
            self._api_certificate(),
            *self._shared_authority(),
            *self._unreadable(),
            *await self._unfit(),
            *warnings,
            *self._plugins(),
            *self._services(),
            *await self._dataplanes(),
            *await self._gateways(),
            *self._secret_references(),
            *self._aggregated_servers(),
            *self._webhooks(),
            *proxies,
            *self._background(),
        ]

    async def _store(self) -> Check:
        store, where = self._context.store, masked_url(self._settings.store_url)
        try:
            await store.ping()
        except KogumaError as error:
            return Check("store", "error", f"{where}: {error.detail}", "start the database; nothing is lost")
        if store.unwritable:
            text = f"{where} takes no writes: {store.unwritable}"
            return Check(
                "store", "error", text, "reads and connected proxies go on meanwhile; nothing is lost"
            )
        if store.full:
            return Check("store", "error", f"{where}: {store.full}", "reads and proxies go on meanwhile")
        text = f"{where}: revision {store.state.revision}, history from {store.state.compacted}"
        summaries = filter(None, (text, store.log.connection_summary, self._sealing.summary))
        return Check("store", "ok", "; ".join(summaries))

    def _schema(self) -> Iterator[Check]:
        dialect = {"sqlite": "sqlite", "postgresql": "postgres", "postgres": "postgres"}.get(
            self._settings.store_url.partition(":")[0]
        )
        if dialect:  # a store with a later format does not start
            schema, form = migrate.migrations(dialect)[-1].version, store_format.FORMAT
            text = f"schema version {schema}, format {form}, as of Koguma {store_format.SINCE}"
            yield Check("migrations", "ok", text)

    def _api_certificate(self) -> Check:
        end = certificates.expires_at(self._identity.certificate)
        text = f"the API's certificate is valid until {end:%Y-%m-%d}"
        if certificates.needs_renewal(self._identity.certificate, now()):
            hint = "restart the control plane: it renews its own; replace a given one"
            return Check("certificate", "warning", text, hint)
        return Check("certificate", "ok", text)

    def _shared_authority(self) -> Iterator[Check]:
        """Whether the store has another CA by now, as after an import."""
        try:
            shared = shared_authority.stored_in(self._context.state)
        except KogumaError as error:
            yield Check("certificate", "error", error.detail, "the next start of a control plane fails")
            return
        if shared is not None and self._identity.ca and shared.certificate != self._identity.ca:
            text = (
                "the store has another CA by now than the one by which this control plane has its certificate"
            )
            yield Check("certificate", "warning", text, "restart it, and give clients the new ca.pem")

    def _unreadable(self) -> Iterator[Check]:
        for broken in self._context.state.unreadable.values():
            text = f"{broken.key} cannot be read: {broken.error}"
            yield Check("objects", "error", text, "delete it, or write it again")

    async def _unfit(self) -> list[Check]:
        """Objects that the store can read, and their kinds cannot: they act nowhere."""
        objects = world.UNREADABLE.items(await self._engine.database())
        hint = "delete it, or write it again"
        return [Check("objects", "error", f"{key} cannot be read: {why}", hint) for key, why in objects]

    def _plugins(self) -> Iterator[Check]:
        for name, failure in sorted(self._plugin_failures.items()):
            text = f"objects of {name} have no effect where it cannot read them: {failure}"
            yield Check("plugins", "warning", text, "correct the package, or write the objects again")

    def _background(self) -> Iterator[Check]:
        background = self._context.background
        hint = "it goes on by itself; please report this with the log of the control plane"
        for failed in background.failures:
            status: Literal["warning", "error"] = "error" if background.is_recent(failed) else "warning"
            times = "once" if failed.count == 1 else f"{failed.count} times"
            last = f"{failed.last_at:%Y-%m-%dT%H:%M:%SZ}: {failed.reason}"
            yield Check("background", status, f"{failed.task} failed {times}, last at {last}", hint)

    def _webhooks(self) -> Iterator[Check]:
        hint = "start it, correct its configuration, or delete that: it is never asked about its own"
        state = self._context.state
        configurations = [
            *state.listed(webhooks.VALIDATING.stored_as),
            *state.listed(webhooks.MUTATING.stored_as),
        ]
        for each in configurations:
            if not webhook_rules.is_readable(each):
                text = f"{each.key} cannot be read: none of its webhooks is asked"
                yield Check("webhooks", "error", text, "write it again, or delete it")
        names = [hook.name for each in configurations for hook in webhook_rules.webhooks_of(each)]
        for failing in self._context.webhook_failures.among(names):
            times = "once" if failing.n_failures == 1 else f"{failing.n_failures} times"
            text = f'webhook "{failing.name}" failed {times} since it last answered: {failing.reason}'
            yield Check("webhooks", "warning", text, hint)

    def _services(self) -> Iterator[Check]:
        for problem in self._service_problems():
            if problem.rule != services.HAND_MADE:
                yield Check("services", "warning", f"{problem.about}: {problem.message}")

    def _secret_references(self) -> Iterator[Check]:
        """References to Secrets that their writer may not read any more."""
        lapsed = list(secret_access.lapsed(self._context))
        for reference in lapsed[:_SHOWN_MAX]:
            yield Check("secrets", "warning", str(reference), secret_access.LAPSED_HINT)
        yield from _more("secrets", len(lapsed) - _SHOWN_MAX)

    def _aggregated_servers(self) -> Iterator[Check]:
        for service in self._context.state.listed(apiregistration.API_SERVICE.stored_as):
            condition = apiregistration.condition(service.status) or {}
            if condition.get("status") == "False":
                text = f"{service.key} is not available: {condition.get('message')}"
                yield Check("aggregation", "warning", text, "docs/aggregation.md says what a server needs")

    async def _dataplanes(self) -> Sequence[Check]:
        """Problems of Dataplanes; most of those are written by no person, who would get them as warnings."""
        problems, _ = await self._engine.beside(of_proxies)
        return _shown("dataplanes", problems)

    async def _gateways(self) -> Sequence[Check]:
        """Certificates of gateways: one may expire long after somebody has written it."""
        problems, _ = await self._engine.beside(partial(of_gateways, now=now()))
        return _shown("gateways", problems)


def audit_checks(audit: AuditLog) -> Iterator[Check]:
    """Whether the audit log has all events."""
    name, problem = audit.output.name, audit.problem
    if not (audit.n_dropped or problem):
        yield Check("audit", "ok", f"audit log {name}: {audit.n_written} events")
        return
    why = f" ({problem.text})" if problem else ""
    text = f"audit log {name}: {audit.n_dropped} events were lost since the start{why}"
    yield Check("audit", "warning", text, problem.hint if problem else _AUDIT_HINT)


def _shown(name: str, problems: Sequence[Problem]) -> Sequence[Check]:
    return [
        *(
            Check(name, each.severity, each.message, f"docs/lint.md has more under {each.code}")
            for each in problems[:_SHOWN_MAX]
        ),
        *_more(name, len(problems) - _SHOWN_MAX),
    ]


def _more(name: str, count: int) -> Iterator[Check]:
    if count > 0:
        yield Check(name, "warning", f"{count} more like these", "begin with the first ones")
