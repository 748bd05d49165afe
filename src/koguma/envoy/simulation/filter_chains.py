"""Filter chains: which chain of a listener takes a connection, and whether its TLS handshake succeeds.

Envoy goes through the criteria in a fixed order, keeps at each the chains that match most closely, and never
goes back. Source: listener_components.proto, FilterChainMatch.
"""

import ipaddress
from collections.abc import Callable, Sequence
from typing import Final

from koguma.envoy.simulation import matchers, text_matching
from koguma.envoy.simulation.traffic import ClientConnection, PeerIdentity, Undecidable
from koguma.model.kri import ALL_MESHES, SecretName
from koguma.model.schema import Json

_INSPECTOR: Final = "envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector"
_ANY_CA: Final = str(SecretName("mesh_ca", "secret", ALL_MESHES))
_NO_MATCH: Final = -1
_SOURCES: Final = (
    *("source_type", "source_prefix_ranges", "source_ports", "direct_source_prefix_ranges", "suffix_len"),
    *("address_suffix",),
)
Specificity = Callable[[Json, ClientConnection], int]  # greater is closer; below zero does not match


def chosen(listener: Json, connection: ClientConnection) -> Json:
    """The filter chain that takes a connection; None where none does."""
    if "filter_chain_matcher" in listener:
        raise Undecidable("the listener chooses its filter chain by a matcher")
    seen = connection if _inspects(listener) else _uninspected(connection)
    chains: Sequence[Json] = listener.get("filter_chains") or ()
    for specificity in _CRITERIA:
        by_chain = [(specificity(chain.get("filter_chain_match") or {}, seen), chain) for chain in chains]
        closest = max((value for value, _ in by_chain), default=_NO_MATCH)
        chains = [chain for value, chain in by_chain if value == closest != _NO_MATCH]
    for field in _SOURCES:
        if any(field in (chain.get("filter_chain_match") or {}) for chain in chains):
            raise Undecidable(f'the filter chain depends on "{field}", the address of the caller')
    return chains[0] if chains else listener.get("default_filter_chain")


def _inspects(listener: Json) -> bool:
    filters = listener.get("listener_filters") or ()
    return any(matchers.type_of(each.get("typed_config")) == _INSPECTOR for each in filters)


def _uninspected(connection: ClientConnection) -> ClientConnection:
    """What is known of a connection before its first byte is read."""
    return ClientConnection(connection.address, connection.port)


def _port(match: Json, connection: ClientConnection) -> int:
    wanted = match.get("destination_port")
    return 0 if wanted is None else (1 if wanted == connection.port else _NO_MATCH)


def _address(match: Json, connection: ClientConnection) -> int:
    ranges = match.get("prefix_ranges") or ()
    if not ranges:
        return 0
    if not connection.address:
        return _NO_MATCH
    own = ipaddress.ip_address(connection.address)
    lengths = [
        network.prefixlen + 1
        for each in ranges
        if (network := _network(each)).version == own.version and own in network
    ]
    return max(lengths, default=_NO_MATCH)


def _network(range_: Json) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    return ipaddress.ip_network(f"{range_['address_prefix']}/{range_.get('prefix_len', 0)}", strict=False)


def _server_name(match: Json, connection: ClientConnection) -> int:
    names = match.get("server_names") or ()
    if not names:
        return 0
    asked = connection.server_name.lower()
    if asked and asked in names:
        return len(asked) + 2
    suffixes = [name[1:] for name in names if name.startswith("*.")]
    return max((len(each) for each in suffixes if asked.endswith(each)), default=_NO_MATCH)


def _transport(match: Json, connection: ClientConnection) -> int:
    wanted = match.get("transport_protocol")
    if not wanted:
        return 0
    return 1 if wanted == ("tls" if connection.is_tls else "raw_buffer") else _NO_MATCH


def _protocols(match: Json, connection: ClientConnection) -> int:
    wanted = match.get("application_protocols") or ()
    if not wanted:
        return 0
    return 1 if set(wanted) & set(connection.protocols) else _NO_MATCH


_CRITERIA: Final[tuple[Specificity, ...]] = (_port, _address, _server_name, _transport, _protocols)


def tls_problem(chain: Json, connection: ClientConnection, server: PeerIdentity | None) -> str:
    """Why the handshake with a chain fails, or its first bytes are not understood; empty where all is well.

    `server` is the certificate that the proxy shows; None where it is not known, and then not judged.
    """
    context = (chain.get("transport_socket") or {}).get("typed_config")
    if context is None:
        is_passed_on = (chain.get("filter_chain_match") or {}).get("transport_protocol") == "tls"
        if connection.is_tls and not is_passed_on and not _ends_in_tcp(chain):
            return "the caller speaks TLS, and the listener does not"
        return ""
    if not connection.is_tls:
        return "the caller speaks plain text, and the listener requires TLS"
    if context.get("require_client_certificate"):
        if connection.identity is None:
            return "the caller shows no certificate, and the listener requires one"
        problem = _unverified(context["common_tls_context"], connection.identity)
        if problem:
            return f"the listener rejects the caller's certificate: {problem}"
    if server is None or connection.expected is None:
        return ""
    if connection.trusted not in ("", server.ca):
        return "the caller does not trust the CA that issued the certificate of the listener"
    if connection.expected and not set(connection.expected) & set(server.uris):
        return (
            f"the caller expects {' or '.join(connection.expected)},"
            f" and the certificate of the listener has {', '.join(server.uris) or 'no identity'}"
        )
    return ""


def _ends_in_tcp(chain: Json) -> bool:
    last = (chain.get("filters") or [{}])[-1]
    return matchers.type_of(last.get("typed_config")).endswith("TcpProxy")


def _unverified(context: Json, identity: PeerIdentity) -> str:
    """Why a certificate does not pass the validation of a TLS context; empty where it does."""
    combined = context.get("combined_validation_context") or {}
    own = combined.get("default_validation_context") or context.get("validation_context") or {}
    secret = combined.get("validation_context_sds_secret_config") or context.get(
        "validation_context_sds_secret_config"
    )
    ca = (secret or {}).get("name", "")
    if ca and identity.ca and ca not in (identity.ca, _ANY_CA):
        return "it was issued by another CA"
    sans = own.get("match_typed_subject_alt_names") or ()
    if sans and not any(_is_san(san, identity) for san in sans):
        return f"it has {', '.join(identity.uris) or 'no identity'}"
    return ""


def _is_san(san: Json, identity: PeerIdentity) -> bool:
    return san.get("san_type") == "URI" and any(
        text_matching.is_text(san["matcher"], uri) for uri in identity.uris
    )
