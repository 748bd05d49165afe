"""Top: requests, errors and latencies of the services and proxies of a mesh, as their Envoys count them.

The right to list the Dataplanes of a mesh is enough: figures of Envoys are no configuration. At most `limit`
proxies are asked for one answer, which says how many there are.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from aiohttp import web

from koguma.api import survey_answers
from koguma.api.call import Call, answer_json
from koguma.api.survey_answers import Surveys
from koguma.application.context import Context
from koguma.core import traffic
from koguma.core.traffic import ProxySamples, ProxyTraffic
from koguma.envoy import stats
from koguma.envoy.stats import UnreadableAnswer
from koguma.fleet import envoy_survey
from koguma.fleet.envoy_survey import TwoAnswers
from koguma.identity.proxy_types import SIDECAR
from koguma.model import kri
from koguma.model.errors import BadRequest
from koguma.model.kind import Kind
from koguma.model.resource import Key
from koguma.model.schema import Json

SECONDS_DEFAULT: Final = 2.0
LIMIT_DEFAULT: Final = 100
LIMIT_MAX: Final = 500
_SORTS: Final = ("services", "proxies")


class Top:
    """Handler of `/meshes/{mesh}/_top`."""

    def __init__(self, context: Context, surveys: Surveys) -> None:
        self._context = context
        self._surveys = surveys

    async def show(self, call: Call, _kind: Kind, mesh: str) -> web.StreamResponse:
        """What happens in a mesh, by service or by proxy."""
        context = self._context
        by = call.query.get("by", _SORTS[0])
        if by not in _SORTS:
            raise BadRequest(f'query parameter "by" must be one of {", ".join(_SORTS)}, not "{by[:100]}"')
        seconds = survey_answers.seconds(call, SECONDS_DEFAULT)
        limit = survey_answers.count(call, "limit", LIMIT_DEFAULT, LIMIT_MAX)
        names = frozenset(call.query.getall("name", []))
        context.check(call.user, "list", context.kinds[SIDECAR.kind], mesh)
        context.check_mesh(call.user, mesh)
        views = self._surveys.views()
        known = {state.key: state.core_name for state in self._surveys.connected(mesh)}
        chosen = [key for key, name in known.items() if by == "services" or not names or name in names]
        asked = envoy_survey.spread(chosen, limit)
        async with self._surveys.turn():
            survey = await envoy_survey.look_twice(
                views, dict.fromkeys(asked, (stats.traffic_path(),)), seconds
            )
        unanswered = dict(survey.unanswered)
        samples: dict[Key, ProxySamples] = {}
        for key, answers in survey.answers.items():
            try:
                samples[key] = _samples(answers)
            except UnreadableAnswer as error:
                unanswered[key] = str(error)
        rows = self._services(call, samples) if by == "services" else _proxies(samples, known)
        items = [row for row in rows if not names or row["name"] in names]
        return answer_json(
            {
                "mesh": mesh,
                "by": by,
                "seconds": seconds,
                "proxies": survey_answers.asked_json(len(chosen), len(asked), unanswered, known),
                "total": len(items),
                "items": items,
            }
        )

    def _services(self, call: Call, samples: Mapping[Key, ProxySamples]) -> Iterator[dict[str, Json]]:
        for service in traffic.of_services(samples.values()):
            named = self._named(call, service.kri)
            if named is not None:
                rates = traffic.rates_json(service.rates)
                yield {**named, "kri": service.kri, "callers": service.n_callers, **rates}

    def _named(self, call: Call, identifier: str) -> dict[str, Json] | None:
        """The kind and core name of a service that the user may see; None of one that is no more."""
        try:
            kind, key, _ = self._context.parse_kri(identifier)
        except kri.InvalidKri:
            return None
        stored = self._context.state.get(key)
        if stored is None or not self._context.access.allows_on(call.user, "list", kind.plural, "", key.mesh):
            return None
        return {"type": kind.name, "name": stored.core_name}


def _samples(answers: TwoAnswers) -> ProxySamples:
    (before,), (after,) = answers.before, answers.after
    return ProxySamples(stats.read(before), stats.read(after), answers.seconds)


def _proxies(samples: Mapping[Key, ProxySamples], names: Mapping[Key, str]) -> Iterator[dict[str, Json]]:
    """The proxies, the busiest first."""
    rows = sorted(
        ((names[key], row) for key, row in _of_proxies(samples)),
        key=lambda each: (-_n_requests(each[1]), each[0]),
    )
    for name, row in rows:
        served, called = traffic.rates_json(row.served), traffic.rates_json(row.called)
        yield {"type": SIDECAR.kind, "name": name, "served": served, "called": called}


def _of_proxies(samples: Mapping[Key, ProxySamples]) -> Iterator[tuple[Key, ProxyTraffic]]:
    return ((key, traffic.of_proxy(each)) for key, each in samples.items())


def _n_requests(row: ProxyTraffic) -> float:
    return row.served.requests + row.called.requests
