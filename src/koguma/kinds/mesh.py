"""A mesh: services that know each other, with one set of policies and one root of trust.

Every proxy, service and policy belongs to one mesh; meshes on the same control plane are apart. A Mesh
switches mutual TLS on and says where identities come from, whether proxies may call what is outside
(`networking.outbound.passthrough`), whether such calls leave through a zone egress (`routing.zoneEgress`),
which proxies may join (`constraints`), and how services appear (`meshServices.mode`).

With a `builtin` backend the control plane makes the mesh's CA and keeps it in two Secrets of the mesh,
`<mesh>.ca-builtin-cert-<backend>` and `<mesh>.ca-builtin-key-<backend>`; with a `provided` one it is yours.
Without a MeshTrafficPermission, mTLS denies all traffic.

The CA may change while mTLS is on: add a second backend and enable it, in one write if you like. All proxies
trust the CAs of all listed backends, and get certificates from the new one only when all trust it; the old
backend may go by the same write or a later one, and no call fails on the way. Its Secrets stay, so that a
backend which comes back under its old name has its old CA.

```yaml
type: Mesh
name: default
mtls:
  enabledBackend: ca-1
  backends:
    - name: ca-1
      type: builtin
      dpCert: {rotation: {expiration: 1d}}
meshServices: {mode: Exclusive}
```
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

from koguma.kinds import data_source, mesh_backends, rules, v1_conversions
from koguma.kinds.data_source import DataSource
from koguma.kinds.mesh_backends import MeshLogging, MeshMetrics, MeshTracing
from koguma.kinds.rules import UInt32
from koguma.model import columns, names, tags
from koguma.model.kind import Kind, Scope, Sync, ValidationContext
from koguma.model.schema import Duration, Json, Spec, doc, keyed_by, read
from koguma.model.typed_parts import READ_AS
from koguma.model.violation import Violation, child, item


class MeshCertRotation(Spec):
    """When a proxy's certificate is renewed."""

    expiration: Annotated[
        str | None, doc('How long a certificate is valid, such as "12h" or "1d"; 24 hours by default.')
    ] = None


class MeshDpCert(Spec):
    """Certificates of the proxies."""

    rotation: Annotated[MeshCertRotation | None, doc("When a certificate is renewed.")] = None
    request_timeout: Annotated[Duration | None, doc("How long the CA may take to answer.")] = None


class MeshRootChain(Spec):
    """The CA's own certificates."""

    request_timeout: Annotated[Duration | None, doc("How long the CA may take to answer.")] = None


class MeshProvidedConf(Spec):
    """A CA of your own."""

    cert: Annotated[DataSource | None, doc("Its certificate.")] = None
    key: Annotated[DataSource | None, doc("Its private key.")] = None


class MeshMtlsBackend(Spec):
    """A certificate authority."""

    name: Annotated[str | None, doc("Name of the backend.")] = None
    type: Annotated[str | None, doc("builtin: made by the control plane. provided: yours.")] = None
    mode: Annotated[
        Literal["STRICT", "PERMISSIVE"] | None,
        doc("Whether calls without TLS are refused (default) or taken as well."),
    ] = None
    dp_cert: Annotated[MeshDpCert | None, doc("Certificates of the proxies.")] = None
    root_chain: Annotated[MeshRootChain | None, doc("The CA's own certificates.")] = None
    conf: Annotated[
        Mapping[str, Json] | None,
        doc("`caCert` for builtin; `cert` and `key` for provided.", extra={READ_AS: MeshProvidedConf}),
    ] = None


class MeshMtls(Spec):
    """Mutual TLS."""

    enabled_backend: Annotated[str | None, doc("Name of the backend in use; mTLS is off without.")] = None
    backends: Annotated[
        tuple[MeshMtlsBackend, ...] | None,
        doc("The backends; proxies trust the CAs of all of them."),
        keyed_by("name"),
    ] = None
    skip_validation: Annotated[bool | None, doc("Store a backend without looking into its conf.")] = None


class MeshBuiltinCert(Spec, rename={"rsa_bits": "RSAbits"}):
    """The certificate of the CA that the control plane makes."""

    rsa_bits: Annotated[
        UInt32 | None, doc("Length of an RSA key, 2048 to 4096; an elliptic-curve key (P-256) by default.")
    ] = None
    expiration: Annotated[str | None, doc("How long it is valid; 10 years by default.")] = None


class MeshBuiltinConf(Spec):
    """A CA that the control plane makes."""

    ca_cert: Annotated[MeshBuiltinCert | None, doc("Its certificate.")] = None


class MeshOutbound(Spec):
    """Calls that leave a proxy."""

    passthrough: Annotated[
        bool | None, doc("Whether unknown destinations are let through; true by default.")
    ] = None


class MeshNetworking(Spec):
    """Network settings of all proxies."""

    outbound: Annotated[MeshOutbound | None, doc("Calls that leave a proxy.")] = None


