"""Shapes: the one shape in which `koguma.io/v1` shows kinds that had more than one.

Each function takes any JSON and changes nothing that was written; what does not look as expected passes
through untouched, for the schema to name it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from koguma.model.kind import Deprecation, V1Conversion
from koguma.model.schema import Json

Reading = Callable[[Json], Json]


def at(path: str, reading: Reading) -> Reading:
    """The reading of what stands at a path, where it is there; `[]` is every element of a list."""
    steps = path.replace("[]", ".[]").split(".")

    def read(spec: Json) -> Json:
        return _read(spec, steps, reading)

    return read


def _read(value: Json, steps: Sequence[str], reading: Reading) -> Json:
    if not steps:
        return reading(value)
    step, *rest = steps
    if step == "[]" and isinstance(value, list):
        return [_read(each, rest, reading) for each in value]
    if isinstance(value, Mapping) and step in value:
        return {**value, step: _read(value[step], rest, reading)}
    return value


def _without(value: Mapping[str, Json], *names: str) -> dict[str, Json]:
    return {name: part for name, part in value.items() if name not in names}


def _state(inbound: Json) -> Json:
    """`health.ready` as `state`: an inbound takes calls unless one of the two says that it does not."""
    if not isinstance(inbound, Mapping) or not isinstance(inbound.get("health") or {}, Mapping):
        return inbound
    rest, state = _without(inbound, "health"), inbound.get("state")
    match (inbound.get("health") or {}).get("ready"):
        case False if state in (None, "Ready"):
            return {**rest, "state": "NotReady"}
        case True if state is None:
            return {**rest, "state": "Ready"}
        case _:
            return rest


_BY_TAGS: Final = "selectors see the tag, and not the field"
DATAPLANE: Final = V1Conversion(
    to_v1=at("networking.inbound[]", _state),
    lacks=(Deprecation("spec.networking.inbound[].health", "write state: Ready or state: NotReady"),),
    keeps=(
        Deprecation(
            'spec.networking.inbound[].tags["kuma.io/protocol"]',
            "write protocol beside the tags",
            kept=_BY_TAGS,
        ),
        Deprecation(
            "spec.networking.outbound[].tags",
            "write backendRef",
            kept="it means all ports of the service, and backendRef one of them",
        ),
    ),
)

_SOURCES: Final = ("caCert", "clientCert", "clientKey")
_VERSIONS: Final = {
    "TLS_AUTO": "TLSAuto",
    "TLSv1_0": "TLS10",
    "TLSv1_1": "TLS11",
    "TLSv1_2": "TLS12",
    "TLSv1_3": "TLS13",
}


def _version(version: Json) -> Json:
    return _VERSIONS.get(version, version) if isinstance(version, str) else version


def _san(san: Json) -> Json:
    return {"type": "Exact", "value": san} if isinstance(san, str) else san


def _sources(tls: Json) -> Json:
    """Certificates beside `verification`; those inside count only where there is none beside it."""
    verification = tls.get("verification") if isinstance(tls, Mapping) else None
    if not isinstance(verification, Mapping):
        return tls
    inside = {name: verification[name] for name in _SOURCES if verification.get(name) is not None}
    beside = {name: tls[name] for name in _SOURCES if tls.get(name)}
    return {**tls, **inside, **beside, "verification": _without(verification, *_SOURCES)}


def _external(spec: Json) -> Json:
    for tls in ("tls", "destination.tls"):
        spec = at(tls, _sources)(spec)
        spec = at(f"{tls}.version.min", _version)(at(f"{tls}.version.max", _version)(spec))
        spec = at(f"{tls}.verification.subjectAltNames[]", _san)(spec)
    return spec


def _older_tls(tls: str) -> tuple[Deprecation, ...]:
    inside = (Deprecation(f"{tls}.verification.{name}", f"write it as {tls}.{name}") for name in _SOURCES)
    return (
        *inside,
        Deprecation(f"{tls}.version.min", "write TLS12, as MeshTLS does, and its like", value="TLSv1_2"),
        Deprecation(f"{tls}.version.max", "write TLS12, as MeshTLS does, and its like", value="TLSv1_2"),
        Deprecation(
            f"{tls}.verification.subjectAltNames[]", "write {type: Exact, value: ...}", value="a text"
        ),
    )


_RELEASED: Final = "its host name comes from a HostnameGenerator, which the list cannot say"
EXTERNAL_SERVICE: Final = V1Conversion(
    to_v1=_external,
    lacks=(*_older_tls("spec.destination.tls"), *_older_tls("spec.tls")),
    keeps=(
        Deprecation("spec.match", "write a list of matches with a value", value="an object", kept=_RELEASED),
        Deprecation(
            "spec.endpoints",
            "write them under destination, with type Regular",
            kept="only these can have a priority",
        ),
        Deprecation(
            "spec.destination.tls.caCert.secret",
            "write type: Secret and secretRef",
            kept="both are current: the first is short, the second says its type",
        ),
    ),
)

_POLICY_OF_ITS_OWN: Final = "it is an object of its own"
MESH: Final = V1Conversion(
    keeps=(
        Deprecation("spec.logging", "write a MeshAccessLog", kept=_POLICY_OF_ITS_OWN),
        Deprecation("spec.metrics", "write a MeshMetric", kept=_POLICY_OF_ITS_OWN),
        Deprecation("spec.tracing", "write a MeshTrace", kept=_POLICY_OF_ITS_OWN),
    )
)
MESH_TRUST: Final = V1Conversion(
    keeps=(Deprecation("spec.origin", "read status.origin", kept="a status is not the writer's to write"),)
)
