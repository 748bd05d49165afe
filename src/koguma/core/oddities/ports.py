"""Ports: destinations whose ports cannot be told apart, and proxies that disagree on those of a service."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from koguma.core import services, world
from koguma.core.incremental import Db
from koguma.core.oddities.problem import NOT_GENERATED, PORTS_CONFLICT, Problem
from koguma.model.resource import Key

# What is odd about services does not depend on the time; only what is done about it does.
_ANY_TIME: Final = datetime(2000, 1, 1, tzinfo=UTC)


def conflicts(db: Db, key: Key) -> Iterator[Problem]:
    """Two ports of a destination that have a number or a name in common: the first is always meant."""
    found = world.destination(db, key)
    taken: set[str] = set()
    for index, port in enumerate(found.ports if found else ()):
        words = {port.section, str(port.number)}
        clash = sorted(words & taken)
        if clash:
            message = (
                f'{key} has two ports "{clash[0]}"; only the first can be referred to. Give every port a name'
                " and a number of its own"
            )
            field = "spec.match" if key.kind == "MeshExternalService" else "spec.ports"
            yield Problem(PORTS_CONFLICT, message, (key,), "error", f"{field}[{index}]")
        taken |= words


def disagreements(db: Db, mesh: str) -> Iterator[Problem]:
    """Proxies that are no part of the service whose name they bear, or not with all their ports."""
    for odd in services.plan(services.desired(db, mesh), services.stored(db, mesh), _ANY_TIME).problems:
        if odd.rule != services.HAND_MADE:
            code = PORTS_CONFLICT if odd.rule == "port" else NOT_GENERATED
            is_proxy = odd.about.kind == "Dataplane"
            path = "networking.inbound" if is_proxy and odd.rule == "port" else ""
            message = odd.message if odd.rule == "name" else f"{odd.about} {odd.message}"
            yield Problem(code, message, (odd.about,), path=path)
