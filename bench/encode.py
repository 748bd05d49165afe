"""encode: how long a resource takes from plain data to bytes, with all checks.

    python -m bench.encode [--quick --json]

Convert, hold against Envoy's rules, construct, serialise and hash, beside protobuf's own JSON reader and
serialiser on the same data, which checks no rules. Times are CPU time per resource; the two sides take turns.
"""

import argparse
import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from google.protobuf import json_format

from bench.figures import Figure, Goal, compared, in_turns, table
from koguma.envoy import schema
from koguma.envoy.encode import Encoder
from koguma.envoy.proto_json import ADS, address, extension, sds, typed
from koguma.envoy.snapshot import CLUSTER, ENDPOINTS, LISTENER, ROUTES, TYPE_URLS

ABOUT = "plain data to bytes with all of Envoy's rules, against protobuf's JSON reader without rules"

NAME: Final = "kri_msvc_mesh-1_us-east-2_kuma-demo_backend_httpport"
HTTP_OPTIONS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
ROUND_S: Final = 0.2


def cluster() -> dict[str, Any]:
    """An outbound cluster: endpoints by EDS, mTLS by SDS, circuit breakers, outlier detection."""
    ours = {"san_type": "URI", "matcher": {"exact": "spiffe://mesh-1/backend"}}
    tls = {
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2", "tls_maximum_protocol_version": "TLSv1_3"},
        "alpn_protocols": ["kuma"],
        "tls_certificate_sds_secret_configs": [sds("identity_cert:secret:mesh-1")],
        "combined_validation_context": {
            "default_validation_context": {"match_typed_subject_alt_names": [ours]},
            "validation_context_sds_secret_config": sds("mesh_ca:secret:mesh-1"),
        },
    }
    return {
        "name": NAME,
        "type": "EDS",
        "connect_timeout": "5s",
        "eds_cluster_config": {"eds_config": ADS},
        "circuit_breakers": {
            "thresholds": [
                {
                    "max_connections": 1024,
                    "max_pending_requests": 1024,
                    "max_requests": 1024,
                    "max_retries": 3,
                }
            ]
        },
        "outlier_detection": {"consecutive_5xx": 5, "interval": "10s", "base_ejection_time": "30s"},
        "typed_extension_protocol_options": {
            HTTP_OPTIONS: typed(
                HTTP_OPTIONS,
                common_http_protocol_options={"idle_timeout": "3600s"},
                explicit_http_config={"http2_protocol_options": {}},
            )
        },
        "transport_socket": extension(
            "envoy.transport_sockets.tls",
            "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            common_tls_context=tls,
            sni="backend.mesh-1",
        ),
    }


def routes(n_routes: int) -> dict[str, Any]:
    """A route configuration whose routes share traffic between two clusters."""
    entries = [
        {
            "name": f"route-{number}",
            "match": {
                "path_separated_prefix": f"/v{number}",
                "headers": [{"name": "x-version", "string_match": {"exact": "1"}}],
            },
            "route": {
                "timeout": "15s",
                "weighted_clusters": {
                    "clusters": [{"name": f"{NAME}-a", "weight": 90}, {"name": f"{NAME}-b", "weight": 10}]
                },
                "retry_policy": {"retry_on": "5xx", "num_retries": 3, "per_try_timeout": "5s"},
            },
        }
        for number in range(n_routes)
    ]
    return {"name": NAME, "virtual_hosts": [{"name": NAME, "domains": ["*"], "routes": entries}]}


def listener() -> dict[str, Any]:
    """An outbound listener: an HTTP connection manager with routes and two filters."""
    hcm = extension(
        "envoy.filters.network.http_connection_manager",
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=NAME,
        route_config=routes(3),
        common_http_protocol_options={"idle_timeout": "3600s"},
        http_filters=[
            extension(
                "envoy.filters.http.fault",
                "envoy.extensions.filters.http.fault.v3.HTTPFault",
                abort={"http_status": 503, "percentage": {"numerator": 10}},
            ),
            extension("envoy.filters.http.router", "envoy.extensions.filters.http.router.v3.Router"),
        ],
    )
    return {
        "name": NAME,
        "stat_prefix": NAME,
        "address": address("10.0.0.1", 80),
        "bind_to_port": False,
        "traffic_direction": "OUTBOUND",
        "filter_chains": [{"filters": [hcm]}],
    }


def endpoints(n_endpoints: int) -> dict[str, Any]:
    """A load assignment whose endpoints carry their tags."""
    tags = {"kuma.io/service": "backend", "kuma.io/zone": "east", "version": "v1"}
    entries = [
        {
            "endpoint": {"address": address(f"10.0.{number // 256}.{number % 256}", 8080)},
            "load_balancing_weight": 1,
            "metadata": {"filter_metadata": {"envoy.lb": tags, "envoy.transport_socket_match": tags}},
        }
        for number in range(n_endpoints)
    ]
    return {"cluster_name": NAME, "endpoints": [{"locality": {"zone": "east"}, "lb_endpoints": entries}]}


def cases() -> list[tuple[str, str, dict[str, Any], Goal | None]]:
    return [
        ("cluster with mTLS", CLUSTER, cluster(), Goal("ours", 60)),
        ("10 routes", ROUTES, routes(10), None),
        ("listener", LISTENER, listener(), None),
        ("100 endpoints", ENDPOINTS, endpoints(100), None),
    ]


def _microseconds(run: Callable[[], object], *, quick: bool) -> Callable[[], Awaitable[float]]:
    """The CPU time of one run: the mean of as many as fill a round."""

    async def measure() -> float:
        gc.collect()
        runs, started = 0, time.process_time()
        while (spent := time.process_time() - started) < (0.01 if quick else ROUND_S):
            for _ in range(10):
                run()
            runs += 10
        return 1e6 * spent / runs

    return measure


async def measured(*, quick: bool) -> list[Figure]:
    """The figures, in microseconds per resource."""
    envoy = schema.load(schema.find_envoy())
    encoder = Encoder(envoy)
    figures = []
    for what, type_, data, goal in cases():
        make = envoy.resolve(TYPE_URLS[type_])

        def by_library(make: Any = make, data: Any = data) -> bytes:
            message = json_format.ParseDict(data, make(), descriptor_pool=envoy.pool)
            return bytes(message.SerializeToString(deterministic=True))

        def ours(type_: str = type_, data: Any = data) -> bytes:
            return encoder.resource(type_, NAME, data).body

        size = len(ours())
        assert make.FromString(ours()) == make.FromString(by_library())
        sides = (_microseconds(ours, quick=quick), _microseconds(by_library, quick=quick))
        rounds = await in_turns(2 if quick else 7, *sides)
        figures.append(compared(f"{what}, {size} B", "µs", *rounds, better="less", goal=goal))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short round; its figures mean nothing")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = asyncio.run(measured(quick=options.quick))
    print(msgspec.json.encode(figures).decode() if options.json else table(figures))


if __name__ == "__main__":
    main()
