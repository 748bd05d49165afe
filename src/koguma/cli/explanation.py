"""Explanation: who set each value for a proxy's calls, from the Inspect API or from the engine on files.

Both answer with the same values, since the API shows what the engine's own views give.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote

from koguma.cli import inputs
from koguma.cli.client import ApiClient
from koguma.cli.failures import CommandFailure
from koguma.core import inspect, match, world
from koguma.core.incremental import Db
from koguma.core.rules import PortRules
from koguma.model import kri
from koguma.model.documents import Document
from koguma.model.kind import Kinds
from koguma.model.kri import Kri
from koguma.model.resource import Key

Json = Any

_FIELDS: Final = (("origins", "fields"),)
_WITH_MESH: Final = "with the mesh"


class InspectSource(Protocol):
    """Where answers about one proxy come from; outbounds and routes are named by KRI."""

    def layout(self) -> Json:
        """The ports that the proxy serves and calls."""

    def policies(self, outbound: str) -> Json:
        """What holds for calls to a port."""

    def routes(self, outbound: str) -> Json:
        """The routes of calls to a port."""

    def route_policies(self, outbound: str, route: str) -> Json:
        """What holds for calls to a port through a route."""

    def place(self, origin: Mapping[str, Json]) -> str:
        """Where people find what an origin names."""

    def line(self, origin: Mapping[str, Json]) -> str:
        """The same in a few letters."""


class ServerInspect:
    """Answers of a server."""

    def __init__(self, client: ApiClient, mesh: str, name: str) -> None:
        self._client = client
        self._base = f"/meshes/{quote(mesh, safe='')}/dataplanes/{quote(name, safe='')}"

    def layout(self) -> Json:
        """The ports that the proxy serves and calls."""
        return self._client.get(f"{self._base}/_layout").object

    def rules(self) -> Json:
        """All rules of the proxy."""
        return self._client.get(f"{self._base}/_rules").object

    def policies(self, outbound: str) -> Json:
        """What holds for calls to a port."""
        return self._client.get(f"{self._base}/_outbounds/{outbound}/_policies", _FIELDS).object

    def routes(self, outbound: str) -> Json:
        """The routes of calls to a port."""
        return self._client.get(f"{self._base}/_outbounds/{outbound}/_routes", _FIELDS).object

    def route_policies(self, outbound: str, route: str) -> Json:
        """What holds for calls to a port through a route."""
        path = f"{self._base}/_outbounds/{outbound}/_routes/{route}/_policies"
        return self._client.get(path, _FIELDS).object

    def place(self, origin: Mapping[str, Json]) -> str:
        """The field and its line in what `koguma get -o yaml` prints."""
        return f"{origin['path']}, {self.line(origin)}"

    def line(self, origin: Mapping[str, Json]) -> str:
        """The line alone."""
        return f"line {origin['line']}"


class FilesInspect:
    """Answers of the engine on files."""

    def __init__(self, db: Db, kinds: Kinds, proxy: Key, documents: Mapping[Key, Document]) -> None:
        self._db, self._kinds, self._proxy, self._documents = db, kinds, proxy, documents

    def layout(self) -> Json:
        """The ports that the proxy serves and calls."""
        return inspect.layout(self._db, self._proxy)

    def policies(self, outbound: str) -> Json:
        """What holds for calls to a port."""
        return inspect.outbound_policies(self._db, self._port(outbound), fields=True)

    def routes(self, outbound: str) -> Json:
        """The routes of calls to a port."""
        return inspect.outbound_routes(self._db, self._port(outbound), fields=True)

    def route_policies(self, outbound: str, route: str) -> Json:
        """What holds for calls to a port through a route."""
        return inspect.route_policies(self._db, self._port(outbound), self._key(route), fields=True)

    def place(self, origin: Mapping[str, Json]) -> str:
        """File, line and column; what no file holds comes with a mesh."""
        found = self.line(origin)
        return f"{origin['path']}, which comes with the mesh" if found == _WITH_MESH else found

    def line(self, origin: Mapping[str, Json]) -> str:
        """File, line and column, or why there are none."""
        document = self._documents.get(self._key(origin["kri"]))
        return inputs.place(document, origin["path"]) if document else _WITH_MESH

    def _port(self, outbound: str) -> PortRules:
        found = inspect.outbound(self._db, self._proxy, self._key(outbound), kri.parse(outbound).section)
        assert found is not None, outbound  # it is one of the layout's
        return found

    def _key(self, text: str) -> Key:
        own = kri.parse(text)
        return Key(self._kinds.by_short[own.short].name, own.mesh, own.zone, own.namespace, own.name)


def proxy_named(db: Db, mesh: str, name: str) -> Key:
    """The proxy of that name in files."""
    known = {key: world.proxy(db, key) for key in match.proxies(db, mesh)}
    for key, proxy in known.items():
        if proxy is not None and name in (proxy.core_name, key.name):
            return key
    there = ", ".join(key.name for key in known) or "none"
    raise CommandFailure(f'the files have no Dataplane "{name}" in mesh "{mesh}"; they have {there}')


class ExplainedField(NamedTuple):
    """A value for calls to a port, through a route or not, and who set it."""

    to: str
    route: str
    kind: str
    field: str
    value: Json
    origin: Mapping[str, Json]
    losers: Sequence[Mapping[str, Json]]
    requests: str = ""  # which, where a route's rule says so


def protocols(layout: Json) -> dict[str, str]:
    """What the ports that a proxy calls speak, by KRI."""
    return {each["kri"]: str(each.get("protocol") or "") for each in layout["outbounds"] if each["kri"]}


def chosen(layout: Json, to: str, port: str) -> list[str]:
    """The outbounds that are meant by a service (name, kind/name or KRI) and maybe a port."""
    outbounds = [(kri.parse(each["kri"]), each) for each in layout["outbounds"] if each["kri"]]
    named = [(own, each) for own, each in outbounds if to in _words(own)]
    if not named:
        there = ", ".join(sorted({own.name for own, _ in outbounds})) or "nothing"
        raise CommandFailure(f'the proxy does not call "{to}"; it can call {there}')
    found = [str(own) for own, each in named if port in ("", own.section, str(each["port"]))]
    if not found:
        ports = ", ".join(f"{own.section} ({each['port']})" for own, each in named)
        raise CommandFailure(f'"{to}" has no port "{port}"; it has {ports}')
    return found


def _words(own: Kri) -> tuple[str, ...]:
    """What people may call a destination."""
    names = (own.name, f"{own.name}.{own.namespace}")
    kinds = {"msvc": "meshservice", "extsvc": "meshexternalservice", "mzsvc": "meshmultizoneservice"}
    return (
        *names,
        *(f"{kind}/{name}" for kind in (own.short, kinds.get(own.short, "")) for name in names),
        str(own),
        str(own.with_section("")),
    )


def rows(source: InspectSource, outbounds: Iterable[str], route: str = "") -> Iterator[ExplainedField]:
    """All values for calls to these ports; with a route, for calls through it only."""
    for outbound in outbounds:
        if not route:
            yield from _policies(outbound, "", source.policies(outbound))
        routed = source.routes(outbound)["routes"]
        yield from (row for row in _rules(outbound, routed) if not route or _is_called(row.route, route))
        for name in dict.fromkeys(origin["kri"] for each in routed for origin in each["origins"]):
            if not route or _is_called(name, route):
                yield from _policies(outbound, name, source.route_policies(outbound, name))


def inactive(source: InspectSource, outbounds: Iterable[str], kind: str) -> list[str]:
    """The policies of a kind that are stored for calls to these ports, and do not act yet."""
    answers = (source.policies(outbound).get("inactive") or () for outbound in outbounds)
    found = (each for answer in answers for each in answer if each["kind"] == kind)
    return list(dict.fromkeys(kri.parse(o["kri"]).name for each in found for o in each["origins"]))


def _is_called(text: str, word: str) -> bool:
    if not text:
        return False
    own = kri.parse(text)
    return word in (text, own.name, f"{own.name}.{own.namespace}")


def _policies(outbound: str, route: str, answer: Json) -> Iterator[ExplainedField]:
    for policy in answer["policies"]:
        for field, origin in policy["fieldOrigins"].items():
            yield ExplainedField(
                outbound, route, policy["kind"], field, origin["value"], origin, origin["losers"]
            )


def _rules(outbound: str, routed: Json) -> Iterator[ExplainedField]:
    """What routes themselves say; a rule bears the KRI of the most important route that has it."""
    for each in routed:
        for rule in each["rules"]:
            for path, origin in rule["fieldOrigins"].items():
                name, field = rule["kri"] or origin["kri"], path.removeprefix("default.")
                if field != "matches":
                    requests = matched(rule["matches"])
                    found = origin["value"], origin, origin["losers"], requests
                    yield ExplainedField(outbound, name, each["kind"], field, *found)


def matched(matches: Json) -> str:
    """The requests of a rule in a few words."""
    return " or ".join(" ".join(_conditions(one)) or "all requests" for one in matches or ())


def _conditions(one: Json) -> Iterator[str]:
    if one.get("method"):
        yield str(one["method"])
    if one.get("path"):
        yield f"{one['path'].get('type', 'PathPrefix')} {one['path'].get('value', '/')}"
    for word, listed in (("header", one.get("headers")), ("query", one.get("queryParams"))):
        for each in listed or ():
            yield f"{word} {each.get('name')} {each.get('type', 'Exact')} {each.get('value', '')}".rstrip()


def is_of_field(row: ExplainedField, field: str) -> bool:
    """Whether a row is of this field or below it; `requestTimeout` means `http.requestTimeout` too."""
    above = row.field.startswith((f"{field}.", f"{field}["))
    return not field or row.field == field or row.field.endswith(f".{field}") or above


def without_inherited(found: Sequence[ExplainedField]) -> Iterator[ExplainedField]:
    """The rows, less those of routes that only repeat what holds for the port anyway."""
    plain = [row for row in found if not row.route]
    for row in found:
        if not row.route or row.requests or not any(is_same(row, other) for other in plain):
            yield row


def is_same(one: ExplainedField, other: ExplainedField) -> bool:
    """Whether two rows say the same about the same port, one of them maybe through a route."""
    mine, theirs = (
        (row.to, row.kind, row.field, row.origin["kri"], row.origin["path"]) for row in (one, other)
    )
    return mine == theirs
