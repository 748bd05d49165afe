"""Columns: what tables show of an object beside its name, its mesh and its age.

Each function reads a spec and a status that may be of any shape: what it cannot read makes an empty cell,
since whoever calls it catches what goes wrong.
"""

import base64
import binascii
from collections.abc import Callable, Iterable
from typing import Final

from koguma.model import tags
from koguma.model.kind import Column
from koguma.model.schema import Json


def reference(ref: Json) -> str:
    """A reference in short form: `Mesh`, `MeshService/backend:http`, `Dataplane{app=web}`."""
    chosen = ref.get("labels") or ref.get("tags") or {}
    named = f"/{ref['name']}" if ref.get("name") else ""
    selected = f"{{{_joined(f'{name}={value}' for name, value in chosen.items())}}}" if chosen else ""
    section = f":{ref['sectionName']}" if ref.get("sectionName") else ""
    return f"{ref['kind']}{named}{selected}{section}"


def target(spec: Json, _status: Json) -> str:
    """The proxies that a policy acts on."""
    return reference(spec.get("targetRef") or {"kind": "Mesh"})


def count(title: str, *fields: str, doc: str = "") -> Column:
    """How many entries some lists of a spec have together; a dot leads into a field."""

    def value(spec: Json, _status: Json) -> int:
        return sum(len(_inside(spec, field) or ()) for field in fields)

    return Column(title, value, doc)


def text(title: str, field: str, default: str = "", doc: str = "") -> Column:
    """A field of a spec as it is; a dot leads into a field."""

    def value(spec: Json, _status: Json) -> str:
        found = _inside(spec, field)
        return default if found is None or found == "" else str(found)

    return Column(title, value, doc)


def _inside(value: Json, path: str) -> Json:
    for name in path.split("."):
        value = (value or {}).get(name)
    return value


def _joined(words: Iterable[str]) -> str:
    return ",".join(words)


def _destinations(spec: Json, _status: Json) -> str:
    return _joined(reference(entry["targetRef"]) for entry in spec.get("to") or ())


def _route_rules(spec: Json, _status: Json) -> int:
    return sum(len(entry.get("rules") or ()) for entry in spec.get("to") or ())


def _backends(spec: Json, _status: Json) -> str:
    return _joined(backend["type"] for backend in _inside(spec, "default.backends") or ())


TARGET: Final = Column("Target", target, "The proxies that it acts on.")
TO: Final = count("To", "to", doc="How many destinations it speaks of.")
RULES: Final = count("Rules", "rules", "from", doc="How many rules it has for calls that arrive.")

# Policies by which lists they have.
OUTBOUND: Final = (TARGET, TO)
INBOUND: Final = (TARGET, RULES)
BOTH_WAYS: Final = (TARGET, TO, RULES)
ROUTE: Final = (
    TARGET,
    Column("Destinations", _destinations, "Where the calls were going."),
    Column("Rules", _route_rules, "How many rules it has, for all destinations."),
)
GATEWAY_ROUTE: Final = (
    TARGET,
    Column("Hostnames", lambda spec, _status: _joined(spec.get("hostnames") or ("*",)), "Which hosts."),
    count("Rules", "rules", doc="How many rules it has."),
)
WITH_BACKENDS: Final = (TARGET, Column("Backends", _backends, "Where the data goes."))
PASSTHROUGH: Final = (TARGET, text("Mode", "default.passthroughMode", "Matched", doc="What passes."))
PATCH: Final = (
    TARGET,
    count("Modifications", "default.appendModifications", doc="How many changes it makes."),
)


def _port_names(spec: Json, _status: Json) -> str:
    return _joined(f"{port.get('name') or port['port']}:{port['port']}" for port in spec["ports"])


def _vips(_spec: Json, status: Json) -> str:
    vips = status.get("vips") or ([status["vip"]] if status.get("vip") else [])
    return _joined(vip["ip"] for vip in vips)


def _ready(_spec: Json, status: Json) -> str:
    proxies = status["dataplaneProxies"]
    return f"{proxies.get('healthy', 0)}/{proxies.get('total', 0)}"


