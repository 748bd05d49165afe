"""External: clusters of services that have no proxy of ours, and TLS that our proxy starts towards them.

What Envoy does decides the shape; all of this was measured on 1.40:

- A cluster resolves all of its addresses or none. Among domains a unix socket is silently never called, so
  the two cannot be mixed (`is_mixed`); an IP is at home with both.
- An IP must not be asked for by name: `auto_host_sni` would send it as SNI, which RFC 6066 forbids, and then
  look for it among the certificate's DNS names alone. So endpoints without a name get a transport
  socket of their own, chosen by metadata.
- As a client, Envoy stops at TLS 1.2 unless it is told otherwise, and knows no cipher that TLS 1.1 has.
- Names are not compared without a CA: Envoy refuses it, since anybody can sign any name. Without a CA nothing
  is checked. `system_root_certs` checks nothing either, so the file with the system's CAs is named.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from koguma.envoy import proto_json
from koguma.envoy.proto_json import Data

SYSTEM_CA: Final = "/etc/ssl/certs/ca-certificates.crt"
UNIX: Final = "unix://"
VERSIONS: Final = ("TLSv1_0", "TLSv1_1", "TLSv1_2", "TLSv1_3")

_CONNECT: Final = "5s"
_IDLE: Final = "3600s"
_TLS: Final = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
_CHOSEN_BY: Final = "envoy.transport_socket_match"
_NAMELESS: Final[Data] = {"named": "no"}

# Envoy's own, then those that came before TLS 1.2.
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
    """One address of a service: an IP, a domain, or `unix://` and a path, which has no port."""

    address: str
    port: int = 0
    priority: int = 0

    @property
    def path(self) -> str:
        """The path of a unix socket; empty for anything else."""
        return self.address.removeprefix(UNIX) if self.address.startswith(UNIX) else ""

    @property
    def ip(self) -> str:
        """The address in its shortest spelling, as certificates are compared; empty for anything else."""
        try:
            return str(ipaddress.ip_address(self.address))
        except ValueError:
            return ""

    @property
    def domain(self) -> str:
        """The domain as it stands in certificates; empty for anything else."""
        return "" if self.path or self.ip else self.address.lower().removesuffix(".")

    @property
    def hostname(self) -> str:
        """What stands in the Host header of requests that go here; empty where it stays what it was."""
        return f"[{self.ip}]" if ":" in self.ip else self.ip or self.domain


class San(msgspec.Struct, frozen=True):
    """A name that a certificate may have, or the beginning of one."""

    value: str
    is_prefix: bool = False


class Tls(msgspec.Struct, frozen=True):
    """TLS that a proxy starts; versions are Envoy's words, empty where the other side may choose."""

    version_min: str = ""
    version_max: str = ""
    allow_renegotiation: bool = False
    checks_ca: bool = True
    checks_names: bool = True
    server_name: str = ""  # the name to ask for; an endpoint's own by default
    sans: tuple[San, ...] = ()  # any of them; the name that was asked for by default
    ca: str = ""  # as PEM; those of the system by default
    certificate: str = ""  # name of the secret with our certificate


def is_mixed(endpoints: Iterable[ExternalEndpoint]) -> bool:
    """Whether some endpoints need a resolver and others cannot have one."""
    found = tuple(endpoints)
    return any(each.path for each in found) and any(each.domain for each in found)


def is_nameless(endpoints: Iterable[ExternalEndpoint], tls: Tls) -> bool:
    """Whether names are to be checked, and there are none to check."""
    said = tls.server_name or tls.sans or not (tls.checks_ca and tls.checks_names)
    return not said and not any(each.ip or each.domain for each in endpoints)


def cluster(name: str, endpoints: Sequence[ExternalEndpoint], tls: Tls | None = None) -> Data:
    """The cluster of a service that is at these endpoints; whoever asks has looked that they can be one."""
    assert endpoints, name
    assert not is_mixed(endpoints), name
    assert tls is None or not is_nameless(endpoints, tls), name
    data: Data = {
        "name": name,
        "type": "STATIC",
        "connect_timeout": _CONNECT,
        "load_assignment": {"cluster_name": name, "endpoints": _localities(endpoints, tls)},
    }
    if any(each.domain for each in endpoints):
        # IPv4 first: where a domain has both and the network does not, nothing else would arrive.
        data |= {"type": "STRICT_DNS", "dns_lookup_family": "V4_PREFERRED"}
    return data if tls is None else {**data, **_sockets(endpoints, tls)}


