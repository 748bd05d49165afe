"""Conversions to `koguma.io/v1` for kinds that have deprecated or alternative spellings.

Each function takes any JSON and does not change its argument; what does not look as expected is passed on
unchanged, for the schema check to report it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from koguma.model.kind import Deprecation, V1Conversion
from koguma.model.schema import Json

SpecReader = Callable[[Json], Json]


def at(path: str, reader: SpecReader) -> SpecReader:
    """Applies a reader to the value at a path, if there is one; `[]` is every element of a list."""
    steps = path.replace("[]", ".[]").split(".")

    def read(spec: Json) -> Json:
        return _read_at(spec, steps, reader)

    return read


def _read_at(value: Json, steps: Sequence[str], reader: SpecReader) -> Json:
    if not steps:
        return reader(value)
    step, *rest = steps
    if step == "[]" and isinstance(value, list):
        return [_read_at(each, rest, reader) for each in value]
    if isinstance(value, Mapping) and step in value:
        return {**value, step: _read_at(value[step], rest, reader)}
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


def _deprecated_tls(tls: str) -> tuple[Deprecation, ...]:
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
    lacks=(*_deprecated_tls("spec.destination.tls"), *_deprecated_tls("spec.tls")),
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
