"""Inbound listener: the listener of an inbound, with one filter chain for each sort of caller.

Who may call an HTTP port (RBAC) is sent apart from the listener (ECDS), so that a denial acts on open
connections too; so is the connection limit of a TCP port. On a strict port every caller needs a certificate
of the mesh. On a permissive one a caller that is no proxy is let through, in plain text or with its own TLS.
"""

from collections.abc import Iterator

import msgspec

from koguma.core import world
from koguma.core.build import added_resources, encoding, overlay_merge, skeletons, tls
from koguma.core.build.network import InboundNetworking
from koguma.core.incremental import Db
from koguma.envoy import by_caller, filters, names, proto_json, rbac, snapshot
from koguma.envoy.proto_json import Data
from koguma.envoy.snapshot import Failure, XdsResource
from koguma.model.resource import Key
from koguma.model.schema import Json

IDLE_TIMEOUT = skeletons.INBOUND_IDLE_TIMEOUT
# A client that sends its part of a TLS handshake very slowly would hold a connection for as long as it likes.
_HANDSHAKE_TIMEOUT = "10s"
_LIMIT_TYPE = "envoy.extensions.filters.network.local_ratelimit.v3.LocalRateLimit"
_RBAC_TYPE = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"
TLS_INSPECTOR = proto_json.extension(
    "envoy.filters.listener.tls_inspector",
    "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector",
)


class InboundSpec(msgspec.Struct, frozen=True):
    """One inbound of a proxy, with all that decides its resources but policies."""

    proxy: Key
    inbound: InboundNetworking
    name: str
    is_transparent: bool
    source: str = ""  # the address from which Envoy calls the service; empty: any

    @property
    def is_http(self) -> bool:
        """Whether its protocol is HTTP."""
        return self.inbound.protocol in world.HTTP_PROTOCOLS


def resources(db: Db, spec: InboundSpec, parts: overlay_merge.Parts) -> Iterator[XdsResource | Failure]:
    """The listener of an inbound, and the filters that are sent apart from it."""
    inbound = spec.inbound
    tags = dict(inbound.tags) or {"kuma.io/unified-name": spec.name}
    addresses = ((inbound.address, inbound.port),)
    data = skeletons.listener(
        spec.name, addresses, "INBOUND", tags, skeletons.ListenerBinding(is_bound=not spec.is_transparent)
    )
    needs: list[snapshot.Id] = [(snapshot.CLUSTER, spec.name), *added_resources.needed(parts)]
    if spec.is_http:
        needs.append((snapshot.ROUTES, spec.name))
    mtls = tls.mtls(db, spec.proxy.mesh)
    for extension in extensions(db, spec, parts, has_mtls=mtls is not None):
        needs.append(extension.id)
        yield extension
    if mtls is None:
        chains = [{"filters": skeletons.chain(_without_permissions(parts), _sent_apart(spec, parts))}]
    else:
        mode = (parts.get("inbound") or {}).get("mode")
        is_permissive = mode == "Permissive" if mode else mtls.is_permissive
        chains = list(_filter_chains(spec, parts, is_permissive=is_permissive))
        data["listener_filters"] = [TLS_INSPECTOR]
        needs += tls.secrets(spec.proxy.mesh)
    data["filter_chains"] = chains
    yield encoding.own(db, snapshot.LISTENER, spec.name, data, needs, str(spec.proxy))


def extensions(
    db: Db, spec: InboundSpec, parts: overlay_merge.Parts, *, has_mtls: bool
) -> Iterator[XdsResource | Failure]:
    """The filters of an inbound that are sent apart from its listener."""
    if not spec.is_http:
        yield _connection_limit(db, spec, parts)
    elif has_mtls:
        yield permission(db, spec.inbound.section, parts, spec.proxy)


def _without_permissions(parts: overlay_merge.Parts) -> overlay_merge.Parts:
    """The parts without permissions, which cannot act: without a certificate a caller has no identity."""
    network_filters = dict(parts.get("network_filters") or {})
    network_filters.pop(filters.NETWORK_RBAC, None)
    return {**parts, "network_filters": network_filters}


