"""Parameters: every path of the plain form, with the query parameters that each of its methods reads.

One table for three readers: routing refuses a parameter that a path does not have, OpenAPI describes those
that it has, and a test walks all paths. A parameter that nobody reads would be a filter that silently lets
everything through, so an unknown one is refused with the nearest that exists.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from koguma.identity.proxy_types import EGRESS
from koguma.identity.proxy_types import INGRESS as INGRESS_PROXY
from koguma.model.errors import Invalid
from koguma.model.kind import Kind, Kinds
from koguma.model.schema import Json
from koguma.model.violation import Violation

SIZE_DEFAULT: Final = 100
SIZE_MAX: Final = 1_000

TEXT: Final[Json] = {"type": "string"}
_FLAG: Final[Json] = {"type": "string", "enum": ["true", "false", "1", "0"]}


class QueryParameter(msgspec.Struct, frozen=True):
    """A query parameter. One whose name ends in `[` stands for all names that begin so."""

    name: str
    description: str
    schema: Json = msgspec.field(default_factory=lambda: TEXT)

    def fits(self, name: str) -> bool:
        """Whether this is the parameter of a name in a query."""
        return name.startswith(self.name) if self.name.endswith("[") else name == self.name

    @property
    def described(self) -> Json:
        """The parameter in OpenAPI's words."""
        if self.name.endswith("["):
            schema = {"type": "object", "additionalProperties": self.schema or True}
            style = {"style": "deepObject", "explode": True}
            return {"name": self.name[:-1], "in": "query", "description": self.description, **style} | {
                "schema": schema
            }
        return {"name": self.name, "in": "query", "description": self.description, "schema": self.schema}


class PlainPath(msgspec.Struct, frozen=True):
    """A path of the plain form: the query parameters of each of its methods, by method."""

    queries: Mapping[str, tuple[QueryParameter, ...]]


