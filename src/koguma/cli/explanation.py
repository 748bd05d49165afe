"""Explanation: which policy set each value for a proxy's calls, from the Inspect API or from files.

Both sources give the same data: the API serves the views of the policy engine, and files are loaded into the
same engine here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import quote

from koguma.cli import inputs
from koguma.cli.client import ApiClient, Query
from koguma.cli.failures import CommandFailure
from koguma.core import inspect, request_words, world
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
    """A source of Inspect data about one proxy; outbounds and routes are named by KRI."""

    def layout(self) -> Json:
        """The inbounds and outbounds of the proxy."""

    def policies(self, outbound: str) -> Json:
        """The policies for calls to an outbound."""

    def routes(self, outbound: str) -> Json:
        """The routes of calls to an outbound."""

    def route_policies(self, outbound: str, route: str) -> Json:
        """The policies for calls to an outbound through a route."""

    def place(self, origin: Mapping[str, Json]) -> str:
        """Where the value of an origin is written."""

    def line(self, origin: Mapping[str, Json]) -> str:
        """The same, short."""


class ServerInspect:
    """Inspect data of a server."""

    def __init__(self, client: ApiClient, mesh: str, name: str, query: Query = ()) -> None:
        """`query` goes with each request: the past moment that is asked about."""
        self._client = client
        self._query = query
        self._base = f"/meshes/{quote(mesh, safe='')}/dataplanes/{quote(name, safe='')}"

    def layout(self) -> Json:
        """The inbounds and outbounds of the proxy."""
        return self._client.get(f"{self._base}/_layout", self._query).object

    def rules(self) -> Json:
        """All rules of the proxy."""
        return self._client.get(f"{self._base}/_rules", self._query).object

    def policies(self, outbound: str) -> Json:
        """The policies for calls to an outbound."""
        return self._fields(f"_outbounds/{outbound}/_policies")

    def routes(self, outbound: str) -> Json:
        """The routes of calls to an outbound."""
        return self._fields(f"_outbounds/{outbound}/_routes")

    def route_policies(self, outbound: str, route: str) -> Json:
        """The policies for calls to an outbound through a route."""
        return self._fields(f"_outbounds/{outbound}/_routes/{route}/_policies")

    def _fields(self, path: str) -> Json:
        return self._client.get(f"{self._base}/{path}", (*_FIELDS, *self._query)).object

    def place(self, origin: Mapping[str, Json]) -> str:
        """The field, and its line in the output of `koguma get -o yaml`."""
        return f"{origin['path']}, {self.line(origin)}"

    def line(self, origin: Mapping[str, Json]) -> str:
        """The line alone."""
        return f"line {origin['line']}"


class FilesInspect:
    """Inspect data of the policy engine, with the objects of files."""

    def __init__(self, db: Db, kinds: Kinds, proxy: Key, documents: Mapping[Key, Document]) -> None:
        self._db, self._kinds, self._proxy, self._documents = db, kinds, proxy, documents

    def layout(self) -> Json:
        """The inbounds and outbounds of the proxy."""
        return inspect.layout(self._db, self._proxy)

    def policies(self, outbound: str) -> Json:
        """The policies for calls to an outbound."""
        return inspect.outbound_policies(self._db, self._port(outbound), fields=True)

    def routes(self, outbound: str) -> Json:
        """The routes of calls to an outbound."""
        return inspect.outbound_routes(self._db, self._port(outbound), fields=True)

    def route_policies(self, outbound: str, route: str) -> Json:
        """The policies for calls to an outbound through a route."""
        port = self._port(outbound)
        key = inspect.route_named(self._db, port, route)
        assert key is not None, route  # it comes from the routes
        return inspect.route_policies(self._db, port, key, fields=True)

    def place(self, origin: Mapping[str, Json]) -> str:
        """File, line and column; a policy in no file is a default of the mesh."""
        line = self.line(origin)
        return f"{origin['path']}, which comes with the mesh" if line == _WITH_MESH else line

    def line(self, origin: Mapping[str, Json]) -> str:
        """File, line and column; or that it comes with the mesh."""
        parsed = kri.parse(origin["kri"])
        known = parsed.short in self._kinds.by_short  # else it is of the Gateway API, and in no file
        document = self._documents.get(self._key(origin["kri"])) if known else None
        return inputs.place(document, origin["path"]) if document else _WITH_MESH

    def _port(self, outbound: str) -> PortRules:
        port = inspect.outbound(self._db, self._proxy, self._key(outbound), kri.parse(outbound).section)
        assert port is not None, outbound  # it comes from the layout
        return port

    def _key(self, text: str) -> Key:
        parsed = kri.parse(text)
        kind = self._kinds.by_short[parsed.short].name
        return Key(kind, parsed.mesh, parsed.zone, parsed.namespace, parsed.name)


def proxy_named(db: Db, kind: str, mesh: str, name: str) -> Key:
    """The proxy of that kind and name in files; `mesh` is empty for a zone proxy."""
    proxies = {key: world.proxy(db, key) for key in world.BY_KIND.keys(db, (kind, mesh))}
    for key, proxy in proxies.items():
        if proxy is not None and name in (proxy.core_name, key.name):
            return key
    names = ", ".join(key.name for key in proxies) or "none"
    where = f' in mesh "{mesh}"' if mesh else ""
    raise CommandFailure(f'the files have no {kind} "{name}"{where}; they have {names}')


class ExplainedField(NamedTuple):
    """A value for calls to an outbound, maybe through a route, and the policies that set it."""

    to: str
    route: str
    kind: str
    field: str
    value: Json
    origin: Mapping[str, Json]
    losers: Sequence[Mapping[str, Json]]
    requests: str = ""  # the matches of a route's rule, where it is for some requests only

    @property
    def instead(self) -> Sequence[Mapping[str, Json]]:
        """What rules of the route say instead, each for its requests."""
        return self.origin.get("setByRules") or ()

    @property
    def is_replaced(self) -> bool:
        """Whether all rules of the route say something else."""
        return bool(self.instead) and not self.origin["acts"]


def protocols(layout: Json) -> dict[str, str]:
    """The protocols of a proxy's outbounds, by KRI."""
    outbounds = layout["outbounds"]
    return {outbound["kri"]: str(outbound.get("protocol") or "") for outbound in outbounds if outbound["kri"]}


