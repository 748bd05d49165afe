"""External: how a proxy calls a port of a MeshExternalService: the cluster, and secrets that it needs.

Two forms of the spec are supported: with `destination`, as Kuma first designed it, and with `endpoints` and
`tls` beside a single `match`, as Kuma released it. Certificates and keys are in the object itself or in a
Secret of its mesh. What leads to a plugin is built by that (`extension`). What cannot be built is reported
with the field and what to do; nothing else fails by it.

A port on which programs start TLS themselves gets none from the proxy: `tls` is for the other ports. Kuma's
mode SkipCA is like SkipAll, since Envoy compares no names in a certificate that anybody may have signed.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from koguma.core import world
from koguma.core.build import encoding, extension, mesh_secret
from koguma.core.incremental import Db, question
from koguma.core.world import Port
from koguma.envoy import external as envoy
from koguma.envoy.external import ExternalEndpoint, San, Tls
from koguma.envoy.snapshot import SECRET, Failure, XdsResource
from koguma.model.kri import SecretName
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.model.violation import child, item

_EXCLUDED: Final[Mapping[str, tuple[str, ...]]] = {
    "Passthrough": ("extension", "endpoints", "tls"),
    "Regular": ("extension",),
    "Extension": ("endpoints", "tls"),
}
_VERSIONS: Final[Mapping[str, str]] = {
    **{version: version for version in envoy.VERSIONS},
    **{version.replace("v", "").replace("_", ""): version for version in envoy.VERSIONS},
}
_CERTIFICATE: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]*CERTIFICATE)-----[^-]*-----END \1-----", re.ASCII)
_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN ((?!ENCRYPTED)[A-Z0-9 ]*PRIVATE KEY)-----[^-]*-----END \1-----", re.ASCII
)
# Only these PEM blocks of a source are used: a Secret may hold a certificate and its key together.
_PEM: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    "caCert": (_CERTIFICATE, "certificate"),
    "clientCert": (_CERTIFICATE, "certificate"),
    "clientKey": (_PRIVATE_KEY, "unencrypted private key"),
}
_VIRTUAL_ONLY: Final = (
    "calls to a virtual address need somewhere to go; give the destination type Regular and endpoints"
)
LOOP: Final = (
    "calls go on to where they were addressed, which would be this very listener; give the destination type"
    " Regular and endpoints"
)
_MIXED: Final = (
    "domains and unix sockets cannot be endpoints of one service, since Envoy resolves all or none of them;"
    " write two services, and a route that splits calls between them"
)
_NAMELESS: Final = "a unix socket has no name to check; give subjectAltNames, or skip names"
_DOMAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}(\.[A-Za-z0-9_][A-Za-z0-9_-]{0,62})*\.?")
_DOMAIN_LENGTH_MAX: Final = 255
_PATH_LENGTH_MAX: Final = 107  # what fits into a socket's address


class ExternalCluster(msgspec.Struct, frozen=True):
    """The parts of an external port's cluster, and its secrets; or a problem, and then no parts."""

    parts: Mapping[str, Json] = {}  # "cluster" and, where it speaks HTTP, "http_options"
    secrets: tuple[XdsResource, ...] = ()
    problem: str = ""
    body_bytes_max: int = 0  # of a request, as far as a plugin needs it at once; 0: Envoy's default


class _ExternalDestination(msgspec.Struct, frozen=True):
    """Where calls go, from either form of the spec, and the path of the fields that say so."""

    path: str
    type: str
    fields: Json


@question
def of(db: Db, service: Key, section: str) -> ExternalCluster | None:
    """How a port of a MeshExternalService is called; None where there is no such port."""
    resource, port = world.RESOURCES.get(db, service), world.port(db, service, section)
    if resource is None or port is None:
        return None
    name = encoding.kri(db, service, port.section)
    if not name:
        return ExternalCluster(problem="its name cannot be part of an identifier; rename it")
    destination = _destination(resource.spec)
    problems = tuple(_problems(resource.spec, destination, port))
    if problems:
        return ExternalCluster(problem="; ".join(problems))
    if destination.type == "Passthrough":
        # Requests for other hosts of the same port may go through a cluster for tcp, in any version of HTTP.
        is_tcp = port.protocol == "tcp"
        cluster = envoy.unknown_destination(name) if is_tcp else envoy.original_destination(name)
        return ExternalCluster(_parts(cluster, port, as_it_is=True))
    if destination.type == "Extension":
        return _extension(db, service, destination, port)
    return _regular(db, service, destination, port)