_PORTS: Final = Column("Ports", _port_names, "Names and numbers of its ports.")
_VIPS: Final = Column("VIPs", _vips, "Its virtual addresses.")
_READY: Final = Column("Ready", _ready, "Healthy proxies, of all that it has.")

MESH_SERVICE: Final = (_PORTS, _VIPS, text("State", "state", doc="Whether any proxy is healthy."), _READY)
MESH_MULTI_ZONE_SERVICE: Final = (
    _PORTS,
    _VIPS,
    Column("Services", lambda _spec, status: len(status["meshServices"]), "How many services it stands for."),
)
WORKLOAD: Final = (_READY,)


def _matches(spec: Json, _status: Json) -> str:
    match = spec["match"]
    if isinstance(match, dict):  # the shape that Kuma released has one, without a name
        return f"{match.get('protocol') or 'tcp'}:{match['port']}"
    return _joined(f"{entry['value']}:{entry['port']}" for entry in match)


def _endpoints(spec: Json, _status: Json) -> str:
    endpoints = spec.get("endpoints") or _inside(spec, "destination.endpoints")
    if not endpoints:
        return str(_inside(spec, "destination.type") or "Passthrough")
    return _joined(
        f"{endpoint['address']}:{endpoint['port']}" if endpoint.get("port") else endpoint["address"]
        for endpoint in endpoints
    )


MESH_EXTERNAL_SERVICE: Final = (
    Column("Match", _matches, "Which calls are meant."),
    Column("Endpoints", _endpoints, "Where they go."),
    Column("VIP", _vips, "Its virtual addresses."),
)


def _inbound_services(spec: Json, _status: Json) -> str:
    inbounds = spec["networking"].get("inbound") or ()
    gateway = spec["networking"].get("gateway") or {}
    named = [(inbound.get("tags") or {}).get(tags.SERVICE) for inbound in (*inbounds, gateway)]
    return _joined(dict.fromkeys(name for name in named if name))


def _inbounds(spec: Json, _status: Json) -> str:
    return _joined(
        f"{inbound.get('name') or inbound['port']}:{inbound['port']}"
        for inbound in spec["networking"].get("inbound") or ()
    )


def ready_inbounds(spec: Json, _status: Json = None) -> str:
    """How many inbounds of a proxy take calls, of all that are not ignored; empty where it has none."""
    inbounds = spec["networking"].get("inbound") or ()
    states = [_takes_calls(inbound) for inbound in inbounds if inbound.get("state") != "Ignored"]
    return f"{sum(states)}/{len(states)}" if states else ""


def _takes_calls(inbound: Json) -> bool:
    return inbound.get("state") != "NotReady" and (inbound.get("health") or {}).get("ready") is not False


ADDRESS: Final = text("Address", "networking.address", doc="Address on which it listens.")
DATAPLANE: Final = (
    ADDRESS,
    Column("Services", _inbound_services, "The services that it is, by their tags."),
    Column("Ready", ready_inbounds, "Inbounds that take calls, of all that it has."),
    Column("Inbounds", _inbounds, "Names and numbers of its ports.", is_wide=True),
)
ZONE_PROXY: Final = (ADDRESS,)


def _listeners(spec: Json, _status: Json) -> str:
    return _joined(f"{listener['protocol']}:{listener['port']}" for listener in spec["conf"]["listeners"])


def _size(spec: Json, _status: Json) -> str:
    try:
        return f"{len(base64.b64decode(spec.get('data') or '', validate=True))}B"
    except binascii.Error:
        return "not base64"


def _collector(spec: Json, _status: Json) -> str:
    endpoint = spec["endpoint"]
    return f"{endpoint['address']}:{endpoint['port']}" if endpoint.get("port") else str(endpoint["address"])


def _enabled(spec: Json, _status: Json) -> str:
    return "false" if spec.get("enabled") is False else "true"


