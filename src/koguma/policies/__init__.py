"""The policies, one file each. Built-in and third-party ones come through the same entry point."""

from koguma.model.kind import Kind
from koguma.policies import (
    mesh_access_log,
    mesh_circuit_breaker,
    mesh_fault_injection,
    mesh_gateway_http_route,
    mesh_health_check,
    mesh_http_route,
    mesh_load_balancing_strategy,
    mesh_metric,
    mesh_passthrough,
    mesh_proxy_patch,
    mesh_rate_limit,
    mesh_retry,
    mesh_tcp_route,
    mesh_timeout,
    mesh_tls,
    mesh_trace,
    mesh_traffic_permission,
    route_filter,
)

# In the order of their phases.
POLICIES: tuple[Kind, ...] = (
    mesh_http_route.KIND,
    mesh_gateway_http_route.KIND,
    mesh_tcp_route.KIND,
    mesh_tls.KIND,
    mesh_load_balancing_strategy.KIND,
    mesh_passthrough.KIND,
    mesh_access_log.KIND,
    mesh_trace.KIND,
    mesh_fault_injection.KIND,
    mesh_rate_limit.KIND,
    mesh_timeout.KIND,
    mesh_traffic_permission.KIND,
    mesh_health_check.KIND,
    mesh_circuit_breaker.KIND,
    mesh_retry.KIND,
    mesh_metric.KIND,
    mesh_proxy_patch.KIND,
    route_filter.KIND,  # no policy itself: a filter of a route's rule, which routes name
)
