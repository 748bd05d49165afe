"""The mesh of the swarm: services, proxies in teams of ten, and policies so that no two teams have the same.

All proxies reach all services but one. That one is `svc-hidden`: only the first team reaches it, so that a
change of its endpoints is a change for ten proxies, however many there are.
"""

from collections.abc import Iterator
from typing import Any, Final

MESH: Final = "default"
TEAM: Final = 10  # proxies
HIDDEN: Final = "svc-hidden"
SHARED: Final = {"scope": "shared"}
EVERYBODY: Final = {"fleet": "swarm"}  # a label of all proxies, so that a policy for them beats the defaults
WIDE_EVERY: Final = 20  # of so many teams one has a policy about every service, the others about one
# What `koguma dp run --bind-outbounds` says.
FEATURES: Final = (
    "feature-access-log-pipe",
    "feature-bind-outbounds",
    "feature-embedded-dns",
    "feature-readiness-unix-socket",
)

# These have their Dataplane written by an operator, since its readiness is what changes endpoints.
OF_HIDDEN: Final = 10
OF_SHARED: Final = 11

Document = dict[str, Any]


def documents(n_proxies: int, n_services: int, *, mtls: bool) -> Iterator[Document]:
    """Everything but proxies."""
    mesh: Document = {"type": "Mesh", "name": MESH}
    if mtls:
        mesh["mtls"] = {"enabledBackend": "ca", "backends": [{"name": "ca", "type": "builtin"}]}
    yield mesh
    for number in range(n_services - 1):
        yield _service(f"svc-{number}", SHARED)
    yield _service(HIDDEN, {"scope": "hidden"})
    for team in range(n_proxies // TEAM):
        yield _for_team(team, n_services)
    for number in range(0, n_services - 1, 10):
        yield _route(number, n_services)
    yield retries()
    yield for_all(7)
    yield wide(5)
    yield for_ten(30)


def _service(name: str, labels: dict[str, str]) -> Document:
    ports = [{"name": "http", "port": 80, "targetPort": 8080, "appProtocol": "http"}]
    spec = {"selector": {"dataplaneTags": {"kuma.io/service": name}}, "ports": ports}
    return {"type": "MeshService", "mesh": MESH, "name": name, "labels": labels, "spec": spec}


def _policy(kind: str, name: str, **spec: Any) -> Document:
    return {"type": kind, "mesh": MESH, "name": name, "spec": spec}


def _to(target: Document, **conf: Any) -> list[Document]:
    return [{"targetRef": target, "default": conf}]


def _one(number: int) -> Document:
    return {"kind": "MeshService", "name": f"svc-{number}"}


def _of(**labels: str) -> Document:
    return {"kind": "Dataplane", "labels": labels}


def _for_team(team: int, n_services: int) -> Document:
    is_wide = team % WIDE_EVERY == WIDE_EVERY - 1
    target = {"kind": "Mesh"} if is_wide else _one(team % (n_services - 1))
    conf = {"connectionTimeout": f"{1 + team % 9}s"}
    return _policy("MeshTimeout", f"team-{team}", targetRef=_of(team=f"team-{team}"), to=_to(target, **conf))


def _route(number: int, n_services: int) -> Document:
    backends = [{"kind": "MeshService", "name": f"svc-{(number + 1) % (n_services - 1)}"}]
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": "/next"}}],
        "default": {"backendRefs": backends},
    }
    return _policy("MeshHTTPRoute", f"route-{number}", to=[{"targetRef": _one(number), "rules": [rule]}])


def retries() -> Document:
    """A policy for everybody that never changes here."""
    return _policy("MeshRetry", "retries", to=_to({"kind": "Mesh"}, http={"numRetries": 3}))


def for_all(seconds: int) -> Document:
    """A policy that touches every proxy: how each calls one service."""
    conf = {"http": {"requestTimeout": f"{seconds}s"}}
    return _policy("MeshTimeout", "for-all", targetRef=_of(**EVERYBODY), to=_to(_one(0), **conf))


def wide(seconds: int) -> Document:
    """A policy that touches every proxy in every service that it calls."""
    conf = {"http": {"requestTimeout": f"{seconds}s"}}
    return _policy("MeshTimeout", "wide", targetRef=_of(**EVERYBODY), to=_to({"kind": "Mesh"}, **conf))


def for_ten(seconds: int) -> Document:
    """A policy that touches ten proxies, in every service that they call."""
    conf = {"http": {"streamIdleTimeout": f"{seconds}s"}}
    return _policy("MeshTimeout", "for-ten", targetRef=_of(team="team-0"), to=_to({"kind": "Mesh"}, **conf))


def dataplane(number: int, n_services: int, state: str = "Ready") -> Document:
    """A proxy with its own address."""
    service = HIDDEN if number == OF_HIDDEN else f"svc-{number % (n_services - 1)}"
    inbound = {
        "port": 8080,
        "name": "main",
        "state": state,
        "tags": {"kuma.io/service": service, "kuma.io/protocol": "http"},
    }
    team = number // TEAM
    refs = [{"kind": "MeshService", "labels": SHARED}]
    if team == 0:
        refs.append({"kind": "MeshService", "name": HIDDEN})
    return {
        "type": "Dataplane",
        "mesh": MESH,
        "name": f"dp-{number}",
        "labels": {"team": f"team-{team}", **EVERYBODY},
        "networking": {
            "address": f"10.{1 + number // 65536}.{number // 256 % 256}.{number % 256}",
            "inbound": [inbound],
            "transparentProxying": {"reachableBackends": {"refs": refs}},
        },
    }


def metadata(number: int) -> Document:
    """What a proxy says of itself."""
    return {
        "dataplane.proxyType": "dataplane",
        "dataplane.admin.port": "9901",
        "workdir": f"/run/koguma/dp-{number}",
        "features": list(FEATURES),
        "accessLogDirectories": ["/var/log/koguma"],
    }