class MeshRouting(Spec):
    """Where calls go."""

    locality_aware_load_balancing: Annotated[bool | None, doc("Stay in the zone while possible.")] = None
    zone_egress: Annotated[bool | None, doc("Leave the zone through its egress; needs mTLS.")] = None
    default_forbid_mesh_external_service_access: Annotated[
        bool | None, doc("Let no proxy call external services without a permission.")
    ] = None


class MeshConstraintRule(Spec):
    """Tags of a proxy."""

    tags: Annotated[Mapping[str, str] | None, doc("All of them must fit; `*` is any value.")] = None


class MeshMembership(Spec):
    """Which proxies may join."""

    requirements: Annotated[
        tuple[MeshConstraintRule, ...] | None, doc("A proxy must fit one of these, if there are any.")
    ] = None
    restrictions: Annotated[tuple[MeshConstraintRule, ...] | None, doc("A proxy must fit none of these.")] = (
        None
    )


class MeshConstraints(Spec):
    """What members must be like."""

    dataplane_proxy: Annotated[MeshMembership | None, doc("Which proxies may join.")] = None


class MeshServicesMode(Spec):
    """How services appear."""

    mode: Annotated[
        Literal["Disabled", "Everywhere", "ReachableBackends", "Exclusive"] | None,
        doc(
            "Whether MeshServices are made from proxies, beside the older service tags or instead of them;"
            " Everywhere by default."
        ),
    ] = None


class MeshSpec(Spec):
    """The settings of a mesh."""

    mtls: Annotated[MeshMtls | None, doc("Mutual TLS.")] = None
    networking: Annotated[MeshNetworking | None, doc("Network settings of all proxies.")] = None
    routing: Annotated[MeshRouting | None, doc("Where calls go.")] = None
    constraints: Annotated[MeshConstraints | None, doc("Which proxies may join.")] = None
    mesh_services: Annotated[MeshServicesMode | None, doc("How services appear.")] = None
    skip_creating_initial_policies: Annotated[
        tuple[str, ...] | None, doc("Kinds of the default policies that are not wanted; `*` for all.")
    ] = None
    tracing: Annotated[MeshTracing | None, doc("Traces, older form; MeshTrace is the newer one.")] = None
    logging: Annotated[
        MeshLogging | None, doc("Access logs, older form; MeshAccessLog is the newer one.")
    ] = None
    metrics: Annotated[MeshMetrics | None, doc("Metrics, older form; MeshMetric is the newer one.")] = None


BACKENDS_MAX: Final = 10
RSA_BITS_MIN: Final = 2048
RSA_BITS_MAX: Final = 4096  # longer ones take many seconds to make

