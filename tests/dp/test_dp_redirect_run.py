"""`koguma dp run --transparent-proxy`: what it makes of flags and files, and what it refuses."""

import asyncio
import os
import socket
from typing import Any

import click
import pytest

from koguma.cli import dp, main
from koguma.cli.dp_options import all_options
from koguma.core import admission
from koguma.dp import dataplane, machine
from koguma.dp.dataplane import BadDataplane
from koguma.dp.dns import DnsServer
from koguma.kinds import KINDS
from koguma.model import forms
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.kind import Kinds

WEB = ("--name", "web-1", "--service", "web")
SERVED = (*WEB, "--port", "8080", "--address", "10.0.0.7", "--protocol", "http")


def options(*words: str) -> Any:
    """What the proxy is run with."""
    command = click.Command("run", params=all_options())
    with command.make_context("run", list(words)) as context:
        return dp._options(context.params)


def networking(*words: str) -> Any:
    return options(*words).proxy.networking


def test_flags_make_a_dataplane_to_which_traffic_is_redirected():
    made = networking(*SERVED, "--transparent-proxy")
    assert made == {
        "address": "10.0.0.7",
        "inbound": [{"port": 8080, "tags": {"kuma.io/service": "web", "kuma.io/protocol": "http"}}],
        "transparentProxying": {"redirectPortInbound": 15006, "redirectPortOutbound": 15001},
    }


@pytest.mark.parametrize(
    ("words", "inbound", "ports"),
    [
        (("--service-port", "18080"), {"port": 8080, "servicePort": 18080}, (15006, 15001)),
        (("--service-port", "8080"), {"port": 8080}, (15006, 15001)),
        (("--redirect-inbound-port", "16006"), {"port": 8080}, (16006, 15001)),
        (("--redirect-outbound-port", "16001"), {"port": 8080}, (15006, 16001)),
        # What arrives is not redirected, so the proxy itself listens, before the service.
        (("--redirect-inbound-port", "0"), {"port": 8080, "serviceAddress": "127.0.0.1"}, (0, 15001)),
    ],
)
def test_the_service_is_where_the_redirection_says(words, inbound, ports):
    made = networking(*SERVED, "--transparent-proxy", *words)
    (found,) = made["inbound"]
    assert {name: value for name, value in found.items() if name != "tags"} == inbound
    assert tuple(made["transparentProxying"].values()) == ports


@pytest.mark.parametrize("words", [SERVED, (*WEB, "--address", "10.0.0.7"), WEB])
def test_the_control_plane_admits_it(words):
    made = options(*words, "--transparent-proxy").proxy
    stored = admission.admitted(forms.read(made.resource, Kinds(KINDS)), None, ControlPlaneInfo())
    assert stored.warnings == ()


@pytest.mark.parametrize(
    ("words", "has_dns"),
    [
        (SERVED, False),
        ((*SERVED, "--transparent-proxy"), True),
        ((*SERVED, "--transparent-proxy", "--no-dns"), False),
    ],
)
def test_names_of_the_mesh_are_answered_unless_that_is_not_wanted(words, has_dns):
    assert options(*words).has_dns is has_dns
    assert options(*words).dns_port is None, "nobody chose one"
    assert options(*words, "--dns-port", "15053").dns_port == 15053


def test_what_a_file_says_stays_and_what_it_leaves_out_comes(tmp_path):
    file = tmp_path / "web.yaml"
    file.write_text(
        "type: Dataplane\nname: web-1\nmesh: default\n"
        "networking:\n  address: 10.0.0.7\n"
        "  transparentProxying: {redirectPortOutbound: 17001, ipFamilyMode: IPv4}\n"
    )
    made = networking("--dataplane-file", str(file), "--transparent-proxy")
    assert made["transparentProxying"] == {
        "redirectPortInbound": 15006,
        "redirectPortOutbound": 17001,
        "ipFamilyMode": "IPv4",
    }
    alone = options("--dataplane-file", str(file))
    assert alone.proxy.networking["transparentProxying"] == {
        "redirectPortOutbound": 17001,
        "ipFamilyMode": "IPv4",
    }
    assert alone.has_dns


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            (*WEB, "--port", "8080", "--transparent-proxy"),
            "say with --address by which address of this machine",
        ),
        ((*SERVED, "--transparent-proxy", "--outbound", "backend:9001"), "so there are no outbounds"),
        (
            ("--name", "web-1", "--transparent-proxy"),
            "a stored one has its own networking.transparentProxying",
        ),
        ((*SERVED, "--redirect-inbound-port", "16006"), "go with --transparent-proxy"),
    ],
)
def test_what_cannot_be_is_told_before_anything_starts(words, message, capsys):
    assert main(["dp", "run", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_file_with_outbounds_is_refused_as_the_control_plane_would():
    written = {
        "networking": {"address": "10.0.0.7", "outbound": [{"port": 1, "tags": {"kuma.io/service": "b"}}]}
    }
    with pytest.raises(BadDataplane, match=r"leave out --outbound, or networking\.outbound"):
        dataplane.redirected(dataplane.DataplaneProxy("default", "web-1", written), 15006, 15001)


def test_a_proxy_of_root_is_warned_about(capsys, monkeypatch):
    async def nothing(*_: object) -> int:
        return 0

    monkeypatch.setattr("koguma.dp.run.serve", nothing)
    monkeypatch.setattr("koguma.runtime.logs.configure", lambda *_: None)
    monkeypatch.setattr("koguma.dp.privileges.become", lambda _account: None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert main(["dp", "run", *SERVED, "--transparent-proxy", "--user", "root"]) == 0
    assert "its own calls go in circles unless they were exempted" in capsys.readouterr().err
    assert main(["dp", "run", *SERVED]) == 0
    stderr = capsys.readouterr().err
    assert "the proxy runs as root" in stderr
    assert "circles" not in stderr
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["dp", "run", *SERVED, "--transparent-proxy"]) == 0
    assert capsys.readouterr().err == ""


async def test_queries_over_ipv6_are_answered_as_well():
    server = DnsServer([])
    server.set_records({"a.mesh": ["241.0.0.1"]})
    port = await server.start("127.0.0.1", 0)
    hosts = ["127.0.0.1", "::1"] if machine.has_ipv6() else ["127.0.0.1"]
    for host in hosts[1:]:
        await server.listen_also(host, port)
    query = bytes.fromhex("0001010000010000000000000161046d6573680000010001")
    try:
        for host in hosts:
            with socket.socket(
                socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM
            ) as asked:
                asked.settimeout(0)
                asked.connect((host, port))
                asked.send(query)
                async with asyncio.timeout(60):
                    answer = await asyncio.get_running_loop().sock_recv(asked, 512)
            assert answer[-4:] == bytes((241, 0, 0, 1))
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(len(query).to_bytes(2) + query)
            assert (await reader.readexactly(len(answer) + 2))[-4:] == bytes((241, 0, 0, 1))
            writer.close()
            await writer.wait_closed()
    finally:
        await server.stop()
