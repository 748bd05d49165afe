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
    if key.kind == "MeshExternalService":
        yield from _protocol_conflicts(db, key)
        return
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
            yield Problem(PORTS_CONFLICT, message, (key,), "error", f"spec.ports[{index}]")
        seen_names |= port_names


def _protocol_conflicts(db: Db, key: Key) -> Iterator[Problem]:
    """Matches of one port with different protocols: a port has one cluster, which speaks one of them."""
    resource = world.RESOURCES.get(db, key)
    protocols: dict[int, str] = {}
    for index, match in enumerate(world.external_matches(resource.spec) if resource else ()):
        number, protocol = match.get("port") or 0, match.get("protocol") or "tcp"
        first = protocols.setdefault(number, protocol)
        if protocol != first:
            message = (
                f"{key} has two protocols on port {number}, {first} and {protocol}, and a port speaks one;"
                " only the first acts. Use another port, or another MeshExternalService"
            )
            yield Problem(PORTS_CONFLICT, message, (key,), "error", f"spec.match[{index}]")


def disagreements(db: Db, mesh: str) -> Iterator[Problem]:
    """Proxies that are not part of the service that they name, or not with all their ports."""
    for problem in services.plan(services.desired(db, mesh), services.stored(db, mesh), _ANY_TIME).problems:
        if problem.rule != services.HAND_MADE:
            code = PORTS_CONFLICT if problem.rule == "port" else NOT_GENERATED
            is_proxy = problem.about.kind == "Dataplane"
            path = "networking.inbound" if is_proxy and problem.rule == "port" else ""
            message = problem.message if problem.rule == "name" else f"{problem.about} {problem.message}"
            yield Problem(code, message, (problem.about,), path=path)
