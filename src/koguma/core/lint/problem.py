"""Problem: a lint problem of a mesh, as a value with a stable code.

A code never changes its meaning and is never reused, so that people can look it up (docs/lint.md has a
section for each) and scripts can rely on it.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from koguma.model.resource import Key

Severity = Literal["warning", "error"]

INVALID: Final = "KG000"
DISJOINT: Final = "KG001"
NO_OBJECT: Final = "KG002"
NO_PORT: Final = "KG003"
DEPRECATED_ROUTE: Final = "KG004"
NOBODY_SELECTED: Final = "KG005"
WRONG_PROTOCOL: Final = "KG006"
ADVICE: Final = "KG007"
NEVER_MATCHED: Final = "KG008"
ANSWERED_TWICE: Final = "KG009"
TIE: Final = "KG010"
PORTS_CONFLICT: Final = "KG011"
NOT_GENERATED: Final = "KG012"
SAME_ADDRESS: Final = "KG013"
OUTBOUND_TO_NOWHERE: Final = "KG014"
NOT_BUILT: Final = "KG015"
NO_PERMISSION: Final = "KG016"
OVERLAP: Final = "KG017"
SHARED_ADDRESSES: Final = "KG018"
NO_PLUGIN: Final = "KG019"
SHARED_HOSTNAME: Final = "KG020"
NO_EGRESS: Final = "KG021"
AROUND_EGRESS: Final = "KG022"
NO_LISTENER: Final = "KG023"
GATEWAY_UNSERVED: Final = "KG024"
NO_GATEWAY: Final = "KG025"
NOT_ON_GATEWAYS: Final = "KG026"
GATEWAY_TIE: Final = "KG027"
BAD_CERTIFICATE: Final = "KG028"
NOT_CALLED: Final = "KG029"

# Every code, with its title.
CODES: Final[Mapping[str, str]] = {
    INVALID: "the object is not valid",
    DISJOINT: "a policy and its route select different proxies",
    NO_OBJECT: "a reference to nothing",
    NO_PORT: "a reference to a port that is not there",
    DEPRECATED_ROUTE: "a route in the top-level targetRef",
    NOBODY_SELECTED: "a policy that selects no proxy",
    WRONG_PROTOCOL: "settings for another protocol",
    ADVICE: "something that is deprecated or has no effect",
    NEVER_MATCHED: "a rule that no request reaches",
    ANSWERED_TWICE: "merged rules that exclude each other",
    TIE: "policies that only their names put in order",
    PORTS_CONFLICT: "ports that conflict",
    NOT_GENERATED: "a proxy of which no MeshService can be made",
    SAME_ADDRESS: "proxies that are reached at one address and port",
    OUTBOUND_TO_NOWHERE: "an outbound that leads nowhere",
    NOT_BUILT: "a policy that is stored and does not act yet",
    NO_PERMISSION: "mTLS without a permission",
    OVERLAP: "policies of different kinds that set the same field",
    SHARED_ADDRESSES: "external services with overlapping addresses",
    NO_PLUGIN: "an external service whose plugin is not installed",
    SHARED_HOSTNAME: "a host name that several services claim",
    NO_EGRESS: "calls through a zone egress that lead nowhere",
    AROUND_EGRESS: "calls that pass the zone egress by",
    NO_LISTENER: "a route or policy that no listener takes",
    GATEWAY_UNSERVED: "a gateway that no proxy serves",
    NO_GATEWAY: "a built-in gateway without listeners",
    NOT_ON_GATEWAYS: "a route of the mesh that is for gateways only",
    GATEWAY_TIE: "gateways that only their names put in order",
    BAD_CERTIFICATE: "a certificate of a gateway that clients do not get, or refuse",
    NOT_CALLED: "a gateway for other meshes that one of these cannot call",
}


class Problem(msgspec.Struct, frozen=True):
    """A problem: its code, the objects that it is about, and the path in the first of them."""

    code: str
    message: str
    objects: tuple[Key, ...]
    severity: Severity = "warning"
    path: str = ""

    @property
    def text(self) -> str:
        """The problem in one line, as it stands among warnings."""
        return f"{self.path}: {self.message} ({self.code})" if self.path else f"{self.message} ({self.code})"
