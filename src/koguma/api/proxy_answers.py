"""Proxy answers: what acts on a proxy, and its configuration, worked out where the proxy is.

On Global the zone of the proxy answers, over its connection: its engine has the zone's view. Whether a user
may see the answer is decided by who was asked first.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from koguma.application import configuration
from koguma.application.context import Context
from koguma.core import egress_view, inspect, rules_view
from koguma.core.build import encoding, snapshot, what_if
from koguma.core.envoy_origins import origins, paths
from koguma.core.envoy_origins.paths import NoSuchField
from koguma.core.incremental import Db
from koguma.core.rules import PortRules
from koguma.envoy.snapshot import SECRET, TYPE_URLS
from koguma.fleet.zone_questions import InspectQuestion, ZoneQuestions
from koguma.model import json_diff
from koguma.model.errors import NotAllowed, NotFound, NotSupported, Unavailable
from koguma.model.redacted import SHOWN
from koguma.model.resource import Key
from koguma.model.schema import Json

RULES: Final = "_rules"
POLICIES: Final = "_policies"
LAYOUT: Final = "_layout"
CONFIG: Final = "_config"
EXPLAIN: Final = "_explain"  # who set fields of its Envoy
INBOUND_POLICIES: Final = "_inbounds/{kri}/_policies"
OUTBOUND_POLICIES: Final = "_outbounds/{kri}/_policies"
OUTBOUND_ROUTES: Final = "_outbounds/{kri}/_routes"
ROUTE_POLICIES: Final = "_outbounds/{kri}/_routes/{route}/_policies"
SERVICES: Final = "services"  # of a zone egress

_NO_POLICIES: Final[Mapping[str, Json]] = {"policies": []}


class ProxyAnswers:
    """Answers for any proxy; `zones` are asked on Global, and None elsewhere."""

    def __init__(self, context: Context, zones: Callable[[], ZoneQuestions | None] = lambda: None) -> None:
        self._context = context
        self._zones = zones

    async def of(self, question: InspectQuestion, context: Context) -> bytes:
        """The answer as JSON, as of the moment of the context, worked out here or in the proxy's zone."""
        zones = self._zones()
        if context.moment is not None:
            if zones is not None and question.key.zone:
                raise NotAllowed(
                    f"{question.key} is configured in zone {question.key.zone}, whose control plane has a"
                    " history of its own: ask it there, or leave out the parameter at"
                )
            answer = _answer_to(question)
            found = await context.moment.ask(lambda db: answer(context, db, question))
            return msgspec.json.encode(_known(found))
        if zones is None or not question.key.zone:
            return await self.here(question)
        return await zones.inspect(question)

    async def here(self, question: InspectQuestion) -> bytes:
        """The answer for a proxy of this control plane's own store."""
        answer = _answer_to(question)
        db = await self._context.database()
        if self._context.state.get(question.key) is None:
            raise NotFound(f"{question.key} is not stored")
        if question.path == EXPLAIN:  # which changes the database that it asks, and never the live one
            trials, store = self._context.trials, self._context.store
            explained = await trials.ask(
                db, store, (), lambda trial: answer(self._context, trial, question), compiles=True
            )
            return msgspec.json.encode(_known(explained))
        if question.path != CONFIG:
            return msgspec.json.encode(answer(self._context, db, question))
        found = await configuration.ask(
            self._context, lambda db: answer(self._context, db, question), question.key
        )
        return msgspec.json.encode(found)


def _rules(_context: Context, db: Db, asked: InspectQuestion) -> Json:
    return rules_view.of_proxy(db, asked.key, fields=asked.fields)


def _policies(_context: Context, db: Db, asked: InspectQuestion) -> Json:
    return inspect.whole_policies(db, asked.key, fields=asked.fields)


def _layout(_context: Context, db: Db, asked: InspectQuestion) -> Json:
    return inspect.layout(db, asked.key)


