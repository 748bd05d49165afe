"""External: how a proxy calls a port of a MeshExternalService: the cluster, and secrets that it needs.

Both shapes are read as one: `destination` as it was first written, and `endpoints` and `tls` beside a single
`match` as Kuma released it. Certificates and keys stand in the object itself or in a Secret of its mesh. What
cannot be built is a problem in words, with the field and a way out; nothing else is touched by it.

A port on which programs start TLS themselves gets none from the proxy: `tls` is for the other ports. Kuma's
mode SkipCA is like SkipAll, since Envoy compares no names in a certificate that anybody may have signed.
"""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from koguma.core import world
from koguma.core.build import encoding
from koguma.core.incremental import Db, question
from koguma.core.world import Port
from koguma.envoy import external as envoy
from koguma.envoy.external import Endpoint, San, Tls
from koguma.envoy.snapshot import SECRET, Failure, XdsResource
from koguma.model import reserved_secrets
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
# What leaves a source, and nothing else of it: a Secret may hold a certificate and its key together.
_PEM: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    "caCert": (_CERTIFICATE, "certificate"),
    "clientCert": (_CERTIFICATE, "certificate"),
    "clientKey": (_PRIVATE_KEY, "unencrypted private key"),
}
_VIRTUAL_ONLY: Final = (
    "calls to a virtual address need somewhere to go; give the destination type Regular and endpoints"
)
_MIXED: Final = (
    "domains and unix sockets cannot be endpoints of one service, since Envoy resolves all or none of them;"
    " write two services, and a route that splits calls between them"
)
_NAMELESS: Final = "a unix socket has no name to check; give subjectAltNames, or skip names"
_DOMAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,62}(\.[A-Za-z0-9_][A-Za-z0-9_-]{0,62})*\.?")
_DOMAIN_LENGTH_MAX: Final = 255
_PATH_LENGTH_MAX: Final = 107  # what fits into a socket's address


class External(msgspec.Struct, frozen=True):
    """How a port is called; with a `problem` it cannot be, and the parts are empty."""

    parts: Mapping[str, Json] = {}  # "cluster" and, where it speaks HTTP, "http_options"
    secrets: tuple[XdsResource, ...] = ()
    problem: str = ""


class _Going(msgspec.Struct, frozen=True):
    """Where calls go, out of either shape; `at` is the path of what was read."""

    at: str
    type: str
    said: Json


@question
def of(db: Db, service: Key, section: str) -> External | None:
    """How a port of a MeshExternalService is called; None where there is no such port."""
    resource, port = world.RESOURCES.get(db, service), world.port(db, service, section)
    if resource is None or port is None:
        return None
    name = encoding.kri(db, service, port.section)
    if not name:
        return External(problem="its name cannot be part of an identifier; rename it")
    going = _going(resource.spec)
    problems = tuple(_problems(resource.spec, going, port))
    if problems:
        return External(problem="; ".join(problems))
    if going.type == "Passthrough":
        return External(_parts(envoy.passthrough(name), port))
    return _regular(db, service, going, port)


def _going(spec: Json) -> _Going:
    said = spec.get("destination")
    if said is not None:
        return _Going("spec.destination", said.get("type") or "Passthrough", said)
    if spec.get("extension"):
        return _Going("spec", "Extension", {"extension": spec["extension"]})
    is_released = isinstance(spec.get("match"), Mapping) or spec.get("endpoints") or spec.get("tls")
    return _Going("spec", "Regular" if is_released else "Passthrough", spec)


def _parts(cluster: Json, port: Port) -> Mapping[str, Json]:
    options = envoy.http_options(port.protocol)
    return {"cluster": cluster} if options is None else {"cluster": cluster, "http_options": options}


