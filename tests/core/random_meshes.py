"""Meshes at random: objects that come, change and go, few enough that they meet, and proxies that connect.

Drawn with Random and not with strategies, which favour small meshes; in those nothing goes wrong. Every
policy takes part: those below in many forms, all others as their manuals show them.
"""

import base64
import re
from random import Random
from typing import Any

from building import KINDS as ALL
from building import stored
from random_gateway_api import GATEWAY_API, GATEWAY_SERVICES, SERVICES

from koguma.core.build.network import NodeMetadata
from koguma.model import documents
from koguma.model.errors import Invalid
from koguma.model.resource import Key, Resource
from tests import tls_certificates

PROXIES = ("p1", "p2", "p3")
EGRESSES = ("e1", "e2")
INGRESSES = ("i1", "i2")
OTHER = "other"  # a mesh that calls gateways of the first one, and has some itself
OFTEN = ("Dataplane", "MeshService") * 4
PROTOCOLS = ("http", "tcp", "grpc", "http2")


def resource(random: Random, kind: str = "") -> Resource | None:
    """Some object, of that kind if it is given; None for one that would be refused, as users' are."""
    if not kind and random.random() < 0.15:
        return random.choice(SHOWN)
    kind = kind or random.choice((*KINDS, *OFTEN, *GATEWAY_API))
    if kind in GATEWAY_API:
        return GATEWAY_API[kind](random)
    try:
        return stored({"type": kind, **KINDS[kind](random)})
    except Invalid:
        return None


def gateway_api_route(random: Random) -> Resource | None:
    return resource(random, random.choice(["HTTPRoute", "HTTPRoute", "GRPCRoute", "TCPRoute", "TLSRoute"]))


def node_metadata(random: Random) -> NodeMetadata:
    """What a proxy may say of itself."""
    possible = ("feature-bind-outbounds", "feature-embedded-dns")
    features = tuple(each for each in possible if random.random() < 0.7)
    return NodeMetadata(
        features, random.choice(["", "/w"]), random.choice([0, 9901]), random.choice([0, 15053])
    )


def proxy_key(random: Random) -> Key:
    if random.random() < 0.3:
        kind, names = random.choice([("ZoneEgress", EGRESSES), ("ZoneIngress", INGRESSES)])
        return Key(kind, "", "east", "", random.choice(names))
    mesh = random.choice(["default"] * 4 + [OTHER])
    return Key("Dataplane", mesh, "east", "", random.choice(PROXIES))


def _named(name: str, **more: Any) -> dict[str, Any]:
    return {"mesh": "default", "name": name, **more}


def _mesh(random: Random) -> dict[str, Any]:
    mode, name = random.choice(["", "", "STRICT", "PERMISSIVE"]), random.choice(["default", "default", OTHER])
    backends = [{"name": "ca", "type": "builtin", "mode": mode}]
    if not mode:
        return {"name": name}
    forbids = {"defaultForbidMeshExternalServiceAccess": random.random() < 0.2}
    routing = {"zoneEgress": random.choice([True, False]), **forbids}
    return {"name": name, "mtls": {"enabledBackend": "ca", "backends": backends}, "routing": routing}


def _egress(random: Random) -> dict[str, Any]:
    networking = {"address": random.choice(["10.0.0.8", "10.0.0.9"]), "port": random.choice([10002, 10003])}
    zone, labels = random.choice(["east", "east", "west"]), {"team": random.choice(["x", "y"])}
    return {"name": random.choice(EGRESSES), "labels": labels, "networking": networking, "x-zone": zone}


def _ingress(random: Random) -> dict[str, Any]:
    networking: dict[str, Any] = {"address": random.choice(["10.0.0.8", "10.0.0.9"]), "port": 10001}
    if random.random() < 0.8:
        advertised = random.choice(["192.0.2.1", "192.0.2.2", "ingress.example.com"])
        networking |= {"advertisedAddress": advertised, "advertisedPort": random.choice([443, 444])}
    zone = random.choice(["east", "west"])
    return {"name": random.choice(INGRESSES), "networking": networking, "x-zone": zone}


