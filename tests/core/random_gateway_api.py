"""Objects of the Gateway API at random: few names, so that routes, listeners and services meet."""

import base64
from collections.abc import Mapping
from random import Random
from typing import Any

import gateway_api_objects as gateway_api

from koguma.core.gateway_api import backend_tls, gateways, objects
from koguma.model.resource import Key, Resource
from tests import tls_certificates
from tests.authority import Authority

SERVICES = ("a", "b", "c")
GATEWAYS = ("g1", "g2")
_FILTERS = ("f1", "f2")
_MESH_NAMESPACE = "mesh-default"  # where services without a namespace are
# The tags of the proxies that serve them.
GATEWAY_SERVICES = tuple(
    gateways.service_of(Key(objects.GATEWAY, "", "", _MESH_NAMESPACE, name)) for name in GATEWAYS
)


def _created(random: Random) -> str:
    return f"2026-01-0{random.randint(1, 3)}T00:00:00Z"


def _parents(random: Random) -> list[dict[str, Any]]:
    service = {"group": "", "kind": "Service", "name": random.choice(SERVICES)}
    gateway = {"name": random.choice(GATEWAYS)}
    possible = [
        service,
        {**service, "port": random.choice([80, 81])},
        gateway,
        {**gateway, "sectionName": random.choice(sorted(_LISTENERS))},
        {"kind": "ListenerSet", "name": random.choice(["s1", "s2"])},
    ]
    return random.sample(possible, random.randint(1, 2))


def _gateway_class(random: Random) -> Resource:
    ours = gateway_api.CONTROLLER
    return gateway_api.gateway_class(controller=random.choice([ours, ours, ours, "another"]))


_TERMINATED = {"mode": "Terminate", "certificateRefs": [{"name": "cert"}]}
_LISTENERS: Mapping[str, Mapping[str, Any]] = {
    "a": gateway_api.listener("a", 8080),
    "b": gateway_api.listener("b", 8081, hostname="*.test"),
    "c": gateway_api.listener("c", 8080, hostname="x.test"),
    "d": gateway_api.listener("d", 8443, "HTTPS", hostname="*.test", tls=_TERMINATED),
    "e": gateway_api.listener("e", 8444, "TLS", hostname="x.test", tls={"mode": "Passthrough"}),
    "f": gateway_api.listener("f", 8445, "TLS", tls=_TERMINATED),
    "g": gateway_api.listener("g", 5432, "TCP"),
}


def _listeners(random: Random) -> list[dict[str, Any]]:
    return [dict(_LISTENERS[name]) for name in random.sample(sorted(_LISTENERS), random.randint(1, 4))]


def _gateway(random: Random) -> Resource:
    allowed = {"allowedListeners": {"namespaces": {"from": random.choice(["Same", "Same", "None"])}}}
    name = random.choice(GATEWAYS)
    return gateway_api.gateway(name, *_listeners(random), namespace=_MESH_NAMESPACE, **allowed)


def _listener_set(random: Random) -> Resource:
    spec = {"parentRef": {"name": random.choice(GATEWAYS)}, "listeners": _listeners(random)}
    name, created = random.choice(["s1", "s2"]), _created(random)
    return gateway_api.stored(objects.LISTENER_SET, name, spec, _MESH_NAMESPACE, creation_time=created)


def _backend(random: Random) -> dict[str, Any]:
    return gateway_api.backend(random.choice((*SERVICES, "nobody")), weight=random.randint(0, 2))


def _http_route(random: Random) -> Resource:
    refs = [_backend(random)]
    elsewhere = gateway_api.backend("a", namespace="other")
    rules = [
        gateway_api.rule("/f", _backend(random), filters=[gateway_api.extension(random.choice(_FILTERS))]),
        gateway_api.rule(random.choice(["/", "/x", "/y"]), *refs),
        gateway_api.rule("/s", *refs, **random.choice(_RULE_SETTINGS)),
        gateway_api.rule("/z", *refs, elsewhere, filters=random.choice([[], [{"type": "Odd"}]])),
    ]
    return _route(random, objects.HTTP_ROUTE, random.choice(["h1", "h2", "h3"]), *rules)


def _grpc_route(random: Random) -> Resource:
    method = random.choice([{"service": "s"}, {"service": "s", "method": "M"}, {"method": "M"}])
    rules = [
        gateway_api.rule("", _backend(random), matches=[{"method": method}]),
        gateway_api.rule("", _backend(random), **random.choice([{}, {"matches": [{"headers": _HEADERS}]}])),
    ]
    return _route(random, objects.GRPC_ROUTE, random.choice(["r1", "r2"]), *rules)


