"""External warnings: what may disrupt the traffic of a MeshExternalService, for its status and the log."""

from collections.abc import Iterator
from typing import Final

from koguma.core import external_matches, external_overlaps, world
from koguma.core.incremental import Db
from koguma.core.lint import external_plugins
from koguma.core.services import ReconcileProblem
from koguma.model import whole_port
from koguma.model.resource import Key
from koguma.model.schema import Json

_OVERLAPPING: Final = "Overlapping"
_WHOLE_PORT: Final = "WholePortTaken"
_NO_PLUGIN: Final = "PluginMissing"


def conditions(db: Db, service: Key) -> Iterator[Json]:
    """The conditions of a service, on each of two that overlap."""
    messages = {
        _OVERLAPPING: [each.message for each in external_overlaps.of_mesh(db, service.mesh).get(service, ())],
        _WHOLE_PORT: _whole_ports(db, service),
        _NO_PLUGIN: [problem.message for problem in external_plugins.missing(db, service)],
    }
    for type_, found in messages.items():
        if found:
            yield {"type": type_, "status": "True", "reason": type_, "message": " ".join(found)}


def problems(db: Db, service: Key) -> Iterator[ReconcileProblem]:
    """The same for the log, where an overlap of two services stands once."""
    for overlap in external_overlaps.of_mesh(db, service.mesh).get(service, ()):
        if overlap.first == service:
            yield ReconcileProblem(service, "overlap", overlap.message)
    for message in _whole_ports(db, service):
        yield ReconcileProblem(service, "port", message)
    for problem in external_plugins.missing(db, service):
        yield ReconcileProblem(service, "plugin", problem.message)


def _whole_ports(db: Db, service: Key) -> list[str]:
    resource = world.RESOURCES.get(db, service)
    matches = world.external_matches(resource.spec) if resource else ()
    return list(whole_port.warnings([external_matches.type_port_protocol(match) for match in matches]))
