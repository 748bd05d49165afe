"""A service outside of the mesh, called as if it were inside: with policies, TLS and a name of its own.

`match` says which calls are meant: a host name that gets a virtual address (`InternalVIP`), or an existing
domain, address or range. `destination` says where they go: on as they are (`Passthrough`, the default), to
`endpoints` of your choice with TLS that the proxy starts (`Regular`), or to a plugin (`Extension`). Write one
when calls to the outside need a timeout, a permission, TLS, or a name that stays when the provider changes.

It lives in the system namespace. One written on the Global control plane is reachable from every zone, one
written in a zone only there.

The shape that Kuma released is read as well: a single `match` with a port and a protocol, `endpoints` and
`tls` beside it, and the host name from a HostnameGenerator.

```yaml
type: MeshExternalService
name: mongo
mesh: default
spec:
  match:
    - type: InternalVIP
      value: mongo.ext.svc.local
      port: 27017
      protocol: tcp
  destination:
    type: Regular
    endpoints:
      - {address: 10.0.0.1, port: 27017}
      - {address: 10.0.0.2, port: 27017}
    tls:
      enabled: true
      verification: {subjectAltNames: [mongo.example.com]}
      caCert: {secret: mongo-ca}
```
"""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from koguma.kinds import data_source, extension_rules, external_service_rules, rules, v1_conversions
from koguma.kinds.data_source import TlsSource
from koguma.kinds.destinations import DESTINATIONS
from koguma.kinds.rules import UInt32
from koguma.kinds.status import HostnameAddress, HostnameGeneratorStatus, Vip
from koguma.model import columns
from koguma.model.condition import Condition
from koguma.model.destination import DestinationPlugin
from koguma.model.kind import BOTH_WAYS, Kind, ValidationContext
from koguma.model.schema import Json, Port, Spec, doc, keyed_by
from koguma.model.typed_parts import NAMED_BY, PROXY_ADDRESS
from koguma.model.violation import Violation, child, item

Plugins = tuple[DestinationPlugin, ...]

_PROTOCOLS: Final = ("tcp", "grpc", "http", "http2")
_MODES: Final = ("SkipSAN", "SkipCA", "SkipAll", "Secured")
_SAN_TYPES: Final = ("Prefix", "Exact")
_VERSIONS: Final = ("TLSAuto", "TLS10", "TLS11", "TLS12", "TLS13")
_VERSIONS_AS_ENVOY: Final = ("TLS_AUTO", "TLSv1_0", "TLSv1_1", "TLSv1_2", "TLSv1_3")

MatchProtocol = Annotated[str, rules.enum_values(*_PROTOCOLS)]
MatchType = Annotated[str, rules.enum_values("HostnameGenerator")]
VerificationMode = Annotated[str, rules.enum_values(*_MODES)]
SanType = Annotated[str, rules.enum_values(*_SAN_TYPES)]
Priority = Annotated[int, Meta(ge=0, le=128)]
TlsVersion = Annotated[str, rules.enum_values(*_VERSIONS_AS_ENVOY, *_VERSIONS)]


class MeshExternalServiceMatch(Spec):
    """Calls that are meant."""

    type: Annotated[
        Literal["InternalVIP", "Domain", "CIDR", "IP"],
        doc("A host name that gets a virtual address, an existing domain, a range of addresses, or one."),
    ]
    value: Annotated[str, doc("The host name, domain, range or address.")]
    port: Annotated[Port, doc("Port that programs call.")]
    protocol: Annotated[
        Literal["tcp", "tls", "http", "http2", "grpc"],
        doc("What programs speak; tls where they start it themselves. tcp cannot tell domains apart."),
    ]


class MeshExternalServiceVipMatch(Spec):
    """Calls to the service's virtual address, in the shape that Kuma released."""

    type: Annotated[MatchType | None, doc("Always HostnameGenerator.")] = None
    port: Annotated[UInt32 | None, doc("Port that programs call.")] = None
    protocol: Annotated[MatchProtocol | None, doc("What programs speak; tcp by default.")] = None


class MeshExternalServiceExtension(Spec):
    """A plugin that answers the calls."""

    type: Annotated[str, doc("Which plugin: Lambda, or one of an installed package.")]
    config: Annotated[
        Json, doc("What the plugin is told; its fields are the plugin's.", extra={NAMED_BY: "type"})
    ] = None


