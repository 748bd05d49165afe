"""Insight of a proxy: its last connection to a control plane, its versions and its certificate.

Numbers of responses are text and what is zero is left out, as protocol buffers print them.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from koguma.fleet.proxy_state import TOTAL, ProxyState, ProxyVersions
from koguma.model.schema import Json
from koguma.xds.contract import ResponseCount

_SERVICES: Final = (TOTAL, "cds", "eds", "lds", "rds")
_NO_RESPONSES: Final = ResponseCount()


def of_dataplane(state: ProxyState | None) -> dict[str, Json]:
    """The spec of a DataplaneInsight; empty where nobody has seen the proxy."""
    return {**of_zone_proxy(state), **_mtls(state)} if state is not None else {}


def of_zone_proxy(state: ProxyState | None) -> dict[str, Json]:
    """The spec of the insight of a zone ingress or egress."""
    return {"subscriptions": [_subscription(state)]} if state is not None else {}


def _subscription(state: ProxyState) -> dict[str, Json]:
    updated_at = state.responses_at or state.connected_at
    return {
        "id": state.subscription,
        "controlPlaneInstanceId": state.instance,
        "connectTime": timestamp(state.connected_at),
        **({"disconnectTime": timestamp(state.disconnected_at)} if state.disconnected_at else {}),
        "status": {"lastUpdateTime": timestamp(updated_at), **_responses(state.responses)},
        "version": _versions(state.versions),
    }


def _responses(counts: Mapping[str, ResponseCount]) -> dict[str, Json]:
    return {service: response_count(counts.get(service, _NO_RESPONSES)) for service in _SERVICES}


def response_count(count: ResponseCount) -> dict[str, str]:
    """Numbers of responses as text, without zeros."""
    numbers = (
        ("responsesSent", count.sent),
        ("responsesAcknowledged", count.acked),
        ("responsesRejected", count.rejected),
    )
    return {name: str(number) for name, number in numbers if number}


def _versions(versions: ProxyVersions) -> dict[str, Json]:
    agent = {
        "version": versions.agent,
        "gitTag": versions.agent_tag,
        "gitCommit": versions.agent_commit,
        "buildDate": versions.agent_built,
        "kumaCpCompatible": True,  # else it would not be connected
    }
    envoy = {
        "version": versions.envoy,
        "build": versions.envoy_build,
        "kumaDpCompatible": versions.is_envoy_compatible,
    }
    return {
        "kumaDp": _given(agent),
        "envoy": _given(envoy),
        **({"dependencies": dict(versions.dependencies)} if versions.dependencies else {}),
    }


def _mtls(state: ProxyState) -> dict[str, Json]:
    certificate = state.certificate
    if certificate is None or certificate.issued_at is None or certificate.expires_at is None:
        return {}
    mtls = {
        "certificateExpirationTime": timestamp(certificate.expires_at),
        "lastCertificateRegeneration": timestamp(certificate.issued_at),
        "certificateRegenerations": certificate.n_issued,
        "issuedBackend": certificate.backend,
        "supportedBackends": list(certificate.backends),
    }
    return {"mTLS": _given(mtls)}


def _given(fields: Mapping[str, Json]) -> dict[str, Json]:
    """These fields but the empty ones."""
    return {name: value for name, value in fields.items() if value}


def timestamp(moment: datetime) -> str:
    """A moment as protocol buffers print it, in milliseconds."""
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return f"{text.removesuffix('+00:00')}Z"
