"""The object that is written and read in all measurements: a MeshTimeout with a body of about 1.7 KB."""

from typing import Any

import msgspec

from koguma.model.resource import Resource

MESH = "default"
PATH = f"/meshes/{MESH}/meshtimeouts"
_DESTINATIONS = 6


def spec(request_timeout: str = "5s") -> dict[str, Any]:
    """A policy for a handful of destinations, as a team would write it."""
    return {
        "targetRef": {"kind": "Dataplane", "labels": {"app": "storefront", "team": "checkout"}},
        "to": [_to(f"backend-{number}", request_timeout) for number in range(_DESTINATIONS)],
    }


def _to(name: str, request_timeout: str) -> dict[str, Any]:
    return {
        "targetRef": {"kind": "MeshService", "name": name, "namespace": "shop", "sectionName": "http"},
        "default": {
            "connectionTimeout": "2s",
            "idleTimeout": "1h0m0s",
            "http": {"requestTimeout": request_timeout, "streamIdleTimeout": "30m0s"},
        },
    }


def document(name: str, request_timeout: str = "5s") -> dict[str, Any]:
    """As a client sends it."""
    return {"type": "MeshTimeout", "name": name, "mesh": MESH, "spec": spec(request_timeout)}


def body(name: str, request_timeout: str = "5s") -> bytes:
    """The same, as JSON."""
    return msgspec.json.encode(document(name, request_timeout))


def resource(name: str) -> Resource:
    """As the store gets it."""
    return Resource(
        kind="MeshTimeout",
        mesh=MESH,
        zone="default",
        name=name,
        core_name=name,
        labels={
            "kuma.io/display-name": name,
            "kuma.io/env": "universal",
            "kuma.io/mesh": MESH,
            "kuma.io/origin": "zone",
            "kuma.io/zone": "default",
            "kuma.io/policy-role": "workload-owner",
        },
        spec=_SPEC,
    )


_SPEC = spec()
