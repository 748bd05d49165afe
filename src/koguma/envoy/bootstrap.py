"""Bootstrap: what an Envoy reads when it starts, as plain data: who it is, and where the rest comes from.

Everything else comes over ADS from the control plane. The connection is verified with the CA that is given
here, for the very host by which the control plane was reached, and carries the proxy's token. Envoy's admin
interface is a unix socket in the proxy's directory, so that no port of it exists; only for an agent that
knows no other way, as Kuma's own, it is a port of the loopback address.
"""

import ipaddress
from collections.abc import Mapping
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

# A KRI is six parts after its prefix, of which only the name may hold dots; all else ends at the first dot.
_KRI: Final = r"(?:kri(?:_[^_.]*){4}_[^_]*_[^_.]*)"
_NAME: Final = rf"({_KRI}|[^.]+)"
_ADDRESS: Final = r"\[[_a-fA-F0-9]*\]_[0-9]*|[^.]+(?:\.[0-9]+){3}_[0-9]+|[^.]+"

# By default Envoy cuts a label at the first dot, which would tear the name of a service in two: the head
# becomes the label and the tail a part of the metric's name.
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
    # Users' regular expressions may be as long as in Kuma; by default Envoy refuses those beyond 100.
    "re2.max_program_size.error_level": 4_294_967_295,
    "re2.max_program_size.warn_level": 1000,
}


# A control plane that restarts is back within a second or two; Envoy would look every half minute at worst.
_RECONNECT: Final[Data] = {"base_interval": "0.25s", "max_interval": "4s"}


_CONNECTIONS_MAX: Final = 50_000
_OVERLOAD_INTERVAL: Final = "0.25s"
_OVERLOAD_ACTIONS: Final[Mapping[str, float]] = {
    "envoy.overload_actions.shrink_heap": 0.95,
    "envoy.overload_actions.stop_accepting_requests": 0.98,
}


class Node(msgspec.Struct, frozen=True):
    """Who an Envoy is, as it introduces itself on every stream."""

    id: str
    cluster: str
    metadata: Mapping[str, Json] = {}


class Source(msgspec.Struct, frozen=True):
    """Where configuration comes from: an xDS server, the CA that vouches for it, and what to show it."""

    host: str  # an IP address or a DNS name; must be in the server's certificate
    port: int
    token: Redacted
    ca: str = ""  # PEM
    ca_path: str = ""  # the proxy's file of CAs, where there is no PEM
    delta: bool = True  # only what changes is sent; else everything each time
    token_file: str = ""  # from which Envoy reads the token whenever it changes; then `token` is not used


def bootstrap(
    node: Node,
    source: Source,
    directory: str,
    *,
    admin_port: int = 0,
    reports_health: bool = False,
    heap_bytes_max: int = 0,
) -> Data:
    """The bootstrap of an Envoy whose sockets are in `directory`.

    With `admin_port` the admin interface is there instead of on a socket; with `reports_health` Envoy asks
    what it is to check the health of, and reports it. Near `heap_bytes_max` it takes no more requests.
    """
    return {
        "node": {"id": node.id, "cluster": node.cluster, "metadata": dict(node.metadata)},
        "layered_runtime": {"layers": [{"name": "kuma", "static_layer": dict(_RUNTIME)}]},
        "stats_config": _stats_config(),
        "dynamic_resources": _dynamic_resources(source),
        **({"hds_config": _stream(source, "GRPC")} if reports_health else {}),
        "static_resources": {"clusters": [_ads_cluster(source)]},
        "admin": _admin(directory, admin_port),
        "overload_manager": _overload_manager(heap_bytes_max),
        "default_regex_engine": extension(
            "envoy.regex_engines.google_re2", "envoy.extensions.regex_engines.v3.GoogleRE2"
        ),
    }


def _admin(directory: str, port: int) -> Data:
    if port:
        return {"address": address(ADMIN_ADDRESS, port)}
    return {"address": {"pipe": {**pipe(f"{directory}/{ADMIN_SOCKET}")["pipe"], "mode": _SOCKET_MODE}}}


def _overload_manager(heap_bytes_max: int) -> Data:
    """Envoy's limits on itself: beyond them it refuses new work, instead of being ended by the kernel.

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


def _dynamic_resources(source: Source) -> Data:
    # Zero: an Envoy without configuration waits for it. After a time limit it would say that it is ready.
    config = {"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"}
    api_type = "DELTA_GRPC" if source.delta else "GRPC"
    return {"lds_config": config, "cds_config": config, "ads_config": _stream(source, api_type)}


def _stream(source: Source, api_type: str) -> Data:
    """A stream to the control plane, which shows the token."""
    return {
        "api_type": api_type,
        "transport_api_version": "V3",
        "set_node_on_first_message_only": True,
        "grpc_services": [
            {
                "envoy_grpc": {"cluster_name": names.ADS, "retry_policy": {"retry_back_off": _RECONNECT}},
                **_initial_metadata(source),
            }
        ],
    }


def _initial_metadata(source: Source) -> Data:
    """The token for good, for agents that do not keep a file of it."""
    if source.token_file:
        return {}
    return {"initial_metadata": [{"key": "authorization", "value": source.token.reveal()}]}


def token_secret(token: str) -> Data:
    """What the token file holds: a list of secrets as Envoy reads it from a file (SDS)."""
    secret = typed(
        "envoy.extensions.transport_sockets.tls.v3.Secret",
        name=_TOKEN_SECRET,
        generic_secret={"secret": {"inline_string": token}},
    )
    return {"resources": [secret]}


def _token_filters(file: str) -> Data:
    """Filters of calls to the control plane that add the token as it is in the file at that moment.

    `initial_metadata` is fixed until Envoy restarts. The file is read again when another one is moved into
    its place, so it is replaced by a rename and never written in parts.
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


def _ads_cluster(source: Source) -> Data:
    options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    # A control plane may listen on one of the two families only, so all addresses of its name are tried.
    resolution = (
        {"type": "STATIC"} if _is_ip(source.host) else {"type": "STRICT_DNS", "dns_lookup_family": "ALL"}
    )
    return {
        "name": names.ADS,
        **resolution,
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {
            options: typed(
                options,
                explicit_http_config={"http2_protocol_options": {}},
                **(_token_filters(source.token_file) if source.token_file else {}),
            )
        },
        # Of the kernel and not of HTTP/2, whose pings a gRPC server takes for an attack.
        "upstream_connection_options": {
            "tcp_keepalive": {"keepalive_probes": 3, "keepalive_time": 10, "keepalive_interval": 10}
        },
        "load_assignment": {
            "cluster_name": names.ADS,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(source.host, source.port)}}]}],
        },
        "transport_socket": _transport_socket(source),
    }


def _transport_socket(source: Source) -> Data:
    is_ip = _is_ip(source.host)
    matcher = {"san_type": "IP_ADDRESS" if is_ip else "DNS", "matcher": {"exact": source.host}}
    return extension(
        "envoy.transport_sockets.tls",
        "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        **({} if is_ip else {"sni": source.host}),  # an address is no server name (RFC 6066)
        common_tls_context={
            # Said, because Envoy's own choice for calls is TLS 1.2 at most.
            "tls_params": {
                "tls_minimum_protocol_version": "TLSv1_2",
                "tls_maximum_protocol_version": "TLSv1_3",
            },
            "alpn_protocols": ["h2"],
            "validation_context": {
                # Never `system_root_certs`, which Envoy takes and then verifies nothing with.
                "trusted_ca": {"inline_string": source.ca} if source.ca else {"filename": source.ca_path},
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
