"""Permissions against a model: random MeshTrafficPermissions, asked of a real Envoy.

A proxy with several inbounds gets random sets of permissions. Callers of a CA of the test's own ask each
inbound who may come in, on connections that stay open over all changes. What Envoy says is compared with
`is_let_in`, a few lines that say what permissions mean and know nothing of how they are compiled.
"""

import contextlib
import http.client
import os
import random
import socket
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest

from tests.authority import Authority
from tests.live_mesh import Echo, LiveMesh
from tests.ports import free_port
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.property]

N_PERMISSIONS = 100_000 if os.environ.get("KOGUMA_SOAK") else 2_000
ASKED_A_ROUND = 24
SERVICES = ("web", "api", "pay", "web-admin")
VERSIONS = ("v1", "v2")
PORTS = ("http", "admin")


class Caller(NamedTuple):
    """Who calls: the services it speaks for and its other tags."""

    services: tuple[str, ...]
    tags: Mapping[str, str]

    @property
    def uris(self) -> tuple[str, ...]:
        """Its certificate's names, services first."""
        named = [f"spiffe://default/{service}" for service in self.services]
        tagged = [f"kuma://kuma.io/service/{service}" for service in self.services]
        return (*named, *tagged, *(f"kuma://{name}/{value}" for name, value in self.tags.items()))


class Called(NamedTuple):
    """An inbound."""

    name: str
    tags: Mapping[str, str]


CALLERS = (
    Caller(("web",), {"version": "v1", "team": "red"}),
    Caller(("web",), {"version": "v2", "team": "red"}),
    Caller(("web-admin",), {"version": "v1"}),
    Caller(("api",), {"version": "v1", "team": "blue"}),
    Caller(("api", "pay"), {"version": "v2"}),
    Caller(("stranger",), {}),
)
INBOUNDS = tuple(
    Called(f"{service}-{port}-{version}", {"kuma.io/service": service, "version": version, "port": port})
    for service in ("api", "pay")
    for port in PORTS
    for version in VERSIONS
)


# The model. A policy that selects an inbound decides about it. Decisions by identity come before those by
# tags: there a denial wins, and what nothing allows is denied. By tags, the most important policy decides
# that has something to say about the caller: by the kind of its targetRef, then by the smaller name; in a
# policy the later entry.
KINDS = ("Mesh", "Dataplane", "MeshSubset", "MeshService", "MeshServiceSubset")


def is_let_in(policies: Sequence[Mapping[str, Any]], inbound: Called, caller: Caller) -> bool:
    """Whether a caller may call an inbound."""
    chosen = [policy for policy in policies if is_selected(policy["spec"].get("targetRef"), inbound)]
    rules = [rule["default"] for policy in chosen for rule in policy["spec"].get("rules", ())]
    if rules:
        fits = {action: any(is_match(rule.get(action), caller) for rule in rules) for action in ACTIONS}
        return not fits["deny"] and (fits["allow"] or fits["allowWithShadowDeny"])
    ordered = sorted(chosen, key=lambda policy: policy["name"], reverse=True)
    ordered.sort(key=importance)
    entries = [entry for policy in ordered for entry in policy["spec"]["from"]]
    decided = [entry["default"]["action"] for entry in entries if is_caller(entry["targetRef"], caller)]
    return bool(decided) and decided[-1] != "Deny"


def importance(policy: Mapping[str, Any]) -> tuple[int, bool]:
    ref = policy["spec"].get("targetRef") or {"kind": "Mesh"}
    return KINDS.index(ref["kind"]), "sectionName" in ref


def is_selected(ref: Mapping[str, Any] | None, inbound: Called) -> bool:
    """Whether a top-level targetRef means an inbound; the only proxy has the label app=server."""
    ref = ref or {"kind": "Mesh"}
    if ref.get("sectionName", inbound.name) != inbound.name or ref.get("labels", LABELS) != LABELS:
        return False
    has_tags = ref.get("tags", {}).items() <= inbound.tags.items()
    return has_tags and ref.get("name", inbound.tags["kuma.io/service"]) == inbound.tags["kuma.io/service"]


def is_caller(ref: Mapping[str, Any], caller: Caller) -> bool:
    """Whether a from[].targetRef means a caller."""
    tags = dict(ref.get("tags", {}))
    service = ref.get("name") or tags.pop("kuma.io/service", None)
    return (service is None or service in caller.services) and tags.items() <= caller.tags.items()


def is_match(matches: Sequence[Mapping[str, Any]] | None, caller: Caller) -> bool:
    """Whether one of the SPIFFE identities is the caller's, or the beginning of it."""
    names = [f"spiffe://default/{service}" for service in caller.services]
    return any(
        name == match["spiffeID"]["value"]
        or (match["spiffeID"]["type"] == "Prefix" and name.startswith(match["spiffeID"]["value"]))
        for match in matches or ()
        for name in names
    )


# Random permissions.
ACTIONS = ("deny", "allow", "allowWithShadowDeny")
LABELS = {"app": "server"}


def permission(source: random.Random, name: str, *, by_tags: bool) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    if (top := top_ref(source)) is not None:
        spec["targetRef"] = top
    if by_tags:
        spec["from"] = [entry(source) for _ in range(source.randint(1, 3))]
    else:
        spec["rules"] = [{"default": rule(source)} for _ in range(source.randint(1, 2))]
    return {"type": "MeshTrafficPermission", "name": name, "spec": spec}


