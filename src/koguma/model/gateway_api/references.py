"""References: how objects of the Gateway API name each other, hosts and ports.

A field without a value stands as None; one that has a default has it here too, so that objects read the same
whether the default was stored with them or not.
"""

from typing import Annotated, Final

from msgspec import Meta

from koguma.model.schema import Spec, doc

GROUP: Final = "gateway.networking.k8s.io"
CONTROLLER: Final = "koguma.io/gateway-controller"
CLASS_NAME: Final = "koguma"  # the GatewayClass that is there from the start
BACKENDS_MAX: Final = 16

_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"

Hostname = Annotated[str, Meta(min_length=1, max_length=253, pattern=rf"^(\*\.)?{_SUBDOMAIN}\Z")]
PreciseHostname = Annotated[str, Meta(min_length=1, max_length=253, pattern=rf"^{_SUBDOMAIN}\Z")]
GroupName = Annotated[str, Meta(max_length=253, pattern=rf"^({_SUBDOMAIN})?\Z")]
KindName = Annotated[
    str, Meta(min_length=1, max_length=63, pattern=r"^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?\Z")
]
ObjectName = Annotated[str, Meta(min_length=1, max_length=253)]
NamespaceName = Annotated[str, Meta(min_length=1, max_length=63, pattern=rf"^{_LABEL}\Z")]
SectionName = Annotated[str, Meta(min_length=1, max_length=253, pattern=rf"^{_SUBDOMAIN}\Z")]
ControllerName = Annotated[
    str,
    Meta(min_length=1, max_length=253, pattern=rf"^{_SUBDOMAIN}\/[A-Za-z0-9\/\-._~%!$&'()*+,;=:]+\Z"),
]
PortNumber = Annotated[int, Meta(ge=1, le=65535, extra_json_schema={"format": "int32"})]
HeaderName = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[A-Za-z0-9!#$%&'*+\-.^_`|~]+\Z")]
HeaderValue = Annotated[str, Meta(min_length=1, max_length=4096)]
# A subset of what Go reads as a duration; at most four parts.
GatewayDuration = Annotated[str, Meta(pattern=r"^([0-9]{1,5}(h|m|s|ms)){1,4}\Z")]
OptionValue = Annotated[str, Meta(max_length=4096)]

# Lists of values that stand once each, of which every field manager owns its own.
AS_SET: Final = Meta(extra_json_schema={"x-kubernetes-list-type": "set"})


class ParentReference(Spec, kw_only=True):
    """What a route is attached to: a Gateway, a ListenerSet, or a Service inside the mesh."""

    group: Annotated[GroupName, doc("Group of the parent; empty for a Service.")] = GROUP
    kind: Annotated[KindName, doc("Kind of the parent: Gateway, ListenerSet or Service.")] = "Gateway"
    namespace: Annotated[NamespaceName | None, doc("Its namespace; the object's own by default.")] = None
    name: Annotated[ObjectName, doc("Its name.")]
    section_name: Annotated[
        SectionName | None, doc("One listener of a Gateway, or one port of a Service, by name.")
    ] = None
    port: Annotated[PortNumber | None, doc("The listeners of this port, or one port of a Service.")] = None


class LocalReference(Spec):
    """An object in the same namespace."""

    group: Annotated[GroupName, doc("Group of the object; empty for the core group.")]
    kind: Annotated[KindName, doc("Kind of the object.")]
    name: Annotated[ObjectName, doc("Name of the object.")]


class NamespacedReference(LocalReference):
    """An object, also of another namespace if a ReferenceGrant there allows it."""

    namespace: Annotated[NamespaceName | None, doc("Its namespace; the referring object's by default.")] = (
        None
    )


class CertificateReference(Spec, kw_only=True):
    """An object with a certificate and its key: a Secret of type kubernetes.io/tls."""

    group: Annotated[GroupName, doc("Group of the object; empty for the core group.")] = ""
    kind: Annotated[KindName, doc("Kind of the object.")] = "Secret"
    name: Annotated[ObjectName, doc("Name of the object.")]
    namespace: Annotated[
        NamespaceName | None, doc("Its namespace; another one needs a ReferenceGrant there.")
    ] = None


class BackendObjectReference(Spec, kw_only=True):
    """A service to which requests go."""

    group: Annotated[GroupName, doc("Group of the backend; empty for a Service.")] = ""
    kind: Annotated[KindName, doc("Kind of the backend.")] = "Service"
    name: Annotated[ObjectName, doc("Name of the backend. A MeshService stands for the Service of its name.")]
    namespace: Annotated[
        NamespaceName | None, doc("Its namespace; another one needs a ReferenceGrant there.")
    ] = None
    port: Annotated[PortNumber | None, doc("The port of the service; required for a Service.")] = None


class WeightedBackend(BackendObjectReference, kw_only=True):
    """A service with its share of the requests."""

    weight: Annotated[
        int, doc("Share among all backends of the rule; 0 gets nothing.", ge=0, le=1_000_000)
    ] = 1


class RouteSpec(Spec):
    """What all routes have in common."""

    parent_refs: Annotated[
        tuple[ParentReference, ...] | None, doc("What the route is attached to.", max_length=32)
    ] = None