def _dataplane(random: Random) -> dict[str, Any]:
    if random.random() < 0.25:
        return _gateway_dataplane(random)
    inbounds = [_inbound(random, 8080 + number) for number in range(random.randint(1, 2))]
    networking: dict[str, Any] = {"address": f"10.0.0.{random.randint(1, 9)}", "inbound": inbounds}
    if random.random() < 0.5:
        networking["outbound"] = [
            {"port": 9000 + number, "backendRef": _ref(random) | {"port": random.choice([80, 81])}}
            for number in range(random.randint(1, 3))
        ]
    if random.random() < 0.4:
        networking["transparentProxying"] = {"redirectPortInbound": 15006, "redirectPortOutbound": 15001}
    zone = random.choice(["east", "east", "east", "west"])
    labels = {"team": random.choice(["x", "y"])}
    return _named(random.choice(PROXIES), labels=labels, networking=networking, **{"x-zone": zone})


def _gateway_dataplane(random: Random) -> dict[str, Any]:
    service = random.choice(["edge", "edge", "a", *GATEWAY_SERVICES])
    tags = {"kuma.io/service": service, "team": random.choice(["x", "y"])}
    networking = {"address": f"10.0.0.{random.randint(1, 9)}", "gateway": {"type": "BUILTIN", "tags": tags}}
    mesh = random.choice(["default", "default", OTHER])
    return _named(random.choice(PROXIES), networking=networking) | {"mesh": mesh}


HOSTNAMES = ("*", "*.lan", "a.lan", "*.a.lan", "b.a.lan", "a.org")


def _mesh_gateway(random: Random) -> dict[str, Any]:
    listeners = []
    for port in random.sample([8080, 8443, 8444, 8445], random.randint(1, 3)):
        protocol = random.choice(["HTTP", "HTTP", "HTTPS", "TCP", "TLS"])
        is_cross_mesh = random.random() < 0.3
        for hostname in random.sample(HOSTNAMES, random.randint(1, 3)):
            listener: dict[str, Any] = {"port": port, "protocol": protocol, "hostname": hostname}
            if protocol == "HTTPS" or (protocol == "TLS" and random.random() < 0.5):
                listener["tls"] = {
                    "mode": "TERMINATE",
                    "certificates": [{"secret": random.choice(["tls", "tls", "aws"])}],
                }
            elif protocol == "TLS":
                listener["tls"] = {"mode": "PASSTHROUGH"}
            elif protocol == "HTTP" and random.random() < 0.4:
                listener["crossMesh"] = True
            if random.random() < 0.3:
                listener["name"] = f"l{len(listeners)}"
            if is_cross_mesh and protocol in ("HTTP", "TCP"):
                listener["crossMesh"] = True
            listeners.append({**listener, "tags": {"side": random.choice(["in", "out"])}})
    selector = {"kuma.io/service": "edge", **random.choice([{}, {"team": "x"}])}
    conf = {"selectors": [{"match": selector}], "conf": {"listeners": listeners}}
    mesh = random.choice(["default", OTHER])
    return _named(random.choice(["edge", "edge", "other"]), **conf) | {"mesh": mesh}


def _gateway_top(random: Random) -> dict[str, Any]:
    narrowed = [
        {},
        {},
        {"sectionName": random.choice(["8080", "8443", "l0", "l1"])},
        {"tags": {"side": "in"}},
    ]
    return {"targetRef": {"kind": "MeshGateway", "name": "edge", **random.choice(narrowed)}}


def _gateway_rules(random: Random) -> list[dict[str, Any]]:
    path = {"type": random.choice(["PathPrefix", "Exact"]), "value": random.choice(["/", "/x", "/y"])}
    conf = _backends(random)
    if not conf:
        redirect = {"scheme": random.choice(["http", "https"]), "statusCode": 301}
        conf = {"filters": [{"type": "RequestRedirect", "requestRedirect": redirect}]}
    return [{"matches": [{"path": path}], "default": conf}]


def _gateway_route(random: Random) -> dict[str, Any]:
    hostnames = random.sample(HOSTNAMES, random.randint(0, 2))
    spec = {**_gateway_top(random), "hostnames": hostnames, "rules": _gateway_rules(random)}
    return _named(random.choice(["g1", "g2"]), spec=spec)


def _inbound(random: Random, port: int) -> dict[str, Any]:
    own = {
        "kuma.io/service": random.choice(SERVICES),
        "kuma.io/protocol": random.choice(PROTOCOLS),
        "version": random.choice(["v1", "v2"]),
    }
    return {"port": port, "state": random.choice(["Ready", "Ready", "NotReady", "Ignored"]), "tags": own}


