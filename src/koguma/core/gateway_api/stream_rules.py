"""Stream rules: the rule of a TCPRoute or TLSRoute as that of a MeshTCPRoute."""

from collections.abc import Mapping

from koguma.core.gateway_api import backend_refs, conversion, objects
from koguma.core.gateway_api.backend_refs import NO_BACKEND, RouteScope
from koguma.core.gateway_api.conversion import Conversion, ConvertedRule, DroppedRule
from koguma.core.incremental import Db
from koguma.model.schema import Json
from koguma.model.violation import item


def converted(db: Db, scope: RouteScope, spec: Mapping[str, Json]) -> Conversion:
    """The rule of a TCPRoute or TLSRoute. The API allows one; connections see the first of several."""
    rules = list(objects.items(spec.get("rules")))
    dropped = tuple(
        DroppedRule(number, conversion.UNSUPPORTED_VALUE, f"spec.rules[{number}]: only one rule can act")
        for number, _ in rules[1:]
    )
    if not rules:
        return Conversion()
    number, written = rules[0]
    backends, problems = [], []
    for index, ref in objects.items(written.get("backendRefs")):
        path = item(f"spec.rules[{number}].backendRefs", index)
        backend = backend_refs.backend(db, scope, ref, path)
        backends.append(backend.ref)
        problems += [backend.problem] if backend.problem else []
    rule = {"default": {"backendRefs": backends or [{"kind": NO_BACKEND}]}}
    paths = (("default.backendRefs", "backendRefs"),)
    return Conversion((ConvertedRule(number, rule, paths),), dropped, tuple(problems))
