"""Gateways: what a Gateway of the Gateway API becomes, with its ListenerSets: a MeshGateway.

The proxies that serve it are those with the tag `kuma.io/service: <name>_<namespace>_svc`. A listener that is
wrong is left out, and its status says why; the others work.
"""

from collections.abc import Mapping
from typing import Final

from koguma.core import world
from koguma.core.gateway_api import attachment, listeners, objects
from koguma.core.gateway_api.listeners import GatewayApiListener, Reason
from koguma.core.incremental import Db
from koguma.model import derived as derived_keys
from koguma.model import hostname, labels, tags
from koguma.model.derived import DerivedResource
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.model.violation import item

INVALID: Final = "Invalid"
INVALID_PARAMETERS: Final = "InvalidParameters"
UNSUPPORTED_ADDRESS: Final = "UnsupportedAddress"
_IP_ADDRESS: Final = "IPAddress"


def service_of(gateway: Key) -> str:
    """The value of kuma.io/service of the proxies that serve a Gateway."""
    return f"{gateway.name}_{gateway.namespace}_svc"


def refusal(gateway: Resource) -> Reason | None:
    """Why nothing of a Gateway is served; None where its listeners are looked at."""
    spec = objects.fields(gateway.spec)
    infrastructure = objects.fields(spec.get("infrastructure"))
    parameters = objects.fields(infrastructure.get("parametersRef"))
    if parameters:
        kind, name = objects.text(parameters.get("kind")), objects.text(parameters.get("name"))
        message = f"spec.infrastructure.parametersRef: {kind} {name}: this control plane takes no parameters"
        return Reason(INVALID_PARAMETERS, message)
    for index, address in objects.items(spec.get("addresses")):
        type_ = objects.text(address.get("type")) or _IP_ADDRESS
        if type_ != _IP_ADDRESS:
            message = f"{item('spec.addresses', index)}: {type_} cannot be had, only {_IP_ADDRESS}"
            return Reason(UNSUPPORTED_ADDRESS, message)
    backend = objects.fields(objects.fields(spec.get("tls")).get("backend"))
    if backend.get("clientCertificateRef"):
        message = "spec.tls.backend.clientCertificateRef: gateways show backends their identity in the mesh"
        return Reason(INVALID, f"{message}, and no other certificate")
    return None


def derived(db: Db, gateway: Key) -> tuple[DerivedResource, ...]:
    """The MeshGateway of a Gateway that is ours; none where it has no listener to serve."""
    resource = world.RESOURCES.get(db, gateway)
    if resource is None or not attachment.is_ours(db, resource):
        return ()
    served = [each for each in listeners.of(db, gateway) if each.is_served]
    if not served or refusal(resource) is not None:
        return ()
    here = world.control_plane(db)
    key = derived_keys.key("MeshGateway", objects.mesh_of(db, resource), here.zone, gateway)
    spec = {
        "selectors": [{"match": {tags.SERVICE: service_of(gateway)}}],
        "conf": {"listeners": [_listener(each) for each in served]},
    }
    places = (
        (f"conf.{item('listeners', position)}", item("spec.listeners", each.number))
        for position, each in enumerate(served)
        if each.owner == gateway
    )
    return (
        DerivedResource(
            kind=key.kind,
            mesh=key.mesh,
            zone=key.zone,
            namespace=key.namespace,
            name=key.name,
            core_name=key.name,
            labels={
                labels.ORIGIN: here.origin,
                **({labels.NAMESPACE: key.namespace} if key.namespace else {}),
            },
            spec=spec,
            creation_time=resource.creation_time,
            generation=resource.generation,
            source=gateway,
            paths=tuple(places),
        ),
    )


def _listener(listener: GatewayApiListener) -> Mapping[str, Json]:
    written: dict[str, Json] = {
        "name": listener.section,
        "port": listener.port,
        "protocol": listener.protocol,
        "hostname": listener.hostname or hostname.ANY,
    }
    if listener.is_passthrough:
        written["tls"] = {"mode": "PASSTHROUGH"}
    elif listener.certificates:
        refs = [{"kubernetesSecret": f"{ref.namespace}/{ref.name}"} for ref in listener.certificates]
        written["tls"] = {"mode": "TERMINATE", "certificates": refs}
    return written
