"""Zone listener: the one listener of a zone proxy, an egress or an ingress, with the chains that it has."""

from collections.abc import Iterable, Iterator, Sequence

from koguma.core import world
from koguma.core.build import addresses, encoding, inbound_listener, network, skeletons, zone_egress
from koguma.core.incremental import Db
from koguma.envoy import snapshot
from koguma.envoy.proto_json import Data
from koguma.envoy.snapshot import Failure, Id, XdsResource
from koguma.model.resource import Key


def built(db: Db, proxy: Key, chains: Sequence[Data], needs: Iterable[Id]) -> Iterator[XdsResource | Failure]:
    """The listener; none without chains, since Envoy refuses a listener that has none."""
    name, spec = encoding.kri(db, proxy, ""), network.networking(db, proxy)
    if not chains or spec is None:
        return
    if not name:
        yield encoding.nameless(snapshot.LISTENER, proxy)
        return
    if not addresses.is_ip(spec.address):
        text = f'"{spec.address}" is no IP, and Envoy needs one; write networking.address'
        yield Failure(snapshot.LISTENER, name, text, str(proxy))
        return
    tags = {"kuma.io/unified-name": name}
    where = ((spec.address, _port(db, proxy)),)
    data = skeletons.listener(name, where, "INBOUND", tags, skeletons.ListenerBinding())
    data["listener_filters"] = [inbound_listener.TLS_INSPECTOR]
    data["filter_chains"] = list(chains)
    yield encoding.own(db, snapshot.LISTENER, name, data, needs, str(proxy))


def _port(db: Db, proxy: Key) -> int:
    resource = world.RESOURCES.get(db, proxy)
    return int(zone_egress.section(resource.spec)) if resource else 0
