"""Bootstrap: the configuration with which an Envoy starts, as plain data: its node, and its ADS server.

Everything else comes over ADS. The connection is verified with the given CA and for the host by which a
control plane is reached, and carries the proxy's token. Of several control planes Envoy uses one, and leaves
it for another soon after it has stopped to answer. Envoy's admin interface is a unix socket in the proxy's
directory, so that it has no port; only for Kuma's agent, which needs one, it is a loopback port.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from koguma.envoy import names
from koguma.envoy.proto_json import Data, address, extension, pipe, typed
from koguma.model.redacted import Redacted
from koguma.model.schema import Json

ADMIN_SOCKET: Final = "envoy-admin.sock"
TOKEN_FILE: Final = "dataplane-token.json"  # noqa: S105 - a file's name: the agent writes it for each new token
_TOKEN_SECRET: Final = "_kuma_dataplane_token"  # noqa: S105 - the name of the secret in that file
ADMIN_ADDRESS: Final = "127.0.0.1"

_SOCKET_MODE: Final = 0o600

# The name in a KRI may contain dots. So may what a MeshPassthrough matches, in a name that ends with a port.
# Other names end at a dot.
_KRI: Final = names.KRI_PATTERN
_PASSED: Final = r"(?:meshpassthrough_[^_.]+_.+_(?:[0-9]+|\*))"
_NAME: Final = rf"({_KRI}|{_PASSED}|[^.]+)"
_ADDRESS: Final = r"\[[_a-fA-F0-9]*\]_[0-9]*|[^.]+(?:\.[0-9]+){3}_[0-9]+|[^.]+"

# By default Envoy ends a tag at the first dot, which would split the name of a service: the head would become
# the tag and the tail a part of the metric's name.
STATS_TAGS: Final[Mapping[str, str]] = {
    "envoy.cluster_name": rf"^cluster\.({_NAME}\.)",
    "envoy.http_conn_manager_prefix": rf"^(?:|listener\.{_KRI}\.|listener\..*?\.)http\.({_NAME}\.)",
    "envoy.listener_address": rf"^listener\.(({_KRI}|{_ADDRESS})\.)",
    "envoy.tcp_prefix": rf"^tcp\.({_NAME}\.)",
    "envoy.rds_route_config": rf"^http\..*?\.rds\.({_NAME}\.)",
    "envoy.virtual_host": rf"^vhost\.({_NAME}\.)",
    "envoy.route": rf"^vhost\..*\.route\.({_NAME}\.)",
}

_RUNTIME: Final[Mapping[str, int]] = {
    # Regular expressions of users may be as long as in Kuma; Envoy's default limit is a program size of 100.
    "re2.max_program_size.error_level": 4_294_967_295,
    "re2.max_program_size.warn_level": 1000,
}


# A restarted control plane is back within a second or two; Envoy's default backs off up to half a minute.
_RECONNECT: Final[Data] = {"base_interval": "0.25s", "max_interval": "4s"}
# Envoy forgets its failures only with a message, and one that moves gets none as long as it has everything.
# So after some moves it would wait for long, although another control plane is there.
_MOVE: Final[Data] = {"base_interval": "0.25s", "max_interval": "1s"}


# Of several control planes one that does not answer is left after the sum of the first two. It is not tried
# again before the ejection ends, which grows with each failure, up to a limit.
_PING_INTERVAL: Final = "1s"
_PING_TIMEOUT: Final = "1s"
_EJECTION: Final = "2s"
_EJECTION_MAX: Final = "30s"
_SOCKET_MATCH: Final = "envoy.transport_socket_match"
_HOST: Final = "host"

_CONNECTIONS_MAX: Final = 50_000
_OVERLOAD_INTERVAL: Final = "0.25s"
_OVERLOAD_ACTIONS: Final[Mapping[str, float]] = {
    "envoy.overload_actions.shrink_heap": 0.95,
    "envoy.overload_actions.stop_accepting_requests": 0.98,
}


class BootstrapNode(msgspec.Struct, frozen=True):
    """The node of an Envoy, which it sends on every stream."""

    id: str
    cluster: str
    metadata: Mapping[str, Json] = {}


class AdsEndpoint(msgspec.Struct, frozen=True, order=True):
    """Where a control plane serves ADS: an IP address or a DNS name, which must be in its certificate."""

    host: str
    port: int


class AdsServer(msgspec.Struct, frozen=True):
    """The ADS server: its address, the CA that issued its certificate, and the token for it."""

    host: str  # an IP address or a DNS name; must be in the server's certificate
    port: int
    token: Redacted
    ca: str = ""  # PEM
    ca_path: str = ""  # a file of CAs on the proxy's machine, where there is no PEM
    delta: bool = True  # delta xDS, else state of the world
    token_file: str = ""  # which Envoy watches for a new token; then `token` is not used
    others: tuple[AdsEndpoint, ...] = ()  # control planes of the same store
    may_move: bool = False  # whether there are several, or a name that may stand for several

    @property
    def endpoints(self) -> tuple[AdsEndpoint, ...]:
        """All control planes, each once."""
        return tuple(dict.fromkeys((AdsEndpoint(self.host, self.port), *self.others)))


def bootstrap(
    node: BootstrapNode,
    server: AdsServer,
    directory: str,
    *,
    admin_port: int = 0,
    reports_health: bool = False,
    heap_bytes_max: int = 0,
    is_gateway: bool = False,
) -> Data:
    """The bootstrap of an Envoy whose sockets are in `directory`.

    With `admin_port` the admin interface is on that port instead of a socket; with `reports_health` Envoy
    performs health checks for the control plane (HDS). Near `heap_bytes_max` it accepts no more requests.
    The limits of a built-in gateway's listeners come over ADS as a layer of the runtime (RTDS).
    """
    return {
        "node": {"id": node.id, "cluster": node.cluster, "metadata": dict(node.metadata)},
        "layered_runtime": {"layers": _runtime_layers(is_gateway=is_gateway)},
        "stats_config": _stats_config(),
        "dynamic_resources": _dynamic_resources(server),
        **({"hds_config": _stream(server, "GRPC")} if reports_health else {}),
        "static_resources": {"clusters": [_ads_cluster(server)]},
        "admin": _admin(directory, admin_port),
        "overload_manager": _overload_manager(heap_bytes_max),
        "default_regex_engine": extension(
            "envoy.regex_engines.google_re2", "envoy.extensions.regex_engines.v3.GoogleRE2"
        ),
    }


def _runtime_layers(*, is_gateway: bool) -> list[Data]:
    layers: list[Data] = [{"name": "kuma", "static_layer": dict(_RUNTIME)}]
    if is_gateway:
        # Envoy's own timeout for the first answer stays (15 s): limits that are late do not hold up traffic.
        config = {"ads": {}, "resource_api_version": "V3"}
        layers.append(
            {
                "name": names.GATEWAY_LISTENERS,
                "rtds_layer": {"name": names.GATEWAY_LISTENERS, "rtds_config": config},
            }
        )
    return layers


def _admin(directory: str, port: int) -> Data:
    if port:
        return {"address": address(ADMIN_ADDRESS, port)}
    return {"address": {"pipe": {**pipe(f"{directory}/{ADMIN_SOCKET}")["pipe"], "mode": _SOCKET_MODE}}}


def _overload_manager(heap_bytes_max: int) -> Data:
    """Envoy's own limits: beyond them it refuses new work, instead of being killed by the kernel.

    The numbers are those that Kuma has for its gateways.
    """
    connections = extension(
        "envoy.resource_monitors.global_downstream_max_connections",
        "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
        max_active_downstream_connections=_CONNECTIONS_MAX,
    )
    if not heap_bytes_max:
        return {"refresh_interval": _OVERLOAD_INTERVAL, "resource_monitors": [connections]}
    heap = extension(
        "envoy.resource_monitors.fixed_heap",
        "envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig",
        max_heap_size_bytes=heap_bytes_max,
    )
    actions = [
        {"name": name, "triggers": [{"name": heap["name"], "threshold": {"value": share}}]}
        for name, share in _OVERLOAD_ACTIONS.items()
    ]
    return {
        "refresh_interval": _OVERLOAD_INTERVAL,
        "resource_monitors": [connections, heap],
        "actions": actions,
    }


def _stats_config() -> Data:
    tags = [{"tag_name": name, "regex": regex} for name, regex in STATS_TAGS.items()]
    return {"allow_default_tag_overrides": True, "stats_tags": tags}


def _dynamic_resources(server: AdsServer) -> Data:
    # Zero: Envoy waits for its configuration. After a timeout it would report ready without any.
    config = {"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"}
    api_type = "DELTA_GRPC" if server.delta else "GRPC"
    return {"lds_config": config, "cds_config": config, "ads_config": _stream(server, api_type)}


def _stream(server: AdsServer, api_type: str) -> Data:
    """A gRPC stream to the control plane, with the token."""
    back_off = _MOVE if server.may_move else _RECONNECT
    return {
        "api_type": api_type,
        "transport_api_version": "V3",
        "set_node_on_first_message_only": True,
        "grpc_services": [
            {
                "envoy_grpc": {"cluster_name": names.ADS, "retry_policy": {"retry_back_off": back_off}},
                **_initial_metadata(server),
            }
        ],
    }


def _initial_metadata(server: AdsServer) -> Data:
    """The token as constant metadata, for agents that keep no token file."""
    if server.token_file:
        return {}
    return {"initial_metadata": [{"key": "authorization", "value": server.token.reveal()}]}


def token_secret(token: str) -> Data:
    """The content of the token file: secrets in the form of file-based SDS."""
    secret = typed(
        "envoy.extensions.transport_sockets.tls.v3.Secret",
        name=_TOKEN_SECRET,
        generic_secret={"secret": {"inline_string": token}},
    )
    return {"resources": [secret]}


def _token_filters(file: str) -> Data:
    """Upstream filters that add the token from the file to calls of the control plane.

    `initial_metadata` is constant until Envoy restarts. Envoy reads the file again when another one is moved
    over it, so the agent replaces it by a rename.
    """
    credential = extension(
        "envoy.http.injected_credentials.generic",
        "envoy.extensions.http.injected_credentials.generic.v3.Generic",
        credential={
            "name": _TOKEN_SECRET,
            "sds_config": {"path_config_source": {"path": file}, "resource_api_version": "V3"},
        },
        header="authorization",
    )
    injector = extension(
        "envoy.filters.http.credential_injector",
        "envoy.extensions.filters.http.credential_injector.v3.CredentialInjector",
        overwrite=True,
        credential=credential,
    )
    codec = extension(
        "envoy.filters.http.upstream_codec",
        "envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec",
    )
    return {"http_filters": [injector, codec]}


def _ads_cluster(server: AdsServer) -> Data:
    options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    hosts = tuple(dict.fromkeys(each.host for each in server.endpoints))
    # A control plane may listen on one of the two families only, so all addresses of its name are tried.
    resolution = (
        {"type": "STATIC"} if all(map(_is_ip, hosts)) else {"type": "STRICT_DNS", "dns_lookup_family": "ALL"}
    )
    return {
        "name": names.ADS,
        **resolution,
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {
            options: typed(
                options,
                explicit_http_config={"http2_protocol_options": _keepalive(server)},
                **(_token_filters(server.token_file) if server.token_file else {}),
            )
        },
        # For a single control plane TCP keepalive is enough, which costs it nothing.
        "upstream_connection_options": {
            "tcp_keepalive": {"keepalive_probes": 3, "keepalive_time": 10, "keepalive_interval": 10}
        },
        **({"outlier_detection": _ejection()} if server.may_move else {}),
        "load_assignment": {
            "cluster_name": names.ADS,
            "endpoints": [{"lb_endpoints": [_lb_endpoint(each, len(hosts)) for each in server.endpoints]}],
        },
        **_transport_sockets(server, hosts),
    }


def _keepalive(server: AdsServer) -> Data:
    """Pings, by which Envoy leaves a control plane that is frozen or cannot be reached any more."""
    if not server.may_move:
        return {}
    return {"connection_keepalive": {"interval": _PING_INTERVAL, "timeout": _PING_TIMEOUT}}


def _ejection() -> Data:
    """Who fails once, or ends a stream as unavailable, is left alone for a moment; never more than half."""
    return {
        "consecutive_5xx": 1,
        "consecutive_gateway_failure": 1,
        "enforcing_consecutive_gateway_failure": 100,
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 1,
        "enforcing_success_rate": 0,
        "enforcing_local_origin_success_rate": 0,
        "interval": "1s",
        "base_ejection_time": _EJECTION,
        "max_ejection_time": _EJECTION_MAX,
        "max_ejection_percent": 50,
    }


def _lb_endpoint(endpoint: AdsEndpoint, n_hosts: int) -> Data:
    found: Data = {"endpoint": {"address": address(endpoint.host, endpoint.port)}}
    if n_hosts > 1:
        found["metadata"] = {"filter_metadata": {_SOCKET_MATCH: {_HOST: endpoint.host}}}
    return found


def _transport_sockets(server: AdsServer, hosts: Sequence[str]) -> Data:
    """TLS that verifies each control plane for the host by which it is reached, and for no other."""
    if len(hosts) == 1:
        return {"transport_socket": _transport_socket(server, hosts[0])}
    matches = [
        {"name": host, "match": {_HOST: host}, "transport_socket": _transport_socket(server, host)}
        for host in hosts
    ]
    return {"transport_socket_matches": matches}


def _transport_socket(server: AdsServer, host: str) -> Data:
    is_ip = _is_ip(host)
    matcher = {"san_type": "IP_ADDRESS" if is_ip else "DNS", "matcher": {"exact": host}}
    return extension(
        "envoy.transport_sockets.tls",
        "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        **({} if is_ip else {"sni": host}),  # an address is no server name (RFC 6066)
        common_tls_context={
            # Envoy's default for upstream connections is TLS 1.2 at most.
            "tls_params": {
                "tls_minimum_protocol_version": "TLSv1_2",
                "tls_maximum_protocol_version": "TLSv1_3",
            },
            "alpn_protocols": ["h2"],
            "validation_context": {
                # Never `system_root_certs`: Envoy accepts it and then verifies nothing.
                "trusted_ca": {"inline_string": server.ca} if server.ca else {"filename": server.ca_path},
                "match_typed_subject_alt_names": [matcher],
            },
        },
    )


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