def _ref(random: Random) -> dict[str, Any]:
    kind = random.choice(["MeshService"] * 4 + ["MeshMultiZoneService", "MeshExternalService"])
    outside = ("a.org", "internal.edge.other.mesh") if kind == "MeshExternalService" else ()
    return {"kind": kind, "name": random.choice((*SERVICES, "nobody", *outside))}


def _status(random: Random, first: int) -> Any:
    vips = [{"ip": f"24{first}.0.0.{random.randint(1, 4)}"}] if random.random() < 0.8 else []
    return {"vips": vips, "tls": {"status": random.choice(["Ready", "NotReady"])}}


def _ports(random: Random) -> list[dict[str, Any]]:
    return [
        {
            "port": port,
            "targetPort": random.choice([8080, 8081, "http"]),
            "appProtocol": random.choice(PROTOCOLS),
        }
        for port in random.choice([[80], [80], [80, 81]])
    ]


def _service(random: Random) -> dict[str, Any]:
    name = random.choice(SERVICES)
    selector = random.choice(
        [{"dataplaneTags": {"kuma.io/service": name}}] * 4
        + [{"dataplaneLabels": {"matchLabels": {"team": "x"}}}, {"dataplaneRef": {"name": "p1"}}]
    )
    spec = {"selector": selector, "ports": _ports(random)}
    zone = random.choice(["east", "east", "west"])
    labels = {"app": random.choice(["x", "y"])}
    return _named(name, labels=labels, spec=spec, status=_status(random, 1), **{"x-zone": zone})


def _multi_zone_service(random: Random) -> dict[str, Any]:
    chosen = {"meshService": {"matchLabels": {"app": random.choice(["x", "y"])}}}
    ports = [{"port": 80, "appProtocol": random.choice(PROTOCOLS)}]
    spec = {"selector": chosen, "ports": ports}
    return _named(random.choice(SERVICES), spec=spec, status=_status(random, 3), **{"x-zone": ""})


def _external_service(random: Random) -> dict[str, Any]:
    spec = _matching_spec(random) if random.random() < 0.5 else _released_spec(random)
    if random.random() < 0.4:
        spec = _extended_spec(random)
    # The last is the name of a gateway's listener, too.
    return _named(random.choice((*SERVICES, *SERVICES, "a.org")), spec=spec, status=_status(random, 2))


def _matching_spec(random: Random) -> dict[str, Any]:
    possible = [
        {"type": "InternalVIP", "value": "a.ext.test", "port": 80, "protocol": "http"},
        {"type": "Domain", "value": "a.test", "port": 80, "protocol": "http"},
        {"type": "Domain", "value": "b.a.test", "port": 80, "protocol": "grpc"},
        {"type": "Domain", "value": "*.a.test", "port": 443, "protocol": "tls"},
        {"type": "Domain", "value": "c.test", "port": 81, "protocol": "tcp"},
        {"type": "IP", "value": "10.1.2.3", "port": 80, "protocol": "http"},
        {"type": "IP", "value": "fd00::1", "port": 443, "protocol": "tls"},
        {"type": "CIDR", "value": "10.1.0.0/16", "port": 81, "protocol": "tcp"},
        {"type": "CIDR", "value": "10.0.0.0/8", "port": 80, "protocol": "http2"},
    ]
    spec: dict[str, Any] = {"match": random.sample(possible, random.randint(1, 4))}
    if random.random() < 0.6:
        endpoint = {"address": random.choice(["1.1.1.1", "a.com", "unix:///run/a.sock"])}
        spec["destination"] = {"type": "Regular", "endpoints": [endpoint]}
    return spec


def _released_spec(random: Random) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "match": {"type": "HostnameGenerator", "port": 80, "protocol": random.choice(["http", "tcp"])},
        "endpoints": [{"address": random.choice(["1.1.1.1", "a.com"]), "port": 80}],
    }
    if random.random() < 0.3:
        source = {"type": "Secret", "secretRef": {"kind": "Secret", "name": "ca"}}
        spec["tls"] = {"enabled": True, "verification": {"caCert": source}}
    return spec


