"""The Dataplane of a proxy, or the object of a zone proxy: from flags, or from a file with variables.

Pure: the result is the proxy's name and the Dataplane, in the plain form, that registers it. The control
plane validates the Dataplane; here only contradictions between flags are refused.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from koguma.core import identity
from koguma.identity import proxy_types
from koguma.identity.proxy_types import ProxyType
from koguma.kinds import KINDS
from koguma.model import documents, forms, labels, tags
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.errors import BadRequest, Invalid
from koguma.model.forms import Draft
from koguma.model.kind import Kinds
from koguma.model.schema import Json

LOOPBACK: Final = "127.0.0.1"
LOOPBACK_IPV6: Final = "::1"
DEFAULT_MESH: Final = identity.DEFAULT_MESH

_PORT_MAX: Final = 65535
_VARIABLE: Final = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
_BACKEND_KINDS: Final[Mapping[str, str]] = {
    word: kind.name
    for kind in KINDS
    if kind.name in ("MeshService", "MeshExternalService", "MeshMultiZoneService")
    for word in (kind.short, kind.name.lower())
}


# The flags of the fields of DataplaneFlags.
FLAG_NAMES: Final[Mapping[str, str]] = {
    "name": "--name",
    "mesh": "--mesh",
    "service": "--service",
    "port": "--port",
    "port_name": "--port-name",
    "service_port": "--service-port",
    "service_probe": "--service-probe",
    "protocol": "--protocol",
    "address": "--address",
    "admin_port": "--admin-port",
    "outbounds": "--outbound",
    "tags": "--tag",
    "labels": "--label",
}
# Those that only an ingress has, since only it is called from other zones.
INGRESS_FLAG_NAMES: Final[Mapping[str, str]] = {
    "advertised_address": "--advertised-address",
    "advertised_port": "--advertised-port",
}


class BadDataplane(BadRequest):
    """The flags or the file describe no Dataplane."""


class DataplaneProxy(msgspec.Struct, frozen=True):
    """A proxy and its object; `resource` is None where the control plane has the object already.

    The object is a Dataplane; that of a zone proxy is a ZoneEgress, and is in no mesh.
    """

    mesh: str
    name: str  # the core name
    resource: Json = None
    type: ProxyType = proxy_types.SIDECAR

    @property
    def place(self) -> str:
        """Where it belongs, for people: its mesh, or what it is for its zone."""
        return f"zone {self.type.word}" if self.type.is_of_zone else f"mesh {self.mesh}"

    @property
    def services(self) -> tuple[str, ...]:
        """The services that its Dataplane names, by tags or by a label."""
        own_labels = (self.resource or {}).get("labels") or {}
        tagged = [*(self.networking.get("inbound") or ()), self.networking.get("gateway") or {}]
        services = {(part.get("tags") or {}).get(tags.SERVICE) for part in tagged}
        services.add(own_labels.get(tags.SERVICE))
        return tuple(sorted(service for service in services if service))

    @property
    def networking(self) -> Mapping[str, Json]:
        """The Dataplane's `networking`; empty where the Dataplane is not known here."""
        networking = self.resource.get("networking") if self.resource else None
        return networking if isinstance(networking, dict) else {}

    def as_instance(self, instance: str) -> "DataplaneProxy":
        """The same proxy with a label for this run of it, by which a later run of the same name differs."""
        if self.resource is None:
            return self
        own_labels = {**(self.resource.get("labels") or {}), labels.INSTANCE: instance}
        return msgspec.structs.replace(self, resource={**self.resource, "labels": own_labels})

    def parameters(self, instance: str) -> dict[str, str]:
        """What names it, and this run of it, in requests to the control plane."""
        return {
            "mesh": self.mesh,
            "name": self.name,
            "proxyType": self.type.word,
            "instance": instance,
        }

    @property
    def accepts_traffic(self) -> bool:
        """Whether other proxies may send requests to it, as far as its Dataplane is known here."""
        return (
            self.resource is None
            or self.type.is_of_zone
            or any(self.networking.get(part) for part in ("inbound", "gateway", "listeners"))
        )

    @property
    def is_builtin_gateway(self) -> bool:
        """Whether it is a built-in gateway, as far as its Dataplane is known here."""
        return (self.networking.get("gateway") or {}).get("type") == "BUILTIN"

    @property
    def is_transparent(self) -> bool:
        """Whether the kernel redirects its service's traffic, as far as its Dataplane is known here."""
        return bool(self.networking.get("transparentProxying"))

    @property
    def may_be_transparent(self) -> bool:
        """The same, but also true for a Dataplane that is not known here."""
        return not self.type.is_of_zone and (self.resource is None or self.is_transparent)


