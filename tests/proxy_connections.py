"""Proxies that connect to a control plane inside the test process, without Envoys and without gRPC."""

import asyncio
import json
from typing import Any

import msgspec

from koguma.envoy.snapshot import LISTENER
from koguma.xds.contract import ConnectRequest, Offer, ProxyStatus
from tests.control_plane import LocalControlPlane

_OFFERS: dict[Any, asyncio.Queue[Offer]] = {}  # by connection, the offers that no test has taken yet


def web_token(plane: LocalControlPlane, **claims: Any) -> str:
    """A token with these claims; without any, for proxies of the service web."""
    return plane.dataplane_token(**(claims or {"tags": {"kuma.io/service": ["web"]}}))


def connect(
    plane: LocalControlPlane,
    brings: Any = None,
    name: str = "web-1",
    mesh: str = "default",
    shown: str | None = None,
    *,
    is_delta: bool = True,
    **metadata: Any,
) -> Any:
    """Connect a proxy that brings a Dataplane, if any, and shows a token."""
    if brings is not None:
        metadata["dataplane.resource"] = json.dumps(brings)
    token = web_token(plane) if shown is None else shown
    request = ConnectRequest(mesh, name, token, metadata, "1.40.0", is_delta=is_delta)
    return plane.run(plane.plane._proxies.fleet.connect(request))


def synced(offer: Offer, **more: Any) -> ProxyStatus:
    """The status of a proxy that has acknowledged all of an offer."""
    return ProxyStatus("synced", offer.revision, offer.revision, acked_snapshot=offer.snapshot, **more)


def report_ack(connection: Any, offer: Offer) -> None:
    """Report, on the control plane's loop, that a proxy has acknowledged all of an offer, as a stream does.

    Of an earlier one each resource counts, and that it was complete does not.
    """
    versions = {LISTENER: {each.name: each.version for each in offer.snapshot.of_type(LISTENER).values()}}
    if offer is connection._offer:
        connection.report(synced(offer, acked_versions=versions))
        return
    before, newest = connection.status, connection.offered_revision
    status = ProxyStatus("behind", newest, before.acked, acked_versions=versions)
    connection.report(msgspec.structs.replace(status, acked_snapshot=before.acked_snapshot))


async def next_offer(connection: Any) -> Offer:
    """The next offer that no test has taken yet; waits until there is one."""
    if connection not in _OFFERS:
        _OFFERS[connection] = asyncio.Queue()
        connection.watch_offers(_OFFERS[connection].put_nowait)
    return await _OFFERS[connection].get()