SIZE: Final = QueryParameter(
    "size",
    "Objects in one page.",
    {"type": "integer", "minimum": 1, "maximum": SIZE_MAX, "default": SIZE_DEFAULT},
)
OFFSET: Final = QueryParameter(
    "offset", "Objects to leave out at the beginning.", {"type": "integer", "minimum": 0}
)
NAME: Final = QueryParameter("name", "Only objects whose core name contains this.")
FILTER: Final = QueryParameter("filter[", "`filter[labels.<key>]=<value>`: only objects with that label.")
FORMAT: Final = QueryParameter(
    "format", "The form of the answer.", {"type": "string", "enum": ["universal", "kubernetes", "k8s"]}
)
NAMESPACE: Final = QueryParameter("namespace", "Only objects of that namespace.")
IN_NAMESPACE: Final = QueryParameter(
    "namespace", "With format=kubernetes: the namespace to show an object in that has none."
)
MESH: Final = QueryParameter("mesh", "Only objects of that mesh.")
INCLUDE: Final = QueryParameter("include", "Nothing more can be included here; accepted for Kuma's programs.")
WATCH: Final = QueryParameter("watch", "Send changes as they happen (application/x-ndjson).", _FLAG)
REVISION: Final = QueryParameter(
    "revision", "With watch: go on after this revision.", {"type": "integer", "minimum": 0}
)
TAG: Final = QueryParameter(
    "tag",
    "`<tag>:<part of its value>`, repeatable: only proxies that have all of them on one inbound, or as"
    " gateway; `*` is any value.",
)
GATEWAY: Final = QueryParameter(
    "gateway",
    "Only gateways, only sidecars (`false`), or only gateways of one sort.",
    {"type": "string", "enum": ["true", "false", "builtin", "delegated"]},
)
SERVICE_TYPE: Final = QueryParameter(
    "type",
    "Only services of these types, separated by commas: internal, external, gateway_delegated,"
    " gateway_builtin.",
)
INGRESS: Final = QueryParameter("ingress", "Has no effect: zone ingresses are no Dataplanes any more.")
DRY_RUN: Final = QueryParameter(
    "dryRun", "Check, and write nothing.", {"type": "string", "enum": ["All", "true", "false", "0"]}
)
FIELD_VALIDATION: Final = QueryParameter(
    "fieldValidation",
    "What happens to fields that do not exist.",
    {"type": "string", "enum": ["Strict", "Warn", "Ignore"], "default": "Strict"},
)
ORIGINS: Final = QueryParameter("origins", "Show who set each field.", {"type": "string", "enum": ["fields"]})
SHADOW: Final = QueryParameter(
    "shadow",
    "Also count policies with the label `kuma.io/effect: shadow`.",
    {"type": "string", "enum": ["true", "false"]},
)
DIFF: Final = QueryParameter(
    "include",
    "`diff`: what this changes in the configuration that the proxy has now, as a JSON patch.",
    {"type": "string", "enum": ["diff"]},
)
PATH: Final = QueryParameter(
    "path", "A field of Envoy's configuration, such as `clusters[NAME].connect_timeout`, or what is above it."
)
STATE: Final = QueryParameter(
    "state",
    "Only proxies in that state.",
    {"type": "string", "enum": ["connecting", "synced", "behind", "nack"]},
)
INCLUDE_EDS: Final = QueryParameter("include_eds", "Also the endpoints of clusters.", _FLAG)
USED_ONLY: Final = QueryParameter(
    "usedonly", "Without figures that were never changed.", {**_FLAG, "default": "true"}
)
PAGE_FORMAT: Final = QueryParameter(
    "format", "The form of the answer.", {"type": "string", "enum": ["text", "json"], "default": "text"}
)
SECONDS: Final = QueryParameter(
    "seconds",
    "How far the two looks at each Envoy are apart.",
    {"type": "number", "minimum": 0.1, "maximum": 30},
)
BY: Final = QueryParameter(
    "by", "What the rows are.", {"type": "string", "enum": ["services", "proxies"], "default": "services"}
)
ROW: Final = QueryParameter("name", "Only the service or proxy of this name; repeatable.")
ARRIVED_REVISION: Final = QueryParameter(
    "revision",
    "The revision that is asked about; the newest one by default; repeatable.",
    {"type": "integer", "minimum": 1},
)
ARRIVED_OBJECT: Final = QueryParameter(
    "object", "The KRI of an object that no proxy may refuse, at whatever revision; repeatable."
)
ARRIVAL_SECONDS: Final = QueryParameter(
    "seconds",
    "Answer when it has arrived, or after so many seconds.",
    {"type": "number", "minimum": 0, "maximum": 30, "default": 0},
)
CONNECTED_ONLY: Final = QueryParameter("connected", "Leave out proxies that are not connected.", _FLAG)
AFTER: Final = QueryParameter("after", "Go on there: the `next` of the answer before.")
AT: Final = QueryParameter(
    "at",
    "As of a past revision, a time (RFC 3339), or how long ago (`2h`), as far back as the history is kept.",
)
BEFORE: Final = QueryParameter(
    "before", "Only changes before this revision.", {"type": "integer", "minimum": 1}
)
SINCE: Final = QueryParameter("since", "Only changes after this time (RFC 3339), or so long ago (`2h`).")
AUTHOR: Final = QueryParameter("by", "Only changes by this user; `system` is the control plane itself.")
PEOPLE: Final = QueryParameter("people", "Leave out what the control plane wrote by itself.", _FLAG)
TOUCHED: Final = QueryParameter("proxies", "Count the proxies that each change touched.", _FLAG)
KIND: Final = QueryParameter("kind", "Only objects of this kind.")
NAMED: Final = QueryParameter("name", "Only objects of this core name.")
FROM: Final = QueryParameter("from", "The first revision, or a moment as for `at`.")
TO: Final = QueryParameter("to", "The second one; the newest where it is left out.")
UNDONE: Final = QueryParameter(
    "revision", "The revision whose transaction is taken back.", {"type": "integer", "minimum": 1}
)
DISCARD_LATER: Final = QueryParameter(
    "discardLater", "Also where later writes to the same objects are lost.", _FLAG
)
AS_OF: Final = QueryParameter(
    "asOf",
    "The newest revision that the user has seen: later writes are never discarded.",
    {"type": "integer", "minimum": 1},
)
ENVOY: Final = QueryParameter("envoy", "Also show which fields of Envoy's resources differ.", _FLAG)
WITH_PLAN: Final = QueryParameter("plan", "With dryRun: also say what it would do to every proxy.", _FLAG)
PRUNE: Final = QueryParameter("prune", "Delete what the backup does not have.", _FLAG)

