"""Can: whether one may call another, and who decides it; simulated on the newest revision.

Who may list the Dataplanes and the MeshServices of a mesh may ask. Other kinds of what is called, and the
policies and routes that an answer names, are shown only to who may read them. On Global the zones of the
callers are asked, and what their answers name is shown by the rights on Global.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Final, Literal

import msgspec
from aiohttp import web

from koguma.access.user import User
from koguma.api.call import Call, answer_json
from koguma.application import configuration
from koguma.application.context import Context, mesh_key
from koguma.core import world
from koguma.core.build import encoding
from koguma.core.gateways import GATEWAY
from koguma.core.incremental import Db
from koguma.core.simulation import answers, parties
from koguma.core.simulation.answers import CallQuestion
from koguma.core.simulation.calls import CallSimulator
from koguma.core.world import DESTINATION_KINDS
from koguma.envoy.simulation.traffic import METHOD_WORDS, SimulatedRequest, is_method
from koguma.fleet.zone_questions import CanQuestion, ZoneQuestions
from koguma.identity.proxy_types import SIDECAR
from koguma.model import kri
from koguma.model.errors import BadGateway, BadRequest, Forbidden, KogumaError, NotFound, Unavailable
from koguma.model.kind import Kind
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.model.violation import Violation

_KRI: Final = re.compile(r"kri(?:_[A-Za-z0-9.-]*){6}")
# An object whose name makes no identifier, as text.
_KEY: Final = re.compile(r'([A-Z]\w+) "[^"]*"(?: \([^)]*\))?')
_REQUIRED: Final = (SIDECAR.kind, "MeshService")
_HEADERS_MAX: Final = 100


class _CanAnswer(msgspec.Struct, frozen=True):
    """What is read of a zone's answer."""

    verdict: Literal["yes", "partly", "no", "unknown"]
    groups: list[dict[str, Json]]


class Can:
    """Handler of `/meshes/{mesh}/_can`."""

    def __init__(self, context: Context, zones: Callable[[], ZoneQuestions | None] = lambda: None) -> None:
        self._context = context
        self._zones = zones

    async def show(self, call: Call, _kind: Kind, mesh: str) -> web.StreamResponse:
        """Whether the query's `from` may call its `to`."""
        context, user = self._context, call.user
        call_question = _question(call)
        for name in _REQUIRED:
            context.check(user, "list", context.kinds[name], mesh)
        db = await context.database()
        context.check_mesh(user, mesh)
        visible = tuple(
            name
            for name in (*DESTINATION_KINDS, GATEWAY, SIDECAR.kind)
            if context.access.allows_on(user, "list", context.kinds[name].plural, "", mesh)
        )
        question, zones = CanQuestion(mesh, call_question, visible), self._zones()
        found = await self._of_zones(db, question, zones) if zones is not None else await self._here(question)
        # The engine may have been in use by a thread meanwhile, so it is asked for again.
        return answer_json(self._readable(await context.database(), user, found))

    async def received(self, question: CanQuestion) -> bytes:
        """The answer of this zone to Global, which decides what of it its user may read."""
        if self._context.state.get(mesh_key(question.mesh)) is None:
            raise NotFound(f'there is no mesh "{question.mesh[:100]}" here yet')
        return msgspec.json.encode(await self._here(question))

    async def _here(self, question: CanQuestion) -> Json:
        asked, mesh, visible = question.call, question.mesh, frozenset(question.visible)
        if encoding.ENCODER.get(await self._context.database(), "envoy") is None:
            raise Unavailable("this control plane has no Envoy schema; see `koguma check`")

        def simulated(of: Db) -> Json:
            return answers.shown(of, asked, answers.groups(CallSimulator(of, mesh), asked, visible))

        return await configuration.ask(self._context, simulated)

    async def _of_zones(self, db: Db, question: CanQuestion, questions: ZoneQuestions) -> Json:
        """What the zones of the callers say; an error where none of them answers."""
        call, mesh = question.call, question.mesh
        exact = msgspec.structs.replace(
            call, caller=parties.exact(db, mesh, call.caller), to=parties.exact(db, mesh, call.to)
        )
        zones = answers.zones(db, mesh, exact, frozenset(question.visible))
        sent = msgspec.structs.replace(question, call=exact)
        found = await asyncio.gather(*(_asked(questions, zone, sent) for zone in zones))
        by_zone = {
            zone: each for zone, each in zip(zones, found, strict=True) if isinstance(each, _CanAnswer)
        }
        errors = {
            zone: each for zone, each in zip(zones, found, strict=True) if isinstance(each, KogumaError)
        }
        if not by_zone:
            raise next(iter(errors.values()))
        verdicts = [*(each.verdict for each in by_zone.values()), *(answers.UNKNOWN for _ in errors)]
        groups = [{**group, "zone": zone} for zone, each in by_zone.items() for group in each.groups]
        answer: dict[str, Json] = {
            "from": call.caller,
            "to": call.to,
            "verdict": answers.together(verdicts),
            "groups": groups,
        }
        unknown = [{"zone": zone, "reason": error.detail} for zone, error in errors.items()]
        return {**answer, "unknownZones": unknown} if unknown else answer

    def _readable(self, db: Db, user: User, value: Json) -> Json:
        """The answer without what this user may not read: wherever a KRI of it stands."""
        if isinstance(value, str):
            text = _KRI.sub(lambda found: self._named(db, user, found[0]), value)
            return _KEY.sub(lambda found: self._of_kind(user, found), text)
        if isinstance(value, list):
            kept = (each for each in value if not self._is_hidden_origin(db, user, each))
            return [self._readable(db, user, each) for each in kept]
        if isinstance(value, dict):
            return {
                self._readable(db, user, name): self._readable(db, user, inner)
                for name, inner in value.items()
            }
        return value

    def _is_hidden_origin(self, db: Db, user: User, value: Json) -> bool:
        is_origin = isinstance(value, dict) and "kri" in value
        return is_origin and self._named(db, user, value["kri"]) != value["kri"]

    def _of_kind(self, user: User, found: re.Match[str]) -> str:
        kind = self._context.kinds.get(found[1])
        if kind is None or self._context.access.allows_on(user, "list", kind.plural, "", ""):
            return found[0]
        return f"a {kind.name} that you may not read"

    def _named(self, db: Db, user: User, identifier: str) -> str:
        """An identifier, or words for it where the user may not read what it identifies."""
        try:
            kind, key, _ = self._context.parse_kri(identifier)
        except kri.InvalidKri:
            return "an object that you may not read"
        try:
            self._context.check(user, "get", kind, key.mesh, _core_name(db, key))
        except Forbidden:
            return f"a {kind.name} that you may not read"
        return identifier


