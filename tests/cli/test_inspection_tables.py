"""Answers of the Inspect API as tables: what is long is cut, with a count."""

from typing import Any

from koguma.cli import inspection


def listener(protocol: str, n_routes: int) -> dict[str, Any]:
    routes = [{"kri": f"kri_mhttpr_shop_default__r{number}_"} for number in range(n_routes)]
    hosts = [{"hostname": "*", "routes": routes}]
    return {"name": "web", "port": 80, "protocol": protocol, "hosts": hosts, "policies": []}


def rows(*listeners: dict[str, Any]) -> list[str]:
    *_, titles = [line for line in inspection.listeners(listeners) if "ROUTES" in line]
    start, end = titles.index("ROUTES"), titles.index("POLICIES")
    return [line[start:end].strip() for line in inspection.listeners(listeners)][-len(listeners) :]


def test_a_host_with_thousands_of_routes_is_a_short_line():
    assert rows(listener("HTTP", 2000), listener("HTTPS", 5)) == [
        "r0, r1, r2, r3, r4 and 1995 more",
        "r0, r1, r2, r3, r4",
    ]


def test_a_listener_without_routes_says_what_clients_get():
    assert rows(listener("HTTPS", 0), listener("TCP", 0), listener("TLS", 0)) == [
        "none: 404",
        "none: closed",
        "none: closed",
    ]
