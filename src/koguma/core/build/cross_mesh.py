"""Cross-mesh: listeners of gateways that take calls of proxies of all meshes, and who may call them.

A caller shows the certificate of its own mesh, which must be of the CAs of that mesh and of no other; so it
is somebody, and permissions of the gateway's mesh name it by that identity. What nothing allows is denied.
Each listener has a filter chain by server name, so that a permission for one opens no other on its port.
"""

from collections.abc import Iterable
from typing import Final

from koguma.core import gateways, match
from koguma.core.build import overlays, tls
from koguma.core.build.gateway_spec import GatewayPort
from koguma.core.gateways import Listener
from koguma.core.incremental import Db
from koguma.envoy import names, snapshot
from koguma.envoy.proto_json import Data
from koguma.envoy.snapshot import Id
from koguma.model.kri import ALL_MESHES
from koguma.model.overlay import OverlayContext

_NOT_HTTP: Final = "it is for other meshes (crossMesh), which call by HTTP only; write protocol: HTTP"
_MIXED: Final = (
    "some of its listeners are for other meshes (crossMesh) and some are not, and clients of these have no"
    " certificate of a mesh; give the others a port of their own"
)


def problem(db: Db, port: GatewayPort) -> str:
    """Why a port for other meshes is not served; empty where it is."""
    if tls.mtls(db, port.gateway.mesh) is None:
        return (
            f'it is for other meshes (crossMesh), and mesh "{port.gateway.mesh}" has no mTLS, by which the'
            " gateway would show who it is; set mtls.enabledBackend of the Mesh"
        )
    return misfit(each.listener for each in port.listeners)


def misfit(listeners: Iterable[Listener]) -> str:
    """Why the listeners of such a port cannot be served, whatever the mesh is."""
    every = tuple(listeners)
    if not all(each.is_cross_mesh for each in every):
        return _MIXED
    return _NOT_HTTP if any(each.protocol != "HTTP" for each in every) else ""


def server_names(port: GatewayPort, listener: Listener) -> list[str]:
    """The server names by which callers ask for a listener."""
    return list(dict.fromkeys((listener.hostname, gateways.called_name(port.gateway, listener))))


def transport(port: GatewayPort) -> Data:
    """How connections of all meshes are secured."""
    return {"transport_socket": tls.socket(tls.downstream_of_all(port.gateway.mesh))}


def needs(port: GatewayPort, listener: Listener) -> tuple[Id, ...]:
    """What the chain of a listener needs beside what every HTTP chain does."""
    permission = (snapshot.EXTENSION, names.permission(listener.section))
    return permission, *tls.secrets(port.gateway.mesh, ALL_MESHES)


def is_permitted(db: Db, traits: match.Traits, listener: Listener, uris: tuple[str, ...]) -> bool:
    """Whether a caller with these URIs in its certificate may call a listener that proxies with traits serve.

    It is what the filter of the listener decides.
    """
    assert traits.gateway is not None, listener
    where = OverlayContext("http", traits.mesh, traits.zone, is_gateway=True, admits_meshes=True)
    name = gateways.called_name(traits.gateway, listener)
    return overlays.is_permitted(db, traits, listener.section, where, uris, name)