def _inbound_policies(context: Context, db: Db, asked: InspectQuestion) -> Json:
    named_proxy, section = _part(context, asked.kris[0])
    if named_proxy != asked.key:
        return _NO_POLICIES
    sections = inspect.inbound_sections(db, asked.key)
    if section not in sections:
        existing = f"it has {', '.join(sections)}" if sections else "it has none"
        raise NotFound(f'Dataplane "{asked.key.name}" has no inbound "{section}"; {existing}')
    return inspect.inbound_policies(db, asked.key, section, fields=asked.fields)


def _outbound_policies(context: Context, db: Db, asked: InspectQuestion) -> Json:
    port = _outbound(context, db, asked)
    return inspect.outbound_policies(db, port, fields=asked.fields) if port else _NO_POLICIES


def _outbound_routes(context: Context, db: Db, asked: InspectQuestion) -> Json:
    port = _outbound(context, db, asked)
    return inspect.outbound_routes(db, port, fields=asked.fields) if port else {"routes": []}


def _route_policies(context: Context, db: Db, asked: InspectQuestion) -> Json:
    port = _outbound(context, db, asked)
    named = inspect.route_named(db, port, asked.kris[1]) if port else None
    route = named or _part(context, asked.kris[1])[0]
    return inspect.route_policies(db, port, route, fields=asked.fields) if port else _NO_POLICIES


def _config(_context: Context, db: Db, asked: InspectQuestion) -> Json:
    current = config_of(db, asked.key)
    shadows = what_if.with_shadows(db, asked.key.mesh) if asked.is_shadow else None
    config = config_of(shadows, asked.key) if shadows is not None else current
    return {"xds": config, **({"diff": json_diff.patch(current, config)} if asked.has_diff else {})}


def _explained(_context: Context, db: Db, asked: InspectQuestion) -> Json | NoSuchField:
    """The fields with who set them. That a path leads nowhere is an answer, too: the database stays good."""
    try:
        return origins.answered(asked.key, paths.parsed(asked.field), db)
    except NoSuchField as error:
        return error


def _known(answer: Json | NoSuchField) -> Json:
    if isinstance(answer, NoSuchField):
        raise answer
    return answer


def _services(_context: Context, db: Db, asked: InspectQuestion) -> Json:
    meshes = asked.meshes
    return {
        "services": [
            each for mesh in meshes for each in egress_view.policies(db, asked.key, mesh, fields=asked.fields)
        ]
    }


_Answer = Callable[[Context, Db, InspectQuestion], Json]
_ANSWERS: Final[Mapping[str, _Answer]] = {
    RULES: _rules,
    POLICIES: _policies,
    LAYOUT: _layout,
    CONFIG: _config,
    EXPLAIN: _explained,
    INBOUND_POLICIES: _inbound_policies,
    OUTBOUND_POLICIES: _outbound_policies,
    OUTBOUND_ROUTES: _outbound_routes,
    ROUTE_POLICIES: _route_policies,
    SERVICES: _services,
}


def _answer_to(question: InspectQuestion) -> _Answer:
    answer = _ANSWERS.get(question.path)
    if answer is None or len(question.kris) != question.path.count("{"):
        raise NotSupported(f'this control plane has no answer to "{question.path[:100]}"')
    return answer


def _outbound(context: Context, db: Db, asked: InspectQuestion) -> PortRules | None:
    destination, section = _part(context, asked.kris[0])
    return inspect.outbound(db, asked.key, destination, section)


def _part(context: Context, kri: str) -> tuple[Key, str]:
    """The object and the section of a KRI in a path."""
    _, key, section = context.parse_kri(kri)
    return key, section


def config_of(db: Db, proxy: Key) -> dict[str, dict[str, Json]]:
    """The xDS resources of a proxy, by type and name; secrets are masked."""
    encoder = encoding.ENCODER.get(db, "envoy")
    if encoder is None:
        raise Unavailable("this control plane has no Envoy schema; see `koguma check`")
    resources_by_type: dict[str, dict[str, Json]] = {}
    for resource in sorted(snapshot.of(db, proxy) or (), key=lambda resource: resource.id):
        data = SHOWN if resource.type == SECRET else encoder.shown(resource)
        resources_by_type.setdefault(TYPE_URLS[resource.type], {})[resource.name] = data
    return resources_by_type
