"""Backend TLS: BackendTLSPolicy, which says how a gateway speaks TLS with a service."""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from koguma.model.gateway_api.references import (
    GroupName,
    Hostname,
    KindName,
    LocalReference,
    ObjectName,
    OptionValue,
    PreciseHostname,
    SectionName,
)
from koguma.model.schema import Spec, doc

AbsoluteUri = Annotated[
    str,
    Meta(min_length=1, max_length=253, pattern=r"^(([^:/?#]+):)(//([^/?#]*))([^?#]*)(\?([^#]*))?(#(.*))?\Z"),
]


class BackendTlsTarget(Spec):
    """A service for which the policy is."""

    group: Annotated[GroupName, doc("Group of the target; empty for a Service.")]
    kind: Annotated[KindName, doc("Kind of the target.")]
    name: Annotated[ObjectName, doc("Its name.")]
    section_name: Annotated[SectionName | None, doc("One port, by name.")] = None


class SubjectAltName(Spec):
    """A name that the certificate of the service may have."""

    type: Annotated[Literal["Hostname", "URI"], doc("What sort of name it is.")]
    hostname: Annotated[Hostname | None, doc("The name, with Hostname.")] = None
    uri: Annotated[AbsoluteUri | None, doc("The name, with URI.")] = None


class BackendTlsValidation(Spec, kw_only=True):
    """How the certificate of the service is checked."""

    ca_certificate_refs: Annotated[
        tuple[LocalReference, ...] | None, doc("ConfigMaps with CAs under `ca.crt`.", max_length=8)
    ] = msgspec.field(default=None, name="caCertificateRefs")
    well_known_ca_certificates: Annotated[
        Literal["System"] | None, doc("The CAs of the gateway's system, instead.")
    ] = msgspec.field(default=None, name="wellKnownCACertificates")
    hostname: Annotated[PreciseHostname, doc("The name to ask for (SNI), which the certificate must have.")]
    subject_alt_names: Annotated[
        tuple[SubjectAltName, ...] | None,
        doc("Names of which the certificate must have one, instead of the host name.", max_length=5),
    ] = None


class BackendTlsPolicySpec(Spec):
    """How a gateway speaks TLS with a service."""

    target_refs: Annotated[tuple[BackendTlsTarget, ...], doc("The services.", min_length=1, max_length=16)]
    validation: Annotated[BackendTlsValidation, doc("How their certificates are checked.")]
    options: Annotated[
        Mapping[str, OptionValue] | None, doc("Settings of a controller; this one has none.", max_length=16)
    ] = None
