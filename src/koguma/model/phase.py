"""Phase: when the overlay of a policy is merged into the configuration of a proxy.

Overlays are merged phase by phase, and within a phase by the name of their kind; where two set one field, the
later one holds. Built-in policies set no field of each other, so their phases decide no value, only the order
in which policies are listed; the one exception is a deprecated field of MeshHealthCheck. Their numbers are
Kuma's (`+kuma:policy:order`). Where a policy sets a field otherwise than an earlier phase has set it, that is
reported (KG017), unless its phase says that it is meant: `overrides`.
"""

from enum import IntEnum
from typing import Self


class Phase(IntEnum):
    """The phases in order, each with the reason for its place."""

    why: str

    def __new__(cls, number: int, why: str) -> Self:
        """A phase with its reason."""
        phase = int.__new__(cls, number)
        phase._value_ = number
        phase.why = why
        return phase

    HTTP_ROUTES = 100, "decides which routes exist; what later phases set is merged into them"
    GATEWAY_ROUTES = 110, "the same for routes of gateways"
    TCP_ROUTES = 200, "decides where connections go, on ports that have no HTTP route"
    TLS = 300, "decides the filter chains of an inbound, in which all later phases act"
    LOAD_BALANCING = 400, "chooses among all endpoints, before later phases take some away"
    PASSTHROUGH = 500, "is about traffic that leaves the mesh, where no other phase acts"
    ACCESS_LOGS = 600, "sees every call, whatever later phases do with it"
    TRACING = 700, "sees every request, likewise"
    FAULT_INJECTION = 800, "makes faults that limits, timeouts and retries then meet"
    RATE_LIMITS = 900, "decides how many requests there are, before how long each may take"
    TIMEOUTS = 1000, "decides how long a call may take, with the delays added on purpose"
    PERMISSIONS = 1100, "decides who may call; its filters are its own and stand first in their chain"
    HEALTH_CHECKS = 1200, "takes endpoints away that do not answer when asked"
    CIRCUIT_BREAKERS = 1300, "takes endpoints away that fail calls, and refuses calls beyond a limit"
    RETRIES = 1400, "acts on calls that failed for any of the reasons above"
    METRICS = 1500, "adds listeners that no call goes through"
    EXTENSIONS = 5000, "policies of other packages; the phase of those that name none"
    OVERRIDES = 9000, "policies of other packages that replace on purpose what earlier phases set"
    PATCHES = 9999, "changes the finished configuration, whoever made it"

    @property
    def overrides(self) -> bool:
        """Whether policies of this phase replace on purpose what earlier phases set."""
        return self >= Phase.OVERRIDES
