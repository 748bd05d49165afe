"""Virtual hosts that are sent apart from their routes (VHDS), so that one of thousands can change alone.

Envoy subscribes to all of them at once, and finds the route configuration of one by what stands before the
last `/` in its name. It forgets a removed one only where the virtual host itself has that name too. The
state-of-the-world variant of xDS cannot have virtual hosts apart: `inlined` puts them back.
"""

from collections.abc import Mapping
from typing import Final
from weakref import ref

import msgspec

from koguma.envoy import names
from koguma.envoy.snapshot import ROUTES, VIRTUAL_HOST, Bundle, Id, Snapshot, XdsResource, version_of
from koguma.model.protobuf_wire import bytes_field

# Numbers of fields in envoy/config/route/v3/route.proto.
_VIRTUAL_HOSTS_FIELD: Final = 2
_VHDS_FIELD: Final = 9
# Where they come from: `vhds: {config_source: {ads: {}, resource_api_version: V3}}`.
_VHDS: Final = bytes_field(_VHDS_FIELD, bytes_field(1, b"\x1a\x00\x30\x02"))


def discovering(routes: XdsResource) -> XdsResource:
    """A route configuration that has no virtual hosts, and gets them from us one by one."""
    return _with_body(routes, routes.body + _VHDS)


def inlined(snapshot: Snapshot) -> Snapshot:
    """The same configuration with each virtual host inside its routes; equal bundles are shared."""
    if not snapshot.n_of_type(VIRTUAL_HOST):
        return snapshot
    hosts: dict[str, list[XdsResource]] = {}
    for name, host in sorted(snapshot.of_type(VIRTUAL_HOST).items()):
        hosts.setdefault(names.routes_of(name), []).append(host)
    key = tuple(id(bundle) for bundle in snapshot.bundles if _is_affected(bundle, hosts))
    known = _cache.get(key)
    if known is None:
        affected = [bundle for bundle in snapshot.bundles if _is_affected(bundle, hosts)]
        known = _cache[key] = {id(bundle): _inlined(bundle, hosts) for bundle in affected}
        # Python reuses the id of a bundle that is freed, so the entry is dropped when one of them is.
        _cached_bundles[key] = tuple(ref(bundle, lambda _: _drop(key)) for bundle in affected)
    return Snapshot(tuple(known.get(id(bundle), bundle) for bundle in snapshot.bundles))


_cache: Final[dict[tuple[int, ...], Mapping[int, Bundle]]] = {}
_cached_bundles: Final[dict[tuple[int, ...], tuple["ref[Bundle]", ...]]] = {}


def _drop(key: tuple[int, ...]) -> None:
    _cache.pop(key, None)
    _cached_bundles.pop(key, None)


def _is_affected(bundle: Bundle, hosts: Mapping[str, list[XdsResource]]) -> bool:
    return bool(bundle.count(VIRTUAL_HOST)) or any((ROUTES, name) in bundle.resources for name in hosts)


def _inlined(bundle: Bundle, hosts: Mapping[str, list[XdsResource]]) -> Bundle:
    resources: dict[Id, XdsResource] = {}
    for id_, resource in bundle.resources.items():
        if resource.type == ROUTES and resource.name in hosts:
            resources[id_] = _with_hosts(resource, hosts[resource.name])
        elif resource.type != VIRTUAL_HOST:
            resources[id_] = resource
    return Bundle(resources, bundle.failures)


def _with_hosts(routes: XdsResource, hosts: list[XdsResource]) -> XdsResource:
    # A repeated field is the sum of its parts, wherever they stand in the bytes of a message.
    fields = (bytes_field(_VIRTUAL_HOSTS_FIELD, host.body) for host in hosts)
    needs = dict.fromkeys([*routes.needs, *(need for host in hosts for need in host.needs)])
    return _with_body(
        msgspec.structs.replace(routes, needs=tuple(needs)),
        b"".join((routes.body.removesuffix(_VHDS), *fields)),
    )


def _with_body(routes: XdsResource, body: bytes) -> XdsResource:
    return msgspec.structs.replace(routes, version=version_of(body), body=body)
