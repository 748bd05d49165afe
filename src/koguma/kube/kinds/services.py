"""Services: a MeshService as Kubernetes' tools know one, for reading.

Nothing of it is stored: each Service is a MeshService, under the same namespace, name and uid. Its cluster
address is the first virtual address; one without any is shown as headless.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import msgspec

from koguma.kube.kinds.parts import Int32
from koguma.model.kind import Column, Kind, Scope
from koguma.model.schema import IntOrString, Json, Spec, doc

HEADLESS: Final = "None"  # how Kubernetes writes that a Service has no address
_METADATA: Final = ("generation", "managedFields")  # of the MeshService's own fields
# Without it `kubectl apply --prune` would take the Service for one that it applied, and try to delete it.
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_NONE: Final = "<none>"


class CoreServicePort(Spec):
    """A port of a service."""

    name: Annotated[str | None, doc("Name of the port.")] = None
    protocol: Annotated[str | None, doc("TCP.")] = None
    app_protocol: Annotated[str | None, doc("What is spoken: http, http2, grpc, kafka, tcp or tls.")] = None
    port: Annotated[Int32 | None, doc("Port that is called.")] = None
    target_port: Annotated[IntOrString | None, doc("Port of the proxies' inbounds, or its name.")] = None


class ServiceSpec(Spec):
    """How a service is called, and which proxies it has."""

    type: Annotated[str | None, doc("ClusterIP: it is called within the mesh.")] = None
    cluster_ip: Annotated[str | None, doc("Its first virtual address, or None.")] = msgspec.field(
        default=None, name="clusterIP"
    )
    cluster_ips: Annotated[tuple[str, ...] | None, doc("All virtual addresses.")] = msgspec.field(
        default=None, name="clusterIPs"
    )
    ports: Annotated[tuple[CoreServicePort, ...] | None, doc("The ports on which it is called.")] = None
    selector: Annotated[Mapping[str, str] | None, doc("Tags or labels of its proxies.")] = None
    session_affinity: Annotated[str | None, doc("None; a MeshLoadBalancingStrategy can say more.")] = None


class ServiceLoadBalancer(Spec):
    """Empty: nothing outside of the mesh leads here."""


class ServiceStatus(Spec):
    """What is known of addresses outside of the mesh."""

    load_balancer: Annotated[ServiceLoadBalancer | None, doc("Always empty.")] = None


def shown(document: Mapping[str, Json]) -> dict[str, Json]:
    """The Service of a MeshService, whose document is in the version in which it is stored.

    What is stored may be malformed: it is left out then.
    """
    spec, status = _object(document.get("spec")), _object(document.get("status"))
    metadata = {name: value for name, value in document["metadata"].items() if name not in _METADATA}
    if _LAST_APPLIED in metadata.get("annotations", {}):
        metadata["annotations"] = {n: v for n, v in metadata["annotations"].items() if n != _LAST_APPLIED}
    return {"metadata": metadata, "spec": _spec(spec, status), "status": {"loadBalancer": {}}}


def _spec(spec: Mapping[str, Json], status: Mapping[str, Json]) -> dict[str, Json]:
    addresses = [vip["ip"] for vip in _objects(status.get("vips")) if isinstance(vip.get("ip"), str)]
    found: dict[str, Json] = {
        "type": "ClusterIP",
        "clusterIP": addresses[0] if addresses else HEADLESS,
        "clusterIPs": addresses or [HEADLESS],
        "ports": [_port(port) for port in _objects(spec.get("ports"))],
        "selector": _selector(_object(spec.get("selector"))),
        "sessionAffinity": "None",
    }
    return {name: value for name, value in found.items() if value not in ({}, [])}


def _port(port: Mapping[str, Json]) -> dict[str, Json]:
    number = port.get("port")
    shown_port = {
        "name": port.get("name") or str(number),
        "protocol": "TCP",
        "appProtocol": port.get("appProtocol"),
        "port": number,
        "targetPort": port.get("targetPort") or number,
    }
    return {name: value for name, value in shown_port.items() if value is not None}


def _selector(selector: Mapping[str, Json]) -> dict[str, Json]:
    labels = _object(_object(selector.get("dataplaneLabels")).get("matchLabels"))
    return {**_object(selector.get("dataplaneTags")), **labels}


def _object(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def _objects(value: Json) -> Iterator[dict[str, Json]]:
    return (each for each in (value if isinstance(value, list | tuple) else ()) if isinstance(each, dict))


def _ports(spec: Json, _status: Json) -> str:
    return ",".join(f"{port.get('port')}/TCP" for port in spec.get("ports") or ()) or _NONE


def _pairs(spec: Json, _status: Json) -> str:
    return ",".join(f"{name}={value}" for name, value in (spec.get("selector") or {}).items()) or _NONE


SERVICE: Final = Kind(
    name="Service",
    plural="services",
    set_name="Service.core",
    group="",
    doc="A MeshService as Kubernetes' tools know one. It is only read here: write the MeshService.",
    spec=ServiceSpec,
    status=ServiceStatus,
    scope=Scope.GLOBAL,
    columns=(
        Column("Type", lambda spec, _status: spec.get("type"), "How it is called."),
        Column("Cluster-IP", lambda spec, _status: spec.get("clusterIP"), "Its first virtual address."),
        Column("External-IP", lambda _spec, _status: _NONE, "None: it is called within the mesh."),
        Column("Port(s)", _ports, "The ports on which it is called."),
        Column("Selector", _pairs, "Tags or labels of its proxies.", is_wide=True),
    ),
)
