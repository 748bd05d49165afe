"""Meshes and requests at random, small enough that policies, routes and callers meet."""

import json
from random import Random
from typing import Any

import msgspec

from koguma.envoy.simulation.traffic import SimulatedRequest

PATHS = (
    "/",
    "/v1",
    "/v1/",
    "/v1/x",
    "/v2",
    "/v2/y?q=1",
    "/v1x",
    "/a/../v1/x",
    "/v1//x",
    "/V1",
    "/z?q=2&p",
    "/v1/%2e%2e/v2",
    "/%761",
    "/v1/%7e%2fx",
    "/v1/..;p/v2",
    '/v1/"<x>',
    "/v1/%00",
    "/v1#x",
)
HEADERS = (("x-a", "1"), ("x-a", "2"), ("x-b", "beta"), ("x-b", ""), ("x-c", "yes"))
METHODS = ("GET", "GET", "GET", "GET", "POST", "POST", "PUT", "DELETE", "get")
CALLERS = ("web-1", "job-1")
SERVING = ("a-1", "a-2", "b-1")
DESTINATIONS = ("a", "b", "ext")
GATEWAY = "edge-1"
HOSTS = ("shop.lan", "a.shop.lan", "b.shop.lan", "A.SHOP.LAN:8080", "other.lan", "shop.lan.", "[::1]:80")


def request(random: Random) -> SimulatedRequest:
    headers = dict(random.sample(HEADERS, random.randint(0, 2)))
    host = random.choice(("a.mesh", "b.mesh:8080", "EXAMPLE.com", "it"))
    return SimulatedRequest(random.choice(METHODS), random.choice(PATHS), host, tuple(headers.items()))


def mesh(random: Random) -> dict[str, Any]:
    mode = random.choice(("", "STRICT", "STRICT", "STRICT", "PERMISSIVE"))
    if not mode:
        return {"type": "Mesh", "name": "default"}
    backends = [{"name": "ca", "type": "builtin", "mode": mode}]
    return {"type": "Mesh", "name": "default", "mtls": {"enabledBackend": "ca", "backends": backends}}


def policies(random: Random) -> list[dict[str, Any]]:
    """Some policies; the permissions are many, since without one hardly anything happens."""
    makers = (
        _http_route,
        _http_route,
        _permission,
        _permission,
        _rules,
        _fault,
        _fault,
        _timeout,
        _retry,
        _limit,
        _tcp,
        _tls,
        _patch,
    )
    chosen = [random.choice(makers)(random) for _ in range(random.randint(1, 6))]
    if random.random() < 0.7:
        chosen.append(_policy("MeshTrafficPermission", from_=[_from({"kind": "Mesh"}, {"action": "Allow"})]))
    return [{**policy, "name": f"p{number}"} for number, policy in enumerate(chosen)]


def _policy(kind: str, target: Any = None, **spec: Any) -> dict[str, Any]:
    spec = {name.rstrip("_"): value for name, value in spec.items()}
    return {"type": kind, "mesh": "default", "spec": {"targetRef": target or {"kind": "Mesh"}, **spec}}


def _from(ref: Any, conf: Any) -> dict[str, Any]:
    return {"targetRef": ref, "default": conf}


def _service(random: Random) -> dict[str, Any]:
    return {"kind": "MeshService", "name": random.choice(("a", "a", "b"))}


def _callee(random: Random) -> dict[str, Any]:
    service = random.choice(("a", "b"))
    return random.choice(({"kind": "Mesh"}, {"kind": "MeshSubset", "tags": {"kuma.io/service": service}}))


def _backend(random: Random) -> dict[str, Any]:
    weight = random.choice((1, 1, 3, 0))
    if random.random() < 0.2:
        return {"kind": "MeshService", "name": "nowhere", "port": 80, "weight": weight}
    if random.random() < 0.2:
        tags = {"version": random.choice(("v1", "v2", "v3"))}
        return {"kind": "MeshServiceSubset", "name": "a", "tags": tags, "weight": weight}
    if random.random() < 0.2:
        return {"kind": "MeshExternalService", "name": "ext", "port": 80, "weight": weight}
    return {"kind": "MeshService", "name": random.choice(("a", "b")), "port": 80, "weight": weight}