def _extended_spec(random: Random) -> dict[str, Any]:
    """A service that leads to a plugin: one that is there, that fails, or that is not installed."""
    arn = "arn:aws:lambda:us-west-2:123456789012:function:f"
    config = random.choice(
        [
            {"type": "Lambda", "config": {"arn": arn, "payloadPassthrough": random.random() < 0.5}},
            {"type": "Lambda", "config": {"arn": arn, "credentials": {"secret": "aws"}}},
            {"type": "Keyed", "config": {"key": {"secret": "aws"}}},
            {"type": "Keyed", "config": {"fails": random.random() < 0.5}},
            {"type": "NotInstalled", "config": {"anything": [1]}},
        ]
    )
    protocol = random.choice(["http", "http2"])
    if random.random() < 0.5:
        return {"match": {"port": 80, "protocol": protocol}, "extension": config}
    match = {"type": "InternalVIP", "value": "a.ext.test", "port": 80, "protocol": protocol}
    return {"match": [match], "destination": {"type": "Extension", "extension": config}}


def _generator(random: Random) -> dict[str, Any]:
    template = random.choice(["{{ .DisplayName }}.mesh", "{{ .Name }}.{{ .Zone }}.mesh"])
    return {"name": "it", "spec": {"selector": {"meshService": {"matchLabels": {}}}, "template": template}}


def _top(random: Random) -> dict[str, Any]:
    refs = [
        {},
        {},
        {"targetRef": {"kind": "Dataplane", "labels": {"team": random.choice(["x", "y"])}}},
        {"targetRef": {"kind": "Dataplane", "name": random.choice(PROXIES)}},
    ]
    return random.choice(refs)


def _target(random: Random) -> dict[str, Any]:
    route = {"kind": "MeshHTTPRoute", "name": random.choice(["r1", "r2"])}
    return random.choice([{"kind": "Mesh"}, _ref(random), _ref(random), route])


def _timeout(random: Random) -> dict[str, Any]:
    conf = {
        "connectionTimeout": random.choice(["1s", "2s"]),
        "http": {"requestTimeout": random.choice(["3s", "4s"])},
    }
    if random.random() < 0.3:
        return _named(random.choice(["t1", "t2"]), spec={**_top(random), "rules": [{"default": conf}]})
    spec = {**_top(random), "to": [{"targetRef": _target(random), "default": conf}]}
    return _named(random.choice(["t1", "t2"]), spec=spec)


def _retry(random: Random) -> dict[str, Any]:
    conf = {"http": {"numRetries": random.randint(1, 3)}, "tcp": {"maxConnectAttempt": 2}}
    spec = {**_top(random), "to": [{"targetRef": _target(random), "default": conf}]}
    return _named("retry", spec=spec)


def _backends(random: Random) -> dict[str, Any]:
    refs = []
    for _ in range(random.randint(0, 2)):
        ref = _ref(random) | {"weight": random.randint(0, 2)}
        if ref["kind"] == "MeshService" and random.random() < 0.5:
            ref |= {"kind": "MeshServiceSubset", "tags": {"version": random.choice(["v1", "v2"])}}
        elif random.random() < 0.5:
            ref["port"] = random.choice([80, 81])
        refs.append(ref)
    return {"backendRefs": refs} if refs else {}


def _http_route(random: Random) -> dict[str, Any]:
    path = {"type": random.choice(["PathPrefix", "Exact"]), "value": random.choice(["/", "/x", "/y"])}
    rule = {"matches": [{"path": path}], "default": _backends(random)}
    spec = {**_top(random), "to": [{"targetRef": _ref(random), "rules": [rule]}]}
    if random.random() < 0.4:
        hostnames = random.sample(HOSTNAMES, random.randint(0, 2))
        to = {"targetRef": {"kind": "Mesh"}, "hostnames": hostnames, "rules": _gateway_rules(random)}
        spec = {**_gateway_top(random), "to": [to]}
    return _named(random.choice(["r1", "r2"]), spec=spec)


def _tcp_route(random: Random) -> dict[str, Any]:
    rule = {"default": _backends(random)}
    if random.random() < 0.4:
        to = {"targetRef": {"kind": "Mesh"}, "rules": [rule]}
        return _named("tcp", spec={**_gateway_top(random), "to": [to]})
    return _named("tcp", spec={**_top(random), "to": [{"targetRef": _ref(random), "rules": [rule]}]})


