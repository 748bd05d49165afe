"""Service probes of a Dataplane: what is checked, and what a report means for the state of its inbounds.

Where an inbound has a `serviceProbe`, the probe decides its `state`: it starts as NotReady, and becomes Ready
once the application has answered. `health.ready` says the same for older readers, as in Kuma.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from koguma.envoy import proto_json
from koguma.envoy.health import HealthCheck
from koguma.model import tags
from koguma.model.schema import Json

PREFIX: Final = "_kuma_probe_"
READY: Final = "Ready"
NOT_READY: Final = "NotReady"
IGNORED: Final = "Ignored"

_STATE: Final = ("state", "health")
_LOOPBACK: Final = ("127.0.0.1", "::1")
_OWN_CALLS: Final = {4: "127.0.0.6", 6: "::6"}  # how the kernel tells the proxy's calls from all others


def section(inbound: Json) -> str:
    """The name of an inbound in KRIs: its own, or else its port."""
    return str(inbound.get("name") or inbound.get("port") or 0)


def is_ready(inbound: Json) -> bool:
    """Whether an inbound takes calls, by both fields that say so."""
    return inbound.get("state") in (None, READY) and (inbound.get("health") or {}).get("ready") is not False


def not_ready(spec: Json) -> Iterator[str]:
    """What is to be said about inbounds that take no calls: which, in Kuma's words, and why.

    A Dataplane that cannot be read as it is stored has none; that is said elsewhere.
    """
    networking = spec.get("networking")
    if not isinstance(networking, dict) or not isinstance(networking.get("inbound"), list):
        return
    for inbound in (each for each in networking["inbound"] if isinstance(each, dict)):
        if is_ready(inbound) or inbound.get("state") == IGNORED:
            continue
        service = (inbound.get("tags") or {}).get(tags.SERVICE) or ""
        why = "its Dataplane says so, or its proxy drains"
        if inbound.get("serviceProbe") is not None:
            address, port = _target(inbound, networking)
            why = f"its application has not answered on {address}:{port}, where serviceProbe looks for it"
        yield f"inbound[port={inbound.get('port')},svc={service}] is not ready: {why}"


def _target(inbound: Json, networking: Json) -> tuple[str, int]:
    """Where the application itself listens."""
    address = inbound.get("serviceAddress") or inbound.get("address") or networking.get("address") or ""
    return address, inbound.get("servicePort") or inbound.get("port") or 0


def checks(spec: Json, *, is_transparent: bool) -> Iterator[HealthCheck]:
    """What is checked: the application behind each inbound with a probe."""
    networking = spec.get("networking") or {}
    for inbound in networking.get("inbound") or ():
        probe = inbound.get("serviceProbe")
        if probe is None or inbound.get("state") == IGNORED:
            continue
        address, port = _target(inbound, networking)
        durations = {
            name: proto_json.seconds(probe[name]) for name in ("timeout", "interval") if probe.get(name)
        }
        yield HealthCheck(
            name=PREFIX + section(inbound),
            address=address,
            port=port,
            source=_source(address) if is_transparent else "",
            healthy_threshold=probe.get("healthyThreshold") or 1,
            unhealthy_threshold=probe.get("unhealthyThreshold") or 1,
            **durations,
        )


def _source(address: str) -> str:
    return "" if address in _LOOPBACK else _OWN_CALLS[6 if ":" in address else 4]


def filled(spec: Json, stored: Json) -> Json:
    """A written spec with the states that probes decide: as they are stored, and NotReady where that is new.

    What was written there itself counts for nothing, except that an inbound can be ignored.
    """
    networking = (stored or {}).get("networking") or {}
    before = {section(inbound): inbound for inbound in networking.get("inbound") or () if _is_probed(inbound)}

    def kept(inbound: Json) -> Json:
        if not _is_probed(inbound):
            return inbound
        known = before.get(section(inbound)) or _with_state(inbound, is_healthy=False)
        state = {name: known[name] for name in _STATE if name in known}
        return {**{name: part for name, part in inbound.items() if name not in _STATE}, **state}

    return _with_inbounds(spec, kept)


def reported(spec: Json, healthy: Mapping[str, bool], envoy: str) -> Json:
    """A stored spec as a report leaves it; the very same where nothing changes.

    `healthy` says by the name of a check what was found; a check that is not there has found nothing yet.
    `envoy` is the name of the check of Envoy itself, which counts for all inbounds: one that drains is not
    to be called. An inbound without a probe that somebody else marked as not ready stays so.
    """

    def changed(inbound: Json) -> Json:
        if inbound.get("state") == IGNORED:
            return inbound
        is_healthy = True if envoy in healthy and _was_reported(inbound) else None
        is_healthy = healthy.get(PREFIX + section(inbound)) if _is_probed(inbound) else is_healthy
        is_healthy = False if healthy.get(envoy) is False else is_healthy
        if is_healthy is None or is_healthy == is_ready(inbound):
            return inbound
        return _with_state(inbound, is_healthy=is_healthy)

    return _with_inbounds(spec, changed)


def _is_probed(inbound: Json) -> bool:
    return (
        isinstance(inbound, dict)
        and inbound.get("serviceProbe") is not None
        and inbound.get("state") != IGNORED
    )


def _was_reported(inbound: Json) -> bool:
    """Whether a report marked an inbound as not ready: people write one of the two fields."""
    return inbound.get("state") == NOT_READY and (inbound.get("health") or {}).get("ready") is False


def _with_state(inbound: Json, *, is_healthy: bool) -> Json:
    return {**inbound, "state": READY if is_healthy else NOT_READY, "health": {"ready": is_healthy}}


def _with_inbounds(spec: Json, change: Callable[[Json], Json]) -> Json:
    """The spec with other inbounds; the very same where none is another."""
    networking = spec.get("networking")
    inbounds = networking.get("inbound") if isinstance(networking, dict) else None
    if not isinstance(inbounds, list):
        return spec
    changed = [change(inbound) for inbound in inbounds]
    if all(after == before for after, before in zip(changed, inbounds, strict=True)):
        return spec
    return {**spec, "networking": {**networking, "inbound": changed}}