# What Kuma's programs add to any read of objects. Where a path has no use for one, it has no effect.
_COMMON: Final = (SIZE, OFFSET, NAME, FILTER, FORMAT, INCLUDE, MESH)
_LIST: Final = (SIZE, OFFSET, NAME, FILTER, NAMESPACE, FORMAT, INCLUDE, MESH, WATCH, REVISION, AT)


def _ignored(*used: QueryParameter) -> tuple[QueryParameter, ...]:
    """The parameters of a read: those that it uses, and the common ones, about which it promises nothing."""
    names = {parameter.name for parameter in used}
    text = "Has no effect here; accepted because Kuma's programs send it with any read."
    return used + tuple(QueryParameter(p.name, text, {}) for p in _COMMON if p.name not in names)


def _asked_at_most(default: int, maximum: int) -> QueryParameter:
    schema = {"type": "integer", "minimum": 1, "maximum": maximum, "default": default}
    return QueryParameter("limit", "Ask at most this many proxies.", schema)


NOTHING: Final = PlainPath({"GET": ()})
ITEM: Final = PlainPath(
    {
        "GET": _ignored(FORMAT, IN_NAMESPACE, AT),
        "PUT": (DRY_RUN, FIELD_VALIDATION),
        "PATCH": (DRY_RUN, FIELD_VALIDATION),
        "DELETE": (DRY_RUN,),
    }
)
READ_ONLY_ITEM: Final = PlainPath({"GET": ITEM.queries["GET"]})
_ISSUER: Final = PlainPath({"POST": ()})

SYSTEM: Final[Mapping[str, PlainPath]] = {
    "/": NOTHING,
    "/config": NOTHING,
    "/who-am-i": NOTHING,
    "/policies": PlainPath({"GET": _ignored()}),
    "/_resources": PlainPath({"GET": _ignored()}),
    "/_kri/{kri}": READ_ONLY_ITEM,
    "/_apply": PlainPath({"POST": (DRY_RUN, FIELD_VALIDATION)}),
    "/_plan": PlainPath({"POST": (FIELD_VALIDATION, ENVOY)}),
    "/global-insight": PlainPath({"GET": _ignored()}),
    "/global-insights": PlainPath({"GET": _ignored()}),
    "/_history": PlainPath({"GET": (SIZE, BEFORE, SINCE, AUTHOR, PEOPLE, TOUCHED, KIND, MESH, NAMED)}),
    "/_differences": PlainPath({"GET": (FROM, TO)}),
    "/_undo": PlainPath({"POST": (UNDONE, DISCARD_LATER, AS_OF, DRY_RUN, WITH_PLAN)}),
    "/_export": NOTHING,
    "/_import": PlainPath({"POST": (DRY_RUN, PRUNE)}),
    "/_migrations/storage": PlainPath({"GET": (), "POST": (AFTER,)}),
    "/_zone/join": PlainPath({"POST": (DRY_RUN,)}),
    "/_zone/leave": PlainPath({"POST": (DRY_RUN,)}),
    "/tokens/user": _ISSUER,
    "/tokens/dataplane": _ISSUER,
    "/tokens/zone": _ISSUER,
    "/tokens/_review": _ISSUER,
    "/healthy": NOTHING,
    "/ready": NOTHING,
    "/metrics": NOTHING,
    "/_check": NOTHING,
    "/_proxies": PlainPath({"GET": (MESH, STATE)}),
    "/_arrival": PlainPath({"GET": (ARRIVED_REVISION, ARRIVED_OBJECT, ARRIVAL_SECONDS, CONNECTED_ONLY)}),
    "/openapi.json": NOTHING,
}

