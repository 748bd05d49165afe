"""Patch edits: the parts of a message that a modification matches, and how they are changed.

Network filters are in the filter chains of a listener, HTTP filters in its HTTP connection managers, virtual
hosts in a route configuration, which is sent apart or is inside a listener. All that matches is changed.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from koguma.envoy import proto_json
from koguma.envoy.patch_messages import Messages, unpatchable
from koguma.envoy.patch_modifications import MESSAGES, ParsedModification
from koguma.envoy.snapshot import LISTENER, VIRTUAL_HOST
from koguma.model.tags import ANY

_HCM_TYPE: Final = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_HCM: Final = proto_json.TYPE_PREFIX + _HCM_TYPE
_TAGS: Final = "io.kuma.tags"


class Editor:
    """Changes messages in place."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    def edited(self, modification: ParsedModification, type_: str, message: Any) -> bool:
        """Change a message of a type in place; whether the modification matched anything in it."""
        if not _has_tags(message, modification):
            return False
        match modification.kind:
            case "networkFilter":
                edits = [self._list(modification, chain.filters) for chain in _chains(message)]
                return any(edits)
            case "httpFilter":
                return self._managers(message, lambda manager: self._list(modification, manager.http_filters))
            case "virtualHost" if type_ == LISTENER:
                return self._managers(message, lambda manager: self._own_hosts(modification, manager))
            case "virtualHost" if type_ != VIRTUAL_HOST:
                return self._list(modification, message.virtual_hosts)
            case _ if modification.operation == "Patch":
                self._patch(modification, message)
        return modification.operation in ("Patch", "Remove")

    def _managers(self, listener: Any, edit: Callable[[Any], bool]) -> bool:
        """Edit the HTTP connection managers of a listener; whether any was changed."""
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

    def _own_hosts(self, modification: ParsedModification, manager: Any) -> bool:
        """Edit virtual hosts that are inside the listener, and not sent apart (RDS)."""
        matched_name = modification.match.route_configuration
        if not manager.HasField("route_config") or matched_name not in (None, manager.route_config.name):
            return False
        return self._list(modification, manager.route_config.virtual_hosts)

    def _list(self, modification: ParsedModification, elements: Any) -> bool:
        """Edit a list of filters or virtual hosts."""
        named = [index for index, each in enumerate(elements) if modification.match.name in (None, each.name)]
        match modification.operation:
            case "Add" | "AddLast":
                elements.append(self._value(modification))
            case "AddFirst":
                elements.insert(0, self._value(modification))
            case "AddBefore" | "AddAfter" if named:
                elements.insert(named[0] + (modification.operation == "AddAfter"), self._value(modification))
            case "Remove":
                for index in reversed(named):
                    del elements[index]
                return bool(named)
            case "Patch":
                for index in named:
                    self._patch(modification, elements[index])
                return bool(named)
            case _:
                return False
        return True

    def _patch(self, modification: ParsedModification, message: Any) -> None:
        is_filter = modification.kind in ("networkFilter", "httpFilter")
        if is_filter:
            self._patch_filter(modification, message)
        elif modification.patches:
            self._messages.json_patched(message, modification.patches)
        else:
            self._messages.merge(message, self._value(modification))

    def _patch_filter(self, modification: ParsedModification, message: Any) -> None:
        """Patch the configuration of a filter: as in Kuma, JSON pointers start there."""
        if not message.HasField("typed_config"):
            raise unpatchable(f'"{message.name}" has no configuration here: it comes by itself')
        if modification.patches:
            config = self._messages.unpacked(message.typed_config)
            self._messages.json_patched(config, modification.patches)
            self._messages.repack(message.typed_config, config)
            return
        over = self._value(modification)
        current, patched = message.typed_config.type_url, over.typed_config.type_url
        if patched and patched != current:
            raise unpatchable(f"is {patched}, and the filter that is there is {current}", "value.typedConfig")
        self._messages.merge(message, over)

    def _value(self, modification: ParsedModification) -> Any:
        return self._messages.parsed(MESSAGES[modification.kind], modification.value)


def _chains(listener: Any) -> Iterator[Any]:
    yield from listener.filter_chains
    if listener.HasField("default_filter_chain"):
        yield listener.default_filter_chain


def _has_tags(message: Any, modification: ParsedModification) -> bool:
    """Whether a listener has the tags that a modification matches; `*` is any value."""
    if not modification.match.tags:
        return True
    own = message.metadata.filter_metadata
    tags = own[_TAGS].fields if _TAGS in own else {}
    return all(
        name in tags and value in (ANY, tags[name].string_value) for name, value in modification.match.tags
    )
