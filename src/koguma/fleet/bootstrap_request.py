"""Bootstrap requests: what a proxy says about itself, and what it is given to start with.

The request is Kuma's, so its own proxies can ask too. Fields that mean nothing here are passed over.
"""

import base64
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from koguma.core.build import network
from koguma.envoy.bootstrap import ADMIN_ADDRESS, TOKEN_FILE, AdsEndpoint
from koguma.identity import certificate_facts, proxy_types
from koguma.identity.proxy_types import ProxyType
from koguma.model import documents, labels, names, tags
from koguma.model.errors import BadRequest, Invalid
from koguma.model.resource import Resource
from koguma.model.schema import UNKNOWN, Checker, Json, Spec, json_type, read
from koguma.model.violation import Violation, cut

DEFAULT_MESH: Final = "default"
DEFAULT_ADMIN_PORT: Final = 9901

LOG_DIRECTORIES: Final = "accessLogDirectories"  # in the metadata of a node

CONTROL_PLANES_MAX: Final = 16  # addresses of control planes that a proxy may name

_PORT_MAX: Final = 65535
_NAME_MAX: Final = 253  # characters of a name that stand in a message
# The token in a body that nobody has read yet. What stands in a text of it has its quotes escaped.
_TOKEN = re.compile(rb'"dataplaneToken"\s*:\s*"(?:[Bb]earer )?([A-Za-z0-9_.-]{1,8192})"')
_TOKENS_MAX: Final = 4
_HEAP_BYTES_MIN: Final = 16 * 1024 * 1024
_INT64_MAX: Final = 2**63 - 1
_SOCKET_PATH_BYTES_MAX: Final = 107  # of a unix socket, on Linux
_SOCKET_LONGEST: Final = "kuma-readiness-reporter.sock"

_TOKEN_REQUIRED: Final = (
    "Dataplane Token is required. Generate token using 'kumactl generate dataplane-token > /path/file' and"  # noqa: S105 - Kuma's words
    " provide it via --dataplane-token-file=/path/file argument to Kuma DP"
)
_ZONE_TOKEN_REQUIRED: Final = (
    "a zone proxy needs a zone token; make one with `koguma token zone --zone ZONE --scope {scope}`, and"  # noqa: S105 - words
    " give it with --dataplane-token-file"
)
DATAPLANE_BYTES_MAX: Final = 64 * 1024
TOO_LARGE: Final = f"is larger than {DATAPLANE_BYTES_MAX} bytes"
TOKEN_FILE_FEATURE: Final = "feature-token-file"  # noqa: S105 - the agent keeps the token in a file for Envoy
NOT_A_CA: Final = (
    "A data plane proxy is trying to verify the control plane using the certificate which is not a"
    " certificate authority (basic constraint 'CA' is set to 'false').\n"
    "Provide CA that was used to sign a certificate used in the control plane by using"
    " 'kuma-dp run --ca-cert-file=file' or via KUMA_CONTROL_PLANE_CA_CERT_FILE"
)


def token_required(request: "ProxyName | None" = None) -> str:
    """The error for a request without a token."""
    proxy_type = request.type if request is not None else None
    if proxy_type is None or not proxy_type.is_of_zone:
        return _TOKEN_REQUIRED
    return _ZONE_TOKEN_REQUIRED.format(scope=proxy_type.scope)


def written_tokens(body: bytes) -> list[str]:
    """What may be the token in a body, found without reading it; one of the first few."""
    return [found[1].decode() for found in islice(_TOKEN.finditer(body), _TOKENS_MAX)]


class ProxyName(Spec):
    """The proxy that a request is about."""

    mesh: str = ""
    name: str = ""
    proxy_type: str = ""

    @property
    def type(self) -> ProxyType | None:
        """The type of the proxy; None where no such proxies are served."""
        return proxy_types.named(self.proxy_type)


class Farewell(ProxyName):
    """A proxy that goes; where it says which run of it, a later one under the same name stays."""

    instance: str = ""