def _match(random: Random) -> dict[str, Any]:
    match: dict[str, Any] = {}
    kind = random.choice(("", "Exact", "PathPrefix", "PathPrefix", "RegularExpression"))
    if kind:
        value = (
            random.choice(("/v1", "/v2", "/"))
            if kind != "RegularExpression"
            else random.choice(("/v[12].*", "/v1", ".*x"))
        )
        match["path"] = {"type": kind, "value": value}
    if random.random() < 0.3:
        match["method"] = random.choice(("GET", "POST"))
    if random.random() < 0.4:
        name, value = random.choice(HEADERS)
        kind = random.choice(("Exact", "Prefix", "Present", "Absent", "RegularExpression"))
        header: dict[str, Any] = {"type": kind, "name": name}
        if kind not in ("Present", "Absent"):
            header["value"] = value or "b"
        match["headers"] = [header]
    if random.random() < 0.25:
        kind = random.choice(("Exact", "RegularExpression"))
        match["queryParams"] = [{"type": kind, "name": "q", "value": random.choice(("1", "[12]"))}]
    return match


def _filters(random: Random, match: dict[str, Any]) -> list[dict[str, Any]]:
    is_prefix = (match.get("path") or {}).get("type") == "PathPrefix"
    changes = [
        {
            "type": "RequestHeaderModifier",
            "requestHeaderModifier": {
                "set": [{"name": "x-a", "value": "set"}],
                "add": [{"name": "x-b", "value": "add"}],
                "remove": ["x-c"],
            },
        },
        {
            "type": "URLRewrite",
            "urlRewrite": {"path": {"type": "ReplaceFullPath", "replaceFullPath": "/full"}},
        },
        {"type": "URLRewrite", "urlRewrite": {"hostname": "other.host"}},
        {
            "type": "RequestRedirect",
            "requestRedirect": {"scheme": "https", "hostname": "else.where", "statusCode": 301},
        },
        {
            "type": "RequestRedirect",
            "requestRedirect": {
                "port": 8443,
                "path": {"type": "ReplaceFullPath", "replaceFullPath": "/moved"},
            },
        },
        {"type": "DirectResponse", "directResponse": {"status": 418, "body": {"inlineString": "no"}}},
    ]
    if is_prefix:
        changes.append(
            {
                "type": "URLRewrite",
                "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/new"}},
            }
        )
    return [random.choice(changes)] if random.random() < 0.6 else []


def _http_route(random: Random) -> dict[str, Any]:
    rules = []
    for _ in range(random.randint(1, 3)):
        match = _match(random)
        default: dict[str, Any] = {"filters": _filters(random, match)}
        answers = any(each["type"] in ("RequestRedirect", "DirectResponse") for each in default["filters"])
        if not answers and random.random() < 0.7:
            default["backendRefs"] = [_backend(random) for _ in range(random.randint(1, 2))]
        rules.append({"matches": [match], "default": default})
    return _policy("MeshHTTPRoute", to=[{"targetRef": _service(random), "rules": rules}])


def _tcp(random: Random) -> dict[str, Any]:
    refs = [_backend(random) for _ in range(random.randint(1, 2))]
    return _policy(
        "MeshTCPRoute", to=[{"targetRef": _service(random), "rules": [{"default": {"backendRefs": refs}}]}]
    )


def _permission(random: Random) -> dict[str, Any]:
    client = random.choice(
        ({"kind": "Mesh"}, {"kind": "MeshSubset", "tags": {"kuma.io/service": random.choice(("web", "job"))}})
    )
    action = random.choice(("Allow", "Allow", "Deny", "AllowWithShadowDeny"))
    return _policy("MeshTrafficPermission", _callee(random), from_=[_from(client, {"action": action})])


def _rules(random: Random) -> dict[str, Any]:
    kind, value = random.choice(
        (
            ("Exact", "spiffe://default/web"),
            ("Exact", "spiffe://default/job"),
            ("Prefix", "spiffe://default/"),
        )
    )
    words = random.sample(("allow", "deny", "allowWithShadowDeny"), random.randint(1, 2))
    conf = {word: [{"spiffeID": {"type": kind, "value": value}}] for word in words}
    return _policy("MeshTrafficPermission", {"kind": "Dataplane"}, rules=[{"default": conf}])


