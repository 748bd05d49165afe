"""Egresses: external services of a mesh with `routing.zoneEgress` whose calls fail, or pass the egress by."""

from collections.abc import Iterable, Iterator
from typing import Final

from koguma.core import world
from koguma.core.build import clusters, external, tls, zone_egress
from koguma.core.incremental import Db
from koguma.core.lint.problem import AROUND_EGRESS, NO_EGRESS, Problem
from koguma.model.resource import Key

_PATH: Final = "routing.zoneEgress"
_AROUND: Final = (
    "its calls do not leave through the zone egress, as those of this mesh should: only the caller's own"
    " proxy knows the address to which a Passthrough call was sent; give the destination type Regular and"
    " endpoints, or let a firewall open this way on purpose"
)


def of_service(db: Db, key: Key) -> Iterator[Problem]:
    """What is wrong with calls of an external service, where its mesh uses an egress."""
    if not zone_egress.is_used(db, key.mesh) or zone_egress.is_gateway(db, key):
        return
    if external.is_passthrough(db, key):
        yield Problem(AROUND_EGRESS, _AROUND, (key, _mesh(key.mesh)), path="spec.destination.type")
        return
    destination = world.destination(db, key)
    names = [tls.server_name(db, key, port.section) for port in (destination.ports if destination else ())]
    if not all(names):
        yield Problem(NO_EGRESS, f"calls of it fail: {clusters.NO_SERVER_NAME}", (key,), path="name")


def of_mesh(db: Db, mesh: str) -> Iterator[Problem]:
    """A mesh whose calls to external services have no egress to leave through."""
    yield from (Problem(NO_EGRESS, text, (_mesh(mesh),), path=_PATH) for text in in_zone(db, mesh))


def in_zone(db: Db, mesh: str, zone: str | None = None) -> Iterator[str]:
    """Why calls of proxies of a mesh to external services fail in a zone, which is this one by default.

    Proxies make a mesh live: in files that are checked before there is a mesh, no egress is expected.
    """
    there = world.control_plane(db).zone if zone is None else zone
    is_called = zone_egress.services(db, mesh) and world.BY_KIND.keys(db, ("Dataplane", mesh))
    if zone_egress.is_used(db, mesh) and is_called and not zone_egress.endpoints_in(db, there):
        yield (
            f'calls to external services are to leave through a zone egress, and zone "{there}" has none that'
            " takes calls, so they fail; start one with `koguma dp run --proxy-type egress`, or set"
            f" {_PATH} to false"
        )


def forbidden(db: Db, proxy: Key, ports: Iterable[tuple[Key, str]]) -> Iterator[str]:
    """The external services that a proxy may not call, where its mesh forbids them by default."""
    uris = zone_egress.shown_uris(db, proxy)
    for destination, section in ports:
        if zone_egress.is_forbidden(db, destination, section, proxy.zone, uris):
            sni = tls.server_name(db, destination, section)
            yield (
                f"calls to {destination.name}:{section} fail: the mesh forbids external services by default,"
                f' and no permission with sni "{sni}" allows {uris[0]}'
            )


def _mesh(name: str) -> Key:
    return Key("Mesh", "", "", "", name)