class ControlPlaneAddress(Spec):
    """A control plane that a proxy may use; without a port, on the port of the one that is asked."""

    host: str
    xds_port: int = 0


class BootstrapRequest(ProxyName):
    """What a proxy says about itself."""

    dataplane_token: str = ""
    dataplane_resource: str = ""  # the Dataplane or ZoneEgress that it brings, as JSON or YAML
    version: Mapping[str, Any] = {}
    ca_cert: str = ""  # the CA by which it knows the control plane
    system_ca_path: str = ""
    dns_port: int = 0
    readiness_port: int = 0
    features: tuple[str, ...] = ()
    workdir: str = ""
    ipv6_enabled: bool = False
    dynamic_metadata: Mapping[str, Any] = {}
    metrics_resources: Mapping[str, Any] = {}  # the certificate for who scrapes: certPath, keyPath
    access_log_directories: tuple[str, ...] | None = None  # where Envoy may write; Kuma's agent does not say
    resources: Mapping[str, Any] = {}  # how much memory its Envoy may take: maxHeapSizeBytes
    dataplane_config: Mapping[str, Any] = {}  # how the kernel redirects traffic to Envoy
    control_planes: tuple[ControlPlaneAddress, ...] = ()  # others that it may use; Kuma's agent names none


R = TypeVar("R", bound=ProxyName)


def of(body: bytes, type_: type[R]) -> R:
    """The request in a body; BadRequest where it cannot be read."""
    value = documents.load_json(body)
    if not isinstance(value, dict):
        raise BadRequest(f"the body must be a JSON object, not {json_type(value)}")
    given = {name: part for name, part in value.items() if part is not None}  # Go reads null as absent
    wrong = [violation for violation in _CHECKERS[type_](given) if violation.rule != UNKNOWN]
    if wrong:
        raise BadRequest("the request cannot be read", violations=wrong)
    found: R = read(type_, given)
    # A zone proxy is in no mesh, whatever its agent sends: Kuma's sends the default of a flag.
    is_of_zone = found.type is not None and found.type.is_of_zone
    return msgspec.structs.replace(found, mesh="") if is_of_zone else found


_CHECKERS: Final[Mapping[type[ProxyName], Checker]] = {
    type_: Checker(type_) for type_ in (Farewell, BootstrapRequest)
}


def violations(request: BootstrapRequest) -> Iterator[Violation]:
    """What is wrong with a request that can be read."""
    if not request.name:
        yield Violation("name", "cannot be empty", "required")
    for field, port in (("dnsPort", request.dns_port), ("readinessPort", request.readiness_port)):
        if not 0 <= port <= _PORT_MAX:
            yield Violation(field, f"must be in range [0, {_PORT_MAX}]", "range")
    yield from _address_violations(request.control_planes)
    room = _SOCKET_PATH_BYTES_MAX - len(f"/{_SOCKET_LONGEST}")
    if not request.workdir.startswith("/"):
        yield Violation("workdir", "must be an absolute path: Envoy keeps its sockets there", "path")
    elif len(os.fsencode(request.workdir)) > room:
        text = f"is longer than {room} bytes, so that the path of a socket in it would be too long"
        yield Violation("workdir", text, "length")


def _address_violations(addresses: Sequence[ControlPlaneAddress]) -> Iterator[Violation]:
    if len(addresses) > CONTROL_PLANES_MAX:
        yield Violation("controlPlanes", f"must be at most {CONTROL_PLANES_MAX}", "length")
        return
    for index, each in enumerate(addresses):
        host = certificate_facts.normalized_host(each.host)
        if not certificate_facts.is_address(host) and not names.is_subdomain(host):
            path = f"controlPlanes[{index}].host"
            yield Violation(path, "must be an IP address or a DNS name", "address")
        if not 0 <= each.xds_port <= _PORT_MAX:
            path = f"controlPlanes[{index}].xdsPort"
            yield Violation(path, f"must be in range [0, {_PORT_MAX}]", "range")