def _problems(spec: Json, going: _Going, port: Port) -> Iterator[str]:
    """Why there can be no cluster, as far as that stands in the object itself."""
    for field in _EXCLUDED.get(going.type, ()):
        if going.said.get(field):
            at = child(going.at, field)
            yield f"{at}: does not go with type {going.type}; take it away, or choose another type"
    match going.type:
        case "Extension":
            plugin = (going.said.get("extension") or {}).get("type") or ""
            yield f'no plugin "{plugin}" is installed; install one, or give the service endpoints'
        case "Passthrough":
            # The address that was called would be the virtual one: the proxy would call itself, forever.
            types = {each.get("type") for each in _matches(spec) if each.get("port") == port.number}
            if types == {"InternalVIP"}:
                yield f"port {port.number}: {_VIRTUAL_ONLY}"
        case _:
            yield from _endpoint_problems(going, port)


def _matches(spec: Json) -> Sequence[Json]:
    match = spec.get("match") or ()
    return (match,) if isinstance(match, Mapping) else match


def _endpoint_problems(going: _Going, port: Port) -> Iterator[str]:
    at = child(going.at, "endpoints")
    found = _endpoints(going, port)
    if not found:
        yield f"{at}: there are none, so calls have nowhere to go; write one"
    for index, endpoint in enumerate(found):
        if not _is_address(endpoint):
            yield f'{item(at, index)}.address: "{endpoint.address}" is no IP, domain, or unix:// and a path'
    if envoy.is_mixed(found):
        yield f"{at}: {_MIXED}"


def _endpoints(going: _Going, port: Port) -> tuple[Endpoint, ...]:
    return tuple(
        Endpoint(each.get("address") or "", each.get("port") or port.number, each.get("priority") or 0)
        for each in going.said.get("endpoints") or ()
    )


def _is_address(endpoint: Endpoint) -> bool:
    if endpoint.address.startswith(envoy.UNIX):
        return 0 < len(endpoint.path.encode()) <= _PATH_LENGTH_MAX
    if endpoint.ip:
        return "%" not in endpoint.ip
    return len(endpoint.address) <= _DOMAIN_LENGTH_MAX and _DOMAIN.fullmatch(endpoint.address) is not None


def _regular(db: Db, service: Key, going: _Going, port: Port) -> External:
    name, endpoints = encoding.kri(db, service, port.section), _endpoints(going, port)
    said = going.said.get("tls") or {}
    if not said.get("enabled") or port.protocol == "tls":
        return External(_parts(envoy.cluster(name, endpoints), port))
    at = child(going.at, "tls")
    texts = _texts(db, service, said, at)
    tls = _tls(said, texts, _secret_name(db, service))
    problems = [
        *(each.problem for each in texts.values() if each.problem),
        *_name_problems(endpoints, tls, at),
    ]
    if problems:
        return External(problem="; ".join(problems))
    made = tuple(_certificate(db, service, tls, texts))
    refused = [each.text for each in made if isinstance(each, Failure)]
    if refused:
        return External(problem="; ".join(refused))
    secrets = tuple(each for each in made if isinstance(each, XdsResource))
    return External(_parts(envoy.cluster(name, endpoints, tls), port), secrets)


def _tls(said: Json, texts: "_Texts", secret_name: str) -> Tls:
    verification, version = said.get("verification") or {}, said.get("version") or {}
    skips_names = verification.get("skip") or verification.get("mode") == "SkipSAN"
    return Tls(
        version_min=_VERSIONS.get(version.get("min") or "", ""),
        version_max=_VERSIONS.get(version.get("max") or "", ""),
        allow_renegotiation=bool(said.get("allowRenegotiation")),
        checks_ca=_checks_ca(said),
        checks_names=not skips_names,
        server_name=(verification.get("serverName") or "").lower().removesuffix("."),
        sans=tuple(_san(each) for each in verification.get("subjectAltNames") or ()),
        ca=texts["caCert"].text if "caCert" in texts else "",
        certificate=secret_name if "clientCert" in texts else "",
    )


def _checks_ca(said: Json) -> bool:
    return (said.get("verification") or {}).get("mode") not in ("SkipCA", "SkipAll")


def _san(said: Json) -> San:
    if isinstance(said, str):
        return San(said)
    return San(said.get("value") or "", said.get("type") == "Prefix")


