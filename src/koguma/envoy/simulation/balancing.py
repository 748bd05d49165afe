"""Balancing: which endpoints of a cluster a request may go to, each with its share.

Of the priorities the first that has endpoints is used: all endpoints are taken to be healthy, unless the data
says otherwise. How Envoy spreads requests inside of a priority follows from weights; hashing is not followed.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import Final

import msgspec

from koguma.envoy.simulation.traffic import ClientConnection, PeerIdentity
from koguma.model.schema import Json

_UNUSABLE: Final = ("UNHEALTHY", "DRAINING", "TIMEOUT")
_DNS: Final = ("STRICT_DNS", "LOGICAL_DNS")
_UPSTREAM: Final = "UpstreamTlsContext"


class BalancedEndpoint(msgspec.Struct, frozen=True):
    """An endpoint that gets a share of the requests to a cluster; a host name where DNS resolves it."""

    share: Fraction
    address: str
    port: int
    hostname: str = ""


def endpoints(cluster: Json, assignment: Json, subset: tuple[tuple[str, str], ...]) -> list[BalancedEndpoint]:
    """The endpoints that requests may go to, with shares that add up to one; none where there are none."""
    by_priority: dict[int, list[tuple[Fraction, Json]]] = {}
    is_weighted = "locality_weighted_lb_config" in (cluster.get("common_lb_config") or {})
    for locality in (assignment or {}).get("endpoints") or ():
        usable = [each for each in locality.get("lb_endpoints") or () if _is_usable(cluster, each, subset)]
        if not usable:
            continue
        total = sum(each.get("load_balancing_weight", 1) for each in usable)
        weight = Fraction(locality.get("load_balancing_weight", 0)) if is_weighted else Fraction(total)
        pairs = [(weight * each.get("load_balancing_weight", 1) / total, each) for each in usable]
        by_priority.setdefault(locality.get("priority", 0), []).extend(pairs)
    for _, pairs in sorted(by_priority.items(), key=lambda pair: pair[0]):
        total_share = sum(share for share, _ in pairs)
        if total_share:
            is_named = cluster.get("type") in _DNS
            return list(_addresses(pairs, Fraction(total_share), is_named=is_named))
    return []


def _addresses(
    pairs: list[tuple[Fraction, Json]], total: Fraction, *, is_named: bool
) -> Iterator[BalancedEndpoint]:
    """The endpoints; where DNS finds them, their addresses are also their host names."""
    for share, endpoint in pairs:
        hostname = endpoint["endpoint"].get("hostname", "")
        address = endpoint["endpoint"].get("address") or {}
        if "socket_address" in address and share:
            socket = address["socket_address"]
            own = socket.get("address", "")
            named = hostname or (own if is_named else "")
            yield BalancedEndpoint(share / total, own, socket.get("port_value", 0), named)
        elif share:
            path = (address.get("pipe") or {}).get("path", "")
            yield BalancedEndpoint(share / total, path, 0)


def _is_usable(cluster: Json, endpoint: Json, subset: tuple[tuple[str, str], ...]) -> bool:
    if endpoint.get("health_status") in _UNUSABLE:
        return False
    config = cluster.get("lb_subset_config")
    if not config or not subset:
        return True
    names = sorted(name for name, _ in subset)
    selectors = config.get("subset_selectors") or ()
    if not any(sorted(each.get("keys") or ()) == names for each in selectors):
        return bool(config.get("fallback_policy", "NO_FALLBACK") != "NO_FALLBACK")
    metadata = ((endpoint.get("metadata") or {}).get("filter_metadata") or {}).get("envoy.lb") or {}
    return all(metadata.get(name) == value for name, value in subset)


def connection(cluster: Json, endpoint: BalancedEndpoint, identity: PeerIdentity | None) -> ClientConnection:
    """The connection that Envoy opens to an endpoint of a cluster."""
    context = (cluster.get("transport_socket") or {}).get("typed_config") or {}
    if not str(context.get("@type", "")).endswith(_UPSTREAM):
        return ClientConnection(endpoint.address, endpoint.port)
    common = context.get("common_tls_context") or {}
    combined = common.get("combined_validation_context") or {}
    own = combined.get("default_validation_context") or common.get("validation_context") or {}
    sans = own.get("match_typed_subject_alt_names") or ()
    secret = combined.get("validation_context_sds_secret_config") or {}
    return ClientConnection(
        endpoint.address,
        endpoint.port,
        is_tls=True,
        server_name=context.get("sni", ""),
        protocols=tuple(common.get("alpn_protocols") or ()),
        identity=identity if common.get("tls_certificate_sds_secret_configs") else None,
        expected=tuple(san["matcher"].get("exact", "") for san in sans) or None,
        trusted=secret.get("name", ""),
    )
