"""Passthrough matches: destinations outside the mesh that a policy about the whole proxy lets through."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from koguma.core.build import skeletons
from koguma.core.build.redirected_chains import ALL_PORTS, ChainMatch, ChainTarget
from koguma.envoy import external, proto_json, snapshot
from koguma.envoy.external import HTTP_OPTIONS
from koguma.envoy.proto_json import Data
from koguma.model import ip_range
from koguma.model.ip_range import IpRange

IDLE_TIMEOUT: Final = "3600s"
_HTTP2: Final = {
    HTTP_OPTIONS: proto_json.typed(HTTP_OPTIONS, explicit_http_config={"http2_protocol_options": {}})
}


class PassthroughMatch(msgspec.Struct, frozen=True, order=True):
    """A destination outside the mesh that a proxy may call."""

    protocol: str
    value: str  # as written
    port: int = ALL_PORTS
    domain: str = ""  # may begin with `*.`, or be `*`

    @property
    def name(self) -> str:
        """Of its cluster; the colons of IPv6 addresses would split names of statistics."""
        return f"meshpassthrough_{self.protocol}_{self.value.replace(':', '-')}_{self.port or '*'}"

    @property
    def addresses(self) -> IpRange | None:
        """Its address range; None for a domain."""
        return None if self.domain else ip_range.parsed("CIDR" if "/" in self.value else "IP", self.value)


def chain_matches(matches: Iterable[PassthroughMatch], listener: str) -> Iterator[ChainMatch]:
    """The same for the filter chains of a listener."""
    for match in matches:
        target = original_destination(match.name, listener)
        yield ChainMatch(target, match.protocol, match.port, match.domain, match.addresses)


def original_destination(cluster: str, listener: str) -> ChainTarget:
    """A target that calls the original destination of a connection, whatever the protocol."""
    action = {"cluster": cluster, "timeout": "0s", "idle_timeout": IDLE_TIMEOUT}
    return ChainTarget(
        cluster,
        {"tcp": skeletons.tcp_proxy(listener, {"cluster": cluster}, IDLE_TIMEOUT)},
        # The application decides how long it waits: without these Envoy would for 15 seconds.
        [{"match": {"prefix": "/"}, "route": action}],
        ((snapshot.CLUSTER, cluster),),
    )


def clusters(matches: Iterable[PassthroughMatch]) -> Iterator[Data]:
    """The cluster of each match, which calls the original destination of a connection."""
    for match in matches:
        if match.protocol == "tcp":
            yield external.unknown_destination(match.name)
            continue
        cluster = external.original_destination(match.name)
        if match.protocol in ("http2", "grpc"):
            cluster["typed_extension_protocol_options"] = _HTTP2
        yield cluster
