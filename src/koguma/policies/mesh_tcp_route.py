"""Where TCP connections go: a split by weight over one or more backends.

MeshTCPRoute acts in the client's proxy. `targetRef` says whose connections, `to[].targetRef` where they were
going, and the one rule where they go instead. On a port that speaks HTTP a MeshHTTPRoute comes first; this
one is used where no MeshHTTPRoute applies. Of several policies the most specific one sets `backendRefs`.

```yaml
type: MeshTCPRoute
name: move-the-database
mesh: default
spec:
  to:
    - targetRef: {kind: MeshService, name: database}
      rules:
        - default:
            backendRefs:
              - {kind: MeshServiceSubset, name: database, tags: {version: v1}, weight: 90}
              - {kind: MeshServiceSubset, name: database, tags: {version: v2}, weight: 10}
```
"""

from collections.abc import Iterator
from typing import Annotated

from koguma.model import columns, target_ref
from koguma.model.kind import POLICY, Kind, Policy, ValidationContext
from koguma.model.phase import Phase
from koguma.model.schema import Spec, doc
from koguma.model.target_ref import BackendRef, TargetRef
from koguma.model.violation import Violation, child, item
from koguma.policies.parts import backend_refs, fields, route_rules, spelling


class TcpRuleConf(Spec):
    """Where connections go."""

    backend_refs: Annotated[
        tuple[BackendRef, ...] | None, doc("Where connections go, by weight; at least one.")
    ] = None


class TcpRule(Spec):
    """What becomes of connections."""

    default: Annotated[TcpRuleConf, doc("Where they go.")]


class TcpRouteTo(Spec):
    """The rule for connections to one destination."""

    target_ref: Annotated[TargetRef, doc("Where the connections were going; Mesh on a gateway.")]
    rules: Annotated[
        tuple[TcpRule, ...],
        doc("The rule; one at most. Without one the entry changes nothing.", max_length=1),
    ] = ()


class MeshTCPRouteSpec(Spec):
    """Whose connections, and where they go."""

    target_ref: Annotated[
        TargetRef | None, doc("The proxies whose connections are routed; all of the mesh by default.")
    ] = None
    to: Annotated[tuple[TcpRouteTo, ...], doc("Destinations and their rule.", min_length=1)] = ()


clean = spelling.chain(
    spelling.refs,
    spelling.field(
        "to",
        spelling.each(
            spelling.field(
                "rules",
                spelling.each(spelling.field("default", spelling.field("backendRefs", backend_refs.reading))),
            )
        ),
    ),
)


def validate(spec: MeshTCPRouteSpec, context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages."""
    top = spec.target_ref or target_ref.MESH
    yield from target_ref.violations(top, "spec.targetRef", route_rules.proxy_kinds(context), sections=False)
    for index, entry in enumerate(spec.to):
        path = item("spec.to", index)
        kinds = route_rules.destination_kinds(top)
        yield from target_ref.violations(entry.target_ref, child(path, "targetRef"), kinds)
        for at, refs in _backends(entry, path):
            if not refs:
                yield Violation(at, fields.MUST_BE_DEFINED, "required")
            yield from backend_refs.violations(refs, at)


def warn(spec: MeshTCPRouteSpec, _context: ValidationContext) -> Iterator[str]:
    """Deprecations, and backends of which none is reached."""
    yield from target_ref.warnings(spec.target_ref)
    if not spec.to:
        yield "spec.to is empty, so this route changes nothing"
    for index, entry in enumerate(spec.to):
        if not entry.rules:
            yield f"spec.to[{index}].rules is empty, so this entry changes nothing"
        for at, refs in _backends(entry, item("spec.to", index)):
            yield from backend_refs.warnings(refs, at)


def _backends(entry: TcpRouteTo, path: str) -> Iterator[tuple[str, tuple[BackendRef, ...]]]:
    for index, rule in enumerate(entry.rules):
        at = item(child(path, "rules"), index)
        yield f"{at}.default.backendRefs", rule.default.backend_refs or ()


KIND = Kind(
    name="MeshTCPRoute",
    plural="meshtcproutes",
    short="mtcpr",
    doc=__doc__,
    spec=MeshTCPRouteSpec,
    columns=columns.ROUTE,
    sync=POLICY,
    policy=Policy(phase=Phase.TCP_ROUTES, has_to=True, read_by_build=True),
    clean=clean,
    validate=validate,
    warn=warn,
)