def other_control_planes(request: BootstrapRequest, xds_port: int) -> tuple[AdsEndpoint, ...]:
    """The other control planes that a proxy may use."""
    return tuple(
        AdsEndpoint(certificate_facts.normalized_host(each.host), each.xds_port or xds_port)
        for each in request.control_planes
    )


def may_move(request: BootstrapRequest, host: str) -> bool:
    """Whether a proxy may have several control planes: it names more than one, or a name with addresses."""
    is_name = not certificate_facts.is_address(host) and network.is_own_agent(request.features)
    return bool(request.control_planes) or is_name


def unserved(proxy_type: str) -> Violation:
    """What is wrong with a type of proxy that is not served."""
    known = ", ".join(proxy_types.SERVED)
    return Violation("proxyType", f'"{cut(proxy_type, _NAME_MAX)}" is not served; there are {known}', "enum")


def without_mesh(document: Json) -> dict[str, Json]:
    """A zone proxy's object without a mesh; some agents write one all the same."""
    return {name: value for name, value in document.items() if name != "mesh"}


def brought(request: BootstrapRequest) -> dict[str, Json]:
    """The object that a proxy brings, checked to be its own, in full: with type, mesh and name."""
    proxy_type = request.type or proxy_types.SIDECAR
    field, text = "dataplaneResource", request.dataplane_resource
    if len(text) > DATAPLANE_BYTES_MAX:
        raise Invalid([Violation(field, TOO_LARGE, "length")])
    try:
        found = _from_json(text) or [document.value for document in documents.load(text)]
    except documents.BadDocument as error:
        raise Invalid([Violation(field, error.detail, "syntax")]) from None
    if len(found) != 1 or not isinstance(found[0], dict):
        raise Invalid([Violation(field, f"must be one {proxy_type.kind}", "type")])
    wanted = {"type": proxy_type.kind, "name": request.name}
    if proxy_type.is_of_zone:
        document = without_mesh(found[0])
    else:
        document = {"mesh": DEFAULT_MESH, **found[0]}
        wanted["mesh"] = request.mesh
    other = [
        Violation(
            name,
            f'is "{cut(str(document.get(name) or ""), _NAME_MAX)}", and the proxy asked as "{value}"',
            "identity",
        )
        for name, value in wanted.items()
        if document.get(name) != value
    ]
    if other:
        raise Invalid(other)
    return document


def _from_json(text: str) -> list[Json]:
    """The value of a JSON text, which is read much faster than YAML; nothing where it is none."""
    try:
        return [documents.load_json(text.encode())]
    except documents.BadDocument:
        return []


def transparency_violations(request: BootstrapRequest, spec: Json) -> Iterator[Violation]:
    """Outbounds of a proxy to which the kernel redirects everything anyway."""
    networking = spec.get("networking") or {}
    is_transparent = networking.get("transparentProxying") or request.dataplane_config.get("redirect")
    if is_transparent and networking.get("outbound"):
        text = "should be empty since dataplane is in Transparent Proxying mode"
        yield Violation("outbound", text, "exclusive")


def metadata(request: BootstrapRequest, spec: Json, document: Json) -> dict[str, Json]:
    """What an Envoy says of itself on its streams; `document` is the object that registers it, if any."""
    admin, certificate = admin_port(request, spec), request.metrics_resources
    optional: dict[str, Json] = {
        "dataplane.resource": msgspec.json.encode(document).decode() if document else "",
        "dataplane.admin.port": str(admin or ""),
        "dataplane.admin.address": ADMIN_ADDRESS if admin else "",
        "dataplane.dns.port": str(request.dns_port or ""),
        "dataplane.readinessReporter.port": str(request.readiness_port or ""),
        "metricsCertPath": str(certificate.get("certPath") or ""),
        "metricsKeyPath": str(certificate.get("keyPath") or ""),
        "systemCaPath": request.system_ca_path,
        "transparentProxy": dict(request.dataplane_config),
        "dynamicMetadata": dict(request.dynamic_metadata),
    }
    return {
        "dataplane.proxyType": request.proxy_type or proxy_types.SIDECAR.word,
        "workdir": request.workdir,
        "version": dict(request.version),
        "features": list(request.features),
        "ipv6Enabled": request.ipv6_enabled,
        **_log_directories(request),
        **{name: value for name, value in optional.items() if value},
    }


