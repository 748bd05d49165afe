"""kumactl's reading of the API: it parses overviews and insights strictly, and prints what it finds.

Messages are read as Go's protobuf JSON reads them: a field that a message does not have is an error, numbers
of 64 bits are text, times are RFC 3339, and what is absent is zero.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from tests.http_client import Response


def text(value: Any) -> str:
    assert isinstance(value, str), value
    return value


def flag(value: Any) -> bool:
    assert isinstance(value, bool), value
    return value


def uint32(value: Any) -> int:
    assert isinstance(value, int), value
    assert not isinstance(value, bool), value
    assert 0 <= value < 1 << 32, value
    return value


def uint64(value: Any) -> int:
    assert isinstance(value, str), value  # as protobuf writes it; kumactl would take a number too
    assert value.isdigit(), value
    return int(value)


def time(value: Any) -> datetime:
    moment = datetime.fromisoformat(text(value))
    assert text(value).endswith("Z"), value
    return moment.astimezone(UTC)


def anything(value: Any) -> Any:
    return value


def many(read: Any) -> Any:
    def read_all(value: Any) -> list[Any]:
        assert isinstance(value, list), value
        return [read(item) for item in value]

    return read_all


def by_name(read: Any) -> Any:
    def read_values(value: Any) -> dict[str, Any]:
        assert isinstance(value, dict), value
        return {text(name): read(item) for name, item in value.items()}

    return read_values


def message(**fields: Any) -> Any:
    def read(value: Any) -> dict[str, Any]:
        assert isinstance(value, dict), value
        unknown = set(value) - set(fields)
        assert not unknown, f"kumactl does not know {unknown}"
        return {name: fields[name](item) for name, item in value.items()}

    return read


STATS = message(responsesSent=uint64, responsesAcknowledged=uint64, responsesRejected=uint64)
KUMA_DP = message(version=text, gitTag=text, gitCommit=text, buildDate=text, kumaCpCompatible=flag)
ENVOY = message(version=text, build=text, kumaDpCompatible=flag)
SUBSCRIPTION = message(
    id=text,
    controlPlaneInstanceId=text,
    connectTime=time,
    disconnectTime=time,
    generation=uint32,
    status=message(lastUpdateTime=time, total=STATS, cds=STATS, eds=STATS, lds=STATS, rds=STATS),
    version=message(kumaDp=KUMA_DP, envoy=ENVOY, dependencies=by_name(text)),
)
MTLS = message(
    certificateExpirationTime=time,
    lastCertificateRegeneration=time,
    certificateRegenerations=uint32,
    issuedBackend=text,
    supportedBackends=many(text),
)
ZONE_PROXY_INSIGHT = message(subscriptions=many(SUBSCRIPTION), metadata=anything)
ZONE_SUBSCRIPTION = message(
    id=text,
    globalInstanceId=text,
    zoneInstanceId=text,
    connectTime=time,
    disconnectTime=time,
    generation=uint32,
    status=message(lastUpdateTime=time, total=STATS, stat=by_name(STATS)),
    version=message(
        kumaCp=message(version=text, gitTag=text, gitCommit=text, buildDate=text, kumaCpGlobalCompatible=flag)
    ),
    config=text,
    authTokenProvided=flag,
)
META = {"type": text, "name": text, "labels": by_name(text), "creationTime": time, "modificationTime": time}
MESHED = {**META, "mesh": text, "kri": text}
COUNTS = message(total=uint32, online=uint32, offline=uint32, partiallyDegraded=uint32)
TOTAL = message(total=uint32)

DATAPLANE_OVERVIEW = message(
    **MESHED,
    dataplane=anything,
    dataplaneInsight=message(subscriptions=many(SUBSCRIPTION), mTLS=MTLS, metadata=anything),
)
ZONE_OVERVIEW = message(
    **META,
    kri=text,
    zone=message(enabled=flag),
    zoneInsight=message(
        subscriptions=many(ZONE_SUBSCRIPTION),
        envoyAdminStreams=anything,
        healthCheck=anything,
        kdsStreams=anything,
    ),
)
ZONE_EGRESS_OVERVIEW = message(**META, kri=text, zoneEgress=anything, zoneEgressInsight=ZONE_PROXY_INSIGHT)
ZONE_INGRESS_OVERVIEW = message(**META, kri=text, zoneIngress=anything, zoneIngressInsight=ZONE_PROXY_INSIGHT)
MESH_INSIGHT = message(
    **META,
    dataplanes=COUNTS,
    dataplanesByType=message(standard=COUNTS, gateway=COUNTS, gatewayBuiltin=COUNTS, gatewayDelegated=COUNTS),
    policies=by_name(TOTAL),
    resources=by_name(TOTAL),
    dpVersions=message(kumaDp=by_name(COUNTS), envoy=by_name(COUNTS)),
    mTLS=message(issuedBackends=by_name(COUNTS), supportedBackends=by_name(COUNTS)),
    services=message(total=uint32, internal=uint32, external=uint32),
)
SERVICE_INSIGHT = message(
    **META,
    mesh=text,
    status=text,
    dataplanes=message(total=uint32, online=uint32, offline=uint32),
    issuedBackends=by_name(uint32),
    serviceType=text,
    addressPort=text,
    zones=many(text),
)


class Kumactl:
    """`kumactl inspect`, unmodified, in rows."""

    def __init__(self, request: Callable[..., Response], **headers: str) -> None:
        self._request = request
        self._headers = headers

    def _items(self, path: str, type_: str, read: Any) -> list[dict[str, Any]]:
        answer = self._request("GET", path, **self._headers)
        assert answer.status == 200, answer.text
        assert set(answer.json) == {"total", "items", "next"}
        items = [read(item) for item in answer.json["items"]]
        assert {item["type"] for item in items} <= {type_}
        return items

    def dataplanes(self, query: str = "", mesh: str = "default") -> dict[str, dict[str, Any]]:
        """`kumactl inspect dataplanes`: its columns by name of the proxy."""
        path = f"/meshes/{mesh}/dataplanes/_overview{query}"
        items = self._items(path, "DataplaneOverview", DATAPLANE_OVERVIEW)
        return {item["name"]: _dataplane_row(item) for item in items}

    def zones(self) -> dict[str, tuple[str, str]]:
        """`kumactl inspect zones`: status and version by name."""
        rows = {}
        for item in self._items("/zones/_overview", "ZoneOverview", ZONE_OVERVIEW):
            insight = item.get("zoneInsight", {})
            versions = [each["version"]["kumaCp"]["version"] for each in insight.get("subscriptions", ())]
            is_online = item["zone"].get("enabled", True) and _is_online(insight)
            rows[item["name"]] = ("Online" if is_online else "Offline", versions[-1] if versions else "")
        return rows

    def zone_egresses(self) -> dict[str, str]:
        """`kumactl inspect zoneegresses`: status by name."""
        items = self._items("/zoneegresses/_overview", "ZoneEgressOverview", ZONE_EGRESS_OVERVIEW)
        return {item["name"]: _word(item.get("zoneEgressInsight", {})) for item in items}

    def zone_ingresses(self) -> dict[str, str]:
        """`kumactl inspect zoneingresses`: status by name."""
        items = self._items("/zoneingresses/_overview", "ZoneIngressOverview", ZONE_INGRESS_OVERVIEW)
        return {item["name"]: _word(item.get("zoneIngressInsight", {})) for item in items}

    def meshes(self) -> dict[str, str]:
        """`kumactl inspect meshes`: proxies that are online, of all, by name."""
        items = self._items("/mesh-insights", "MeshInsight", MESH_INSIGHT)
        return {item["name"]: _of_all(item["dataplanes"]) for item in items}

    def services(self, query: str = "", mesh: str = "default") -> dict[str, tuple[str, str]]:
        """`kumactl inspect services`: status, and proxies that are online, by name."""
        path = f"/meshes/{mesh}/service-insights{query}"
        items = self._items(path, "ServiceInsight", SERVICE_INSIGHT)
        return {item["name"]: (item["status"], _of_all(item["dataplanes"])) for item in items}


def _is_online(insight: Mapping[str, Any]) -> bool:
    return any("disconnectTime" not in each for each in insight.get("subscriptions", ()))


def _word(insight: Mapping[str, Any]) -> str:
    return "Online" if _is_online(insight) else "Offline"


def _of_all(counts: Mapping[str, int]) -> str:
    return f"{counts.get('online', 0)}/{counts.get('total', 0)}"


def _dataplane_row(item: dict[str, Any]) -> dict[str, Any]:
    insight = item.get("dataplaneInsight", {})
    networking, subscriptions = item["dataplane"]["networking"], insight.get("subscriptions", [])
    last = subscriptions[-1] if subscriptions else {}
    total = last.get("status", {}).get("total", {})
    mtls = insight.get("mTLS", {})
    return {
        "status": _status(networking, is_online=_is_online(insight)),
        "updates": sum(each["status"]["total"].get("responsesSent", 0) for each in subscriptions),
        "errors": total.get("responsesRejected", 0),
        "backend": mtls.get("issuedBackend", ""),
        "supported": mtls.get("supportedBackends", []),
        "regenerations": mtls.get("certificateRegenerations", 0),
        "agent": last.get("version", {}).get("kumaDp", {}).get("version", ""),
        "envoy": last.get("version", {}).get("envoy", {}).get("version", ""),
        "connected": last.get("connectTime"),
        "expires": mtls.get("certificateExpirationTime"),
    }


def _status(networking: Mapping[str, Any], *, is_online: bool) -> str:
    """As kumactl computes it itself; it takes a proxy without inbounds for offline."""
    if "gateway" in networking:
        return "Online" if is_online else "Offline"
    states = [
        each.get("state", "Ready") == "Ready" and each.get("health", {}).get("ready", True)
        for each in networking.get("inbound", ())
    ]
    if not is_online or not any(states):
        return "Offline"
    return "Online" if all(states) else "Partially degraded"
