"""Endpoints: who serves a service, whether they do, and by whose word.

The right to read the service is enough, as for the proxies that it selects; the names of its callers are only
shown to who may list the Dataplanes of the mesh. At most `limit` callers and as many of the proxies that
serve it are asked for one answer, which says how many there are.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from aiohttp import web

from koguma.api import survey_answers
from koguma.api.call import Call, answer_json
from koguma.api.survey_answers import Surveys
from koguma.application.context import Context
from koguma.core import inspect, service_health, serving, world
from koguma.core.incremental import Db
from koguma.core.meta import kri, meta
from koguma.core.service_health import Connection, EnvoyAnswers, Observations
from koguma.envoy import cluster_hosts, stats
from koguma.envoy.stats import UnreadableAnswer
from koguma.fleet import envoy_survey
from koguma.fleet.envoy_survey import Pages, Survey, TwoAnswers
from koguma.fleet.proxy_state import ProxyState
from koguma.identity.proxy_types import SIDECAR
from koguma.model.kind import Kind
from koguma.model.resource import Key
from koguma.model.schema import Json

SECONDS_DEFAULT: Final = 1.0
LIMIT_DEFAULT: Final = 20
LIMIT_MAX: Final = 100
_LOOKED_AT_MAX: Final = 500  # connected proxies, of which those are asked that call the service


class ServiceEndpoints:
    """Handler of `_endpoints` below a service."""

    def __init__(self, context: Context, surveys: Surveys) -> None:
        self._context = context
        self._surveys = surveys

    async def show(self, call: Call, kind: Kind, mesh: str, name: str) -> web.StreamResponse:
        """The endpoints of a service, and why requests to it fail."""
        context = self._context
        seconds = survey_answers.seconds(call, SECONDS_DEFAULT)
        limit = survey_answers.count(call, "limit", LIMIT_DEFAULT, LIMIT_MAX)
        context.check(call.user, "get", kind, mesh, name)
        db = await context.database()
        context.check_mesh(call.user, mesh)
        destination = context.find(call.user, kind, mesh, name).key
        inbounds = serving.inbounds(db, destination)
        connected = {state.key: state.core_name for state in self._surveys.connected(mesh)}
        calling = _calling(db, destination, tuple(connected))
        callers = envoy_survey.spread(calling, limit)
        if serving.egresses(db, destination):  # they call it for the others
            egresses = {state.key: state.core_name for state in self._surveys.egresses()}
            callers, calling = (*callers, *egresses), (*calling, *egresses)
            connected |= egresses
        serving_proxies = [key for key in dict.fromkeys(each.proxy for each in inbounds) if key in connected]
        own = envoy_survey.spread(serving_proxies, limit)
        survey = await self._asked(_paths(db, destination, callers, own), seconds)
        # The store may have changed meanwhile; what is reported is what is stored now.
        db = await context.database()
        if world.destination(db, destination) is None:
            context.find(call.user, kind, mesh, name)
        unanswered = dict(survey.unanswered)
        seen = Observations(
            seconds=seconds,
            callers=tuple(_readable(survey, callers, connected, unanswered, _of_caller).values()),
            serving=_readable(survey, own, connected, unanswered, _of_server),
            connections={each.proxy: _connection(self._surveys.of(each.proxy)) for each in inbounds},
        )
        report = service_health.report(db, destination, seen)
        may_list = context.access.allows_on(call.user, "list", context.kinds[SIDECAR.kind].plural, "", mesh)
        names = connected if may_list else {}
        return answer_json(
            {
                **meta(db, destination),
                "seconds": seconds,
                "state": report.state,
                "summary": report.summary,
                "reasons": report.reasons,
                "endpoints": report.endpoints,
                "callers": {
                    "calling": report.n_callers,
                    **_asked_json(callers, len(calling), unanswered, names),
                },
                "servers": _asked_json(own, len(serving_proxies), unanswered, connected),
            }
        )

    async def _asked(self, paths: Mapping[Key, Sequence[str]], seconds: float) -> Survey:
        if not paths:
            return Survey({}, {})
        views = self._surveys.views()
        async with self._surveys.turn():
            return await envoy_survey.look_twice(views, paths, seconds)


def _calling(db: Db, destination: Key, connected: Sequence[Key]) -> Sequence[Key]:
    """The connected proxies that call a destination, as far as they are looked at.

    Where none does by its outbounds, some may by a route: then it is all, and those count that have it.
    """
    looked_at = [key for key in envoy_survey.spread(connected, _LOOKED_AT_MAX) if world.proxy(db, key)]
    calling = [key for key in looked_at if any(p.destination == destination for p in inspect.called(db, key))]
    return calling or looked_at


def _paths(
    db: Db, destination: Key, callers: Iterable[Key], own: Iterable[Key]
) -> dict[Key, tuple[str, ...]]:
    """The pages to ask each proxy for: those of a caller first, then that of one that serves."""
    name = kri(db, destination)
    paths = dict.fromkeys(callers, (cluster_hosts.path_of(name), stats.obstacles_path(name)))
    return paths | {key: (*paths.get(key, ()), cluster_hosts.path_of(kri(db, key))) for key in own}


def _readable(
    survey: Survey,
    keys: Iterable[Key],
    names: Mapping[Key, str],
    unanswered: dict[Key, str],
    read: Callable[[str, TwoAnswers], EnvoyAnswers],
) -> dict[Key, EnvoyAnswers]:
    """What proxies answered; who did so in a way that cannot be read is noted as one that did not."""
    answers: dict[Key, EnvoyAnswers] = {}
    for key in keys:
        if key in survey.answers:
            try:
                answers[key] = read(names[key], survey.answers[key])
            except UnreadableAnswer as error:
                unanswered[key] = str(error)
    return answers


def _of_caller(name: str, answers: TwoAnswers) -> EnvoyAnswers:
    hosts_before, figures_before = _caller_pages(answers.before)
    hosts, figures = _caller_pages(answers.after)
    return EnvoyAnswers(name, hosts_before, hosts, figures_before, figures)


def _caller_pages(pages: Pages) -> tuple[cluster_hosts.Hosts, stats.Sample]:
    return cluster_hosts.read(pages[0]), stats.read(pages[1])


def _of_server(name: str, answers: TwoAnswers) -> EnvoyAnswers:
    """What an Envoy says about its own inbounds: the last page."""
    return EnvoyAnswers(name, cluster_hosts.read(answers.before[-1]), cluster_hosts.read(answers.after[-1]))


def _connection(state: ProxyState | None) -> Connection:
    if state is None:
        return Connection(is_connected=False, text="no control plane has seen its proxy; is it running?")
    if state.disconnected_at is None:
        return Connection(is_connected=True)
    since = state.disconnected_at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return Connection(
        is_connected=False, text=f"its proxy has not been connected since {since}; is it running?"
    )


def _asked_json(
    asked: Sequence[Key], n_connected: int, unanswered: Mapping[Key, str], names: Mapping[Key, str]
) -> dict[str, Json]:
    failed = {key: reason for key, reason in unanswered.items() if key in asked}
    shown = survey_answers.asked_json(n_connected, len(asked), failed, names)
    return shown if names else {**shown, "unanswered": []}