_VIEW: Final = PlainPath({"GET": _ignored(ORIGINS, AT)})
SELECTED: Final = PlainPath({"GET": _ignored(SIZE, OFFSET, NAME, AT)})
UNPAGED: Final = PlainPath({"GET": _ignored()})
_LAYOUT: Final = PlainPath({"GET": _ignored(AT)})
_EXPLAIN: Final = PlainPath({"GET": _ignored(PATH, AT)})
# What the Envoy of a proxy shows.
OF_ENVOY: Final[Mapping[str, PlainPath]] = {
    "xds": PlainPath({"GET": _ignored(INCLUDE_EDS)}),
    "stats": PlainPath({"GET": _ignored(USED_ONLY, PAGE_FORMAT)}),
    "clusters": PlainPath({"GET": _ignored(PAGE_FORMAT)}),
}
# What stands below a Dataplane.
OF_PROXY: Final[Mapping[str, PlainPath]] = {
    "_rules": _VIEW,
    "_policies": _VIEW,
    "_layout": _LAYOUT,
    "_config": PlainPath({"GET": _ignored(SHADOW, DIFF, AT)}),
    "_explain": _EXPLAIN,
    "_inbounds/{kri}/_policies": _VIEW,
    "_outbounds/{kri}/_policies": _VIEW,
    "_outbounds/{kri}/_routes": _VIEW,
    "_outbounds/{kri}/_routes/{route}/_policies": _VIEW,
    **OF_ENVOY,
}
# What stands below a ZoneEgress and a ZoneIngress.
_OF_ZONE_PROXY: Final = {"_config": _LAYOUT, "_explain": _EXPLAIN, **OF_ENVOY}
OF_EGRESS: Final[Mapping[str, PlainPath]] = {"_policies": _VIEW, **_OF_ZONE_PROXY}
OF_INGRESS: Final[Mapping[str, PlainPath]] = _OF_ZONE_PROXY
# What many Envoys are asked about: below a Mesh, and below a service.
_TOP: Final = PlainPath({"GET": (BY, SECONDS, _asked_at_most(100, 500), ROW)})
_ENDPOINTS: Final = PlainPath({"GET": (SECONDS, _asked_at_most(20, 100))})
# Who calls whom, and with which request: below a Mesh.
_CAN: Final = PlainPath(
    {
        "GET": (
            QueryParameter("from", "Who calls: a service, a Dataplane or a KRI, or `outside`.", TEXT),
            QueryParameter("to", "What is called: a service, a gateway, a Dataplane or a KRI.", TEXT),
            QueryParameter("port", "Its port, by name or number; all by default.", TEXT),
            QueryParameter("path", "The path of the request; `/` by default.", TEXT),
            QueryParameter("method", "The method of the request; GET by default.", TEXT),
            QueryParameter("host", "The host of the request; the name of the service by default.", TEXT),
            QueryParameter("header", "A header of the request, as NAME:VALUE; repeatable.", TEXT),
        )
    }
)
_HOSTS: Final = ("MeshService", "MeshExternalService", "MeshMultiZoneService")


def listed(kind: Kind) -> PlainPath:
    """The query parameters of a kind's lists."""
    own = {"Dataplane": (TAG, GATEWAY), "ServiceInsight": (SERVICE_TYPE,)}
    return PlainPath({"GET": (*_LIST, *own.get(kind.name, ()))})


# Kinds with overviews, and Kuma's older words for the path of these.
OVERVIEWS: Final[Mapping[str, str]] = {
    "Dataplane": "dataplanes+insights",
    "Zone": "zones+insights",
    "ZoneIngress": "zoneingresses+insights",
    "ZoneEgress": "zoneegressoverviews",
}
OVERVIEW: Final = "_overview"


def overviews(kind: Kind) -> PlainPath:
    """The query parameters of the overviews of a kind."""
    used = (SIZE, OFFSET, NAME, FILTER, NAMESPACE, MESH)
    return PlainPath({"GET": _ignored(*used, *((TAG, GATEWAY, INGRESS) if kind.name == "Dataplane" else ()))})


HISTORY: Final = "_history"
OF_OBJECT_HISTORY: Final = PlainPath({"GET": (SIZE, BEFORE, SINCE, AUTHOR, PEOPLE, TOUCHED)})


def histories(kind: Kind) -> Mapping[str, PlainPath]:
    """What stands below an object of a kind about its changes; nothing for one that is not stored."""
    return {} if kind.computed is not None else {HISTORY: OF_OBJECT_HISTORY}