class MeshExternalServiceDestinationEndpoint(Spec):
    """One place where the service is."""

    address: Annotated[
        str, doc("IP, domain, or unix:// and a path.", min_length=1, extra={PROXY_ADDRESS: True})
    ]
    port: Annotated[Port | None, doc("Its port; the called one by default.")] = None


class MeshExternalServiceEndpoint(Spec):
    """One place where the service is, in the shape that Kuma released."""

    address: Annotated[str, doc("IP or domain.", extra={PROXY_ADDRESS: True})]
    port: Annotated[UInt32, doc("Its port.")]
    priority: Annotated[Priority | None, doc("Used while those of a lower number are down.")] = None


class MeshExternalServiceTlsVersion(Spec):
    """Versions of TLS."""

    min: Annotated[TlsVersion | None, doc("The oldest version that is spoken.")] = None
    max: Annotated[TlsVersion | None, doc("The newest version that is spoken.")] = None


class MeshExternalServiceSan(Spec):
    """A name in the service's certificate."""

    value: Annotated[str, doc("The name.")]
    type: Annotated[SanType | None, doc("The whole name (default), or its beginning.")] = None


class MeshExternalServiceVerification(Spec):
    """What must be true of the service's certificate."""

    skip: Annotated[bool | None, doc("Check no names.")] = None
    mode: Annotated[VerificationMode | None, doc("What is checked; Secured, which is all, by default.")] = (
        None
    )
    server_name: Annotated[str | None, doc("The name to ask for; the endpoint's by default.")] = None
    subject_alt_names: Annotated[
        tuple[str | MeshExternalServiceSan, ...] | None,
        doc("Names of which the certificate must have one; the name asked for by default."),
    ] = None
    ca_cert: Annotated[TlsSource | None, doc("CA of the service, in the shape that Kuma released.")] = None
    client_cert: Annotated[TlsSource | None, doc("Our certificate, in the shape that Kuma released.")] = None
    client_key: Annotated[TlsSource | None, doc("Its key, in the shape that Kuma released.")] = None


class MeshExternalServiceTls(Spec):
    """TLS that the proxy starts."""

    enabled: Annotated[bool | None, doc("Whether the proxy starts TLS.")] = None
    version: Annotated[MeshExternalServiceTlsVersion | None, doc("Versions of TLS.")] = None
    allow_renegotiation: Annotated[bool | None, doc("Let the service renegotiate; not advised.")] = None
    verification: Annotated[
        MeshExternalServiceVerification | None, doc("What must be true of the service's certificate.")
    ] = None
    ca_cert: Annotated[TlsSource | None, doc("CA of the service; the system's CAs by default.")] = None
    client_cert: Annotated[TlsSource | None, doc("Our certificate.")] = None
    client_key: Annotated[TlsSource | None, doc("Its key.")] = None


class MeshExternalServiceDestination(Spec):
    """Where the calls go."""

    type: Annotated[
        Literal["Regular", "Passthrough", "Extension"] | None,
        doc("To endpoints, on as they are (default), or to a plugin."),
    ] = None
    extension: Annotated[MeshExternalServiceExtension | None, doc("The plugin, with type Extension.")] = None
    endpoints: Annotated[
        tuple[MeshExternalServiceDestinationEndpoint, ...] | None, doc("The endpoints, with type Regular.")
    ] = None
    tls: Annotated[MeshExternalServiceTls | None, doc("TLS that the proxy starts, with type Regular.")] = None


class MeshExternalServiceSpec(Spec):
    """Which calls, and where they go."""

    match: Annotated[
        tuple[MeshExternalServiceMatch, ...] | MeshExternalServiceVipMatch,
        doc("The calls that are meant: a list, or one object in the shape that Kuma released."),
    ]
    destination: Annotated[MeshExternalServiceDestination | None, doc("Where the calls go.")] = None
    extension: Annotated[
        MeshExternalServiceExtension | None, doc("A plugin, in the shape that Kuma released.")
    ] = None
    endpoints: Annotated[
        tuple[MeshExternalServiceEndpoint, ...] | None, doc("Endpoints, in the shape that Kuma released.")
    ] = None
    tls: Annotated[MeshExternalServiceTls | None, doc("TLS, in the shape that Kuma released.")] = None


