"""Extension rules: what is wrong with the plugin's part of a MeshExternalService.

Any type is legal (seed 001), since its plugin may be installed later; lint reports one that is not (KG019).
Where it is, its own types and rules decide. A plugin that raises refuses the object and is named.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from koguma.model import schema
from koguma.model.destination import DestinationPlugin
from koguma.model.schema import UNKNOWN, Json
from koguma.model.violation import Violation, child, under


def plugin_of(extension: Any, plugins: Sequence[DestinationPlugin]) -> DestinationPlugin | None:
    """The installed plugin that a section `extension` names."""
    type_ = extension.type if extension is not None else ""
    return next((plugin for plugin in plugins if plugin.type == type_), None)


def violations(plugin: DestinationPlugin, config: Json, path: str) -> Iterator[Violation]:
    """What is wrong with a configuration: its types first; the plugin's own rules only if these hold."""
    value = {} if config is None else config
    structural = tuple(schema.checker(plugin.config)(value, path))
    yield from structural
    if all(violation.rule == UNKNOWN for violation in structural):
        found, failure = _asked(plugin, "validate", plugin.validate, value, Violation)
        yield from under(path, found)
        if failure:
            yield Violation(path, failure, "plugin")


def warnings(plugin: DestinationPlugin, config: Json, path: str) -> Iterator[str]:
    """What the plugin warns of in a valid configuration."""
    found, failure = _asked(plugin, "warn", plugin.warn, {} if config is None else config, str)
    yield from (f"{path}: {text}" for text in found)
    if failure:
        yield f"{path}: {failure}"


def protocol_violation(plugin: DestinationPlugin, protocol: str, path: str) -> Iterator[Violation]:
    """A port's protocol that the plugin does not take."""
    if protocol not in plugin.protocols:
        legal = ", ".join(plugin.protocols)
        text = f'a destination of type "{plugin.type}" takes {legal}, not {protocol}'
        yield Violation(child(path, "protocol"), text, "destination")


def _asked(
    plugin: DestinationPlugin, name: str, ask: Callable[[Any], Iterator[Any]], config: Json, type_: type
) -> tuple[list[Any], str]:
    """The answers of one of a plugin's functions, and what is said if it fails."""
    answers = []
    try:
        for answer in ask(schema.read(plugin.config, config)):
            if not isinstance(answer, type_):
                raise TypeError(f"{answer!r:.100} is no {type_.__name__}")  # noqa: TRY301 - as if it had raised
            answers.append(answer)
    except Exception as error:  # noqa: BLE001 - that of a plugin
        makers = f"; tell the makers of {plugin.origin}" if plugin.origin else ""
        mistake = f"{type(error).__name__}: {error}"[:500]
        return (
            answers,
            f'the plugin of type "{plugin.type}" cannot judge it: its {name} raised {mistake}{makers}',
        )
    return answers, ""
