"""External: clusters of services outside the mesh, and the TLS that proxies originate towards them.

They follow from Envoy's behaviour, as measured on 1.40:

- A cluster resolves all of its addresses or none. Among domains a unix socket is silently never called, so
  the two cannot be mixed (`is_mixed`); IPs go with both.
- An IP must not be an SNI (RFC 6066): `auto_host_sni` would send it, and then compare it with the DNS names
  of the certificate only. So endpoints without a name get a transport socket of their own, by metadata.
- As a client, Envoy uses TLS 1.2 at most by default, and enables no cipher of TLS 1.1.
- Envoy refuses to verify names without a CA, since anybody can sign any name. Without a CA nothing is
  verified. `system_root_certs` verifies nothing either, so the file with the system's CAs is named.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from koguma.envoy import proto_json
from koguma.envoy.proto_json import Data

SYSTEM_CA: Final = "/etc/ssl/certs/ca-certificates.crt"
UNIX: Final = "unix://"
HTTP_OPTIONS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
VERSIONS: Final = ("TLSv1_0", "TLSv1_1", "TLSv1_2", "TLSv1_3")

# Options of HTTP/1 for what passes as it is: names of headers keep their capitals.
SAME_HEADER_CASE: Final[Data] = {
    "header_key_format": {
        "stateful_formatter": proto_json.extension(
            "envoy.http.stateful_header_formatters.preserve_case",
            "envoy.extensions.http.header_formatters.preserve_case.v3.PreserveCaseFormatterConfig",
        )
    }
}
_CONNECT_TIMEOUT: Final = "5s"
_IDLE_TIMEOUT: Final = "3600s"
_TLS: Final = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
_SOCKET_MATCH: Final = "envoy.transport_socket_match"
_NAMELESS: Final[Data] = {"named": "no"}

# Envoy's defaults, then those of versions before TLS 1.2.
_OLD_CIPHERS: Final = (
    "[ECDHE-ECDSA-AES128-GCM-SHA256|ECDHE-ECDSA-CHACHA20-POLY1305]",
    "[ECDHE-RSA-AES128-GCM-SHA256|ECDHE-RSA-CHACHA20-POLY1305]",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-AES128-SHA",
    "ECDHE-RSA-AES128-SHA",
    "AES128-SHA",
    "ECDHE-ECDSA-AES256-SHA",
    "ECDHE-RSA-AES256-SHA",
    "AES256-SHA",
)


class ExternalEndpoint(msgspec.Struct, frozen=True):
    """One endpoint: an IP, a domain, or `unix://` and a path, which has no port."""

    address: str
    port: int = 0
    priority: int = 0

    @property
    def path(self) -> str:
        """The path of a unix socket; empty for anything else."""
        return self.address.removeprefix(UNIX) if self.address.startswith(UNIX) else ""

    @property
    def ip(self) -> str:
        """The IP in its canonical form, as in certificates; empty for anything else."""
        try:
            return str(ipaddress.ip_address(self.address))
        except ValueError:
            return ""

    @property
    def domain(self) -> str:
        """The domain in its canonical form, as in certificates; empty for anything else."""
        return "" if self.path or self.ip else self.address.lower().removesuffix(".")

    @property
    def hostname(self) -> str:
        """The Host header of requests to this endpoint; empty where it is not rewritten."""
        return f"[{self.ip}]" if ":" in self.ip else self.ip or self.domain


class San(msgspec.Struct, frozen=True):
    """A subject alternative name that is accepted: exact, or a prefix."""

    value: str
    is_prefix: bool = False


class Tls(msgspec.Struct, frozen=True):
    """TLS that a proxy originates; versions are values of Envoy's enum, empty for Envoy's default."""

    version_min: str = ""
    version_max: str = ""
    allow_renegotiation: bool = False
    checks_ca: bool = True
    checks_names: bool = True
    server_name: str = ""  # SNI; an endpoint's own name by default
    sans: tuple[San, ...] = ()  # any of them; the server name by default
    ca: str = ""  # as PEM; the system's by default
    certificate: str = ""  # name of the secret with the client certificate


def is_mixed(endpoints: Iterable[ExternalEndpoint]) -> bool:
    """Whether some endpoints need DNS and others cannot be in such a cluster."""
    every = tuple(endpoints)
    return any(each.path for each in every) and any(each.domain for each in every)


def is_nameless(endpoints: Iterable[ExternalEndpoint], tls: Tls) -> bool:
    """Whether names are to be verified, and there are none to compare with."""
    is_explicit = tls.server_name or tls.sans or not (tls.checks_ca and tls.checks_names)
    return not is_explicit and not any(each.ip or each.domain for each in endpoints)


def cluster(name: str, endpoints: Sequence[ExternalEndpoint], tls: Tls | None = None) -> Data:
    """The cluster of a service with these endpoints; callers have checked that they fit into one."""
    assert endpoints, name
    assert not is_mixed(endpoints), name
    assert tls is None or not is_nameless(endpoints, tls), name
    data: Data = {
        "name": name,
        "type": "STATIC",
        "connect_timeout": _CONNECT_TIMEOUT,
        "load_assignment": {"cluster_name": name, "endpoints": _localities(endpoints, tls)},
    }
    if any(each.domain for each in endpoints):
        # IPv4 first: on a network without IPv6, a domain with both would not be reached otherwise.
        data |= {"type": "STRICT_DNS", "dns_lookup_family": "V4_PREFERRED"}
    return data if tls is None else {**data, **_sockets(endpoints, tls)}


def original_destination(name: str) -> Data:
    """A cluster that calls the original destination of a connection."""
    return {
        "name": name,
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": _CONNECT_TIMEOUT,
    }


def unknown_destination(name: str) -> Data:
    """The same for calls of any protocol: requests leave in the version of HTTP in which they came."""
    versions: Data = {"http_protocol_options": SAME_HEADER_CASE, "http2_protocol_options": {}}
    options = proto_json.typed(HTTP_OPTIONS, use_downstream_protocol_config=versions)
    return {**original_destination(name), "typed_extension_protocol_options": {HTTP_OPTIONS: options}}


def http_options(protocol: str, *, as_it_is: bool = False) -> Data | None:
    """The HttpProtocolOptions for a protocol; None where it is not HTTP."""
    match protocol:
        case "http":
            version: Data = {"http_protocol_options": SAME_HEADER_CASE if as_it_is else {}}
        case "http2" | "grpc":
            version = {"http2_protocol_options": {}}
        case _:
            return None
    return {
        "common_http_protocol_options": {"idle_timeout": _IDLE_TIMEOUT},
        "explicit_http_config": version,
    }


def secret(name: str, certificate: str, key: str) -> Data:
    """A secret with the client certificate and its key, both as PEM."""
    pair = {"certificate_chain": {"inline_string": certificate}, "private_key": {"inline_string": key}}
    return {"name": name, "tls_certificate": pair}


def _localities(endpoints: Sequence[ExternalEndpoint], tls: Tls | None) -> list[Data]:
    """Endpoints in localities of one priority each; Envoy requires priorities without gaps."""
    is_split = tls is not None and _is_split(endpoints, tls)
    used = sorted({each.priority for each in endpoints})
    groups: list[Data] = []
    for rank, priority in enumerate(used):
        there = [_endpoint(each, is_split=is_split) for each in endpoints if each.priority == priority]
        groups.append({"lb_endpoints": there, **({"priority": rank} if rank else {})})
    return groups


def _endpoint(endpoint: ExternalEndpoint, *, is_split: bool) -> Data:
    at = (
        proto_json.pipe(endpoint.path)
        if endpoint.path
        else proto_json.address(endpoint.address, endpoint.port)
    )
    data: Data = {"endpoint": {"address": at}}
    if endpoint.hostname:
        data["endpoint"]["hostname"] = endpoint.hostname
    if is_split and not endpoint.domain:
        data["metadata"] = {"filter_metadata": {_SOCKET_MATCH: _NAMELESS}}
    return data


def _is_split(endpoints: Sequence[ExternalEndpoint], tls: Tls) -> bool:
    """Whether some endpoints have a name of their own for SNI and others have none."""
    return not tls.server_name and len({bool(each.domain) for each in endpoints}) > 1


def _sockets(endpoints: Sequence[ExternalEndpoint], tls: Tls) -> Data:
    nameless = _socket(tls, _nameless(endpoints, tls))
    if tls.server_name or not any(each.domain for each in endpoints):
        return {"transport_socket": nameless}
    named = {"transport_socket": _socket(tls, _named(tls))}
    if not _is_split(endpoints, tls):
        return named
    chosen = {"name": "nameless", "match": _NAMELESS, "transport_socket": nameless}
    return {**named, "transport_socket_matches": [chosen]}


def socket(tls: Tls, alpn: Sequence[str] = ()) -> Data:
    """A transport socket for endpoints that all have the name `tls.server_name`."""
    found = _socket(tls, _nameless((), tls))
    if alpn:
        context = found["typed_config"]
        common = {**context["common_tls_context"], "alpn_protocols": list(alpn)}
        found = {**found, "typed_config": {**context, "common_tls_context": common}}
    return found


class _ServerIdentity(msgspec.Struct, frozen=True):
    """The SNI to send, and the names that the certificate may have."""

    sni: Data
    sans: tuple[San, ...]


def _named(tls: Tls) -> _ServerIdentity:
    """For each endpoint its own name."""
    if tls.sans or not (tls.checks_ca and tls.checks_names):
        return _ServerIdentity({"auto_host_sni": True}, tls.sans)
    return _ServerIdentity({"auto_host_sni": True, "auto_sni_san_validation": True}, ())


def _nameless(endpoints: Sequence[ExternalEndpoint], tls: Tls) -> _ServerIdentity:
    """One name for all endpoints: the given one, or the first exact name that is accepted."""
    own = (San(tls.server_name),) if tls.server_name else tuple(San(each.ip) for each in endpoints if each.ip)
    domains = (each.value for each in tls.sans if not each.is_prefix and _types(each) == ("DNS",))
    name = tls.server_name or next((each for each in domains if "*" not in each), "")
    return _ServerIdentity({"sni": name} if name else {}, tls.sans or own)


def _socket(tls: Tls, identity: _ServerIdentity) -> Data:
    common: Data = {"tls_params": _parameters(tls)}
    if tls.certificate:
        common["tls_certificate_sds_secret_configs"] = [proto_json.sds(tls.certificate)]
    if tls.checks_ca:
        ca = {"inline_string": tls.ca} if tls.ca else {"filename": SYSTEM_CA}
        common["validation_context"] = {"trusted_ca": ca}
        if tls.checks_names and identity.sans:
            matchers = [matcher for each in identity.sans for matcher in _matchers(each)]
            common["validation_context"]["match_typed_subject_alt_names"] = matchers
    context = proto_json.typed(_TLS, common_tls_context=common, **identity.sni)
    if tls.allow_renegotiation:
        context["allow_renegotiation"] = True
    return {"name": "envoy.transport_sockets.tls", "typed_config": context}


def _parameters(tls: Tls) -> Data:
    newest = tls.version_max or VERSIONS[-1]
    # With an old maximum and no minimum, Envoy's default minimum would be above the maximum.
    oldest = tls.version_min or (VERSIONS[0] if newest < "TLSv1_2" else "")
    data: Data = {"tls_maximum_protocol_version": newest}
    if oldest:
        data["tls_minimum_protocol_version"] = oldest
    if oldest and oldest < "TLSv1_2":
        data["cipher_suites"] = list(_OLD_CIPHERS)
    return data


def _matchers(san: San) -> Iterator[Data]:
    kind = "prefix" if san.is_prefix else "exact"
    ip = "" if san.is_prefix else ExternalEndpoint(san.value).ip
    for type_ in _types(san):
        yield {"san_type": type_, "matcher": {kind: ip or san.value}}


def _types(san: San) -> tuple[str, ...]:
    """The SAN types that a name can be; a prefix may be several."""
    if "://" in san.value:
        return ("URI",)
    if san.is_prefix:
        return ("DNS", "URI", "IP_ADDRESS")
    if ExternalEndpoint(san.value).ip:
        return ("IP_ADDRESS",)
    return ("URI",) if ":" in san.value else ("DNS",)