def _log_directories(request: BootstrapRequest) -> dict[str, Json]:
    found = request.access_log_directories
    return {} if found is None else {LOG_DIRECTORIES: list(found)}


def token_file(request: BootstrapRequest) -> str:
    """Where the agent keeps the token for its Envoy; empty where it does not."""
    if TOKEN_FILE_FEATURE not in request.features:
        return ""
    return f"{request.workdir.rstrip('/')}/{TOKEN_FILE}"


def admin_port(request: BootstrapRequest, spec: Json) -> int:
    """The port on which Envoy's admin is asked; 0: none.

    Kuma's agent drains Envoy and reads its metrics through that port, so it always has one (Kuma: 9901 by
    default). Ours uses a socket, and the port is for people who want one.
    """
    said = ((spec.get("networking") or {}).get("admin") or {}).get("port") or 0
    return int(said) if said or network.is_own_agent(request.features) else DEFAULT_ADMIN_PORT


def heap_bytes_max(request: BootstrapRequest) -> int:
    """How much memory a proxy's Envoy may take; 0 where nothing limits it."""
    found = request.resources.get("maxHeapSizeBytes")
    # Below this Envoy could not even start, so it is not what was meant.
    fits = isinstance(found, int) and not isinstance(found, bool) and _HEAP_BYTES_MIN <= found <= _INT64_MAX
    return int(found) if fits and found else 0


def reports_health(request: BootstrapRequest, spec: Json) -> bool:
    """Whether Envoy checks the health of anything.

    Each stream costs the control plane something, so an Envoy with nothing to check opens none. Kuma's agent
    says only by Envoy's own health that it drains.
    """
    if request.type is not None and request.type.is_of_zone:
        return False
    if not network.is_own_agent(request.features):
        return True
    inbounds = (spec.get("networking") or {}).get("inbound") or ()
    return any(inbound.get("serviceProbe") is not None for inbound in inbounds)


def is_builtin_gateway(spec: Json) -> bool:
    """Whether a proxy is a built-in gateway."""
    return ((spec.get("networking") or {}).get("gateway") or {}).get("type") == "BUILTIN"


def service(proxy: Resource) -> str:
    """The name under which an Envoy counts itself: the service of its first port, of a label, or its own.

    Zone proxies are counted by their type, as in Kuma.
    """
    if proxy.kind != proxy_types.SIDECAR.kind:
        return proxy_types.BY_KIND[proxy.kind].word
    networking = proxy.spec.get("networking") or {}
    parts = (*(networking.get("inbound") or ()), networking.get("gateway") or {})
    found = [(part.get("tags") or {}).get(tags.SERVICE) for part in parts]
    found += [proxy.labels.get(tags.SERVICE), proxy.labels.get(labels.WORKLOAD)]
    return next(filter(None, found), proxy.name)


def answer(bootstrap: bytes, spec: Json, warnings: Sequence[str] = ()) -> bytes:
    """The answer that holds a bootstrap; Kuma's proxies pass over what is odd about them."""
    address = (spec.get("networking") or {}).get("address") or ""
    return msgspec.json.encode(
        {
            "bootstrap": base64.b64encode(bootstrap).decode(),
            "kumaSidecarConfiguration": {"networking": {"address": address}, "metrics": {"aggregate": []}},
            **({"warnings": list(warnings)} if warnings else {}),
        }
    )


def san_mismatch(host: str, sans: Sequence[str]) -> str:
    """What to say to a proxy that calls the control plane by a name that its certificate does not have."""
    listed = " ".join(f'"{name}"' for name in sans)
    return (
        f'A data plane proxy is trying to connect to the control plane using "{host}" address, but the'
        f" certificate in the control plane has the following SANs [{listed}]. Either change the"
        " --cp-address in kuma-dp to one of those or give the control plane a certificate for this address;"
        f" it makes one itself when it is started with --hostnames {host}"
    )