def selected_outbounds(layout: Json, to: str, port: str) -> list[str]:
    """The KRIs of the outbounds to a service (name, kind/name or KRI), of all ports or one."""
    outbounds = [
        (kri.parse(outbound["kri"]), outbound) for outbound in layout["outbounds"] if outbound["kri"]
    ]
    to_service = [(identifier, outbound) for identifier, outbound in outbounds if to in _names(identifier)]
    if not to_service:
        destinations = ", ".join(sorted({identifier.name for identifier, _ in outbounds})) or "nothing"
        raise CommandFailure(f'the proxy does not call "{to}"; it can call {destinations}')
    selected = [
        str(identifier)
        for identifier, outbound in to_service
        if port in ("", identifier.section, str(outbound["port"]))
    ]
    if not selected:
        ports = ", ".join(f"{identifier.section} ({outbound['port']})" for identifier, outbound in to_service)
        raise CommandFailure(f'"{to}" has no port "{port}"; it has {ports}')
    return selected


def _names(identifier: Kri) -> tuple[str, ...]:
    """All names under which a destination can be selected."""
    names = (identifier.name, f"{identifier.name}.{identifier.namespace}")
    kinds = {"msvc": "meshservice", "extsvc": "meshexternalservice", "mzsvc": "meshmultizoneservice"}
    prefixes = (identifier.short, kinds.get(identifier.short, ""))
    return (
        *names,
        *(f"{prefix}/{name}" for prefix in prefixes for name in names),
        str(identifier),
        str(identifier.with_section("")),
    )


def rows(source: InspectSource, outbounds: Iterable[str], route: str = "") -> Iterator[ExplainedField]:
    """All values for calls to these ports; with a route, for calls through it only."""
    for outbound in outbounds:
        if not route:
            yield from _policies(outbound, "", source.policies(outbound))
        routes = source.routes(outbound)["routes"]
        yield from (row for row in _rules(outbound, routes) if not route or _is_named(row.route, route))
        for name in dict.fromkeys(origin["kri"] for listed in routes for origin in listed["origins"]):
            if not route or _is_named(name, route):
                yield from _policies(outbound, name, source.route_policies(outbound, name))


def inactive(source: InspectSource, outbounds: Iterable[str], kind: str) -> list[str]:
    """The policies of a kind that are stored for calls to these ports, and have no effect yet."""
    by_outbound = (source.policies(outbound).get("inactive") or () for outbound in outbounds)
    policies = (policy for listed in by_outbound for policy in listed if policy["kind"] == kind)
    origins = (origin["kri"] for policy in policies for origin in policy["origins"])
    return list(dict.fromkeys(kri.parse(origin).name for origin in origins))


def _is_named(route: str, word: str) -> bool:
    """Whether a word is the KRI or the name of a route."""
    if not route:
        return False
    identifier = kri.parse(route)
    return word in (route, identifier.name, f"{identifier.name}.{identifier.namespace}")


def _policies(outbound: str, route: str, answer: Json) -> Iterator[ExplainedField]:
    for policy in answer["policies"]:
        for field, origin in policy["fieldOrigins"].items():
            yield ExplainedField(
                outbound, route, policy["kind"], field, origin["value"], origin, origin["losers"]
            )


def _rules(outbound: str, routes: Json) -> Iterator[ExplainedField]:
    """The fields of routes themselves; a rule has the KRI of the route with the highest precedence."""
    for route in routes:
        for rule in route["rules"]:
            for path, origin in rule["fieldOrigins"].items():
                name, field = rule["kri"] or origin["kri"], path.removeprefix("default.")
                if field != "matches":
                    requests = request_words.of_matches(rule["matches"])
                    provenance = origin["value"], origin, origin["losers"], requests
                    yield ExplainedField(outbound, name, route["kind"], field, *provenance)


def is_of_field(row: ExplainedField, field: str) -> bool:
    """Whether a row is of this field or below it; `requestTimeout` also selects `http.requestTimeout`."""
    is_below = row.field.startswith((f"{field}.", f"{field}["))
    return not field or row.field == field or row.field.endswith(f".{field}") or is_below


def without_inherited(rows: Sequence[ExplainedField]) -> Iterator[ExplainedField]:
    """The rows without those of routes that only repeat the value of the outbound."""
    of_outbound = [row for row in rows if not row.route]
    for row in rows:
        if (
            not row.route
            or row.requests
            or row.instead
            or not any(is_same(row, other) for other in of_outbound)
        ):
            yield row


def is_same(row: ExplainedField, other: ExplainedField) -> bool:
    """Whether two rows have the same value and origin for one outbound, whatever their routes."""
    first, second = (
        (field.to, field.kind, field.field, field.origin["kri"], field.origin["path"])
        for field in (row, other)
    )
    return first == second
