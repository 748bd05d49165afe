"""Gateway limits: how many connections the listeners of a built-in gateway take.

Envoy reads the limit of a listener from its runtime, by the listener's name, at each new connection. So a
change of a limit touches no listener and no open connection. All limits of a gateway, whatever its listeners
speak, are one resource; without limits it is empty, since Envoy waits for it when it starts.
"""

from collections.abc import Iterator, Mapping

from koguma.core import match, world
from koguma.core.build import encoding
from koguma.core.incremental import Db, question
from koguma.envoy import names, snapshot
from koguma.envoy.snapshot import Failure, XdsResource
from koguma.model.resource import Key


def of(db: Db, proxy: Key) -> Iterator[XdsResource | Failure]:
    """The runtime of a built-in gateway's Envoy; nothing for other proxies."""
    traits = match.traits(db, proxy)
    if traits is not None and traits.is_builtin:
        yield runtime(db, traits.gateway)


@question
def runtime(db: Db, gateway: Key | None) -> XdsResource | Failure:
    """The runtime of all Envoys that serve a MeshGateway, or none."""
    limits = by_port(db, gateway) if gateway is not None else {}
    layer = {
        f"envoy.resource_limits.listener.{encoding.kri(db, gateway, str(port))}.connection_limit": limit
        for port, limit in limits.items()
        if gateway is not None
    }
    data = {"name": names.GATEWAY_LISTENERS, "layer": layer}
    return encoding.encoded(
        db, snapshot.RUNTIME, names.GATEWAY_LISTENERS, data, origin=str(gateway) if gateway else ""
    )


def by_port(db: Db, gateway: Key) -> Mapping[int, int]:
    """How many connections each port of a MeshGateway takes, where that is limited.

    Listeners of one port share a socket and have one limit; should stored ones differ, the smallest holds.
    """
    resource = world.RESOURCES.get(db, gateway)
    written = ((resource.spec.get("conf") or {}).get("listeners") or ()) if resource else ()
    limits: dict[int, int] = {}
    for listener in written:
        limit = (listener.get("resources") or {}).get("connectionLimit") or 0
        port = listener.get("port") or 0
        if limit and port:
            limits[port] = min(limit, limits.get(port, limit))
    return dict(sorted(limits.items()))