class Outbound(msgspec.Struct, frozen=True):
    """A service that is reached through a local port; `port` 0: the service's only port."""

    kind: str
    name: str
    port: int
    local_port: int

    @property
    def document(self) -> dict[str, Json]:
        """The entry of `networking.outbound`."""
        if self.kind == "MeshService" and not self.port:
            return {"port": self.local_port, "tags": {tags.SERVICE: self.name}}
        ref: dict[str, Json] = {"kind": self.kind, "name": self.name}
        if self.port:
            ref["port"] = self.port
        return {"port": self.local_port, "backendRef": ref}


class DataplaneFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The flags that describe a Dataplane."""

    name: str
    mesh: str = DEFAULT_MESH
    service: str = ""
    port: int = 0
    port_name: str = ""
    service_port: int = 0
    service_probe: bool = False  # whether the proxy checks that the service takes connections
    protocol: str = ""
    address: str = ""
    admin_port: int = 0
    tags: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    outbounds: Sequence[Outbound] = ()
    is_redirected: bool = False  # the kernel redirects inbound traffic of the service to the proxy


def outbound(text: str) -> Outbound:
    """The outbound that a text such as `backend:9001` or `backend:80:9001` describes."""
    kind_word, slash, rest = text.rpartition("/")
    name, *numbers = rest.split(":")
    kind = _BACKEND_KINDS.get(kind_word.lower()) if slash else "MeshService"
    if not name or len(numbers) not in (1, 2) or not all(_is_port(number) for number in numbers):
        raise BadDataplane(
            f"must be NAME:LOCALPORT or NAME:SERVICEPORT:LOCALPORT, with ports from 1 to {_PORT_MAX}"
        )
    if kind is None:
        known = ", ".join(sorted(_BACKEND_KINDS))
        raise BadDataplane(f'begins with "{kind_word}", which is no kind of service; there are {known}')
    parsed = Outbound(kind, name, int(numbers[0]) if len(numbers) > 1 else 0, int(numbers[-1]))
    if kind == "MeshMultiZoneService" and not parsed.port:
        raise BadDataplane(f"needs the port of the {kind} too: NAME:SERVICEPORT:LOCALPORT")
    return parsed


def _is_port(text: str) -> bool:
    return (
        text.isascii() and text.isdigit() and len(text) <= len(str(_PORT_MAX)) and 0 < int(text) <= _PORT_MAX
    )


def from_flags(flags: DataplaneFlags) -> DataplaneProxy:
    """The proxy that flags describe; without a service, one whose Dataplane is stored already."""
    if not flags.service:
        _refuse_flags_without_service(flags)
        return DataplaneProxy(flags.mesh, flags.name)
    networking: dict[str, Json] = {"address": flags.address or LOOPBACK, **admin(flags.admin_port)}
    own_labels = dict(flags.labels)
    if flags.port:
        networking["inbound"] = [_inbound(flags)]
    else:
        _refuse_flags_without_port(flags)
        own_labels = {labels.WORKLOAD: flags.service, tags.SERVICE: flags.service, **own_labels}
    if flags.outbounds:
        networking["outbound"] = [outbound.document for outbound in flags.outbounds]
    return described(flags.mesh, flags.name, own_labels, {"networking": networking})


def admin(port: int) -> dict[str, Json]:
    """The admin port in `networking`; nothing without one."""
    return {"admin": {"port": port}} if port else {}


def redirected(proxy: DataplaneProxy, inbound_port: int, outbound_port: int) -> DataplaneProxy:
    """The same proxy with `transparentProxying`; ports that its Dataplane sets itself stay."""
    if proxy.resource is None:
        raise BadDataplane(
            "--transparent-proxy is about a Dataplane that is given here; a stored one has its own"
            " networking.transparentProxying, and needs only --dns"
        )
    if proxy.networking.get("outbound"):
        raise BadDataplane(
            "with --transparent-proxy services are called by their names and addresses, so there are no"
            " outbounds: leave out --outbound, or networking.outbound"
        )
    ports = {"redirectPortInbound": inbound_port, "redirectPortOutbound": outbound_port}
    own = proxy.networking.get("transparentProxying") or {}
    networking = {**proxy.networking, "transparentProxying": {**ports, **own}}
    return msgspec.structs.replace(proxy, resource={**proxy.resource, "networking": networking})


def _inbound(flags: DataplaneFlags) -> Json:
    """The inbound. Its port may equal the service's own port only where their addresses differ."""
    inbound: dict[str, Json] = {"port": flags.port}
    if flags.port_name:
        inbound["name"] = flags.port_name
    if flags.service_port and not (flags.is_redirected and flags.service_port == flags.port):
        inbound["servicePort"] = flags.service_port
    is_local = (flags.address or LOOPBACK) == LOOPBACK
    if is_local and flags.is_redirected:
        raise BadDataplane(
            "what arrives at another address than the proxy's is not known to it; say with --address by which"
            " address of this machine others reach the service"
        )
    if is_local and flags.service_port in (0, flags.port):
        raise BadDataplane(
            f"the proxy listens on {LOOPBACK}:{flags.port} itself; say with --service-port where the service"
            " listens, or with --address by which address others reach the proxy"
        )
    if not is_local and not flags.is_redirected:
        inbound["serviceAddress"] = LOOPBACK
    if flags.service_probe:
        inbound["serviceProbe"] = {"tcp": {}}
    protocol = {tags.PROTOCOL: flags.protocol} if flags.protocol else {}
    inbound["tags"] = {tags.SERVICE: flags.service, **protocol, **flags.tags}
    return inbound


