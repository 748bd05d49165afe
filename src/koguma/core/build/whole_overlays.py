"""Whole overlays: what policies change for one proxy as a whole."""

from koguma.core import rules, world
from koguma.core.build import encoding, network, overlays, tls
from koguma.core.build.network import Networking, NodeMetadata
from koguma.core.build.overlays import PolicyOverlays
from koguma.core.incremental import Db, question
from koguma.core.rules import ProxyClass
from koguma.model.overlay import KumaDp, OverlayContext
from koguma.model.resource import Key


def of(
    db: Db, proxy: Key, proxy_class: ProxyClass, networking: Networking, node: NodeMetadata
) -> PolicyOverlays:
    """What policies change for a proxy as a whole."""
    if not _has_rules(db, proxy_class):
        return overlays.NOTHING
    return overlays.whole(db, proxy_class, _where(db, proxy, networking, node))


@question
def _has_rules(db: Db, proxy_class: ProxyClass) -> bool:
    """Whether policies have entries about the proxies of a class as a whole; one answer to read for each."""
    return bool(rules.whole_proxy(db, proxy_class))


def _where(db: Db, proxy: Key, networking: Networking, node: NodeMetadata) -> OverlayContext:
    """What the hooks of policies get to know about the proxy itself."""
    return OverlayContext(
        "",
        proxy.mesh,
        proxy.zone,
        encoding.kri(db, proxy, ""),
        service=network.own_service(db, proxy),
        address=networking.address,
        workdir=node.workdir,
        has_mtls=tls.mtls(db, proxy.mesh) is not None,
        kuma_dp=_kuma_dp(db, proxy, node),
    )


def _kuma_dp(db: Db, proxy: Key, node: NodeMetadata) -> KumaDp | None:
    known = world.proxy(db, proxy)
    if known is None or node.is_own_agent:
        return None
    socket = node.kuma_metrics_socket(proxy.mesh, known.core_name)
    return KumaDp(socket, node.metrics_certificate, node.metrics_key)
