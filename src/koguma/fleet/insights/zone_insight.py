"""Insight of a zone: which control planes serve it.

In Kuma a subscription is a connection between the control planes of a zone and of all zones. A zone without
such a connection is served all the same: each control plane of this store is a subscription of its own zone.
"""

from collections.abc import Iterable

from koguma.fleet.insights.proxy_insight import timestamp
from koguma.fleet.proxy_state import InstanceState
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.schema import Json


def of_zone(
    name: str, control_plane: ControlPlaneInfo, instances: Iterable[InstanceState]
) -> dict[str, Json]:
    """The spec of a ZoneInsight; empty for a zone of which this control plane knows nothing."""
    if control_plane.is_global or name != control_plane.zone:
        return {}
    serving = [instance for instance in instances if not instance.is_gone]
    return {"subscriptions": [_subscription(instance) for instance in serving]} if serving else {}


def is_online(spec: Json) -> bool:
    """Whether a zone, or a zone proxy, has an open connection."""
    return any(not subscription.get("disconnectTime") for subscription in spec.get("subscriptions") or ())


def _subscription(instance: InstanceState) -> dict[str, Json]:
    version = {"version": instance.version} if instance.version else {}
    return {
        "id": instance.id,
        "zoneInstanceId": instance.id,
        **({"connectTime": timestamp(instance.started_at)} if instance.started_at else {}),
        "status": {"total": {}},
        "version": {"kumaCp": {**version, "kumaCpGlobalCompatible": True}},
    }