@question
def body_bytes_max(db: Db, service: Key, section: str) -> int:
    """How much of a request's body routes to a port hold; apart, since routes change with nothing else."""
    outside = of(db, service, section)
    return outside.body_bytes_max if outside else 0


@question
def takes_connections(db: Db, service: Key, section: str) -> bool:
    """Whether a port can be called without HTTP; a plugin says for which protocols it is."""
    resource, port = world.RESOURCES.get(db, service), world.port(db, service, section)
    written, _ = extension_of(resource.spec) if resource else (None, "")
    plugin = extension.plugin(db, written.get("type") or "") if written else None
    if plugin is None or port is None or port.protocol not in world.HTTP_PROTOCOLS:
        return True
    return not {"tcp", "tls"}.isdisjoint(plugin.protocols)


def _extension(db: Db, service: Key, destination: _ExternalDestination, port: Port) -> ExternalCluster:
    name, path = encoding.kri(db, service, port.section), child(destination.path, "extension")
    section = destination.fields.get("extension") or {}
    built = extension.of(db, service, section, port, name, path)
    if built.problems:
        return ExternalCluster(problem="; ".join(built.problems))
    parts = _parts(built.cluster, port)
    if "http_options" in parts:
        parts = {**parts, "http_options": {**parts["http_options"], **built.http_options}}
    encoded = [
        encoding.encoded(db, SECRET, each, data, origin=str(service)) for each, data in built.secrets.items()
    ]
    refused = [each.name for each in encoded if isinstance(each, Failure)]
    if refused:  # without the reason, which may repeat what is secret
        text = f"its plugin made secrets that Envoy cannot read: {', '.join(refused)}"
        return ExternalCluster(problem=f"{path}: {text}")
    secrets = tuple(each for each in encoded if isinstance(each, XdsResource))
    return ExternalCluster(parts, secrets, body_bytes_max=built.body_bytes_max)


@question
def is_passthrough(db: Db, service: Key) -> bool:
    """Whether calls go on to where they were addressed; False for what is no MeshExternalService."""
    resource = world.RESOURCES.get(db, service) if service.kind == "MeshExternalService" else None
    return resource is not None and _destination(resource.spec).type == "Passthrough"


@question
def problem(db: Db, service: Key, section: str) -> str:
    """Why a port of a MeshExternalService cannot be called; apart, since its endpoints change more often."""
    outside = of(db, service, section)
    return outside.problem if outside else "it has no such port"


@question
def has_domains(db: Db, service: Key) -> bool:
    """Whether all endpoints of a service are domains, which are also the hosts that requests to them name."""
    resource = world.RESOURCES.get(db, service)
    endpoints = _destination(resource.spec).fields.get("endpoints") if resource else None
    addresses = [ExternalEndpoint(each.get("address") or "") for each in endpoints or ()]
    return all(address.domain for address in addresses)


def endpoints(db: Db, service: Key, section: str) -> tuple[ExternalEndpoint, ...]:
    """The endpoints of a port as they are written; none where calls go on to where they were addressed."""
    resource, port = world.RESOURCES.get(db, service), world.port(db, service, section)
    if resource is None or port is None:
        return ()
    destination = _destination(resource.spec)
    return _endpoints(destination, port) if destination.type == "Regular" else ()


def _destination(spec: Json) -> _ExternalDestination:
    fields = spec.get("destination")
    if fields is not None:
        return _ExternalDestination("spec.destination", fields.get("type") or "Passthrough", fields)
    if spec.get("extension"):
        return _ExternalDestination("spec", "Extension", {"extension": spec["extension"]})
    is_released = isinstance(spec.get("match"), Mapping) or spec.get("endpoints") or spec.get("tls")
    return _ExternalDestination("spec", "Regular" if is_released else "Passthrough", spec)


