"""Where HTTP requests go: by path, method, headers and query, with changes on the way.

MeshHTTPRoute acts in the client's proxy. `targetRef` says whose requests, `to[].targetRef` where they were
going, and each rule which of them (`matches`), what is done to them (`filters`) and where they go instead
(`backendRefs`). Requests that fit no rule go where they were going.

Rules of several policies are merged by their `matches`: where these are equal, `filters` and `backendRefs`
are each taken from the most specific policy that sets them, and an empty list takes away what others set.
Other rules stay, so nobody wipes a rule without naming it.

RequestRedirect and DirectResponse answer the request themselves and so exclude `backendRefs`; RequestRedirect
also excludes URLRewrite. Regular expressions are RE2's and fit the whole value.

```yaml
type: MeshHTTPRoute
name: try-the-new-backend
mesh: default
spec:
  to:
    - targetRef: {kind: MeshService, name: backend}
      rules:
        - matches:
            - path: {type: PathPrefix, value: /api}
              headers: [{name: x-tester, type: Exact, value: "yes"}]
          default:
            filters:
              - type: RequestHeaderModifier
                requestHeaderModifier:
                  set: [{name: x-version, value: v2}]
            backendRefs:
              - {kind: MeshServiceSubset, name: backend, tags: {version: v1}, weight: 90}
              - {kind: MeshServiceSubset, name: backend, tags: {version: v2}, weight: 10}
```
"""

from collections.abc import Iterator
from typing import Annotated, Final

from koguma.model import columns, target_ref
from koguma.model.kind import POLICY, Kind, Policy, ValidationContext
from koguma.model.phase import Phase
from koguma.model.schema import Spec, doc
from koguma.model.target_ref import TargetRef
from koguma.model.violation import Violation, child, item
from koguma.policies.parts import fields, route_rules, spelling
from koguma.policies.parts.route_rules import HttpRule


class HttpRouteTo(Spec):
    """Rules for requests to one destination."""

    target_ref: Annotated[TargetRef, doc("Where the requests were going; Mesh on a gateway.")]
    rules: Annotated[tuple[HttpRule, ...], doc("The rules; the most specific match decides.")]
    hostnames: Annotated[tuple[str, ...], doc("Only requests to these hosts; on gateways only.")] = ()


class MeshHTTPRouteSpec(Spec):
    """Whose requests, and the rules for them."""

    target_ref: Annotated[
        TargetRef | None, doc("The proxies whose requests are routed; all of the mesh by default.")
    ] = None
    to: Annotated[tuple[HttpRouteTo, ...], doc("Destinations and their rules.")] = ()


clean = spelling.chain(
    spelling.refs, spelling.field("to", spelling.each(spelling.field("rules", route_rules.reading)))
)


_GATEWAYS_ONLY: Final = (
    f"{fields.MUST_NOT_BE_DEFINED}; host names are matched by gateways only, select one in spec.targetRef"
    " (kind MeshGateway)"
)


def validate(spec: MeshHTTPRouteSpec, context: ValidationContext) -> Iterator[Violation]:
    """What Kuma refuses, with its messages, and what Envoy or the founding document refuses beyond that."""
    top = spec.target_ref or target_ref.MESH
    yield from target_ref.violations(top, "spec.targetRef", route_rules.proxy_kinds(context), sections=False)
    gateway = top.kind == "MeshGateway"
    for index, entry in enumerate(spec.to):
        path = item("spec.to", index)
        kinds = route_rules.destination_kinds(top)
        yield from target_ref.violations(entry.target_ref, child(path, "targetRef"), kinds)
        if gateway:
            yield from route_rules.hostname_violations(entry.hostnames, child(path, "hostnames"))
        elif entry.hostnames:
            yield Violation(child(path, "hostnames"), _GATEWAYS_ONLY, "forbidden")
        yield from route_rules.violations(entry.rules, child(path, "rules"), context, gateway=gateway)


def warn(spec: MeshHTTPRouteSpec, _context: ValidationContext) -> Iterator[str]:
    """Deprecations, and what stands there and cannot act."""
    yield from target_ref.warnings(spec.target_ref)
    if not spec.to:
        yield "spec.to is empty, so this route changes nothing"
    for index, entry in enumerate(spec.to):
        yield from route_rules.warnings(entry.rules, child(item("spec.to", index), "rules"))


KIND = Kind(
    name="MeshHTTPRoute",
    plural="meshhttproutes",
    short="mhttpr",
    doc=__doc__,
    spec=MeshHTTPRouteSpec,
    columns=columns.ROUTE,
    sync=POLICY,
    policy=Policy(phase=Phase.HTTP_ROUTES, has_to=True, read_by_build=True),
    clean=clean,
    v1=route_rules.clean_shape("spec.to[].rules"),
    validate=validate,
    warn=warn,
)
