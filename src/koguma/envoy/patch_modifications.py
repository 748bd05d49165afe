"""Patch modifications: the modifications of a MeshProxyPatch, parsed: kind, match, operation and value.

A modification is plain JSON as in Kuma: exactly one of `cluster`, `listener`, `networkFilter`, `httpFilter`
and `virtualHost`, each with `operation`, `match` and either `value` or `jsonPatches`.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from koguma.envoy.encode import Encoder, Unencodable
from koguma.envoy.patch_messages import Messages, Unpatchable, unpatchable
from koguma.envoy.snapshot import CLUSTER, LISTENER, ROUTES, VIRTUAL_HOST, Failure, Id, XdsResource
from koguma.model import documents, violation
from koguma.model.documents import BadDocument
from koguma.model.schema import Json
from koguma.model.violation import Violation, child

# The message type of `value`, by kind of modification.
MESSAGES: Final[Mapping[str, str]] = {
    "cluster": "envoy.config.cluster.v3.Cluster",
    "listener": "envoy.config.listener.v3.Listener",
    "networkFilter": "envoy.config.listener.v3.Filter",
    "httpFilter": "envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter",
    "virtualHost": "envoy.config.route.v3.VirtualHost",
}
# The types of resources in which it may be. Routes are mostly sent apart (RDS), but some are in a listener,
# and virtual hosts of a gateway are sent apart from their routes (VHDS).
_FOUND_IN: Final[Mapping[str, tuple[str, ...]]] = {
    "cluster": (CLUSTER,),
    "listener": (LISTENER,),
    "networkFilter": (LISTENER,),
    "httpFilter": (LISTENER,),
    "virtualHost": (ROUTES, LISTENER, VIRTUAL_HOST),
}


class PolicyModification(msgspec.Struct, frozen=True):
    """A modification as users write it, the KRI of its policy, and its path in the policy."""

    conf: Json
    policy: str
    path: str


class ModificationMatch(msgspec.Struct, frozen=True):
    """The `match` of a modification; all that is set must hold."""

    origin: str | None = None
    name: str | None = None
    tags: tuple[tuple[str, str], ...] = ()  # of the listener
    listener: str | None = None
    route_configuration: str | None = None


class ParsedModification(msgspec.Struct, frozen=True):
    """A parsed modification."""

    kind: str  # one of MESSAGES
    operation: str
    match: ModificationMatch
    policy: str
    path: str
    value: bytes = b""  # encoded, of its kind's message type
    patches: tuple[Json, ...] = ()
    added: XdsResource | None = None  # the new resource, of a modification that adds a cluster or listener

    def may_match(self, id_: Id, origin: str) -> bool:
        """Whether it may match a resource, by its type, name and origin."""
        type_, name = id_
        if self.added is not None or type_ not in _FOUND_IN[self.kind]:
            return False
        if type_ == VIRTUAL_HOST:
            return self.match.origin in (None, origin) and self._matches_host(name)
        return self.match.origin in (None, origin) and self._resource_name(type_) in (None, name)

    def _resource_name(self, type_: str) -> str | None:
        match self.kind:
            case "cluster" | "listener":
                return self.match.name
            case "virtualHost":
                return self.match.route_configuration if type_ == ROUTES else None
            case _:
                return self.match.listener

    def _matches_host(self, name: str) -> bool:
        """Whether it changes a virtual host that is sent apart, named in full or by its host."""
        if self.operation not in ("Patch", "Remove"):
            return False  # others are added to the routes
        routes, _, host = name.rpartition("/")
        return self.match.name in (None, name, host) and self.match.route_configuration in (None, routes)

    def removes_resource(self, type_: str) -> bool:
        """Whether it removes a whole resource of that type."""
        return self.operation == "Remove" and (self.kind in (CLUSTER, LISTENER) or type_ == VIRTUAL_HOST)

    def failure(self, id_: Id, violations: Iterable[Violation]) -> Failure:
        """The failure to report where it cannot be applied."""
        return _failure(id_, self.policy, self.path, violations)


class PatchProgram(msgspec.Struct, frozen=True):
    """Parsed modifications in order, and failures of those that cannot be parsed."""

    modifications: tuple[ParsedModification, ...] = ()
    failures: tuple[Failure, ...] = ()

    @property
    def added(self) -> dict[Id, int]:
        """The added resources with the number of their modification; of two with one name the later one."""
        return {each.added.id: number for number, each in enumerate(self.modifications, 1) if each.added}


def _failure(id_: Id, policy: str, path: str, violations: Iterable[Violation]) -> Failure:
    placed = violation.under(path, violations)
    return Failure(*id_, "; ".join(f"{each.field}: {each.message}" for each in placed), policy)


class ModificationParser:
    """Parses modifications with the message types of one Envoy."""

    def __init__(self, encoder: Encoder, messages: Messages) -> None:
        self._encoder = encoder
        self._messages = messages

    def program(self, modifications: Iterable[PolicyModification]) -> PatchProgram:
        """All modifications that can be parsed, and failures for the others."""
        parsed: list[ParsedModification] = []
        failures: list[Failure] = []
        for each in modifications:
            try:
                parsed.append(self.parsed(each))
            except Unpatchable as error:
                kind, _ = _only(each.conf)
                # The failure has the name of the policy, so that no resource of the proxy counts as failed.
                id_ = _FOUND_IN.get(kind, (LISTENER,))[0], each.policy
                path = child(each.path, kind) if kind else each.path
                failures.append(_failure(id_, each.policy, path, error.violations))
        return PatchProgram(tuple(parsed), tuple(failures))

    def parsed(self, modification: PolicyModification) -> ParsedModification:
        """A parsed modification; raises Unpatchable, with paths relative to its kind."""
        kind, conf = _only(modification.conf)
        if not kind:
            raise unpatchable(f"must have one of {', '.join(MESSAGES)}")
        parsed = ParsedModification(
            kind,
            str(conf.get("operation") or ""),
            _match(conf.get("match") or {}),
            modification.policy,
            child(modification.path, kind),
            patches=tuple(conf.get("jsonPatches") or ()),
        )
        if conf.get("value") is None:
            return parsed
        try:
            message = self._messages.read(MESSAGES[kind], _value(conf["value"]))
            is_new = parsed.operation == "Add" and kind in (CLUSTER, LISTENER)
            added = self._added(kind, message) if is_new else None
        except Unpatchable as error:
            raise Unpatchable(violation.under("value", error.violations)) from None
        return msgspec.structs.replace(parsed, value=message.SerializeToString(), added=added)

    def _added(self, type_: str, message: Json) -> XdsResource:
        """The new resource, which is checked against Envoy's rules by itself."""
        if not message.name:
            raise unpatchable("must be set, as what is added is known by it", "name")
        try:
            return self._encoder.resource(type_, message.name, self._messages.plain(message))
        except Unencodable as error:
            raise Unpatchable(error.violations) from None


def _only(conf: Json) -> tuple[str, Mapping[str, Json]]:
    """The kind of a modification and its configuration; empty where it has not exactly one."""
    kinds = [(kind, conf[kind]) for kind in MESSAGES if isinstance(conf, dict) and conf.get(kind)]
    if len(kinds) != 1 or not isinstance(kinds[0][1], dict):
        return "", {}
    return kinds[0]


def _value(value: Json) -> Json:
    """The plain data of `value`, which may be an object or its YAML text."""
    if not isinstance(value, str):
        return value
    try:
        loaded = documents.load(value)
    except BadDocument as error:
        raise unpatchable(f"line {error.line}, column {error.column}: {error.problem}") from None
    if len(loaded) != 1:
        raise unpatchable(f"must be one object, not {len(loaded)}")
    return loaded[0].value


def _match(conf: Mapping[str, Json]) -> ModificationMatch:
    tags = conf.get("tags") or conf.get("listenerTags") or {}
    return ModificationMatch(
        conf.get("origin"),
        conf.get("name"),
        tuple(sorted(tags.items())),
        conf.get("listenerName"),
        conf.get("routeConfigurationName"),
    )
