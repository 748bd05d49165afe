"""Proxy view: the state of a connected proxy, as `koguma get proxies` and the checks show it."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

import msgspec

from koguma.envoy import names
from koguma.envoy.snapshot import Failure, Id
from koguma.fleet.connected_proxy import ConnectedProxy
from koguma.fleet.quarantine import HeldResource, Quarantine
from koguma.fleet.roster import Roster
from koguma.identity.claims import DataplaneClaims, ZoneClaims
from koguma.kinds import service_probe
from koguma.model import kri
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.store.state import State
from koguma.xds.contract import ProxyStatus, Rejection

_EARLIER: Final = "the version before"
_NONE: Final = "none"


class ProxyView(msgspec.Struct, frozen=True):
    """The state of a connected proxy, as people see it."""

    key: Key
    core_name: str
    status: ProxyStatus
    revision: int  # of the store: the newest one that it is known to have
    behind_seconds: float
    connected_at: datetime
    envoy: str
    failures: tuple[Failure, ...]
    held: tuple[HeldResource, ...] = ()
    kept: frozenset[Id] = (
        frozenset()
    )  # resources that could not be built, of which the proxy has an earlier version
    token: DataplaneClaims | ZoneClaims | None = None  # the claims of the token by which it is connected
    not_ready: tuple[str, ...] = ()  # a sentence for each inbound that takes no calls


def views(
    roster: Roster, quarantine: Quarantine, state: State, revision: int, now: datetime
) -> Iterator[ProxyView]:
    """The connected proxies in key order; `revision` is the one that every proxy has which is not behind."""
    for key in sorted(roster):
        connection = roster[key]
        yield _view(connection, tuple(quarantine.of(key).values()), state, revision, now)


def _view(
    connection: ConnectedProxy, held: tuple[HeldResource, ...], state: State, revision: int, now: datetime
) -> ProxyView:
    behind_since, dataplane = connection.behind_since, state.get(connection.key)
    return ProxyView(
        key=connection.key,
        core_name=connection.proxy.core_name,
        status=shown_status(connection.status, is_behind=behind_since is not None, has_held=bool(held)),
        revision=revision if behind_since is None else connection.status.acked,
        behind_seconds=(now - behind_since).total_seconds() if behind_since else 0.0,
        connected_at=connection.connected_at,
        envoy=connection.envoy,
        failures=connection.failures,
        held=held,
        kept=connection.kept,
        not_ready=tuple(service_probe.not_ready(dataplane.spec)) if dataplane else (),
        token=connection.admission.claims,
    )


def proxy_json(view: ProxyView, identifier: str, instance: str) -> Mapping[str, Json]:
    """A proxy as the API shows it."""
    return {
        "name": view.core_name,
        "mesh": view.key.mesh,
        "kind": view.key.kind,
        "kri": identifier,
        "state": view.status.state,
        "revision": view.revision,
        "behindSeconds": round(view.behind_seconds, 3),
        "connectedAt": view.connected_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "envoy": view.envoy,
        "instance": instance,
        "rejections": [_rejection_json(rejection) for rejection in view.status.rejections],
        "quarantined": [_held_json(held) for held in view.held],
        "notReady": list(view.not_ready),
        "failures": [_failure_json(failure, is_kept=failure.id in view.kept) for failure in view.failures],
    }


def _rejection_json(rejection: Rejection) -> Mapping[str, Json]:
    """A NACK with the objects that caused it: those that the refused names identify."""
    objects = [name for name in map(names.resource, rejection.names) if kri.is_kri(name)]
    return {**msgspec.to_builtins(rejection), "objects": objects}


def _failure_json(failure: Failure, *, is_kept: bool) -> Mapping[str, Json]:
    return {**msgspec.to_builtins(failure), "has": _EARLIER if is_kept else _NONE}


def _held_json(held: HeldResource) -> Mapping[str, Json]:
    has = _EARLIER if held.good_version else _NONE
    return {"type": held.type, "name": held.name, "text": held.text, "policies": held.policies, "has": has}


def shown_status(status: ProxyStatus, *, is_behind: bool, has_held: bool) -> ProxyStatus:
    """The status that people see: while a resource is held back it is a NACK, whatever was offered since."""
    if has_held:
        return msgspec.structs.replace(status, state="nack")
    if is_behind and status.state == "synced":
        return msgspec.structs.replace(status, state="behind")
    return status