def extension_of(spec: Json) -> tuple[Json, str]:
    """The section that names a plugin, and its path; None where the destination is no plugin."""
    destination = _destination(spec)
    path = child(destination.path, "extension")
    return (destination.fields.get("extension") if destination.type == "Extension" else None), path


def _parts(cluster: Json, port: Port, *, as_it_is: bool = False) -> Mapping[str, Json]:
    options = envoy.http_options(port.protocol, as_it_is=as_it_is)
    return {"cluster": cluster} if options is None else {"cluster": cluster, "http_options": options}


def _problems(spec: Json, destination: _ExternalDestination, port: Port) -> Iterator[str]:
    """Why there can be no cluster, as far as the object itself says it."""
    for field in _EXCLUDED.get(destination.type, ()):
        if destination.fields.get(field):
            at = child(destination.path, field)
            yield f"{at}: does not go with type {destination.type}; take it away, or choose another type"
    match destination.type:
        case "Extension":
            pass
        case "Passthrough":
            # The original destination would be the virtual address: the proxy would call itself in a loop.
            types = {
                each.get("type") for each in world.external_matches(spec) if each.get("port") == port.number
            }
            if types == {"InternalVIP"}:
                yield f"port {port.number}: {_VIRTUAL_ONLY}"
        case _:
            yield from _endpoint_problems(destination, port)


def _endpoint_problems(destination: _ExternalDestination, port: Port) -> Iterator[str]:
    at = child(destination.path, "endpoints")
    endpoints = _endpoints(destination, port)
    if not endpoints:
        yield f"{at}: there are none, so calls have nowhere to go; write one"
    for index, endpoint in enumerate(endpoints):
        if not _is_address(endpoint):
            yield f'{item(at, index)}.address: "{endpoint.address}" is no IP, domain, or unix:// and a path'
    if envoy.is_mixed(endpoints):
        yield f"{at}: {_MIXED}"


def _endpoints(destination: _ExternalDestination, port: Port) -> tuple[ExternalEndpoint, ...]:
    return tuple(
        ExternalEndpoint(
            each.get("address") or "", each.get("port") or port.number, each.get("priority") or 0
        )
        for each in destination.fields.get("endpoints") or ()
    )


def _is_address(endpoint: ExternalEndpoint) -> bool:
    if endpoint.address.startswith(envoy.UNIX):
        return 0 < len(endpoint.path.encode()) <= _PATH_LENGTH_MAX and "\0" not in endpoint.path
    if endpoint.ip:
        return "%" not in endpoint.ip
    return len(endpoint.address) <= _DOMAIN_LENGTH_MAX and _DOMAIN.fullmatch(endpoint.address) is not None


def _regular(db: Db, service: Key, destination: _ExternalDestination, port: Port) -> ExternalCluster:
    name, endpoints = encoding.kri(db, service, port.section), _endpoints(destination, port)
    tls_spec = destination.fields.get("tls") or {}
    if not tls_spec.get("enabled") or port.protocol == "tls":
        return ExternalCluster(_parts(envoy.cluster(name, endpoints), port))
    at = child(destination.path, "tls")
    sources = _sources(db, service, tls_spec, at)
    tls = _tls(tls_spec, sources, _secret_name(db, service))
    problems = [
        *(each.problem for each in sources.values() if each.problem),
        *_name_problems(endpoints, tls, at),
    ]
    if problems:
        return ExternalCluster(problem="; ".join(problems))
    encoded = tuple(_certificate(db, service, tls, sources))
    refused = [each.text for each in encoded if isinstance(each, Failure)]
    if refused:
        return ExternalCluster(problem="; ".join(refused))
    secrets = tuple(each for each in encoded if isinstance(each, XdsResource))
    return ExternalCluster(_parts(envoy.cluster(name, endpoints, tls), port), secrets)