def passthrough(name: str) -> Data:
    """The cluster of calls that go on to where they were going."""
    return {
        "name": name,
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": _CONNECT,
    }


def http_options(protocol: str) -> Data | None:
    """The HttpProtocolOptions for a protocol; None where it is not HTTP."""
    version = {"http": "http_protocol_options", "http2": "http2_protocol_options"}
    spoken = version.get("http2" if protocol == "grpc" else protocol)
    if spoken is None:
        return None
    return {
        "common_http_protocol_options": {"idle_timeout": _IDLE},
        "explicit_http_config": {spoken: {}},
    }


def secret(name: str, certificate: str, key: str) -> Data:
    """A secret with our certificate and its key, both as PEM."""
    pair = {"certificate_chain": {"inline_string": certificate}, "private_key": {"inline_string": key}}
    return {"name": name, "tls_certificate": pair}


def _localities(endpoints: Sequence[ExternalEndpoint], tls: Tls | None) -> list[Data]:
    """Endpoints in groups of one priority each; Envoy wants priorities without gaps."""
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
        data["metadata"] = {"filter_metadata": {_CHOSEN_BY: _NAMELESS}}
    return data


def _is_split(endpoints: Sequence[ExternalEndpoint], tls: Tls) -> bool:
    """Whether some endpoints are asked for by their own name and others have none."""
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


class _Asked(msgspec.Struct, frozen=True):
    """Which name is asked for, and which ones the certificate may have."""

    sni: Data
    sans: tuple[San, ...]


def _named(tls: Tls) -> _Asked:
    """Every endpoint by its own name."""
    if tls.sans or not (tls.checks_ca and tls.checks_names):
        return _Asked({"auto_host_sni": True}, tls.sans)
    return _Asked({"auto_host_sni": True, "auto_sni_san_validation": True}, ())


def _nameless(endpoints: Sequence[ExternalEndpoint], tls: Tls) -> _Asked:
    """All endpoints by one name: the given one, or the first that the certificate may have."""
    own = (San(tls.server_name),) if tls.server_name else tuple(San(each.ip) for each in endpoints if each.ip)
    domains = (each.value for each in tls.sans if not each.is_prefix and _types(each) == ("DNS",))
    name = tls.server_name or next((each for each in domains if "*" not in each), "")
    return _Asked({"sni": name} if name else {}, tls.sans or own)


def _socket(tls: Tls, asked: _Asked) -> Data:
    common: Data = {"tls_params": _parameters(tls)}
    if tls.certificate:
        common["tls_certificate_sds_secret_configs"] = [proto_json.sds(tls.certificate)]
    if tls.checks_ca:
        ca = {"inline_string": tls.ca} if tls.ca else {"filename": SYSTEM_CA}
        common["validation_context"] = {"trusted_ca": ca}
        if tls.checks_names and asked.sans:
            found = [matcher for each in asked.sans for matcher in _matchers(each)]
            common["validation_context"]["match_typed_subject_alt_names"] = found
    context = proto_json.typed(_TLS, common_tls_context=common, **asked.sni)
    if tls.allow_renegotiation:
        context["allow_renegotiation"] = True
    return {"name": "envoy.transport_sockets.tls", "typed_config": context}


def _parameters(tls: Tls) -> Data:
    newest = tls.version_max or VERSIONS[-1]
    # Where only the newest is said, and it is old, Envoy's own oldest would be newer.
    oldest = tls.version_min or (VERSIONS[0] if newest < "TLSv1_2" else "")
    data: Data = {"tls_maximum_protocol_version": newest}
    if oldest:
        data["tls_minimum_protocol_version"] = oldest
    if oldest and oldest < "TLSv1_2":
        data["cipher_suites"] = list(_OLD_CIPHERS)
    return data


def _matchers(san: San) -> Iterator[Data]:
    how = "prefix" if san.is_prefix else "exact"
    ip = "" if san.is_prefix else ExternalEndpoint(san.value).ip
    for type_ in _types(san):
        yield {"san_type": type_, "matcher": {how: ip or san.value}}


def _types(san: San) -> tuple[str, ...]:
    """The kinds of names that a name can be; the beginning of one may be several."""
    if "://" in san.value:
        return ("URI",)
    if san.is_prefix:
        return ("DNS", "URI", "IP_ADDRESS")
    if ExternalEndpoint(san.value).ip:
        return ("IP_ADDRESS",)
    return ("URI",) if ":" in san.value else ("DNS",)
