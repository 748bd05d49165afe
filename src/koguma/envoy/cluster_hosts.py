"""Cluster hosts: what an Envoy thinks of each endpoint of a cluster, read from its admin interface.

An endpoint is healthy for an Envoy unless it was ejected (outlier detection), fails active health checks, or
was given to it as unhealthy.
"""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

import msgspec

from koguma.envoy.stats import UnreadableAnswer

_COUNTER: Final = re.compile("[0-9]{1,20}")
_HEALTHY: Final = ("", "HEALTHY", "UNKNOWN", "DEGRADED")


class Host(msgspec.Struct, frozen=True):
    """An endpoint as one Envoy sees it, with its counters since it was added."""

    address: str  # `IP:port`, or a path
    counters: Mapping[str, int] = {}
    is_ejected: bool = False
    fails_active_check: bool = False
    eds_health: str = ""

    def __getitem__(self, name: str) -> int:
        return self.counters.get(name, 0)

    @property
    def is_healthy(self) -> bool:
        """Whether this Envoy sends it requests, as long as it has enough healthy ones."""
        return not self.is_ejected and not self.fails_active_check and self.eds_health in _HEALTHY


Hosts = Mapping[str, tuple[Host, ...]]  # by cluster


def path_of(kri: str) -> str:
    """Where Envoy's admin interface has the endpoints of an object's clusters; its KRI has no section."""
    return f"/clusters?format=json&filter={quote(f'^{re.escape(kri)}[^_.]*$', safe='')}"


class _SocketAddressJson(msgspec.Struct):
    address: str = ""
    port_value: int = 0


class _PipeJson(msgspec.Struct):
    path: str = ""


class _AddressJson(msgspec.Struct):
    socket_address: _SocketAddressJson | None = None
    pipe: _PipeJson | None = None


class _HealthJson(msgspec.Struct):
    failed_outlier_check: bool = False
    failed_active_health_check: bool = False
    eds_health_status: str = ""


class _HostStatJson(msgspec.Struct):
    name: str = ""
    value: str = "0"


class _HostJson(msgspec.Struct):
    address: _AddressJson = msgspec.field(default_factory=_AddressJson)
    stats: list[_HostStatJson] = []
    health_status: _HealthJson = msgspec.field(default_factory=_HealthJson)


class _ClusterJson(msgspec.Struct):
    name: str = ""
    host_statuses: list[_HostJson] = []


class _ClustersJson(msgspec.Struct):
    cluster_statuses: list[_ClusterJson] = []


_decoder = msgspec.json.Decoder(_ClustersJson)


def read(answer: bytes) -> Hosts:
    """The endpoints by cluster in an answer of `/clusters`; raises UnreadableAnswer."""
    try:
        clusters = _decoder.decode(answer).cluster_statuses
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise UnreadableAnswer(f"its answer about clusters cannot be read: {error}") from None
    return {cluster.name: tuple(map(_host, cluster.host_statuses)) for cluster in clusters}


def _host(host: _HostJson) -> Host:
    health = host.health_status
    return Host(
        address=_address(host.address),
        # Numbers of 64 bits are texts in proto-JSON, and zero is left out.
        counters={stat.name: int(stat.value) for stat in host.stats if _COUNTER.fullmatch(stat.value)},
        is_ejected=health.failed_outlier_check,
        fails_active_check=health.failed_active_health_check,
        eds_health=health.eds_health_status,
    )


def _address(address: _AddressJson) -> str:
    if address.pipe is not None:
        return address.pipe.path
    if address.socket_address is None:
        return ""
    return host_and_port(address.socket_address.address, address.socket_address.port_value)


def host_and_port(address: str, port: int) -> str:
    """An address and a port as one text."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