async def _asked(questions: ZoneQuestions, zone: str, question: CanQuestion) -> "_CanAnswer | KogumaError":
    try:
        return msgspec.json.decode(await questions.can(zone, question), type=_CanAnswer)
    except msgspec.MsgspecError:
        return BadGateway(f'zone "{zone}" answers with something that is no answer')
    except KogumaError as error:
        return error


def _core_name(db: Db, key: Key) -> str:
    """The name by which rights are asked; on Global none for what a zone alone has, where all is needed."""
    resource = world.RESOURCES.get(db, key)
    if resource is None:
        return "" if world.control_plane(db).is_global else key.name
    return resource.core_name


def _question(call: Call) -> CallQuestion:
    query = call.query
    wrong = [
        Violation(name, "must be given: a name, KIND/NAME or a KRI", "required")
        for name in ("from", "to")
        if not query.get(name)
    ]
    path = query.get("path", "/")
    if not path.startswith("/"):
        wrong.append(Violation("path", "must start with a slash", "format"))
    if not is_method(query.get("method", "GET")):
        wrong.append(Violation("method", METHOD_WORDS, "format"))
    written = query.getall("header", [])
    wrong += [
        Violation("header", f'must be NAME:VALUE, not "{each[:100]}"', "format")
        for each in written
        if not each.partition(":")[0].strip() or ":" not in each
    ]
    if len(written) > _HEADERS_MAX:
        wrong.append(Violation("header", f"at most {_HEADERS_MAX} may be given", "maximum"))
    if wrong:
        raise BadRequest("the query cannot be read", violations=wrong)
    headers = tuple(
        (name.strip().lower(), value.strip()) for name, _, value in (each.partition(":") for each in written)
    )
    request = SimulatedRequest(query.get("method", "GET"), path, query.get("host", ""), headers)
    return CallQuestion(query["from"], query["to"], query.get("port", ""), request)
