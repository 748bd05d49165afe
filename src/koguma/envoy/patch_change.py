"""Change: one modification of a proxy's configuration, read: what it is about, where, and what it does there.

A modification is plain JSON, as users write it: exactly one of `cluster`, `listener`, `networkFilter`,
`httpFilter` and `virtualHost`, each with `operation`, `match` and either `value` or `jsonPatches`.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from koguma.envoy.encode import Encoder, Unencodable
from koguma.envoy.patch_messages import Messages, Unpatchable, unpatchable
from koguma.envoy.snapshot import CLUSTER, LISTENER, ROUTES, Failure, Id, XdsResource
from koguma.model import documents, violation
from koguma.model.documents import BadDocument
from koguma.model.schema import Json
from koguma.model.violation import Violation, child

# What `value` is a message of.
MESSAGES: Final[Mapping[str, str]] = {
    "cluster": "envoy.config.cluster.v3.Cluster",
    "listener": "envoy.config.listener.v3.Listener",
    "networkFilter": "envoy.config.listener.v3.Filter",
    "httpFilter": "envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter",
    "virtualHost": "envoy.config.route.v3.VirtualHost",
}
# The types of resources in which it is found. Routes mostly come by themselves, but some stand in a listener.
_FOUND_IN: Final[Mapping[str, tuple[str, ...]]] = {
    "cluster": (CLUSTER,),
    "listener": (LISTENER,),
    "networkFilter": (LISTENER,),
    "httpFilter": (LISTENER,),
    "virtualHost": (ROUTES, LISTENER),
}


class Modification(msgspec.Struct, frozen=True):
    """A modification as it is written, the identifier of its policy, and its place in there."""

    conf: Json
    policy: str
    path: str


class Match(msgspec.Struct, frozen=True):
    """What is meant; all that is set must hold."""

    origin: str | None = None
    name: str | None = None
    tags: tuple[tuple[str, str], ...] = ()  # of the listener
    listener: str | None = None
    route_configuration: str | None = None


class Change(msgspec.Struct, frozen=True):
    """A modification that was read."""

    what: str  # one of MESSAGES
    operation: str
    match: Match
    policy: str
    path: str
    value: bytes = b""  # a message of its type
    patches: tuple[Json, ...] = ()
    added: XdsResource | None = None  # a whole resource that comes new

    def concerns(self, id_: Id, origin: str) -> bool:
        """Whether it may be about a resource, as far as its type, name and origin tell."""
        type_, name = id_
        if self.added is not None or type_ not in _FOUND_IN[self.what]:
            return False
        return self.match.origin in (None, origin) and self._piece_name(type_) in (None, name)

    def _piece_name(self, type_: str) -> str | None:
        match self.what:
            case "cluster" | "listener":
                return self.match.name
            case "virtualHost":
                return self.match.route_configuration if type_ == ROUTES else None
            case _:
                return self.match.listener

    @property
    def removes_resource(self) -> bool:
        """Whether it takes a resource away, not only a part of one."""
        return self.operation == "Remove" and self.what in (CLUSTER, LISTENER)

    def failure(self, id_: Id, violations: Iterable[Violation]) -> Failure:
        """What to show where it cannot be made."""
        return _failure(id_, self.policy, self.path, violations)


class Program(msgspec.Struct, frozen=True):
    """Changes in order, and why some modifications are none."""

    changes: tuple[Change, ...] = ()
    failures: tuple[Failure, ...] = ()

    @property
    def added(self) -> dict[Id, int]:
        """What comes new, and after how many changes; of two with one name the later one counts."""
        return {each.added.id: number for number, each in enumerate(self.changes, 1) if each.added}


def _failure(id_: Id, policy: str, path: str, violations: Iterable[Violation]) -> Failure:
    found = violation.under(path, violations)
    return Failure(*id_, "; ".join(f"{each.field}: {each.message}" for each in found), policy)


class Reader:
    """Reads modifications with the messages of one Envoy."""

    def __init__(self, encoder: Encoder, messages: Messages) -> None:
        self._encoder = encoder
        self._messages = messages

    def program(self, modifications: Iterable[Modification]) -> Program:
        """All that can be read, and what cannot, which does not keep the others from acting."""
        changes: list[Change] = []
        failures: list[Failure] = []
        for each in modifications:
            try:
                changes.append(self.change(each))
            except Unpatchable as found:
                what, _ = _only(each.conf)
                # No resource has the name of a policy, so nothing that a proxy has is taken for what failed.
                id_ = _FOUND_IN.get(what, (LISTENER,))[0], each.policy
                path = child(each.path, what) if what else each.path
                failures.append(_failure(id_, each.policy, path, found.violations))
        return Program(tuple(changes), tuple(failures))

    def change(self, of: Modification) -> Change:
        """A modification, read; Unpatchable, with paths as seen from what it is about, where it cannot be."""
        what, conf = _only(of.conf)
        if not what:
            raise unpatchable(f"must have one of {', '.join(MESSAGES)}")
        change = Change(
            what,
            str(conf.get("operation") or ""),
            _match(conf.get("match") or {}),
            of.policy,
            child(of.path, what),
            patches=tuple(conf.get("jsonPatches") or ()),
        )
        if conf.get("value") is None:
            return change
        try:
            message = self._messages.read(MESSAGES[what], _value(conf["value"]))
            is_new = change.operation == "Add" and what in (CLUSTER, LISTENER)
            added = self._added(what, message) if is_new else None
        except Unpatchable as found:
            raise Unpatchable(violation.under("value", found.violations)) from None
        return msgspec.structs.replace(change, value=message.SerializeToString(), added=added)

    def _added(self, type_: str, message: Json) -> XdsResource:
        """A whole resource, which has to keep Envoy's rules by itself."""
        if not message.name:
            raise unpatchable("must be set, as what is added is known by it", "name")
        try:
            return self._encoder.resource(type_, message.name, self._messages.plain(message))
        except Unencodable as error:
            raise Unpatchable(error.violations) from None


def _only(conf: Json) -> tuple[str, Mapping[str, Json]]:
    """The one thing that a modification is about; nothing where it is not exactly one."""
    found = [(what, conf[what]) for what in MESSAGES if isinstance(conf, dict) and conf.get(what)]
    if len(found) != 1 or not isinstance(found[0][1], dict):
        return "", {}
    return found[0]


def _value(value: Json) -> Json:
    """What `value` says: an object, or the text of one."""
    if not isinstance(value, str):
        return value
    try:
        found = documents.load(value)
    except BadDocument as error:
        raise unpatchable(f"line {error.line}, column {error.column}: {error.problem}") from None
    if len(found) != 1:
        raise unpatchable(f"must be one object, not {len(found)}")
    return found[0].value


def _match(conf: Mapping[str, Json]) -> Match:
    tags = conf.get("tags") or conf.get("listenerTags") or {}
    return Match(
        conf.get("origin"),
        conf.get("name"),
        tuple(sorted(tags.items())),
        conf.get("listenerName"),
        conf.get("routeConfigurationName"),
    )