class MeshExternalServiceVip(Spec):
    """A virtual address and the name that it was given for."""

    ip: Annotated[str, doc("The address.")]
    type: Annotated[Literal["Kuma"] | None, doc("Who gave it.")] = None
    hostname: Annotated[str | None, doc("The name, of a match of type InternalVIP.")] = None


class MeshExternalServiceStatus(Spec):
    """What the control plane knows of the service."""

    vips: Annotated[tuple[MeshExternalServiceVip, ...] | None, doc("Its virtual addresses.")] = None
    vip: Annotated[Vip | None, doc("Its virtual address, in the shape that Kuma released.")] = None
    addresses: Annotated[tuple[HostnameAddress, ...] | None, doc("Its host names.")] = None
    hostname_generators: Annotated[
        tuple[HostnameGeneratorStatus, ...] | None, doc("What became of each generator.")
    ] = None
    conditions: Annotated[
        tuple[Condition, ...] | None,
        doc("What disrupts its traffic, and names that DNS does not answer."),
        keyed_by("type"),
    ] = None


def _validate(
    plugins: Plugins, spec: MeshExternalServiceSpec, _context: ValidationContext
) -> Iterator[Violation]:
    """What Kuma refuses, with its messages; what a plugin takes is the plugin's to say."""
    is_released = isinstance(spec.match, MeshExternalServiceVipMatch)
    yield from external_service_rules.shape_violations(spec, has_list=not is_released)
    if isinstance(spec.match, MeshExternalServiceVipMatch):
        yield from _match_violations(spec.match)
    else:
        yield from external_service_rules.violations(spec.match, spec.destination)
    if spec.extension is None:
        yield from _endpoint_violations(spec.endpoints or ())
        if spec.tls is not None:
            yield from tls_violations(spec.tls, "spec.tls")
    elif not spec.extension.type:
        yield Violation("spec.extension.type", rules.NOT_EMPTY_MESSAGE, "required")
    if spec.destination is not None and spec.destination.tls is not None:
        yield from tls_violations(spec.destination.tls, "spec.destination.tls")
    yield from _extension_violations(plugins, spec)


def _extension(spec: MeshExternalServiceSpec) -> tuple[MeshExternalServiceExtension | None, str]:
    """The plugin's section in either shape, and its path."""
    if spec.destination is not None:
        is_extended = spec.destination.type == "Extension"  # else it is refused as a whole
        return (spec.destination.extension if is_extended else None), "spec.destination.extension"
    return spec.extension, "spec.extension"


def _extension_violations(plugins: Plugins, spec: MeshExternalServiceSpec) -> Iterator[Violation]:
    extension, path = _extension(spec)
    plugin = extension_rules.plugin_of(extension, plugins)
    if extension is None or plugin is None:
        return
    if isinstance(spec.match, MeshExternalServiceVipMatch):
        protocol = spec.match.protocol or "tcp"
        yield from extension_rules.protocol_violation(plugin, protocol, "spec.match")
    else:
        for index, match in enumerate(spec.match):
            at = item("spec.match", index)
            yield from extension_rules.protocol_violation(plugin, match.protocol, at)
    yield from extension_rules.violations(plugin, extension.config, child(path, "config"))


def _warn(plugins: Plugins, spec: MeshExternalServiceSpec, _context: ValidationContext) -> Iterator[str]:
    """Matches that take more than they say, and what a plugin warns of."""
    if not isinstance(spec.match, MeshExternalServiceVipMatch):
        yield from external_service_rules.warnings(spec.match, spec.destination)
    extension, path = _extension(spec)
    plugin = extension_rules.plugin_of(extension, plugins)
    if extension is not None and plugin is not None:
        yield from extension_rules.warnings(plugin, extension.config, child(path, "config"))


def _match_violations(match: MeshExternalServiceVipMatch) -> Iterator[Violation]:
    if match.type is not None and match.type != "HostnameGenerator":
        message = f"unrecognized type '{match.type}' - only 'HostnameGenerator' is supported"
        yield Violation("spec.match.type", message, "enum")
    yield from rules.port(match.port, "spec.match.port", rules.SPEC_PORT_MESSAGE)
    if match.protocol is not None and match.protocol not in _PROTOCOLS:
        yield Violation("spec.match.protocol", rules.one_of("protocol", *_PROTOCOLS), "enum")


