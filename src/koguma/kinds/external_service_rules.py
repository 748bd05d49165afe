"""Rules of MeshExternalService: which matches and destinations go together, and what takes a whole port.

The seed's words (001): Regular has no `extension`; Passthrough has no `endpoints`, `tls` or `extension`;
Extension has no `endpoints` and no `tls`; wildcard domains need Passthrough. Beyond them: a virtual address
has no original destination, so InternalVIP needs Regular or Extension; where programs start TLS themselves
(`protocol: tls`) the proxy cannot start it too; and one port of one place speaks one protocol.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, Final

from koguma.kinds import rules
from koguma.model import hostname, ip_range, whole_port
from koguma.model.violation import Violation, child, item

_DESTINATION: Final = "spec.destination"
_HINTS: Final = {
    "Regular": 'type "Regular" sends calls to endpoints',
    "Passthrough": 'type "Passthrough", the default, sends calls on as they are',
    "Extension": 'type "Extension" gives calls to a plugin',
}
_EXCLUDED: Final = {
    "Regular": ("extension",),
    "Passthrough": ("endpoints", "tls", "extension"),
    "Extension": ("endpoints", "tls"),
}
_BELONGS_TO: Final = {"endpoints": "Regular", "tls": "Regular", "extension": "Extension"}
_UNIX: Final = "unix://"
SOCKET_PATH_LENGTH_MAX: Final = 107  # what fits into a socket's address


def shape_violations(spec: Any, *, has_list: bool) -> Iterator[Violation]:
    """What belongs to the other one of the two shapes."""
    if not has_list:
        if spec.destination is not None:
            text = 'goes with a list of matches; with a single match write "endpoints" and "tls" beside it'
            yield Violation(_DESTINATION, text, "forbidden")
        return
    for field in ("endpoints", "tls", "extension"):
        if getattr(spec, field):
            text = f'goes with a single match; with a list of matches write it in "{_DESTINATION}"'
            yield Violation(f"spec.{field}", text, "forbidden")


def violations(matches: Sequence[Any], destination: Any) -> Iterator[Violation]:
    """What is wrong with a list of matches and their destination."""
    type_ = destination.type if destination and destination.type else "Passthrough"
    if not matches:
        yield Violation("spec.match", rules.NOT_EMPTY_MESSAGE, "required")
    starts_tls = bool(destination and destination.tls and destination.tls.enabled)
    for index, match in enumerate(matches):
        yield from _match_violations(match, item("spec.match", index), type_, starts_tls=starts_tls)
    yield from _overlap_violations(matches)
    if destination is not None:
        yield from _destination_violations(destination, type_)


def _match_violations(match: Any, path: str, type_: str, *, starts_tls: bool) -> Iterator[Violation]:
    problem = _value_problem(match)
    if problem:
        yield Violation(child(path, "value"), problem, "value")
    if match.type == "InternalVIP" and type_ == "Passthrough":
        text = (
            "a virtual address leads nowhere by itself: InternalVIP needs a destination of type Regular or"
            " Extension"
        )
        yield Violation(child(path, "type"), text, "destination")
    if _is_wildcard(match) and type_ != "Passthrough":
        text = f"a wildcard domain needs a destination of type Passthrough, not {type_}"
        yield Violation(child(path, "value"), text, "destination")
    if match.protocol == "tls" and starts_tls:
        text = (
            "tls means that programs start TLS themselves, and spec.destination.tls that the proxy does;"
            " choose the protocol inside of TLS, or leave spec.destination.tls out"
        )
        yield Violation(child(path, "protocol"), text, "conflict")


def _value_problem(match: Any) -> str:
    match match.type:
        case "InternalVIP":
            return "" if rules.is_dns_name(match.value) else "must be a host name"
        case "Domain":
            name = match.value.removeprefix("*.")
            return "" if rules.is_dns_name(name) else 'must be a domain, which may begin with "*."'
        case "IP":
            return _address_problem(match.value)
        case _:
            is_range = ip_range.parsed("CIDR", match.value) is not None
            return "" if is_range else "must be a range of addresses, such as 10.1.0.0/16"


def _address_problem(value: str) -> str:
    addresses = ip_range.parsed("IP", value)
    if addresses is None:
        return "must be an IP address"
    mapped = getattr(addresses.network_address, "ipv4_mapped", None)
    # The kernel redirects such calls as those of IPv4, so that the match would never fit.
    return f"must be written as an IPv4 address: {mapped}" if mapped else ""


def _is_wildcard(match: Any) -> bool:
    return match.type == "Domain" and bool(match.value.startswith("*"))


def _overlap_violations(matches: Sequence[Any]) -> Iterator[Violation]:
    for (first_index, first), (index, match) in combinations(enumerate(matches), 2):
        if first.port != match.port or not _overlap(first, match):
            continue
        path, other = item("spec.match", index), item("spec.match", first_index)
        if (first.type, first.value, first.protocol) == (match.type, match.value, match.protocol):
            yield Violation(path, f"is the same as {other}", "duplicate")
        elif first.protocol != match.protocol:
            text = f"one port speaks one protocol: {other} has {first.protocol} on port {match.port} there"
            yield Violation(child(path, "protocol"), text, "conflict")


def _overlap(one: Any, other: Any) -> bool:
    """Whether some calls fit both matches."""
    addresses, others = (ip_range.parsed(match.type, match.value) for match in (one, other))
    if addresses is not None and others is not None:
        return ip_range.common(addresses, others) is not None
    if addresses is not None or others is not None:
        return False
    return hostname.matches(hostname.normal(one.value), hostname.normal(other.value))


def _destination_violations(destination: Any, type_: str) -> Iterator[Violation]:
    for field in _EXCLUDED[type_]:
        if getattr(destination, field) is not None:
            text = f'{_HINTS[type_]} and has no "{field}"; for that set type to "{_BELONGS_TO[field]}"'
            yield Violation(child(_DESTINATION, field), text, "forbidden")
    if type_ == "Regular" and not destination.endpoints:
        yield Violation(child(_DESTINATION, "endpoints"), rules.NOT_EMPTY_MESSAGE, "required")
    if type_ == "Extension":
        if destination.extension is None:
            yield Violation(child(_DESTINATION, "extension"), rules.NOT_EMPTY_MESSAGE, "required")
        elif not destination.extension.type:
            yield Violation(child(_DESTINATION, "extension.type"), rules.NOT_EMPTY_MESSAGE, "required")
    for index, endpoint in enumerate(destination.endpoints or ()):
        path = item(child(_DESTINATION, "endpoints"), index)
        yield from _endpoint_violations(endpoint, path)


def _is_mixed(addresses: Sequence[str]) -> bool:
    """Whether some endpoints need DNS and others cannot be in a cluster of Envoy that does."""
    others = [address for address in addresses if not address.startswith(_UNIX)]
    return len(others) < len(addresses) and any(not rules.is_ip(address) for address in others)


def _endpoint_violations(endpoint: Any, path: str) -> Iterator[Violation]:
    if endpoint.address.startswith(_UNIX):
        if problem := _socket_problem(endpoint.address.removeprefix(_UNIX)):
            yield Violation(child(path, "address"), problem, "address")
        if endpoint.port is not None:
            yield Violation(child(path, "port"), "a unix socket has no port; leave it out", "forbidden")
    elif not rules.is_ip(endpoint.address) and not rules.is_dns_name(endpoint.address):
        text = "must be an IP address, a domain, or unix:// and a path"
        yield Violation(child(path, "address"), text, "address")


def _socket_problem(path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        return "must be unix:// and an absolute path, such as unix:///run/app.sock"
    if len(path.encode()) > SOCKET_PATH_LENGTH_MAX:
        return f"the path of a unix socket has at most {SOCKET_PATH_LENGTH_MAX} bytes"
    return ""


def warnings(matches: Sequence[Any], destination: Any) -> Iterator[str]:
    """Matches that take more than they say, and endpoints that are legal and cannot be in one cluster."""
    yield from whole_port.warnings([(match.type, match.port, match.protocol) for match in matches])
    endpoints = (destination.endpoints if destination else None) or ()
    if _is_mixed([endpoint.address for endpoint in endpoints]):
        yield (
            f"{_DESTINATION}.endpoints: Envoy resolves all endpoints of a service or none, so that nobody can"
            " call one with domains and unix sockets; write two services, and a route that splits calls"
        )
