"""The public address of a zone, on which other zones reach its services.

A zone whose ingress is a listener of a Dataplane (`networking.listeners`) announces here where the outside
world finds it: usually the load balancer in front. Every zone gets to know it. Zones that use
ZoneIngress do not need one.

```yaml
type: MeshZoneAddress
name: east-1
mesh: default
spec:
  address: ingress.east.example.com
  port: 443
```
"""

from collections.abc import Iterator
from typing import Annotated

from koguma.kinds import rules
from koguma.kinds.rules import UInt32
from koguma.model import columns
from koguma.model.kind import ACROSS_ZONES, Kind, ValidationContext
from koguma.model.schema import Spec, doc
from koguma.model.violation import Violation


class MeshZoneAddressSpec(Spec):
    """Where the zone is reached."""

    address: Annotated[str | None, doc("IP or name that other zones call.")] = None
    port: Annotated[UInt32 | None, doc("Port that other zones call.")] = None


def validate(spec: MeshZoneAddressSpec, _context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages."""
    if not spec.address:
        yield Violation("spec.address", rules.NOT_EMPTY_MESSAGE, "required")
    else:
        yield from rules.address(spec.address, "spec")
    yield from rules.port(spec.port, "spec.port", rules.SPEC_PORT_MESSAGE)


KIND = Kind(
    name="MeshZoneAddress",
    plural="meshzoneaddresses",
    short="mza",
    doc=__doc__,
    spec=MeshZoneAddressSpec,
    columns=columns.MESH_ZONE_ADDRESS,
    sync=ACROSS_ZONES,
    validate=validate,
    display=("Mesh Zone Address", "Mesh Zone Addresses"),
)
