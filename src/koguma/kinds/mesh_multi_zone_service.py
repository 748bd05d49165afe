"""One name for a service that runs in several zones.

A MeshMultiZoneService puts MeshServices of all zones behind one virtual address. Calls stay in the zone
of the caller while a healthy proxy is there. Write one on the Global control plane when clients should not
care where a service runs; the ports are joined by name.

```yaml
type: MeshMultiZoneService
name: backend
mesh: default
spec:
  selector:
    meshService:
      matchLabels: {kuma.io/display-name: backend}
  ports:
    - name: http
      port: 80
      appProtocol: http
```
"""

from collections.abc import Iterator
from typing import Annotated

from koguma.kinds import mesh_service, rules
from koguma.kinds.mesh_service import AppProtocol
from koguma.kinds.rules import LabelSelector
from koguma.kinds.status import HostnameAddress, HostnameGeneratorStatus, Vip
from koguma.model import columns
from koguma.model.condition import Condition
from koguma.model.kind import GLOBAL_TO_ZONES, Kind, ValidationContext
from koguma.model.schema import Port, Spec, doc, keyed_by
from koguma.model.violation import Violation, child, item


class MeshMultiZoneServiceSelector(Spec):
    """The services that are one."""

    mesh_service: Annotated[LabelSelector | None, doc("MeshServices by their labels.")] = None


class MeshMultiZoneServicePort(Spec):
    """A port of the service."""

    port: Annotated[Port, doc("Port that is called.")]
    name: Annotated[str | None, doc("Name of the port, by which ports of the services are found.")] = None
    app_protocol: Annotated[AppProtocol | None, doc("What is spoken; tcp by default.")] = None


class MeshMultiZoneServiceSpec(Spec):
    """Which services, and the ports."""

    selector: Annotated[MeshMultiZoneServiceSelector | None, doc("The services that are one.")] = None
    ports: Annotated[
        tuple[MeshMultiZoneServicePort, ...] | None, doc("The ports on which it is called."), keyed_by("port")
    ] = None


class MatchedMeshService(Spec):
    """A service that was found."""

    name: Annotated[str, doc("Its name.")]
    namespace: Annotated[str | None, doc("Its namespace.")] = None
    zone: Annotated[str | None, doc("Its zone.")] = None
    mesh: Annotated[str | None, doc("Its mesh.")] = None


class MeshMultiZoneServiceStatus(Spec):
    """What the control plane knows of the service."""

    addresses: Annotated[tuple[HostnameAddress, ...] | None, doc("Its host names.")] = None
    vips: Annotated[tuple[Vip, ...] | None, doc("Its virtual addresses.")] = None
    mesh_services: Annotated[tuple[MatchedMeshService, ...] | None, doc("The services that were found.")] = (
        None
    )
    hostname_generators: Annotated[
        tuple[HostnameGeneratorStatus, ...] | None, doc("What became of each generator.")
    ] = None
    conditions: Annotated[
        tuple[Condition, ...] | None, doc("Whether any service was found."), keyed_by("type")
    ] = None


def validate(spec: MeshMultiZoneServiceSpec, _context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages."""
    selected = spec.selector.mesh_service if spec.selector else None
    if selected is None or not selected.match_labels:
        at = "spec.selector.meshService.matchLabels"
        yield Violation(at, rules.CANNOT_BE_EMPTY_MESSAGE, "required")
    if not spec.ports:
        yield Violation("spec.ports", rules.CANNOT_BE_EMPTY_MESSAGE, "required")
    for index, port in enumerate(spec.ports or ()):
        path = item("spec.ports", index)
        if port.name == "":
            yield Violation(child(path, "name"), rules.NOT_EMPTY_MESSAGE, "required")
        yield from mesh_service.protocol_violations(port.app_protocol, path)


KIND = Kind(
    name="MeshMultiZoneService",
    plural="meshmultizoneservices",
    short="mzsvc",
    doc=__doc__,
    spec=MeshMultiZoneServiceSpec,
    columns=columns.MESH_MULTI_ZONE_SERVICE,
    status=MeshMultiZoneServiceStatus,
    sync=GLOBAL_TO_ZONES,
    system_namespace_only=True,
    validate=validate,
    dns_name=True,
)
