"""Scale: how many replicas a custom object wants and has, as an autoscaling/v1 Scale."""

from collections.abc import Mapping
from typing import Final

from koguma.kube import field_errors, jsonpath
from koguma.kube.custom.version import ScalePaths
from koguma.model.errors import BadRequest, Invalid
from koguma.model.schema import Json, json_type
from koguma.model.violation import Violation

GROUP: Final = "autoscaling"
API_VERSION: Final = f"{GROUP}/v1"
KIND: Final = "Scale"
_META: Final = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
_REPLICAS_MAX: Final = 2**31 - 1


def scale_document(document: Mapping[str, Json], paths: ScalePaths) -> dict[str, Json]:
    """The Scale of an object."""
    metadata = document.get("metadata") or {}
    status: dict[str, Json] = {"replicas": _count(jsonpath.getter(paths.status)(document))}
    selector = jsonpath.getter(paths.selector)(document) if paths.selector else None
    if isinstance(selector, str) and selector:
        status["selector"] = selector
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {name: metadata[name] for name in _META if name in metadata},
        "spec": {"replicas": _count(jsonpath.getter(paths.spec)(document))},
        "status": status,
    }


def _count(value: Json) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def scaled(document: Mapping[str, Json], scale: Json, paths: ScalePaths) -> dict[str, Json]:
    """An object with the replicas that a Scale asks for."""
    if not isinstance(scale, dict):
        raise BadRequest(f"an object is needed, not a value of type {json_type(scale)}")
    if (scale.get("apiVersion"), scale.get("kind")) != (API_VERSION, KIND):
        raise BadRequest(f"a {KIND} of {API_VERSION} is needed")
    spec = scale.get("spec") or {}
    replicas = spec.get("replicas", 0) if isinstance(spec, dict) else spec
    if isinstance(replicas, bool) or not isinstance(replicas, int):
        raise Invalid([Violation("spec.replicas", "must be a whole number", "type")])
    if not 0 <= replicas <= _REPLICAS_MAX:
        raise Invalid([field_errors.invalid("spec.replicas", replicas, "should be a non-negative integer")])
    metadata = scale.get("metadata")
    sent = metadata if isinstance(metadata, dict) else {}
    seen = {name: sent[name] for name in ("resourceVersion", "uid") if sent.get(name)}
    whole = {**document, "metadata": {**(document.get("metadata") or {}), **seen}}
    return _with_value(whole, paths.spec.split(".")[1:], replicas)


def _with_value(fields: Json, names: list[str], value: Json) -> dict[str, Json]:
    first, *rest = names
    known = fields if isinstance(fields, dict) else {}
    return {**known, first: _with_value(known.get(first), rest, value) if rest else value}