MESH: Final = (
    text("mTLS", "mtls.enabledBackend", "off", doc="The backend that issues certificates, or off."),
    text("MeshServices", "meshServices.mode", "Everywhere", doc="How services appear."),
)
ZONE: Final = (Column("Enabled", _enabled, "Whether other zones see its services."),)
HOSTNAME_GENERATOR: Final = (text("Template", "template", doc="The shape of the names."),)
SECRET: Final = (Column("Size", _size, "How many bytes the payload has."),)
MESH_GATEWAY: Final = (Column("Listeners", _listeners, "Protocols and ports."),)
MESH_IDENTITY: Final = (text("Provider", "provider.type", doc="Who issues the certificates."),)
MESH_TRUST: Final = (
    text("Domain", "trustDomain", doc="The trust domain."),
    count("CAs", "caBundles", doc="How many CAs it has."),
)
MESH_ZONE_ADDRESS: Final = (
    text("Address", "address", doc="What other zones call."),
    text("Port", "port", doc="The port that they call."),
)
MESH_OPEN_TELEMETRY_BACKEND: Final = (
    Column("Endpoint", _collector, "Where the collector is."),
    text("Protocol", "protocol", "grpc", doc="How it is spoken to."),
)


def _is_open(subscription: Json) -> bool:
    return bool(subscription.get("connectTime")) and not subscription.get("disconnectTime")


def _online(spec: Json, _status: Json) -> str:
    return "Online" if any(map(_is_open, spec.get("subscriptions") or ())) else "Offline"


def _control_planes(spec: Json, _status: Json) -> str:
    """The control planes that a proxy, or the zones' one, is connected to."""
    subscriptions = filter(_is_open, spec.get("subscriptions") or ())
    return _joined(
        each.get("controlPlaneInstanceId") or each.get("zoneInstanceId") or "" for each in subscriptions
    )


def _responses(name: str) -> Callable[[Json, Json], int]:
    """A number of responses over the last connection."""
    return lambda spec, _status: int((spec["subscriptions"][-1]["status"].get("total") or {}).get(name) or 0)


def _envoy_version(spec: Json, _status: Json) -> str:
    return str(spec["subscriptions"][-1]["version"]["envoy"]["version"])


def _certificate_end(spec: Json, _status: Json) -> str:
    return str(spec["mTLS"]["certificateExpirationTime"])


def _online_proxies(spec: Json, _status: Json) -> str:
    proxies = spec.get("dataplanes") or {}
    return f"{proxies.get('online', 0)}/{proxies.get('total', 0)}"


CONNECTED: Final = (
    Column("Status", _online, "Whether it is connected now."),
    Column("Control Plane", _control_planes, "The control planes that it is connected to."),
)
PROXY_INSIGHT: Final = (
    *CONNECTED,
    Column("Sent", _responses("responsesSent"), "Configurations that it was sent over its last connection."),
    Column("Refused", _responses("responsesRejected"), "How many of them it refused."),
    Column("Envoy", _envoy_version, "Version of Envoy.", is_wide=True),
    Column("Certificate Expires", _certificate_end, "When its certificate expires.", is_wide=True),
)
_ONLINE: Final = Column("Online", _online_proxies, "Proxies that are online, of all.")
MESH_INSIGHT: Final = (
    _ONLINE,
    Column(
        "Services",
        lambda spec, _status: (spec.get("services") or {}).get("total", 0),
        "Services that it has.",
    ),
)
SERVICE_INSIGHT: Final = (
    text("Status", "status", doc="Its state."),
    _ONLINE,
    text("Type", "serviceType", "internal", doc="What it is."),
)
# Of the insight kinds, whose plain form has the fields of the spec at its top.
INSIGHTS: Final = {
    "DataplaneInsight": PROXY_INSIGHT,
    "ZoneIngressInsight": PROXY_INSIGHT,
    "ZoneEgressInsight": PROXY_INSIGHT,
    "ZoneInsight": CONNECTED,
    "MeshInsight": MESH_INSIGHT,
    "ServiceInsight": SERVICE_INSIGHT,
}