def item(kind: Kind) -> PlainPath:
    """The query parameters of a kind's objects, by method."""
    return READ_ONLY_ITEM if kind.read_only else ITEM


def below(kind: Kind) -> Mapping[str, PlainPath]:
    """What stands below an object of a kind, by the rest of the path."""
    if kind.name == "Dataplane":
        return OF_PROXY
    if kind.name == EGRESS.kind:
        return OF_EGRESS
    if kind.name == INGRESS_PROXY.kind:
        return OF_INGRESS
    paths: dict[str, PlainPath] = {}
    if kind.policy is not None:
        # `-resources` is what Kuma's own command line asks for; the last is older than both.
        paths |= {
            "_resources/dataplanes": SELECTED,
            "-resources/dataplanes": SELECTED,
            "dataplanes": SELECTED,
        }
    if kind.name == "MeshGateway":
        paths |= {
            "dataplanes": SELECTED,
            "_resources/dataplanes": SELECTED,
            "_rules": _VIEW,
            "_layout": _LAYOUT,
        }
    if kind.name == "MeshService":
        paths |= {"_resources/dataplanes": SELECTED, "_dataplanes": SELECTED}
    if kind.name in _HOSTS:
        paths["_hostnames"] = _LAYOUT
    return paths


def surveys(kind: Kind) -> Mapping[str, PlainPath]:
    """What stands below an object of a kind for which many Envoys are asked."""
    if kind.name == "Mesh":
        return {"_top": _TOP}
    return {"_endpoints": _ENDPOINTS} if kind.name in _HOSTS else {}


def answers(kind: Kind) -> Mapping[str, PlainPath]:
    """What stands below an object of a kind and answers a question about it."""
    return {"_can": _CAN} if kind.name == "Mesh" else {}


def table(kinds: Kinds) -> dict[str, PlainPath]:
    """Every path of the plain form."""
    paths = dict(SYSTEM)
    for kind in kinds:
        paths |= {f"/{path}": path_parameters for path, path_parameters in _of_kind(kind).items()}
    return paths


def _base(kind: Kind) -> str:
    return f"meshes/{{mesh}}/{kind.path}" if kind.is_mesh_scoped else kind.path


def _of_kind(kind: Kind) -> dict[str, PlainPath]:
    base = _base(kind)
    return {
        kind.path: listed(kind),
        base: listed(kind),
        f"{base}/{{name}}": item(kind),
        **{
            f"{base}/{{name}}/{rest}": path_parameters
            for rest, path_parameters in (
                *below(kind).items(),
                *surveys(kind).items(),
                *histories(kind).items(),
                *answers(kind).items(),
            )
        },
        **overview_paths(kind),
    }


def overview_paths(kind: Kind) -> dict[str, PlainPath]:
    """The paths of the overviews of a kind, with Kuma's older ones; none where it has none."""
    older = OVERVIEWS.get(kind.name)
    if older is None:
        return {}
    base = _base(kind)
    older_base = f"{base.removesuffix(kind.path)}{older}"
    lists = {f"{kind.path}/{OVERVIEW}", f"{base}/{OVERVIEW}", older, older_base}
    items = (f"{base}/{{name}}/{OVERVIEW}", f"{older_base}/{{name}}")
    return {**dict.fromkeys(sorted(lists), overviews(kind)), **dict.fromkeys(items, UNPAGED)}


def check(names: Iterable[str], known: tuple[QueryParameter, ...]) -> None:
    """Raise Invalid where a query has a parameter that the path does not have."""
    violations = [
        Violation(name[:100], _unknown(name[:100], known), "unknown-parameter")
        for name in dict.fromkeys(names)
        if not any(parameter.fits(name) for parameter in known)
    ]
    if violations:
        raise Invalid(violations, "A query parameter does not exist here")


def _unknown(name: str, known: tuple[QueryParameter, ...]) -> str:
    words = [f"{p.name}labels.<key>]" if p.name.endswith("[") else p.name for p in known]
    near = difflib.get_close_matches(name, words, n=1, cutoff=0.6)
    meant = f'; did you mean "{near[0]}"?' if near else ""
    there = f"there are {', '.join(words)}" if words else "there are none"
    return f'there is no query parameter "{name}" here{meant}' + ("" if near else f"; {there}")