def _refuse_flags_without_service(flags: DataplaneFlags) -> None:
    names = _set_flags(flags, *(name for name in FLAG_NAMES if name not in ("name", "mesh", "service")))
    if names:
        raise BadDataplane(
            f"{names} describes a new Dataplane: name its service with --service, or give the whole with"
            " --dataplane-file"
        )


def _refuse_flags_without_port(flags: DataplaneFlags) -> None:
    names = _set_flags(flags, "port_name", "service_port", "service_probe", "protocol", "tags")
    if names:
        raise BadDataplane(f"{names} describes a port that the service serves: name it with --port")


def _set_flags(flags: DataplaneFlags, *fields: str) -> str:
    """The names of those flags that are set, for people."""
    return ", ".join(FLAG_NAMES[field] for field in fields if getattr(flags, field))


def from_file(
    text: str, variables: Mapping[str, str], source: str, proxy_type: ProxyType = proxy_types.SIDECAR
) -> DataplaneProxy:
    """The proxy whose object a file describes, in Kuma's plain or in the Kubernetes form."""
    kind, objects = proxy_type.kind, documents.load(rendered(text, variables, source), source)
    if len(objects) != 1:
        raise BadDataplane(f"{source}: must hold one {kind}; there are {len(objects)} objects in it")
    try:
        draft = forms.read(_with_mesh_label(objects[0].value), Kinds(KINDS))
    except Invalid as error:
        raise BadDataplane(f"{source}: {error}") from None
    except BadRequest as error:
        raise BadDataplane(f"{source}: {error.detail}") from None
    if draft.unknown:
        raise BadDataplane(f"{source}: " + "; ".join(f"{v.field}: {v.message}" for v in draft.unknown))
    if draft.kind.name != kind:
        of_other = proxy_types.BY_KIND.get(draft.kind.name)
        hint = f"; it is for --proxy-type {of_other.word}" if of_other else ""
        raise BadDataplane(f"{source}: must hold a {kind}, not a {draft.kind.name}{hint}")
    if not draft.name:
        raise BadDataplane(f"{source}: the {kind} needs a name")
    return _from_draft(draft, proxy_type)


def _with_mesh_label(document: Json) -> Json:
    """Kuma's Kubernetes form may name the mesh at the top level; it becomes the label that we read."""
    if not isinstance(document, dict) or "apiVersion" not in document or "mesh" not in document:
        return document
    rest = {name: value for name, value in document.items() if name != "mesh"}
    metadata = rest.get("metadata")
    if isinstance(metadata, dict):
        own_labels = {labels.MESH: document["mesh"], **(metadata.get("labels") or {})}
        rest["metadata"] = {**metadata, "labels": own_labels}
    return rest


def _from_draft(draft: Draft, proxy_type: ProxyType) -> DataplaneProxy:
    identified = identity.of(draft, ControlPlaneInfo())
    own_labels = dict(draft.labels)
    if identified.key.namespace:
        own_labels[labels.NAMESPACE] = identified.key.namespace
    if proxy_type.is_of_zone:
        own = {"labels": dict(sorted(own_labels.items()))} if own_labels else {}
        resource = {"type": proxy_type.kind, "name": identified.core_name, **own, **draft.spec}
        return DataplaneProxy("", identified.core_name, resource, proxy_type)
    return described(identified.key.mesh, identified.core_name, own_labels, draft.spec)


def rendered(text: str, variables: Mapping[str, str], source: str) -> str:
    """The text with each `{{ name }}` replaced; one error names all variables without a value."""
    missing = sorted({name for name in _VARIABLE.findall(text) if name not in variables})
    if missing:
        flags = " ".join(f"--dataplane-var {name}=..." for name in missing)
        raise BadDataplane(f"{source}: has variables without a value; give {flags}")
    return _VARIABLE.sub(lambda match: variables[match[1]], text)


def described(mesh: str, name: str, own_labels: Mapping[str, str], spec: Json) -> DataplaneProxy:
    """A proxy that brings its Dataplane."""
    resource: dict[str, Json] = {"type": "Dataplane", "mesh": mesh, "name": name}
    if own_labels:
        resource["labels"] = dict(sorted(own_labels.items()))
    return DataplaneProxy(mesh, name, {**resource, **spec})