def _tls(random: Random) -> dict[str, Any]:
    top = _top(random)
    conf: dict[str, Any] = {"mode": random.choice(["Strict", "Permissive"])}
    if not top:
        conf["tlsVersion"] = {"min": random.choice(["TLS12", "TLS13"])}
    return _named("tls", spec={**top, "rules": [{"default": conf}]})


def _permission(random: Random) -> dict[str, Any]:
    who = {"spiffeID": {"type": "Exact", "value": f"spiffe://default/{random.choice(SERVICES)}"}}
    conf = {random.choice(["allow", "deny"]): [who]}
    top = _gateway_top(random) if random.random() < 0.3 else _top(random)
    return _named(random.choice(["m1", "m2"]), spec={**top, "rules": [{"default": conf}]})


def _load_balancing(random: Random) -> dict[str, Any]:
    near = {"localZone": {"affinityTags": [{"key": "version"}]}}
    locality = random.choice([near, {"disabled": True}])
    spec = {"to": [{"targetRef": _ref(random), "default": {"localityAwareness": locality}}]}
    return _named("lb", spec=spec)


CERTIFICATES = (tls_certificates.server("a.lan"), tls_certificates.server("*.lan"), "")


def _secret(random: Random) -> dict[str, Any]:
    if random.random() < 0.5:
        return _named("ca", data="LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t")
    if random.random() < 0.5:
        return _named("tls", data=base64.b64encode(random.choice(CERTIFICATES).encode()).decode())
    key = random.choice(["a", "b", ""])
    text = f"aws_access_key_id={key}\naws_secret_access_key={key}"
    return _named("aws", data=base64.b64encode(text.encode()).decode())


def _passthrough(random: Random) -> dict[str, Any]:
    possible = [
        {"type": "Domain", "value": "a.test", "protocol": "tls"},
        {"type": "Domain", "value": "*.a.test", "port": 443, "protocol": "tls"},
        {"type": "Domain", "value": "b.test", "port": 80, "protocol": "http"},
        {"type": "Domain", "value": "*.test", "port": 81, "protocol": "grpc"},
        {"type": "IP", "value": "10.1.2.3", "port": 80, "protocol": "http"},
        {"type": "IP", "value": "fd00::1", "protocol": "tls"},
        {"type": "CIDR", "value": "10.1.0.0/16", "protocol": "tcp"},
        {"type": "CIDR", "value": "10.0.0.0/8", "port": 3306, "protocol": "mysql"},
    ]
    conf: dict[str, Any] = {"appendMatch": random.sample(possible, random.randint(0, len(possible)))}
    mode = random.choice([None, "Matched", "All", "None"])
    spec = {"default": {**conf, **({"passthroughMode": mode} if mode else {})}}
    return _named(random.choice(["p", "q"]), spec=spec)


KINDS = {
    "Mesh": _mesh,
    "Dataplane": _dataplane,
    "ZoneEgress": _egress,
    "ZoneIngress": _ingress,
    "MeshGateway": _mesh_gateway,
    "MeshGatewayHTTPRoute": _gateway_route,
    "MeshService": _service,
    "MeshMultiZoneService": _multi_zone_service,
    "MeshExternalService": _external_service,
    "HostnameGenerator": _generator,
    "MeshTimeout": _timeout,
    "MeshRetry": _retry,
    "MeshHTTPRoute": _http_route,
    "MeshTCPRoute": _tcp_route,
    "MeshTLS": _tls,
    "MeshTrafficPermission": _permission,
    "MeshLoadBalancingStrategy": _load_balancing,
    "MeshPassthrough": _passthrough,
    "Secret": _secret,
}


def _shown() -> list[Resource]:
    """What the manuals of policies show, about services that are there."""
    found = []
    for kind in ALL:
        for example in re.findall(
            r"^```yaml\n(.*?)^```$", kind.doc if kind.policy else "", re.DOTALL | re.MULTILINE
        ):
            text = re.sub(r"\b(backend|orders|shop)\b", "a", re.sub(r"\b(web|frontend)\b", "b", example))
            for document in documents.load(text):
                try:
                    found.append(stored(document.value))
                except Invalid:
                    continue
    return found


SHOWN = _shown()
