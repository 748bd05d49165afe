"""Words: which part of Koguma makes a resource of Envoy, in that part's own words."""

from types import ModuleType
from typing import Final

from koguma.core.build import (
    clusters,
    egress,
    endpoints,
    gateway_listeners,
    inbound_listener,
    ingress,
    internals,
    outbound_listeners,
    outbound_routes,
    passthrough,
    zone_egress,
    zone_ingress,
)
from koguma.core.build import inbound as build_inbound
from koguma.core.build.gateway_spec import is_gateway
from koguma.core.incremental import Db
from koguma.envoy.snapshot import CLUSTER, ENDPOINTS, LISTENER, ROUTES, VIRTUAL_HOST, Id
from koguma.model.resource import Key

_OUTBOUND: Final = {
    CLUSTER: clusters,
    LISTENER: outbound_listeners,
    ROUTES: outbound_routes,
    VIRTUAL_HOST: outbound_routes,
    ENDPOINTS: endpoints,
}
_OF_ZONE: Final = {zone_egress.KIND: ("egress", egress), zone_ingress.KIND: ("ingress", ingress)}
_INBOUND: Final = {CLUSTER: build_inbound, LISTENER: inbound_listener, ROUTES: build_inbound}


def part_of_koguma(db: Db, proxy: Key, id_: Id) -> str:
    """What makes a resource, and that it always does."""
    what, module = _maker(db, proxy, id_)
    return f"always set by Koguma for {what}: {_first_sentence(module)}"


def _maker(db: Db, proxy: Key, id_: Id) -> tuple[str, ModuleType]:
    type_, name = id_
    word = type_.replace("_", " ")
    if proxy.kind in _OF_ZONE and "kri_" in name:
        served, module = _OF_ZONE[proxy.kind]
        ports = "every port" if type_ != LISTENER else "all ports"
        return f"the {word} of {ports} that a zone {served} serves", module
    if name.startswith("kri_dp_"):
        if is_gateway(db, proxy):
            return f"the {word} of a gateway", gateway_listeners
        return f"the {word} of every inbound", _INBOUND.get(type_, build_inbound)
    if name.startswith("kri_") and type_ in _OUTBOUND:
        return f"the {word} of every port that is called", _OUTBOUND[type_]
    if "passthrough" in name:
        return f"the {word} of calls that leave the mesh", passthrough
    return f"the {word} of every proxy", internals


def _first_sentence(module: ModuleType) -> str:
    text = " ".join((module.__doc__ or "").split("\n\n")[0].split())
    return text.removesuffix(".")
