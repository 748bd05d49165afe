"""Ports: destinations with ambiguous ports, and proxies that disagree on the ports of a service."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from koguma.core import services, world
from koguma.core.incremental import Db
from koguma.core.lint.problem import NOT_GENERATED, PORTS_CONFLICT, Problem
from koguma.model.resource import Key

# The problems of a plan do not depend on the time; only its changes do.
_ANY_TIME: Final = datetime(2000, 1, 1, tzinfo=UTC)


def conflicts(db: Db, key: Key) -> Iterator[Problem]:
    """Two ports of a destination with a number or a name in common: a reference always finds the first."""
    destination = world.destination(db, key)
    seen_names: set[str] = set()
    for index, port in enumerate(destination.ports if destination else ()):
        port_names = {port.section, str(port.number)}
        common = sorted(port_names & seen_names)
        if common:
            message = (
                f'{key} has two ports "{common[0]}"; only the first can be referred to. Give every port a'
                " name and a number of its own"
            )
            field = "spec.match" if key.kind == "MeshExternalService" else "spec.ports"
            yield Problem(PORTS_CONFLICT, message, (key,), "error", f"{field}[{index}]")
        seen_names |= port_names


def disagreements(db: Db, mesh: str) -> Iterator[Problem]:
    """Proxies that are not part of the service that they name, or not with all their ports."""
    for problem in services.plan(services.desired(db, mesh), services.stored(db, mesh), _ANY_TIME).problems:
        if problem.rule != services.HAND_MADE:
            code = PORTS_CONFLICT if problem.rule == "port" else NOT_GENERATED
            is_proxy = problem.about.kind == "Dataplane"
            path = "networking.inbound" if is_proxy and problem.rule == "port" else ""
            message = problem.message if problem.rule == "name" else f"{problem.about} {problem.message}"
            yield Problem(code, message, (problem.about,), path=path)
