"""Proxy view: the state of a proxy as the API shows it, for `koguma get proxies`."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from koguma.envoy import names
from koguma.envoy.snapshot import Failure
from koguma.fleet.proxy_state import ProxyState
from koguma.fleet.quarantine import HeldResource
from koguma.model import kri
from koguma.model.schema import Json
from koguma.xds.contract import Rejection

_EARLIER: Final = "the version before"
_NONE: Final = "none"


def proxy_json(state: ProxyState, now: datetime) -> Mapping[str, Json]:
    """A proxy as the API shows it."""
    kept = set(state.kept)
    return {
        "name": state.core_name,
        "mesh": state.key.mesh,
        "zone": state.key.zone,
        "kind": state.key.kind,
        "kri": state.identifier,
        "state": state.state,
        "revision": state.revision,
        "behindSeconds": round(state.behind_seconds(now), 3),
        "connectedAt": state.connected_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "envoy": state.versions.envoy,
        "agent": state.versions.agent,
        "instance": state.instance,
        "rejections": [_rejection_json(rejection) for rejection in state.rejections],
        "quarantined": [_held_json(held) for held in state.held],
        "notReady": list(state.not_ready),
        "failures": [_failure_json(failure, is_kept=failure.id in kept) for failure in state.failures],
    }


def _rejection_json(rejection: Rejection) -> Mapping[str, Json]:
    """A NACK with the objects that caused it: those that the refused names identify."""
    objects = [name for name in map(names.resource, rejection.names) if kri.is_kri(name)]
    shown = msgspec.structs.replace(rejection, versions=())
    return {**msgspec.to_builtins(shown), "objects": objects}


def _failure_json(failure: Failure, *, is_kept: bool) -> Mapping[str, Json]:
    return {**msgspec.to_builtins(failure), "has": _EARLIER if is_kept else _NONE}


def _held_json(held: HeldResource) -> Mapping[str, Json]:
    has = _EARLIER if held.good_version else _NONE
    return {"type": held.type, "name": held.name, "text": held.text, "policies": held.policies, "has": has}