_LONG_DURATION = re.compile(r"0|\d+(y|w|d|h|m|s|ms)")
_UNIT_SECONDS: Final = {"y": 31_536_000, "w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1, "ms": 0.001}


def seconds(text: str) -> float:
    """A duration as Mesh writes it, one number with one unit up to years; ValueError where it is none."""
    if not _LONG_DURATION.fullmatch(text):
        raise ValueError('must be a number with one of y, w, d, h, m, s, ms, such as "1d"')
    number = text.rstrip("ywdhms")
    return 0.0 if text == "0" else int(number) * _UNIT_SECONDS[text[len(number) :]]


def mtls_of(spec: Json) -> MeshMtls:
    """The mTLS section of a stored Mesh."""
    section = (spec or {}).get("mtls")
    return read(MeshMtls, section) if section else MeshMtls()


def builtin_cert(backend: MeshMtlsBackend) -> MeshBuiltinCert:
    """How the CA of a builtin backend is to be made; as if nothing were said where that cannot be read."""
    conf, _ = rules.read_conf(MeshBuiltinConf, backend.conf, "", _CONVERT)
    return (conf and conf.ca_cert) or MeshBuiltinCert()


def provided_conf(backend: MeshMtlsBackend) -> MeshProvidedConf:
    """Where the CA of a provided backend lies; nowhere where that cannot be read."""
    conf, _ = rules.read_conf(MeshProvidedConf, backend.conf, "", _CONVERT)
    return conf or MeshProvidedConf()


def validate(spec: MeshSpec, context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages; but the CA may change, and `dpCert` may have no expiration."""
    mtls = spec.mtls or MeshMtls()
    yield from _mtls_violations(mtls)
    if spec.routing is not None and spec.routing.zone_egress and not mtls.enabled_backend:
        yield Violation("mtls", "has to be set when zoneEgress enabled", "required")
    for index, backend in enumerate(mtls.backends or ()):
        yield from _backend_violations(
            backend, item("mtls.backends", index), context, skip=mtls.skip_validation
        )
    yield from mesh_backends.logging_violations(spec.logging or MeshLogging())
    yield from mesh_backends.tracing_violations(spec.tracing or MeshTracing())
    yield from mesh_backends.metrics_violations(spec.metrics or MeshMetrics())
    yield from _constraint_violations(spec.constraints or MeshConstraints())


def _mtls_violations(mtls: MeshMtls) -> Iterator[Violation]:
    backends = mtls.backends or ()
    if len(backends) > BACKENDS_MAX:
        yield Violation("mtls.backends", f"cannot have more than {BACKENDS_MAX} backends", "length")
    for index, backend in enumerate(backends):
        if backend.name in {earlier.name for earlier in backends[:index]}:
            message = f'"{backend.name or ""}" name is already used for another backend'
            yield Violation(child(item("mtls.backends", index), "name"), message, "unique")
    if mtls.enabled_backend and mtls.enabled_backend not in {backend.name for backend in backends}:
        message = "has to be set to one of the backends in the mesh"
        yield Violation("mtls.enabledBackend", message, "reference")
    for backend in backends:
        rotation = (backend.dp_cert or MeshDpCert()).rotation or MeshCertRotation()
        if rotation.expiration and not _LONG_DURATION.fullmatch(rotation.expiration):
            yield Violation("mtls.dpcert.rotation.expiration", "has to be a valid format", "format")


def _backend_violations(
    backend: MeshMtlsBackend, path: str, context: ValidationContext, *, skip: bool | None
) -> Iterator[Violation]:
    at = child(path, "conf")
    match backend.type:
        case "builtin" if not skip:
            yield from _builtin_violations(backend, at, context)
        case "provided" if not skip:
            yield from _provided_violations(backend, at)
        case "builtin" | "provided":
            return
        case _:
            message = "could not find installed plugin for this type"
            yield Violation(child(path, "type"), message, "enum")


_CONVERT: Final = "could not convert backend config"


def _builtin_violations(
    backend: MeshMtlsBackend, path: str, context: ValidationContext
) -> Iterator[Violation]:
    conf, broken = rules.read_conf(MeshBuiltinConf, backend.conf, path, _CONVERT)
    yield from broken
    if conf is None:
        return
    yield from _builtin_cert_violations(conf.ca_cert or MeshBuiltinCert(), child(path, "caCert"))
    # The CA is kept in Secrets named after the mesh and the backend, so the two share one limit.
    prefix = f"{context.name}.ca-builtin-cert-"
    name_max = names.NAME_LENGTH_MAX - len(prefix)
    name = backend.name or ""
    if len(name) > name_max:
        message = f"Backend name is too long. Max length: {name_max}"
        yield Violation(child(path, "mtls.backends.name"), message, "length")
    elif not names.is_subdomain(prefix + name):
        yield Violation(child(path, "mtls.backends.name"), f'"{name}" name must be valid dns name', "name")


def _builtin_cert_violations(cert: MeshBuiltinCert, path: str) -> Iterator[Violation]:
    if cert.rsa_bits and not RSA_BITS_MIN <= cert.rsa_bits <= RSA_BITS_MAX:
        message = f"must be in the range [{RSA_BITS_MIN}, {RSA_BITS_MAX}]"
        yield Violation(child(path, "RSAbits"), message, "range")
    if cert.expiration and not _LONG_DURATION.fullmatch(cert.expiration):
        yield Violation(child(path, "expiration"), "has to be a valid format", "format")


def _provided_violations(backend: MeshMtlsBackend, path: str) -> Iterator[Violation]:
    conf, broken = rules.read_conf(MeshProvidedConf, backend.conf, path, _CONVERT)
    yield from broken
    if conf is None:
        return
    for name, source in (("cert", conf.cert), ("key", conf.key)):
        if source is None:
            yield Violation(child(path, name), "has to be defined", "required")
        elif not (sources := data_source.named_sources(source)):
            yield Violation(child(path, name), "data source cannot be empty", "required")
        elif len(sources) > 1:
            message = f"{_CONVERT}: {name} has {' and '.join(sources)}; keep one of them"
            yield Violation(path, message, "exclusive")


def _constraint_violations(constraints: MeshConstraints) -> Iterator[Violation]:
    membership = constraints.dataplane_proxy or MeshMembership()
    for name, entries in (
        ("requirements", membership.requirements),
        ("restrictions", membership.restrictions),
    ):
        for index, entry in enumerate(entries or ()):
            path = item(f"constraints.dataplaneProxy.{name}", index)
            yield from tags.violations(entry.tags or {}, child(path, "tags"), selector=True, needs_one=True)


def warn(spec: MeshSpec, _context: ValidationContext) -> Iterator[str]:
    """What has no effect as it is written."""
    routing = spec.routing or MeshRouting()
    has_mtls = spec.mtls is not None and spec.mtls.enabled_backend
    if routing.default_forbid_mesh_external_service_access and not has_mtls:
        yield (
            "routing.defaultForbidMeshExternalServiceAccess has no effect without mTLS: callers have no"
            " identity, and everybody may call external services; set mtls.enabledBackend"
        )


KIND = Kind(
    name="Mesh",
    plural="meshes",
    short="m",
    doc=__doc__,
    spec=MeshSpec,
    columns=columns.MESH,
    scope=Scope.GLOBAL,
    sync=Sync(provided_by_global=True, consumed_by_zone=True, keeps_name=True),
    namespaced=False,
    inline=True,
    v1=v1_conversions.MESH,
    validate=validate,
    warn=warn,
    display=("Mesh", "Meshes"),
    dns_name=True,
)