def _endpoint_violations(endpoints: tuple[MeshExternalServiceEndpoint, ...]) -> Iterator[Violation]:
    for index, endpoint in enumerate(endpoints):
        path = item("spec.endpoints", index)
        if not rules.is_ip(endpoint.address) and not rules.is_dns_name(endpoint.address):
            message = "address has to be a valid IP or hostname"
            yield Violation(child(path, "address"), message, "address")
        yield from rules.port(endpoint.port, child(path, "port"), rules.SPEC_PORT_MESSAGE)


def tls_violations(tls: MeshExternalServiceTls, path: str) -> Iterator[Violation]:
    """What is wrong with TLS that the proxy starts, in either shape."""
    if tls.version is not None:
        yield from _version_violations(tls.version, child(path, "version"))
    if tls.verification is not None:
        at = child(path, "verification")
        yield from _verification_violations(tls.verification, at)
        yield from _source_violations(tls.verification, at)
    yield from _source_violations(tls, path)


def _version_violations(version: MeshExternalServiceTlsVersion, path: str) -> Iterator[Violation]:
    known = {name: rank for names in (_VERSIONS, _VERSIONS_AS_ENVOY) for rank, name in enumerate(names)}
    for field, value in (("min", version.min), ("max", version.max)):
        if value is not None and value not in known:
            yield Violation(child(path, field), rules.one_of(field, *_VERSIONS), "enum")
    low, high = known.get(version.min or "", 0), known.get(version.max or "", 0)
    if high and low > high:  # zero is automatic: whatever the other side wants
        yield Violation(child(path, "min"), "min version must be lower than max", "range")


def _verification_violations(verification: MeshExternalServiceVerification, path: str) -> Iterator[Violation]:
    if verification.server_name is not None and not rules.is_dns_name(verification.server_name):
        yield Violation(child(path, "serverName"), "must be a valid DNS name", "name")
    if verification.mode is not None and verification.mode not in _MODES:
        yield Violation(child(path, "mode"), rules.one_of("mode", *_MODES), "enum")
    for index, san in enumerate(verification.subject_alt_names or ()):
        if isinstance(san, MeshExternalServiceSan) and san.type not in (None, *_SAN_TYPES):
            at = child(item(child(path, "subjectAltNames"), index), "type")
            yield Violation(at, rules.one_of("type", *_SAN_TYPES), "enum")


def _named(source: TlsSource) -> list[str]:
    return [each for each in (source.secret, source.inline, source.inline_string) if each]


def _source_violations(
    tls: MeshExternalServiceTls | MeshExternalServiceVerification, path: str
) -> Iterator[Violation]:
    for field, source in (
        ("caCert", tls.ca_cert),
        ("clientCert", tls.client_cert),
        ("clientKey", tls.client_key),
    ):
        if source is None:
            continue
        if source.type is not None:
            yield from data_source.violations(source, child(path, field), ("Secret", "InsecureInline"))
        elif len(_named(source)) != 1 and (_named(source) or path.startswith("spec.destination.")):
            # In the shape that Kuma released, an empty one is the same as none.
            text = "must have exactly one of secret, inline and inlineString"
            yield Violation(child(path, field), text, "source")
    if tls.client_cert is not None and tls.client_key is None:
        yield Violation(child(path, "clientKey"), "must be defined when clientCert is defined", "required")
    if tls.client_key is not None and tls.client_cert is None:
        yield Violation(child(path, "clientCert"), "must be defined when clientKey is defined", "required")


_KIND: Final = Kind(
    name="MeshExternalService",
    plural="meshexternalservices",
    short="extsvc",
    doc=__doc__,
    spec=MeshExternalServiceSpec,
    columns=columns.MESH_EXTERNAL_SERVICE,
    status=MeshExternalServiceStatus,
    sync=BOTH_WAYS,
    system_namespace_only=True,
    v1=v1_conversions.EXTERNAL_SERVICE,
    dns_name=True,
)


def with_extensions(plugins: Plugins) -> Kind:
    """The kind, whose `extension.type` can name these plugins."""
    return msgspec.structs.replace(
        _KIND, extensions=plugins, validate=partial(_validate, plugins), warn=partial(_warn, plugins)
    )


KIND = with_extensions(DESTINATIONS)
