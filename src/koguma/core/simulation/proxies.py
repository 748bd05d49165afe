"""Proxies: the Envoys of a mesh as the simulation asks them, and who of them listens at an address."""

from collections.abc import Iterator
from functools import cached_property

from koguma.core import spiffe, world
from koguma.core.build import (
    encoding,
    gateway_endpoints,
    network,
    snapshot,
    tls,
    zone_egress,
    zone_ingress,
)
from koguma.core.build.outbound_spec import OutboundSpec
from koguma.core.build.snapshot import SharedSpec
from koguma.core.gateways import GATEWAY, listeners
from koguma.core.group import Group
from koguma.core.incremental import Db
from koguma.envoy import names
from koguma.envoy.simulation.proxy import SimulatedProxy
from koguma.envoy.simulation.traffic import PeerIdentity
from koguma.envoy.snapshot import LISTENER, ROUTES, VIRTUAL_HOST, Snapshot, XdsResource
from koguma.model.resource import Key
from koguma.model.schema import Json

ServedAddress = tuple[Key, str]  # a proxy, and its listener


class MeshProxies:
    """The Envoys of a mesh; what is decoded of their configuration is kept, for one answer or many."""

    def __init__(self, db: Db, mesh: str) -> None:
        self.db, self.mesh = db, mesh
        self._decoded: dict[XdsResource, Json] = {}
        self._configurations: dict[tuple[Key, Key | None], Snapshot] = {}

    def of(self, key: Key, to: Key | None = None) -> SimulatedProxy:
        """The Envoy of a proxy; with all that it needs in order to call one destination, if that is given."""
        own = self.configuration(key, to)
        hosts = own.of_type(VIRTUAL_HOST) if own.n_of_type(VIRTUAL_HOST) else {}

        def resources(type_: str, name: str) -> Json:
            resource = own.get((type_, name))
            if resource is None:
                return None
            data = self._data(resource)
            if type_ != ROUTES or not hosts:
                return data
            apart = [self._data(host) for each, host in hosts.items() if names.routes_of(each) == name]
            return {**data, "virtual_hosts": [*(data.get("virtual_hosts") or ()), *apart]}

        return SimulatedProxy(resources, self._identity(key))

    def listeners(self, key: Key, to: Key) -> tuple[str, ...]:
        """The names of a proxy's listeners, at least of those by which it calls a destination."""
        return tuple(sorted(self.configuration(key, to).of_type(LISTENER)))

    def reaches(self, key: Key, to: Key) -> bool:
        """Whether a destination is among what a proxy calls."""
        spec = self.shared_spec(key)
        return isinstance(spec, OutboundSpec) and any(port.destination == to for port in spec.ports)

    def configuration(self, key: Key, to: Key | None = None) -> Snapshot:
        """What a proxy gets, as far as it is needed to serve calls, or to call a destination."""
        if (key, to) not in self._configurations:
            self._configurations[key, to] = self._configuration(key, to)
        return self._configurations[key, to]

    def shared_spec(self, key: Key) -> SharedSpec | None:
        """What decides how a proxy calls others: proxies with equal specs call in the same way.

        A proxy that is not connected here is taken to have Koguma's agent.
        """
        own = snapshot.own(self.db, key)
        if own is None or own.shared_spec is None or self._is_connected(key):
            return own.shared_spec if own else None
        return snapshot.likely_spec(self.db, key)

    def _is_connected(self, key: Key) -> bool:
        return network.NODE_METADATA.get(self.db, key) is not None

    def _configuration(self, key: Key, to: Key | None) -> Snapshot:
        own, spec = snapshot.own(self.db, key), self.shared_spec(key)
        if own is None:
            return Snapshot()
        if isinstance(spec, OutboundSpec):
            if to is None:
                return Snapshot(own.bundles)  # who is called needs nothing of how it calls others
            if not self._is_connected(key):
                # Nobody has asked for the whole yet. What is built for one destination is the same without
                # the others, but for subsets that only these select. So only its part is built.
                only = Group(port for port in spec.ports if port.destination == to)
                spec = spec._replace(ports=only, redirection=None)
        own = own._replace(shared_spec=spec)
        return snapshot.whole(own, snapshot.shared_of(self.db, own))

    def _data(self, resource: XdsResource) -> Json:
        if resource not in self._decoded:
            self._decoded[resource] = encoding.encoder(self.db).decoded(resource)
        return self._decoded[resource]

    def _identity(self, key: Key) -> PeerIdentity | None:
        mesh = key.mesh or self.mesh  # a zone proxy has an identity in each mesh
        if tls.mtls(self.db, mesh) is None:
            return None
        is_sidecar = key.kind == "Dataplane"
        uris = spiffe.identity(self.db, key) if is_sidecar else zone_egress.uris(mesh, key.zone)
        return PeerIdentity(uris, tls.ca_name(mesh))

    @cached_property
    def _by_address(self) -> dict[tuple[str, int], ServedAddress]:
        found: dict[tuple[str, int], ServedAddress] = {}
        for address, served in self._addresses():
            found.setdefault(address, served)
        return found

    def _addresses(self) -> Iterator[tuple[tuple[str, int], ServedAddress]]:
        db = self.db
        for key in world.BY_KIND.keys(db, ("Dataplane", self.mesh)):
            networking = network.networking(db, key)
            for inbound in networking.inbounds if networking else ():
                name = encoding.kri(db, key, inbound.section)
                yield (inbound.reached_at, inbound.port), (key, name)
        here = world.control_plane(db).zone
        for kind in (zone_egress.KIND, zone_ingress.KIND):
            for key, resource in world.BY_KIND_EVERYWHERE.items(db, kind):
                address = (resource.spec.get("networking") or {}).get("address", "")
                name = encoding.kri(db, key, "")
                if key.zone == here:
                    yield (address, int(zone_egress.section(resource.spec))), (key, name)
        yield from self._gateways()

    def _gateways(self) -> Iterator[tuple[tuple[str, int], ServedAddress]]:
        """The listeners of built-in gateways, of all meshes: some may be called from others."""
        for gateway in world.BY_KIND_EVERYWHERE.keys(self.db, GATEWAY):
            ports = sorted({listener.port for listener in listeners(self.db, gateway)})
            for key in gateway_endpoints.proxies(self.db, gateway):
                resource = world.RESOURCES.get(self.db, key)
                own = (resource.spec.get("networking") or {}) if resource else {}
                address = own.get("advertisedAddress") or own.get("address") or network.LOOPBACK
                for port in ports:
                    yield (address, port), (key, encoding.kri(self.db, gateway, str(port)))

    def zone_at(self, address: str, port: int) -> str:
        """The other zone whose ingress is called at an address; empty where there is none."""
        zones = {key.zone for key in world.BY_KIND_EVERYWHERE.keys(self.db, "MeshService")}
        for zone in sorted(zones - {world.control_plane(self.db).zone, ""}):
            for endpoint in zone_ingress.endpoints_of(self.db, self.mesh, zone):
                if (endpoint.address, endpoint.port) == (address, port):
                    return zone
        return ""

    def at(self, address: str, port: int) -> ServedAddress | None:
        """The proxy that is called at an address, and its listener; None for what is outside of the mesh."""
        return self._by_address.get((address, port))