def _tcp_route(random: Random) -> Resource:
    rules = [gateway_api.rule("", _backend(random)) for _ in range(random.choice([1, 1, 2]))]
    return _route(random, objects.TCP_ROUTE, "c1", *rules, hostnames=[])


def _tls_route(random: Random) -> Resource:
    return _route(
        random, objects.TLS_ROUTE, random.choice(["t1", "t2"]), gateway_api.rule("", _backend(random))
    )


def _route(random: Random, kind: str, name: str, *rules: Mapping[str, Any], **spec: Any) -> Resource:
    hostnames = {"hostnames": [random.choice(["x.test", "*.test"])]} if random.random() < 0.3 else {}
    return gateway_api.route(
        name,
        *rules,
        parentRefs=_parents(random),
        kind=kind,
        namespace=_MESH_NAMESPACE,
        created=_created(random),
        **{**hostnames, **spec},
    )


_HEADERS = [{"name": "x", "value": "1"}]
_ORIGINS = {"type": "CORS", "cors": {"allowOrigins": ["https://*.test"]}}
_RULE_SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"timeouts": {"request": "3s"}, "retry": {"codes": [503]}},
    {"timeouts": {"request": "4s", "backendRequest": "1s"}, "retry": {"attempts": 2, "backoff": "200ms"}},
    {"sessionPersistence": {"sessionName": "s"}, "filters": [_ORIGINS]},
    {"sessionPersistence": {"idleTimeout": "1s"}},
)


def _backend_tls_policy(random: Random) -> Resource:
    section = random.choice([{}, {"sectionName": "http"}])
    target = {"group": "", "kind": "Service", "name": random.choice(SERVICES), **section}
    ca = random.choice(
        [
            {"wellKnownCACertificates": "System"},
            {"caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}]},
        ]
    )
    spec = {"targetRefs": [target], "validation": {"hostname": f"{random.choice('ab')}.test", **ca}}
    name, created = random.choice(["t1", "t2"]), _created(random)
    return gateway_api.stored(backend_tls.KIND, name, spec, _MESH_NAMESPACE, creation_time=created)


_CA = Authority().pem[0]


def _config_map(random: Random) -> Resource:
    data = {"ca.crt": random.choice([_CA, "no certificate"])}
    return gateway_api.stored("ConfigMap.core", "ca", {"data": data}, _MESH_NAMESPACE)


_KEY = tls_certificates.ecdsa_key()
_PAIRS = tuple(
    {"tls.crt": tls_certificates.certificate(_KEY, name), "tls.key": tls_certificates.pem(_KEY)}
    for name in ("x.test", "*.test")
)


def _secret(random: Random) -> Resource:
    pair = random.choice([*_PAIRS, {"tls.crt": "x", "tls.key": "y"}])
    data = {name: base64.b64encode(text.encode()).decode() for name, text in pair.items()}
    spec = {"type": "kubernetes.io/tls", "data": data}
    return gateway_api.stored("Secret.core", "cert", spec, _MESH_NAMESPACE)


def _grant(random: Random) -> Resource:
    kind = random.choice(["HTTPRoute", "GRPCRoute"])
    return gateway_api.grant(kind, from_=random.choice([_MESH_NAMESPACE, "shop"]))


def _route_filter(random: Random) -> Resource:
    ref = {"kind": "MeshService", "name": random.choice((*SERVICES, "nobody")), "port": 80}
    spec = random.choice(
        [
            {"type": "DirectResponse", "directResponse": {"status": random.choice([200, 503])}},
            {"type": "RequestMirror", "requestMirror": {"backendRef": ref}},
            {"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["x-a"]}},
        ]
    )
    return gateway_api.route_filter(random.choice(_FILTERS), spec, namespace="")


GATEWAY_API = {
    "BackendTLSPolicy": _backend_tls_policy,
    "ConfigMap": _config_map,
    "GatewayClass": _gateway_class,
    "Gateway": _gateway,
    "ListenerSet": _listener_set,
    "HTTPRoute": _http_route,
    "GRPCRoute": _grpc_route,
    "TCPRoute": _tcp_route,
    "TLSRoute": _tls_route,
    "ReferenceGrant": _grant,
    "RouteFilter": _route_filter,
    "KubernetesSecret": _secret,
}
