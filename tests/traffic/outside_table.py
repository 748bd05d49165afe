"""The table of MeshExternalService: every match, destination and protocol, and what comes of each."""

from typing import Any, NamedTuple

from tests.core.external_servers import AUTHORITY
from tests.hub_mesh import HUB

HUB6 = "fd09:1::1"
NOWHERE, NOWHERE6 = "198.51.100.7", "2001:db8:7::7"  # nobody is there: only a proxy can answer
PROTOCOLS = ("tcp", "tls", "http", "http2", "grpc")
CA = {"inlineString": AUTHORITY.pem}


class Case(NamedTuple):
    """A match, a destination and a protocol, on a port of its own."""

    match: str
    destination: str
    protocol: str
    port: int

    @property
    def name(self) -> str:
        return f"{self.match}-{self.destination}-{self.protocol}".lower()

    @property
    def kri(self) -> str:
        """Of its cluster."""
        return f"kri_extsvc_default_default__{self.name}_{self.port}"

    @property
    def host(self) -> str:
        """What a program names; nothing where it has an address only."""
        if self.match in ("InternalVIP", "Domain", "wildcard"):
            return f"{'a.' if self.match == 'wildcard' else ''}{self.name}.outside.test"
        return ""

    @property
    def address(self) -> str:
        """What a program calls."""
        if self.match == "InternalVIP":
            return self.host
        v4, v6 = (HUB, HUB6) if self.destination == "passthrough" else (NOWHERE, NOWHERE6)
        return v6 if self.match.endswith("6") else v4

    @property
    def value(self) -> str:
        match self.match:
            case "wildcard":
                return f"*.{self.name}.outside.test"
            case "CIDR" | "CIDR6":
                return f"{self.address}/{120 if self.match == 'CIDR6' else 24}"
            case "IP" | "IP6":
                return self.address
        return self.host

    @property
    def service(self) -> dict[str, Any]:
        type_ = "Domain" if self.match == "wildcard" else self.match.removesuffix("6")
        match = {"type": type_, "value": self.value, "port": self.port, "protocol": self.protocol}
        spec: dict[str, Any] = {"match": [match]}
        if self.destination != "passthrough":
            port = endpoint(self.destination, self.protocol)
            tls = {"tls": {"enabled": True, "caCert": CA}} if self.destination == "secure" else {}
            spec["destination"] = {
                "type": "Regular",
                "endpoints": [{"address": HUB, "port": port}],
                **tls,
            }
        return external_service(self.name, spec)

    @property
    def refused_at(self) -> str:
        """The field for which a service is refused; empty where it is legal."""
        if self.match == "wildcard" and self.destination != "passthrough":
            return "spec.match[0].value"
        if self.match == "InternalVIP" and self.destination == "passthrough":
            return "spec.match[0].type"
        if self.destination == "secure" and self.protocol == "tls":
            return "spec.match[0].protocol"
        return ""

    @property
    def call(self) -> dict[str, Any]:
        return {"protocol": self.protocol, "address": self.address, "port": self.port, "host": self.host}

    @property
    def answered_by(self) -> str:
        if self.destination == "passthrough":
            return self.name
        return f"{self.destination}-{self.protocol}"


def endpoint(destination: str, protocol: str) -> int:
    """The port of the server to which services of a destination and protocol lead."""
    return (21000 if destination == "regular" else 22000) + PROTOCOLS.index(protocol)


def external_service(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"type": "MeshExternalService", "mesh": "default", "name": name, "spec": spec}


MATCHES = ("InternalVIP", "Domain", "wildcard", "CIDR", "CIDR6", "IP", "IP6")
TABLE = [
    Case(match, destination, protocol, 23000 + number)
    for number, (match, destination, protocol) in enumerate(
        (match, destination, protocol)
        for match in MATCHES
        for destination in ("regular", "secure", "passthrough")
        for protocol in PROTOCOLS
    )
]
LEGAL = [case for case in TABLE if not case.refused_at]
ILLEGAL = [case for case in TABLE if case.refused_at]
