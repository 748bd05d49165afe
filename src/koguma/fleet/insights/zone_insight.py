"""Insight of a zone: which control planes serve it.

On Global a subscription is a connection of a zone's control plane. A zone without a Global is served all the
same: there each control plane of the store is a subscription of its own zone.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from koguma.fleet.insights.proxy_insight import response_count, timestamp
from koguma.fleet.proxy_state import InstanceState
from koguma.fleet.zone_state import ZoneState
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.schema import Json
from koguma.xds.contract import ResponseCount


def of_zone(
    name: str, control_plane: ControlPlaneInfo, instances: Iterable[InstanceState]
) -> dict[str, Json]:
    """The spec of a ZoneInsight in a zone; empty for a zone of which this control plane knows nothing."""
    if control_plane.is_global or name != control_plane.zone:
        return {}
    serving = [instance for instance in instances if not instance.is_gone]
    return {"subscriptions": [_subscription(instance) for instance in serving]} if serving else {}


def on_global(states: Sequence[ZoneState]) -> dict[str, Json]:
    """The spec of a ZoneInsight on Global; `states` are the zone's connections, the newest last."""
    if not states:
        return {}
    heard = [state.last_message_at for state in states if state.last_message_at is not None]
    return {
        "subscriptions": [_connection(state) for state in states],
        **({"healthCheck": {"time": timestamp(max(heard))}} if heard else {}),
        **_streams(states),
    }


def _streams(states: Sequence[ZoneState]) -> dict[str, Json]:
    """Which Global control plane has the zone."""
    connected = [state for state in states if state.is_connected]
    if not connected:
        return {}
    stream = {
        "globalInstanceId": connected[-1].instance,
        "connectTime": timestamp(connected[-1].connected_at),
    }
    return {"kdsStreams": {"globalToZone": stream, "zoneToGlobal": stream}}


def summary(states: Sequence[ZoneState], version: str, now: datetime) -> dict[str, Json]:
    """How a zone is, for people: online, how far behind, versions, the last error; `version` is of Global."""
    if not states:
        return {"online": False, "versions": {"global": version}}
    shown = next((state for state in reversed(states) if state.is_connected), states[-1])
    errors = [state.last_error for state in states if state.last_error is not None]
    error = max(errors, key=lambda each: each.at, default=None)
    return {
        "online": shown.is_connected,
        "since": timestamp(shown.disconnected_at or shown.connected_at),
        "lag": {"changes": shown.n_lacking, "seconds": round(shown.behind_seconds(now), 3)}
        if shown.is_connected
        else None,
        "versions": {"zone": shown.version, "global": version},
        "refused": {"total": shown.n_refused, **({"first": shown.refusal} if shown.refusal else {})},
        "lastError": {"time": timestamp(error.at), "reason": error.reason} if error is not None else None,
    }


def is_online(spec: Json) -> bool:
    """Whether a zone, or a zone proxy, has an open connection."""
    return any(not subscription.get("disconnectTime") for subscription in spec.get("subscriptions") or ())


def _connection(state: ZoneState) -> dict[str, Json]:
    counts = state.counts
    total = ResponseCount(
        sum(count.sent for count in counts.values()),
        sum(count.acked for count in counts.values()),
        sum(count.rejected for count in counts.values()),
    )
    return {
        "id": state.subscription,
        "globalInstanceId": state.instance,
        "zoneInstanceId": state.zone_instance,
        "connectTime": timestamp(state.connected_at),
        **({"disconnectTime": timestamp(state.disconnected_at)} if state.disconnected_at else {}),
        "status": {
            "lastUpdateTime": timestamp(state.last_message_at or state.connected_at),
            "total": response_count(total),
            **({"stat": {kind: response_count(count) for kind, count in counts.items()}} if counts else {}),
        },
        "version": _version(state.version),
        **({"config": state.config} if state.config else {}),
        "authTokenProvided": True,  # else it would not have been let in
    }


def _subscription(instance: InstanceState) -> dict[str, Json]:
    return {
        "id": instance.id,
        "zoneInstanceId": instance.id,
        **({"connectTime": timestamp(instance.started_at)} if instance.started_at else {}),
        "status": {"total": {}},
        "version": _version(instance.version),
    }


def _version(version: str) -> dict[str, Json]:
    return {"kumaCp": {**({"version": version} if version else {}), "kumaCpGlobalCompatible": True}}