def _filter_chains(spec: InboundSpec, parts: overlay_merge.Parts, *, is_permissive: bool) -> Iterator[Data]:
    secured = secured_chain(spec, parts)
    if not is_permissive:
        yield secured
        return
    yield {
        "filter_chain_match": {"transport_protocol": "raw_buffer"},
        "filters": skeletons.chain(_without_permissions(parts), _sent_apart(spec, parts)),
    }
    own_tls = skeletons.chain({"tcp": skeletons.tcp_proxy(spec.name, {"cluster": spec.name}, IDLE_TIMEOUT)})
    if not spec.is_http:
        own_tls = skeletons.chain(
            _without_permissions(parts), _sent_apart(spec, parts)
        )  # what is in the bytes does not matter
    yield {"filter_chain_match": {"transport_protocol": "tls"}, "filters": own_tls}
    of_mesh = {"transport_protocol": "tls", "application_protocols": [tls.ALPN]}
    yield {"filter_chain_match": of_mesh, **secured}


def secured_chain(spec: InboundSpec, parts: overlay_merge.Parts) -> Data:
    """The filter chain for callers with a certificate of the mesh."""
    context = overlay_merge.merged(tls.downstream(spec.proxy.mesh), parts.get("tls") or {})
    return {
        "filters": _secured(spec, parts),
        "transport_socket": tls.socket(context),
        "transport_socket_connect_timeout": _HANDSHAKE_TIMEOUT,
    }


def _secured(spec: InboundSpec, parts: overlay_merge.Parts) -> list[Data]:
    if not spec.is_http:
        network_filters = parts.get("network_filters") or {}
        with_rbac = {filters.NETWORK_RBAC: rbac.deny_all_network(spec.name), **network_filters}
        logs = [*(parts["tcp"].get("access_log") or ()), rbac.denied_connection_log()]
        secured = {**parts, "tcp": {**parts["tcp"], "access_log": logs}, "network_filters": with_rbac}
        return skeletons.chain(secured, _sent_apart(spec, parts))
    asking = {filters.RBAC: permission_filter(spec.inbound.section), **_sent_apart(spec, parts)}
    return skeletons.chain(with_denials(parts), asking)


def with_denials(parts: overlay_merge.Parts) -> overlay_merge.Parts:
    """The parts of an HTTP chain that tells callers and its log which policy denied a request."""
    logs = [*(parts["hcm"].get("access_log") or ()), rbac.denied_log()]
    return {**parts, "hcm": {**parts["hcm"], "local_reply_config": rbac.denied_reply(), "access_log": logs}}


def permission_filter(section: str) -> Data:
    """The filter that asks who may call; its configuration is a resource of its own (`permission`)."""
    return {
        "name": names.permission(section),
        "config_discovery": {"config_source": proto_json.ADS, "type_urls": [_RBAC_TYPE]},
    }


def _sent_apart(spec: InboundSpec, parts: overlay_merge.Parts) -> Data:
    """The filters whose configuration is sent apart from the listener; the listener always has them."""
    if spec.is_http:
        keys = {*filters.RESERVED, *(parts.get("on_routes") or {})}
        return {key: by_caller.disabled_filter(filters.name_of(key)) for key in keys}
    discovery = {"config_source": proto_json.ADS, "type_urls": [proto_json.TYPE_PREFIX + _LIMIT_TYPE]}
    return {
        filters.NETWORK_LOCAL_RATELIMIT: {
            "name": names.connection_limit(spec.inbound.section),
            "config_discovery": discovery,
        }
    }


def _connection_limit(db: Db, spec: InboundSpec, parts: overlay_merge.Parts) -> XdsResource | Failure:
    """The limit of new connections, as a filter of its own; unlimited where no policy sets one."""
    config: Json = (parts.get("extensions") or {}).get(filters.NETWORK_LOCAL_RATELIMIT)
    unlimited = proto_json.typed(
        _LIMIT_TYPE,
        stat_prefix=spec.name,
        token_bucket={"max_tokens": 1, "fill_interval": "1s"},  # Envoy requires one
        runtime_enabled={"default_value": False, "runtime_key": "koguma.connection_limit"},
    )
    data = {"name": names.connection_limit(spec.inbound.section), "typed_config": config or unlimited}
    return encoding.own(
        db, snapshot.EXTENSION, names.connection_limit(spec.inbound.section), data, origin=str(spec.proxy)
    )


def permission(db: Db, section: str, parts: overlay_merge.Parts, origin: Key) -> XdsResource | Failure:
    """Who may call an HTTP port; nobody where no policy says so."""
    config: Json = (parts.get("extensions") or {}).get(filters.RBAC) or rbac.deny_all()
    name = names.permission(section)
    data = {"name": name, "typed_config": config}
    return encoding.own(db, snapshot.EXTENSION, name, data, origin=str(origin))