def top_ref(source: random.Random) -> dict[str, Any] | None:
    return source.choice(
        (
            None,
            {"kind": "Mesh"},
            {"kind": "Dataplane"},
            {"kind": "Dataplane", "labels": source.choice((LABELS, {"app": "other"}))},
            {"kind": "Dataplane", "labels": LABELS, "sectionName": source.choice(INBOUNDS).name},
            {"kind": "MeshSubset", "tags": tags(source, source.choice(INBOUNDS).tags)},
            {"kind": "MeshService", "name": source.choice(SERVICES)},
            {
                "kind": "MeshServiceSubset",
                "name": source.choice(SERVICES),
                "tags": {"version": source.choice(VERSIONS)},
            },
        )
    )


def entry(source: random.Random) -> dict[str, Any]:
    caller = source.choice(CALLERS)
    known = {"kuma.io/service": caller.services[0], **caller.tags}
    ref = source.choice(
        (
            {"kind": "Mesh"},
            {"kind": "MeshSubset", "tags": tags(source, known)},
            {"kind": "MeshService", "name": source.choice(SERVICES)},
            {"kind": "MeshServiceSubset", "name": caller.services[0], "tags": tags(source, caller.tags)},
        )
    )
    if ref["kind"] == "MeshServiceSubset" and not ref["tags"]:
        ref = {"kind": "MeshService", "name": ref["name"]}
    return {
        "targetRef": ref,
        "default": {"action": source.choice(("Allow", "Deny", "AllowWithShadowDeny"))},
    }


def tags(source: random.Random, of: Mapping[str, str]) -> dict[str, str]:
    """Some of these tags, one of them now and then with a value that nobody has."""
    found = {name: value for name, value in of.items() if source.random() < 0.6}
    if not found:
        found = dict(list(of.items())[:1])
    if found and source.random() < 0.15:
        found[source.choice(sorted(found))] = "nobody"
    return found


def rule(source: random.Random) -> dict[str, Any]:
    chosen = [action for action in ACTIONS if source.random() < 0.5] or ["allow"]
    return {action: [spiffe(source) for _ in range(source.randint(1, 2))] for action in chosen}


def spiffe(source: random.Random) -> dict[str, Any]:
    service = source.choice((*SERVICES, "stranger"))
    if source.random() < 0.3:
        return {"spiffeID": {"type": "Prefix", "value": f"spiffe://default/{service[:2]}"}}
    return {"spiffeID": {"type": "Exact", "value": f"spiffe://default/{service}"}}


class CallerConnection:
    """A kept connection of one caller to one inbound."""

    def __init__(self, port: int, context: Any) -> None:
        raw = socket.create_connection(("127.0.0.1", port), 60)
        context.check_hostname = False
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._connection.sock = context.wrap_socket(raw)

    def is_allowed(self) -> bool:
        self._connection.request("GET", "/")
        response = self._connection.getresponse()
        response.read()
        assert response.status in (200, 403), response.status
        return response.status == 200

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveMesh]:
    with LiveMesh(tmp_path_factory.mktemp("model")) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def connections(
    mesh: LiveMesh, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, int], CallerConnection]]:
    """Every caller's connection to every inbound."""
    own, folder = Authority(), tmp_path_factory.mktemp("callers")
    with contextlib.closing(contextlib.ExitStack()) as stack:
        echo = Echo(name="server")
        stack.callback(echo.stop)
        ports = {inbound: free_port() for inbound in (each.name for each in INBOUNDS)}
        mesh.apply(
            {"type": "Mesh", "name": "default", "mtls": provided(own)},
            {"type": "Dataplane", "name": "server", "labels": LABELS, "networking": networking(ports, echo)},
        )
        mesh.sidecar("server", serves=False)
        mesh.wait_until_synced()
        found = {}
        for number, caller in enumerate(CALLERS):
            context = own.client(caller.uris[0], folder, *caller.uris[1:])
            for inbound in INBOUNDS:
                found[inbound.name, number] = until(
                    partial(CallerConnection, ports[inbound.name], context), "a connection"
                )
                stack.callback(found[inbound.name, number].close)
        yield found


def provided(own: Authority) -> dict[str, Any]:
    conf = {part: {"inlineString": text} for part, text in zip(("cert", "key"), own.pem, strict=True)}
    return {"enabledBackend": "own", "backends": [{"name": "own", "type": "provided", "conf": conf}]}


def networking(ports: Mapping[str, int], echo: Echo) -> dict[str, Any]:
    inbound = [
        {
            "name": each.name,
            "port": ports[each.name],
            "servicePort": echo.port,
            "tags": {**each.tags, "kuma.io/protocol": "http"},
        }
        for each in INBOUNDS
    ]
    return {"address": "127.0.0.1", "inbound": inbound}


def test_envoy_lets_in_whom_the_model_lets_in(
    mesh: LiveMesh, connections: dict[tuple[str, int], CallerConnection]
) -> None:
    source = random.Random(7)
    pairs = [(inbound, number) for inbound in INBOUNDS for number in range(len(CALLERS))]
    n_let_in = n_asked = n_permissions = 0
    while n_permissions < N_PERMISSIONS:
        # With few of them, entries that allow are not always overruled by one that denies.
        size, by_identity = source.choice((4, 16, 24)), source.choice((0, 0, 1, 3))
        policies = [
            permission(source, f"p-{n_permissions}-{index}", by_tags=index >= by_identity)
            for index in range(size)
        ]
        mesh.apply_only(*policies)
        n_permissions += size
        for inbound, number in source.sample(pairs, ASKED_A_ROUND):
            connection, expected = (
                connections[inbound.name, number],
                is_let_in(policies, inbound, CALLERS[number]),
            )
            # The threads of an Envoy get news a moment after it has acknowledged them.
            until(
                lambda: connection.is_allowed() == expected,  # noqa: B023 - asked at once
                f"{inbound}, {CALLERS[number]}: {expected} by {policies}",
            )
            n_asked += 1
            n_let_in += expected
    assert 0.1 < n_let_in / n_asked < 0.9, "both answers are common, or the comparison shows little"
