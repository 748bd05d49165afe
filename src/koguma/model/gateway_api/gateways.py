"""Gateways: GatewayClass, Gateway and ListenerSet."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from koguma.model.gateway_api.conditions import Conditions
from koguma.model.gateway_api.references import (
    GROUP,
    CertificateReference,
    ControllerName,
    GroupName,
    Hostname,
    KindName,
    LocalReference,
    NamespacedReference,
    NamespaceName,
    ObjectName,
    OptionValue,
    PortNumber,
    SectionName,
)
from koguma.model.schema import Spec, doc, keyed_by

LISTENERS_MAX: Final = 64
Protocol = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=255,
        pattern=r"^([a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?|"
        r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\/[A-Za-z0-9]+)\Z",
    ),
]
AddressType = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=253,
        pattern=r"^(Hostname|IPAddress|NamedAddress|"
        r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
        r"\/[A-Za-z0-9\/\-._~%!$&'()*+,;=:]+)\Z",
    ),
]
LabelText = Annotated[str, Meta(max_length=63, pattern=r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?\Z")]


class ParametersReference(Spec):
    """An object with parameters for all Gateways of a class."""

    group: Annotated[GroupName, doc("Group of the object.")]
    kind: Annotated[KindName, doc("Kind of the object.")]
    name: Annotated[ObjectName, doc("Name of the object.")]
    namespace: Annotated[NamespaceName | None, doc("Its namespace, if it has one.")] = None


class GatewayClassSpec(Spec):
    """Who takes care of the Gateways of a class."""

    controller_name: Annotated[
        ControllerName, doc("Who takes care of them: koguma.io/gateway-controller. It cannot change.")
    ]
    parameters_ref: Annotated[
        ParametersReference | None, doc("An object with parameters; this control plane knows none.")
    ] = None
    description: Annotated[str | None, doc("Words for people.", max_length=64)] = None


class SupportedFeature(Spec):
    """One feature, by the name under which its conformance is tested."""

    name: Annotated[str, doc("The name of the feature.")]


class GatewayClassStatus(Spec):
    """What is known of a class."""

    conditions: Annotated[Conditions | None, doc("Accepted, SupportedVersion.")] = None
    supported_features: Annotated[
        tuple[SupportedFeature, ...] | None,
        doc("What the controller can do, in alphabetical order.", max_length=64),
        keyed_by("name"),
    ] = None


class SelectorRequirement(Spec):
    """One requirement on a label."""

    key: Annotated[str, doc("Name of the label.")]
    operator: Annotated[Literal["In", "NotIn", "Exists", "DoesNotExist"], doc("How the label is compared.")]
    values: Annotated[tuple[str, ...] | None, doc("Values, with In and NotIn.")] = None


class NamespaceSelector(Spec):
    """Namespaces by their labels; all requirements must hold."""

    match_labels: Annotated[Mapping[str, str] | None, doc("Labels with their values.")] = None
    match_expressions: Annotated[tuple[SelectorRequirement, ...] | None, doc("Requirements on labels.")] = (
        None
    )


class RouteNamespaces(Spec):
    """From which namespaces routes may be attached."""

    from_: Annotated[
        Literal["All", "Selector", "Same"], doc("All namespaces, selected ones, or the own one only.")
    ] = msgspec.field(default="Same", name="from")
    selector: Annotated[NamespaceSelector | None, doc("Which namespaces, with Selector.")] = None


class RouteGroupKind(Spec, kw_only=True):
    """A kind of routes."""

    group: Annotated[GroupName, doc("Group of the kind.")] = GROUP
    kind: Annotated[KindName, doc("The kind.")]


class AllowedRoutes(Spec):
    """Which routes may be attached to a listener."""

    namespaces: Annotated[RouteNamespaces, doc("From which namespaces.")] = RouteNamespaces()
    kinds: Annotated[
        tuple[RouteGroupKind, ...] | None,
        doc("Of which kinds; by default those that go with the protocol.", max_length=8),
    ] = None


class ListenerTls(Spec):
    """How a listener ends TLS, or passes it on."""

    mode: Annotated[Literal["Terminate", "Passthrough"], doc("Whether TLS ends here or at the backend.")] = (
        "Terminate"
    )
    certificate_refs: Annotated[
        tuple[CertificateReference, ...] | None,
        doc("Secrets with certificates, for Terminate.", max_length=64),
    ] = None
    options: Annotated[
        Mapping[str, OptionValue] | None, doc("Settings of a controller; this one has none.", max_length=16)
    ] = None


class ListenerEntry(Spec, kw_only=True):
    """A port on which a gateway accepts connections, for one host name or for all."""

    name: Annotated[SectionName, doc("Its name, by which routes choose it.")]
    hostname: Annotated[Hostname | None, doc("The host name, also as `*.example.com`; none means all.")] = (
        None
    )
    port: Annotated[PortNumber, doc("The port.")]
    protocol: Annotated[Protocol, doc("HTTP, HTTPS, TLS or TCP.")]
    tls: Annotated[ListenerTls | None, doc("TLS, for HTTPS and TLS.")] = None
    allowed_routes: Annotated[AllowedRoutes, doc("Which routes may be attached.")] = AllowedRoutes()


class SpecAddress(Spec):
    """An address that is asked for."""

    type: Annotated[AddressType, doc("IPAddress or Hostname.")] = "IPAddress"
    value: Annotated[str | None, doc("The address; empty for any.", max_length=253)] = None


class GatewayInfrastructure(Spec):
    """What is asked of whatever runs the gateway."""

    labels: Annotated[Mapping[str, LabelText] | None, doc("Labels for what is made.", max_length=8)] = None
    annotations: Annotated[
        Mapping[str, OptionValue] | None, doc("Annotations for what is made.", max_length=16)
    ] = None
    parameters_ref: Annotated[
        LocalReference | None, doc("An object with parameters; this control plane knows none.")
    ] = None


class ListenerNamespaces(Spec):
    """From which namespaces ListenerSets may add listeners."""

    from_: Annotated[
        Literal["All", "Selector", "Same", "None"], doc("All, selected ones, the own one, or none.")
    ] = msgspec.field(default="None", name="from")
    selector: Annotated[NamespaceSelector | None, doc("Which namespaces, with Selector.")] = None


class AllowedListeners(Spec):
    """Which ListenerSets may add listeners."""

    namespaces: Annotated[ListenerNamespaces, doc("From which namespaces.")] = ListenerNamespaces()


class FrontendValidation(Spec):
    """How certificates of clients are checked."""

    ca_certificate_refs: Annotated[
        tuple[NamespacedReference, ...],
        doc("ConfigMaps with CAs under `ca.crt`.", min_length=1, max_length=8),
    ] = msgspec.field(name="caCertificateRefs")
    mode: Annotated[
        Literal["AllowValidOnly", "AllowInsecureFallback"], doc("Whether a bad certificate is refused.")
    ] = "AllowValidOnly"


class FrontendTls(Spec):
    """TLS of connections that arrive."""

    validation: Annotated[FrontendValidation | None, doc("How certificates of clients are checked.")] = None


class PortTls(Spec):
    """TLS of connections that arrive on one port."""

    port: Annotated[PortNumber, doc("The port.")]
    tls: Annotated[FrontendTls, doc("What holds there.")]


class GatewayFrontend(Spec):
    """TLS of connections that arrive, by port."""

    default: Annotated[FrontendTls, doc("What holds on all other ports.")]
    per_port: Annotated[
        tuple[PortTls, ...] | None, doc("What holds on some ports.", max_length=64), keyed_by("port")
    ] = None


class GatewayBackendTls(Spec):
    """TLS of connections to backends."""

    client_certificate_ref: Annotated[
        CertificateReference | None, doc("The gateway's own certificate, as a Secret.")
    ] = None


class GatewayTls(Spec):
    """TLS of a whole gateway."""

    backend: Annotated[GatewayBackendTls | None, doc("To backends.")] = None
    frontend: Annotated[GatewayFrontend | None, doc("From clients.")] = None


class GatewayObjectSpec(Spec):
    """Where a gateway listens, and for whom."""

    gateway_class_name: Annotated[ObjectName, doc("Its GatewayClass: `koguma`.")]
    listeners: Annotated[
        tuple[ListenerEntry, ...],
        doc("Where it listens.", min_length=1, max_length=LISTENERS_MAX),
        keyed_by("name"),
    ]
    addresses: Annotated[
        tuple[SpecAddress, ...] | None, doc("Addresses that are asked for.", max_length=16)
    ] = None
    infrastructure: Annotated[GatewayInfrastructure | None, doc("What is asked of whatever runs it.")] = None
    allowed_listeners: Annotated[
        AllowedListeners | None, doc("Which ListenerSets may add listeners; none by default.")
    ] = None
    tls: Annotated[GatewayTls | None, doc("TLS of the whole gateway.")] = None


class StatusAddress(Spec, kw_only=True):
    """An address of the gateway."""

    type: Annotated[AddressType, doc("IPAddress or Hostname.")] = "IPAddress"
    value: Annotated[str, doc("The address.", min_length=1, max_length=253)]


class GatewayListenerStatus(Spec, kw_only=True):
    """What is known of a listener."""

    name: Annotated[SectionName, doc("Its name.")]
    supported_kinds: Annotated[
        tuple[RouteGroupKind, ...] | None, doc("Kinds of routes that it takes.", max_length=8)
    ] = None
    attached_routes: Annotated[int, doc("How many routes it has accepted.")]
    conditions: Annotated[Conditions, doc("Accepted, Conflicted, ResolvedRefs, Programmed.")]


class GatewayStatus(Spec):
    """What is known of a gateway."""

    addresses: Annotated[
        tuple[StatusAddress, ...] | None, doc("Where its proxies listen.", max_length=16)
    ] = None
    conditions: Annotated[Conditions | None, doc("Accepted, Programmed, ResolvedRefs.")] = None
    listeners: Annotated[
        tuple[GatewayListenerStatus, ...] | None,
        doc("What is known of each listener.", max_length=LISTENERS_MAX),
        keyed_by("name"),
    ] = None
    attached_listener_sets: Annotated[int | None, doc("How many ListenerSets add listeners.")] = None


class ParentGateway(Spec, kw_only=True):
    """The Gateway to which a ListenerSet adds listeners."""

    group: Annotated[GroupName, doc("Group of the parent.")] = GROUP
    kind: Annotated[KindName, doc("Kind of the parent.")] = "Gateway"
    name: Annotated[ObjectName, doc("Its name.")]
    namespace: Annotated[NamespaceName | None, doc("Its namespace; the set's own by default.")] = None


class ListenerSetSpec(Spec):
    """Listeners that are added to a Gateway."""

    parent_ref: Annotated[ParentGateway, doc("The Gateway.")]
    listeners: Annotated[
        tuple[ListenerEntry, ...],
        doc("The listeners.", min_length=1, max_length=LISTENERS_MAX),
        keyed_by("name"),
    ]


class ListenerSetStatus(Spec):
    """What is known of a ListenerSet."""

    conditions: Annotated[Conditions | None, doc("Accepted, Programmed.")] = None
    listeners: Annotated[
        tuple[GatewayListenerStatus, ...] | None,
        doc("What is known of each listener.", max_length=LISTENERS_MAX),
        keyed_by("name"),
    ] = None
