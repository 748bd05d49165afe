"""Edits: where in a message a change acts, and what it does there.

Filters stand in the chains of a listener, HTTP filters inside of one of those filters, virtual hosts in a
route configuration, which comes by itself or stands in a listener. Every place that fits is changed.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from koguma.envoy import proto_json
from koguma.envoy.patch_change import MESSAGES, Change
from koguma.envoy.patch_messages import Messages, unpatchable
from koguma.envoy.snapshot import LISTENER
from koguma.model.tags import ANY

_HCM_TYPE: Final = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_HCM: Final = proto_json.TYPE_PREFIX + _HCM_TYPE
_TAGS: Final = "io.kuma.tags"


class Editor:
    """Changes messages in place."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    def edited(self, change: Change, type_: str, message: Any) -> bool:
        """Change a message of a type; whether anything in it was meant."""
        if not _has_tags(message, change):
            return False
        match change.what:
            case "networkFilter":
                found = [self._list(change, chain.filters) for chain in _chains(message)]
                return any(found)
            case "httpFilter":
                return self._managers(message, lambda manager: self._list(change, manager.http_filters))
            case "virtualHost" if type_ == LISTENER:
                return self._managers(message, lambda manager: self._own_hosts(change, manager))
            case "virtualHost":
                return self._list(change, message.virtual_hosts)
            case _ if change.operation == "Patch":
                self._patch(change, message)
        return change.operation in ("Patch", "Remove")

    def _managers(self, listener: Any, edit: Callable[[Any], bool]) -> bool:
        """Change the HTTP connection managers of a listener."""
        edited = False
        for chain in _chains(listener):
            for each in chain.filters:
                if each.typed_config.type_url != _HCM:
                    continue
                manager = self._messages.unpacked(each.typed_config)
                if edit(manager):
                    self._messages.repack(each.typed_config, manager)
                    edited = True
        return edited

    def _own_hosts(self, change: Change, manager: Any) -> bool:
        """Change virtual hosts that do not come by themselves."""
        wanted = change.match.route_configuration
        if not manager.HasField("route_config") or wanted not in (None, manager.route_config.name):
            return False
        return self._list(change, manager.route_config.virtual_hosts)

    def _list(self, change: Change, things: Any) -> bool:
        """Change a list of filters or virtual hosts."""
        named = [index for index, each in enumerate(things) if change.match.name in (None, each.name)]
        match change.operation:
            case "Add" | "AddLast":
                things.append(self._value(change))
            case "AddFirst":
                things.insert(0, self._value(change))
            case "AddBefore" | "AddAfter" if named:
                things.insert(named[0] + (change.operation == "AddAfter"), self._value(change))
            case "Remove":
                for index in reversed(named):
                    del things[index]
                return bool(named)
            case "Patch":
                for index in named:
                    self._patch(change, things[index])
                return bool(named)
            case _:
                return False
        return True

    def _patch(self, change: Change, message: Any) -> None:
        is_filter = change.what in ("networkFilter", "httpFilter")
        if is_filter:
            self._patch_filter(change, message)
        elif change.patches:
            self._messages.json_patched(message, change.patches)
        else:
            self._messages.merge(message, self._value(change))

    def _patch_filter(self, change: Change, message: Any) -> None:
        """Of a filter its configuration is meant: as in Kuma, pointers begin there."""
        if not message.HasField("typed_config"):
            raise unpatchable(f'"{message.name}" has no configuration here: it comes by itself')
        if change.patches:
            config = self._messages.unpacked(message.typed_config)
            self._messages.json_patched(config, change.patches)
            self._messages.repack(message.typed_config, config)
            return
        over = self._value(change)
        here, given = message.typed_config.type_url, over.typed_config.type_url
        if given and given != here:
            raise unpatchable(f"is {given}, and the filter that is there is {here}", "value.typedConfig")
        self._messages.merge(message, over)

    def _value(self, change: Change) -> Any:
        return self._messages.parsed(MESSAGES[change.what], change.value)


def _chains(listener: Any) -> Iterator[Any]:
    yield from listener.filter_chains
    if listener.HasField("default_filter_chain"):
        yield listener.default_filter_chain


def _has_tags(message: Any, change: Change) -> bool:
    """Whether a listener has the tags that a change asks for; `*` is any value."""
    if not change.match.tags:
        return True
    own = message.metadata.filter_metadata
    tags = own[_TAGS].fields if _TAGS in own else {}
    return all(name in tags and value in (ANY, tags[name].string_value) for name, value in change.match.tags)