def _tls(spec: Json, sources: "_Sources", secret_name: str) -> Tls:
    verification, version = spec.get("verification") or {}, spec.get("version") or {}
    skips_names = verification.get("skip") or verification.get("mode") == "SkipSAN"
    return Tls(
        version_min=_VERSIONS.get(version.get("min") or "", ""),
        version_max=_VERSIONS.get(version.get("max") or "", ""),
        allow_renegotiation=bool(spec.get("allowRenegotiation")),
        checks_ca=_checks_ca(spec),
        checks_names=not skips_names,
        server_name=(verification.get("serverName") or "").lower().removesuffix("."),
        sans=tuple(_san(each) for each in verification.get("subjectAltNames") or ()),
        ca=sources["caCert"].text if "caCert" in sources else "",
        certificate=secret_name if "clientCert" in sources else "",
    )


def _checks_ca(tls_spec: Json) -> bool:
    return (tls_spec.get("verification") or {}).get("mode") not in ("SkipCA", "SkipAll")


def _san(name: Json) -> San:
    if isinstance(name, str):
        return San(name)
    return San(name.get("value") or "", name.get("type") == "Prefix")


def _name_problems(endpoints: Sequence[ExternalEndpoint], tls: Tls, at: str) -> Iterator[str]:
    if envoy.is_nameless(endpoints, tls):
        yield f"{at}.verification: {_NAMELESS}"
    for index, san in enumerate(tls.sans):
        if not san.value:
            path = item(f"{at}.verification.subjectAltNames", index)
            yield f"{path}: is empty; write a name, or take it away"


class _PemSource(msgspec.Struct, frozen=True):
    """A certificate or key as PEM, or why there is none."""

    text: str = ""
    problem: str = ""


_Sources = Mapping[str, _PemSource]


def _sources(db: Db, service: Key, tls_spec: Json, at: str) -> _Sources:
    """The certificates and keys that are used, by field."""
    verification = tls_spec.get("verification") or {}
    sources = {}
    for field, (pattern, what) in _PEM.items():
        inside = not tls_spec.get(field)  # Kuma has it in `verification`
        source = verification.get(field) if inside else tls_spec.get(field)
        if not source or (field == "caCert" and not _checks_ca(tls_spec)):
            continue
        path = child(child(at, "verification") if inside else at, field)
        text, problem = _text(db, service, source)
        blocks = [match[0] for match in pattern.finditer(text)]
        if not problem and not blocks:
            problem = f"holds no {what} as PEM"
        kept = "".join(f"{block}\n" for block in (blocks[:1] if field == "clientKey" else blocks))
        sources[field] = _PemSource(kept, f"{path}: {problem}" if problem else "")
    if ("clientCert" in sources) != ("clientKey" in sources):
        sources["clientCert"] = _PemSource("", f"{at}: clientCert and clientKey must both be there, or none")
    return sources


def _text(db: Db, service: Key, source: Json) -> tuple[str, str]:
    """The text of a data source, in any of its forms; or what is wrong with it."""
    name, text = _chosen(source)
    if name:
        problem = mesh_secret.problem(db, service.mesh, service.zone, name)
        return "" if problem else mesh_secret.text(db, service.mesh, service.zone, name) or "", problem
    return text, "" if text else "names no Secret and holds nothing itself"


def _chosen(source: Json) -> tuple[str, str]:
    """The name of a Secret, or a text; the newer form has a `type` that says which."""
    match source.get("type"):
        case "Secret":
            return (source.get("secretRef") or {}).get("name") or "", ""
        case "InsecureInline":
            return "", (source.get("insecureInline") or {}).get("value") or ""
        case None:
            text = source.get("inlineString") or mesh_secret.decoded(source.get("inline") or "")
            return source.get("secret") or "", text
    return "", ""  # a file or variable of the control plane, which users must not read


def _secret_name(db: Db, service: Key) -> str:
    return str(SecretName("cert", "secret", encoding.kri(db, service, "")))


def _certificate(db: Db, service: Key, tls: Tls, sources: _Sources) -> Iterator[XdsResource | Failure]:
    """The client certificate as a secret of its own, so that a new one closes no connection."""
    if tls.certificate:
        data = envoy.secret(tls.certificate, sources["clientCert"].text, sources["clientKey"].text)
        yield encoding.encoded(db, SECRET, tls.certificate, data, origin=str(service))
