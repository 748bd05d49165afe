"""Cross-mesh: gateways for other meshes that some of these cannot call, or not by the name of a listener."""

from collections.abc import Iterator

from koguma.core import cross_mesh_services, world
from koguma.core.build import tls
from koguma.core.incremental import Db
from koguma.core.lint import shared_hostnames
from koguma.core.lint.problem import NOT_CALLED, SHARED_HOSTNAME, Problem
from koguma.model.resource import Key
from koguma.model.violation import child, item


def of_gateway(db: Db, gateway: Key) -> Iterator[Problem]:
    """Why proxies of other meshes cannot call a gateway that is for them."""
    own = cross_mesh_services.hosts(db, gateway)
    if not own:
        return
    yield from _without_mtls(db, gateway)
    for host, ((_, number), *_) in own.items():
        path = item("conf.listeners", number)
        yield from _taken(db, gateway, host, child(path, "hostname"))
        for mesh in cross_mesh_services.callers(db, gateway):
            yield from _stored(db, gateway, cross_mesh_services.key(db, mesh, host), path)


def _without_mtls(db: Db, gateway: Key) -> Iterator[Problem]:
    """Without mTLS on both sides nothing is called: no call between meshes is ever plain text."""
    path = child(item("conf.listeners", _first(db, gateway)), "crossMesh")
    if tls.mtls(db, gateway.mesh) is None:
        message = (
            f'no other mesh can call {gateway}: its mesh "{gateway.mesh}" has no mTLS; set'
            " mtls.enabledBackend of the Mesh"
        )
        yield Problem(NOT_CALLED, message, (gateway,), path=path)
        return
    for mesh in world.BY_KIND.keys(db, ("Mesh", "")):
        has_proxies = bool(world.BY_KIND.keys(db, ("Dataplane", mesh.name)))
        if mesh.name != gateway.mesh and has_proxies and tls.mtls(db, mesh.name) is None:
            message = (
                f'proxies of mesh "{mesh.name}" cannot call {gateway}: their mesh has no mTLS; set'
                " mtls.enabledBackend of the Mesh"
            )
            yield Problem(NOT_CALLED, message, (gateway, mesh), path=path)


def _first(db: Db, gateway: Key) -> int:
    return min(number for ports in cross_mesh_services.hosts(db, gateway).values() for _, number in ports)


def _taken(db: Db, gateway: Key, host: str, path: str) -> Iterator[Problem]:
    holder = cross_mesh_services.called(db).get(host)
    if holder is not None and holder.gateway != gateway:
        message = (
            f'{gateway} and {holder.gateway} are both to be called as "{host}" by other meshes: it leads to'
            f" {holder.gateway}, which is older; choose another hostname for one of the listeners"
        )
        yield Problem(SHARED_HOSTNAME, message, (gateway, holder.gateway), path=path)


def _stored(db: Db, gateway: Key, service: Key, path: str) -> Iterator[Problem]:
    """What a mesh has under the name of a listener, or as its host name."""
    if cross_mesh_services.gateway(db, service) is not None:
        yield from shared_hostnames.of_destination(db, service)
    elif world.RESOURCES.get(db, service) is not None:
        message = (
            f'proxies of mesh "{service.mesh}" do not call {gateway} by the name "{service.name}": {service}'
            " has this name, and goes first; rename it, or choose another hostname for the listener"
        )
        yield Problem(SHARED_HOSTNAME, message, (gateway, service), path=path)
