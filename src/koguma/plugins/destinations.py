"""Destinations of installed packages: what `extension.type` of a MeshExternalService can name beside ours."""

import re
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from typing import Any, Final

import msgspec

from koguma.kinds import mesh_external_service
from koguma.model import schema
from koguma.model.destination import DestinationPlugin
from koguma.model.kind import Kind
from koguma.model.schema import Spec
from koguma.plugins import entry_points
from koguma.plugins.entry_points import Warn

_KIND: Final = "MeshExternalService"
_TYPE: Final = r"[A-Za-z][A-Za-z0-9.-]{0,62}"
_PROTOCOLS: Final = ("tcp", "tls", "http", "http2", "grpc")
_FUNCTIONS: Final = ("build", "validate", "warn")


def with_destinations(
    kinds: Iterable[Kind], entries: Sequence[metadata.EntryPoint], warn: Warn
) -> list[Kind]:
    """The kinds, with what these entry points offer, less what `warn` is called for."""
    return [_extended(kind, entries, warn) if kind.name == _KIND else kind for kind in kinds]


def _extended(kind: Kind, entries: Sequence[metadata.EntryPoint], warn: Warn) -> Kind:
    known = list(kind.extensions)
    for entry in entries:
        for plugin in entry_points.offered(entry, DestinationPlugin, warn):
            found = list(problems(plugin, known))
            if found:
                warn(f"{entry_points.place(entry)}: {_called(plugin)} is left out: {'; '.join(found)}")
            else:
                known.append(msgspec.structs.replace(plugin, origin=entry_points.place(entry)))
    return mesh_external_service.with_extensions(tuple(known)) if entries else kind


def _called(plugin: object) -> str:
    return f'destination "{plugin.type}"' if isinstance(plugin, DestinationPlugin) else "one entry"


def problems(plugin: Any, known: Iterable[DestinationPlugin]) -> Iterator[str]:
    """What is wrong with a plugin's record, beside these; msgspec does not look when one is made."""
    if not isinstance(plugin, DestinationPlugin):
        yield f"{plugin!r:.100} is no koguma.model.destination.DestinationPlugin"
        return
    if not isinstance(plugin.type, str) or not re.fullmatch(_TYPE, plugin.type, re.ASCII):
        yield f"type must match {_TYPE}, not {plugin.type!r:.100}"
    elif any(other.type == plugin.type for other in known):
        yield f'type "{plugin.type}" is taken'
    if not isinstance(plugin.doc, str) or not plugin.doc.strip():
        yield "doc must be the page of the manual: a text that begins with a sentence"
    if not isinstance(plugin.protocols, tuple) or not plugin.protocols:
        yield "protocols must be a tuple of words"
    elif not set(plugin.protocols) <= set(_PROTOCOLS):
        yield f"protocols must be of {', '.join(_PROTOCOLS)}"
    for name in _FUNCTIONS:
        if not callable(getattr(plugin, name)):
            yield f"{name} must be a function"
    yield from _wrong_config(plugin.config)


def _wrong_config(config: Any) -> Iterator[str]:
    if not isinstance(config, type) or not issubclass(config, Spec):
        yield "config must be a class made from koguma.model.schema.Spec"
        return
    try:
        schema.Checker(config)
        schema.json_schemas({"config": config}, "#/{name}")
    except Exception as error:  # noqa: BLE001 - a class can be wrong in many ways
        yield f"config cannot be described: {entry_points.described(error)}"
