"""A service: the proxies that are it, and the ports on which it is called.

The control plane makes a MeshService of the proxies that belong together (`Mesh.meshServices.mode`); write
one by hand where the ports differ from those of the proxies, or to group proxies in another way. Policies and
routes refer to it by name or labels. It gets a virtual address, and host names from every HostnameGenerator
that selects it.

Whether any proxy can be called, and who the proxies are, stands in the status where the service was written.
Other zones and Global see it as `spec.state` and `spec.identities`, since a status is about the zone in which
it is seen. Identities that are written in the spec are taken instead of those of the proxies.

```yaml
type: MeshService
name: backend
mesh: default
spec:
  selector:
    dataplaneTags: {kuma.io/service: backend}
  ports:
    - name: http
      port: 80
      targetPort: 8080
      appProtocol: http
```
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

from koguma.kinds import rules
from koguma.kinds.rules import LabelSelector
from koguma.kinds.status import DataplaneProxies, HostnameAddress, HostnameGeneratorStatus, Vip
from koguma.model import columns, tags
from koguma.model.kind import ACROSS_ZONES, Kind, ValidationContext
from koguma.model.schema import IntOrString, Port, Spec, doc, keyed_by
from koguma.model.violation import Violation, child, item

State = Literal["Available", "Unavailable"]
AppProtocol = Annotated[str, rules.enum_values(*tags.PROTOCOLS, *tags.KUBERNETES_PROTOCOLS)]
PROTOCOL_MESSAGE: Final = f"appProtocol must be one of: {', '.join(tags.PROTOCOLS)}"


class MeshServiceDataplaneRef(Spec):
    """One proxy."""

    name: Annotated[str | None, doc("Name of the Dataplane.")] = None


class MeshServiceSelector(Spec):
    """The proxies that are the service."""

    dataplane_tags: Annotated[Mapping[str, str] | None, doc("Proxies by the tags of an inbound.")] = None
    dataplane_ref: Annotated[MeshServiceDataplaneRef | None, doc("One proxy by name.")] = None
    dataplane_labels: Annotated[LabelSelector | None, doc("Proxies by their labels.")] = None


class MeshServicePort(Spec):
    """A port of the service."""

    port: Annotated[Port, doc("Port that is called.")]
    name: Annotated[str | None, doc("Name of the port; its number by default.")] = None
    target_port: Annotated[
        IntOrString | None,
        doc(
            "Port of the proxies' inbounds: a number, a name, or the protocol of an inbound that is the only"
            " one of its proxy to speak it; the same number by default."
        ),
    ] = None
    app_protocol: Annotated[
        AppProtocol | None, doc("What is spoken, in our words or Kubernetes'; tcp by default.")
    ] = None


class MeshServiceIdentity(Spec):
    """Who a proxy of the service is."""

    type: Annotated[Literal["ServiceTag", "SpiffeID"], doc("A service tag, or a SPIFFE identity.")]
    value: Annotated[str, doc("The tag's value, or the identity.")]


class MeshServiceSpec(Spec):
    """Which proxies, and the ports."""

    state: Annotated[
        State | None, doc("Of a service of another zone: whether any proxy there can be called.")
    ] = None
    selector: Annotated[MeshServiceSelector | None, doc("The proxies that are the service.")] = None
    ports: Annotated[
        tuple[MeshServicePort, ...] | None, doc("The ports on which it is called."), keyed_by("port")
    ] = None
    identities: Annotated[
        tuple[MeshServiceIdentity, ...] | None,
        doc("Who its proxies are; of a service of another zone, as that zone reports it."),
    ] = None


class MeshServiceTls(Spec):
    """Whether the service can be called over mTLS."""

    status: Annotated[
        Literal["Ready", "NotReady"] | None, doc("Ready once all proxies have certificates.")
    ] = None


class MeshServiceStatus(Spec):
    """What the control plane knows of the service."""

    state: Annotated[State | None, doc("Whether any of its proxies can be called.")] = None
    identities: Annotated[
        tuple[MeshServiceIdentity, ...] | None, doc("Who its proxies are; the last ones where it has none.")
    ] = None
    addresses: Annotated[tuple[HostnameAddress, ...] | None, doc("Its host names.")] = None
    vips: Annotated[tuple[Vip, ...] | None, doc("Its virtual addresses.")] = None
    tls: Annotated[MeshServiceTls | None, doc("Whether it can be called over mTLS.")] = None
    hostname_generators: Annotated[
        tuple[HostnameGeneratorStatus, ...] | None, doc("What became of each generator.")
    ] = None
    dataplane_proxies: Annotated[DataplaneProxies | None, doc("How many proxies it has.")] = None


def validate(spec: MeshServiceSpec, _context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages."""
    selector = spec.selector or MeshServiceSelector()
    if selector.dataplane_ref is not None and selector.dataplane_labels is not None:
        message = "must specify only one of: dataplaneRef or dataplaneLabels"
        yield Violation("spec.selector", message, "exclusive")
    for index, port in enumerate(spec.ports or ()):
        yield from protocol_violations(port.app_protocol, item("spec.ports", index))


def protocol_violations(protocol: str | None, path: str) -> Iterator[Violation]:
    """A port's protocol that does not exist."""
    if protocol and protocol not in (*tags.PROTOCOLS, *tags.KUBERNETES_PROTOCOLS):
        yield Violation(child(path, "appProtocol"), PROTOCOL_MESSAGE, "enum")


KIND = Kind(
    name="MeshService",
    plural="meshservices",
    short="msvc",
    doc=__doc__,
    spec=MeshServiceSpec,
    columns=columns.MESH_SERVICE,
    status=MeshServiceStatus,
    sync=ACROSS_ZONES,
    validate=validate,
    dns_name=True,
)