def _name_problems(endpoints: Sequence[Endpoint], tls: Tls, at: str) -> Iterator[str]:
    if envoy.is_nameless(endpoints, tls):
        yield f"{at}.verification: {_NAMELESS}"
    for index, san in enumerate(tls.sans):
        if not san.value:
            path = item(f"{at}.verification.subjectAltNames", index)
            yield f"{path}: is empty; write a name, or take it away"


class _Source(msgspec.Struct, frozen=True):
    """A certificate or key as PEM, or why there is none."""

    text: str = ""
    problem: str = ""


_Texts = Mapping[str, _Source]


def _texts(db: Db, service: Key, said: Json, at: str) -> _Texts:
    """The certificates and keys that are needed, by field; one that is not used may be missing."""
    verification = said.get("verification") or {}
    found = {}
    for field, (pattern, what) in _PEM.items():
        inside = not said.get(field)  # where Kuma has it
        source = verification.get(field) if inside else said.get(field)
        if not source or (field == "caCert" and not _checks_ca(said)):
            continue
        path = child(child(at, "verification") if inside else at, field)
        text, problem = _text(db, service, source)
        blocks = [match[0] for match in pattern.finditer(text)]
        if not problem and not blocks:
            problem = f"holds no {what} as PEM"
        kept = "".join(f"{block}\n" for block in (blocks[:1] if field == "clientKey" else blocks))
        found[field] = _Source(kept, f"{path}: {problem}" if problem else "")
    if ("clientCert" in found) != ("clientKey" in found):
        found["clientCert"] = _Source("", f"{at}: clientCert and clientKey must both be there, or none")
    return found


def _text(db: Db, service: Key, source: Json) -> tuple[str, str]:
    """What a data source holds, in any of its spellings; or what is wrong with it."""
    name, text = _chosen(source)
    if name and reserved_secrets.is_reserved(name):  # stored before that was refused, or past the API
        return "", f'"{name}" {reserved_secrets.MESSAGE}'
    if name:
        found = _secret(db, service.mesh, service.zone, name)
        missing = f'there is no Secret "{name}" in mesh "{service.mesh}"; write it, or name another one'
        return ("", missing) if found is None else (found, "")
    return text, "" if text else "names no Secret and holds nothing itself"


def _chosen(source: Json) -> tuple[str, str]:
    """The name of a Secret, or a text; the newer form has a `type` that says which."""
    match source.get("type"):
        case "Secret":
            return (source.get("secretRef") or {}).get("name") or "", ""
        case "InsecureInline":
            return "", (source.get("insecureInline") or {}).get("value") or ""
        case None:
            text = source.get("inlineString") or _decoded(source.get("inline") or "")
            return source.get("secret") or "", text
    return "", ""  # a file or variable of the control plane, which nobody outside may choose


@question
def _secret(db: Db, mesh: str, zone: str, name: str) -> str | None:
    """What a Secret holds: the one from the same zone, or from here, before one from elsewhere."""
    here = world.control_plane(db).zone
    keys = [key for key in world.BY_KIND.keys(db, ("Secret", mesh)) if key.name == name]
    for key in sorted(keys, key=lambda key: (key.zone != zone, key.zone != here, key)):
        found = world.RESOURCES.get(db, key)
        if found is not None:
            return _decoded(found.spec.get("data") or "")
    return None


def _decoded(text: str) -> str:
    """PEM is plain ASCII; what stands around it may be anything."""
    try:
        return base64.b64decode(text).decode(errors="replace")
    except ValueError:
        return ""


def _secret_name(db: Db, service: Key) -> str:
    return str(SecretName("cert", "secret", encoding.kri(db, service, "")))


def _certificate(db: Db, service: Key, tls: Tls, texts: _Texts) -> Iterator[XdsResource | Failure]:
    """Our certificate comes as a secret of its own, so that a new one touches no connection."""
    if tls.certificate:
        data = envoy.secret(tls.certificate, texts["clientCert"].text, texts["clientKey"].text)
        yield encoding.encoded(db, SECRET, tls.certificate, data, origin=str(service))
