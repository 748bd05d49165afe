"""What a proxy's metadata says of it; what does not fit is as good as absent."""

from typing import Any

import pytest

from koguma.core.build.network import NodeMetadata
from koguma.fleet.node_metadata import node_metadata_of


def flow(port: Any, *, enabled: Any = True) -> dict[str, Any]:
    return {"enabled": enabled, "port": port}


@pytest.mark.parametrize(
    ("config", "inbound", "outbound", "family"),
    [
        ({"redirect": {"inbound": flow(15006.0), "outbound": flow(15001.0)}}, 15006, 15001, ""),
        (
            {"ipFamilyMode": "ipv4", "redirect": {"inbound": flow(25006), "outbound": flow("25001")}},
            25006,
            25001,
            "IPv4",
        ),
        ({"ipFamilyMode": "dualstack", "redirect": {"outbound": flow(15001.0)}}, 0, 15001, ""),
        ({"redirect": {"inbound": flow(0.0), "outbound": {"enabled": True}}}, 15006, 15001, ""),
        ({"redirect": {"inbound": flow(15006.0, enabled=False), "outbound": {}}}, 0, 0, ""),
        ({"redirect": {"inbound": flow(float("inf")), "outbound": flow(0.5)}}, 15006, 15001, ""),
        ({"redirect": {"inbound": [], "outbound": "yes"}}, 0, 0, ""),
        ({"redirect": []}, 0, 0, ""),
        ("yes", 0, 0, ""),
        (None, 0, 0, ""),
    ],
)
def test_an_agent_says_where_the_kernel_redirects_to(config, inbound, outbound, family):
    found = node_metadata_of({"transparentProxy": config})
    assert (found.redirect_inbound, found.redirect_outbound) == (inbound, outbound)
    assert found.ip_family == family


@pytest.mark.parametrize(
    ("dns", "port"), [(flow(15053.0), 15054), (flow(15053.0, enabled=False), 0), (None, 0)]
)
def test_envoy_answers_dns_where_the_kernel_redirects_it(dns, port):
    redirect = {"inbound": flow(15006.0), "dns": dns}
    found = node_metadata_of({"dataplane.dns.port": "15054", "transparentProxy": {"redirect": redirect}})
    assert found.dns_port == port
    assert node_metadata_of({"dataplane.dns.port": "15054"}).dns_port == 15054


def test_sockets_of_kumas_agent_are_cut_where_it_cuts_them():
    link = NodeMetadata(workdir="/tmp/" + "d" * 60)
    path = link.kuma_metrics_socket("default", "n" * 40)
    assert path == f"/tmp/{'d' * 60}/kuma-mh-{'n' * 24}.sock"
    assert len(path) == 98 + len(".sock")
