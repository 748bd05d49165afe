"""What a proxy is going to listen on, and who listens there already."""

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from koguma.dp import addresses
from koguma.dp.addresses import ListenAddress
from koguma.dp.dataplane import DataplaneFlags, DataplaneProxy, Outbound, from_flags, redirected
from koguma.model.errors import KogumaError
from tests.ports import free_port


@contextlib.contextmanager
def listening(*, port: int = 0, host: str = "127.0.0.1", reuses: bool = False) -> Iterator[int]:
    """A port on which somebody listens, as Envoy does by default where `reuses` is said."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuses:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind((host, port or free_port()))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("reuses", [False, True])
def test_a_port_on_which_somebody_listens_is_taken_even_if_it_could_be_shared(host, reuses):
    with listening(host=host, reuses=reuses) as port:
        assert addresses.is_taken("127.0.0.1", port)
    assert not addresses.is_taken("127.0.0.1", port)


def test_connections_that_have_ended_are_in_nobodys_way():
    with listening() as port:
        server = socket.socket()
        server.connect(("127.0.0.1", port))
    server.close()
    assert not addresses.is_taken("127.0.0.1", port)


def test_an_address_of_another_machine_is_not_taken():
    assert not addresses.is_taken("192.0.2.7", 80)
    assert not addresses.is_taken("no-address", 80)


def test_who_listens_is_named_where_the_machine_tells():
    with listening(reuses=True) as port:
        assert addresses.process_listening_on("127.0.0.1", port).endswith(f"(process {os.getpid()})")
    assert (
        addresses.process_listening_on("127.0.0.1", port)
        == f"somebody (`ss -ltnp 'sport = :{port}'`, as root, says who)"
    )


def of_flags(**changes) -> DataplaneProxy:
    given = {"name": "web-1", "service": "web", "port": 8080, "service_port": 18080, **changes}
    return from_flags(DataplaneFlags(**given))


IGNORED = [{"port": 1, "state": "Ignored"}, {"port": 2, "address": "10.0.0.8"}]
AN_INBOUND = "networking.inbound[0].port"


@pytest.mark.parametrize(
    ("proxy", "places"),
    [
        (of_flags(), [ListenAddress("127.0.0.1", 8080, AN_INBOUND, "--port")]),
        (of_flags(address="10.0.0.7"), [ListenAddress("10.0.0.7", 8080, AN_INBOUND, "--port")]),
        (
            of_flags(port=0, service_port=0, outbounds=[Outbound("MeshService", "api", 0, 9001)]),
            [ListenAddress("127.0.0.1", 9001, "networking.outbound[0].port", "--outbound")],
        ),
        (
            redirected(of_flags(address="10.0.0.7", is_redirected=True), 15006, 15001),
            [
                ListenAddress(
                    "0.0.0.0",
                    15006,
                    "networking.transparentProxying.redirectPortInbound",
                    "--redirect-inbound-port",
                ),
                ListenAddress(
                    "0.0.0.0",
                    15001,
                    "networking.transparentProxying.redirectPortOutbound",
                    "--redirect-outbound-port",
                ),
            ],
        ),
        (
            DataplaneProxy("default", "web-1", {"networking": {"address": "10.0.0.7", "inbound": IGNORED}}),
            [ListenAddress("10.0.0.8", 2, "networking.inbound[1].port", "--port")],
        ),
        (DataplaneProxy("default", "stored"), []),
    ],
)
def test_what_a_proxy_listens_on(proxy, places):
    assert list(addresses.listen_addresses(proxy)) == places


async def test_a_port_that_is_taken_is_refused_with_who_has_it_and_what_to_do():
    with listening(reuses=True) as port, pytest.raises(KogumaError) as refused:
        await addresses.refuse_if_taken(of_flags(port=port), patience_seconds=0)
    text = str(refused.value.detail)
    assert text.startswith(f"cannot listen on 127.0.0.1:{port}: ")
    assert f"(process {os.getpid()}) listens there already" in text
    assert text.endswith("stop it, or choose another port with --port (networking.inbound[0].port)")


async def test_a_port_that_is_free_is_fine():
    await addresses.refuse_if_taken(of_flags(port=free_port()), patience_seconds=0)