def _fault(random: Random) -> dict[str, Any]:
    share = random.choice((100, 100, 50, 0))
    faults = [{"abort": {"httpStatus": random.choice((501, 507)), "percentage": share}}]
    rule: dict[str, Any] = {"default": {"http": faults}}
    if random.random() < 0.5:
        rule["matches"] = [
            {"spiffeID": {"type": "Exact", "value": f"spiffe://default/{random.choice(('web', 'job'))}"}}
        ]
    return _policy("MeshFaultInjection", {"kind": "Dataplane"}, rules=[rule])


def _timeout(random: Random) -> dict[str, Any]:
    conf = {"http": {"requestTimeout": random.choice(("7s", "11s"))}}
    rule: dict[str, Any] = {"default": conf}
    if random.random() < 0.5:
        rule["matches"] = [{"spiffeID": {"type": "Exact", "value": "spiffe://default/web"}}]
    return _policy("MeshTimeout", {"kind": "Dataplane"}, rules=[rule])


def _retry(random: Random) -> dict[str, Any]:
    conf = {"http": {"numRetries": random.choice((1, 2)), "retryOn": ["Reset"]}}
    return _policy("MeshRetry", to=[{"targetRef": _service(random), "default": conf}])


def _limit(random: Random) -> dict[str, Any]:
    conf = {"local": {"http": {"requestRate": {"num": 10_000, "interval": random.choice(("1s", "10s"))}}}}
    return _policy("MeshRateLimit", {"kind": "Dataplane"}, rules=[{"default": conf}])


def _tls(random: Random) -> dict[str, Any]:
    mode = random.choice(("Strict", "Permissive"))
    return _policy("MeshTLS", {"kind": "Dataplane"}, rules=[{"default": {"mode": mode}}])


def _patch(random: Random) -> dict[str, Any]:
    """A filter of Envoy that the simulation knows, or one that it does not."""
    change = {
        "append": {
            "header": {"key": "x-b", "value": "patched"},
            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
        }
    }
    known = {"mutations": {"request_mutations": random.choice(([change], [{"remove": "x-a"}]))}}
    type_ = "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation"
    value = {"name": "envoy.filters.http.header_mutation", "typed_config": {"@type": type_, **known}}
    filter_ = {"operation": "AddFirst", "match": {"origin": random.choice(("inbound", "outbound"))}}
    modification = {"httpFilter": {**filter_, "value": json.dumps(value)}}
    return _policy("MeshProxyPatch", default={"appendModifications": [modification]})


def gateway(random: Random, port: int) -> list[dict[str, Any]]:
    """A gateway with hosts and routes to services, and a permission for it most of the time."""
    hosts = random.sample(("*", "shop.lan", "*.shop.lan", "a.shop.lan"), random.randint(1, 3))
    listeners = [
        {"port": port, "protocol": "HTTP", "hostname": host, "tags": {"host": str(number)}}
        for number, host in enumerate(hosts)
    ]
    made = [
        {
            "type": "MeshGateway",
            "mesh": "default",
            "name": "edge",
            "selectors": [{"match": {"kuma.io/service": "edge"}}],
            "conf": {"listeners": listeners},
        }
    ]
    for number in range(random.randint(1, 3)):
        route = _http_route(random)
        route["spec"]["targetRef"] = {"kind": "MeshGateway", "name": "edge"}
        entry = route["spec"]["to"][0]
        entry["targetRef"] = {"kind": "Mesh"}
        if random.random() < 0.6:
            entry["hostnames"] = [random.choice(("shop.lan", "*.shop.lan", "a.shop.lan", "b.shop.lan"))]
        for rule in entry["rules"]:
            answers = any(
                each["type"] in ("RequestRedirect", "DirectResponse") for each in rule["default"]["filters"]
            )
            if not answers:
                rule["default"]["backendRefs"] = [_backend(random) for _ in range(random.randint(1, 2))]
        made.append({**route, "name": f"g{number}"})
    return made


def outside_request(random: Random) -> SimulatedRequest:
    """A request of a client in front of the gateway."""
    return msgspec.structs.replace(request(random), host=random.choice(HOSTS))
