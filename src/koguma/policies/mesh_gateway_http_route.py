"""Where a gateway sends the HTTP requests that reach it: by host, path, method, headers and query.

MeshGatewayHTTPRoute attaches to a MeshGateway; with `tags` in the reference, to those of its listeners that
carry these tags. `hostnames` narrows it to some of the hosts that the gateway serves, as in the Gateway API:
a name, or `*.` and the end of a name; without it the rules hold for all of them.

The rules are those of MeshHTTPRoute, with one difference: a request at a gateway was going nowhere, so every
rule needs `backendRefs`, a RequestRedirect or a DirectResponse.

```yaml
type: MeshGatewayHTTPRoute
name: shop
mesh: default
spec:
  targetRef: {kind: MeshGateway, name: edge-gateway}
  hostnames: [shop.example.com, "*.shop.example.com"]
  rules:
    - matches:
        - path: {type: PathPrefix, value: /}
      default:
        backendRefs:
          - {kind: MeshService, name: shop, port: 8080}
    - matches:
        - path: {type: Exact, value: /old}
      default:
        filters:
          - type: RequestRedirect
            requestRedirect:
              path: {type: ReplaceFullPath, replaceFullPath: /new}
              statusCode: 301
```
"""

from collections.abc import Iterator
from typing import Annotated

from koguma.model import columns, target_ref
from koguma.model.kind import POLICY, Kind, Policy, ValidationContext
from koguma.model.phase import Phase
from koguma.model.schema import Spec, doc
from koguma.model.target_ref import TargetRef
from koguma.model.violation import Violation
from koguma.policies.parts import route_rules, spelling
from koguma.policies.parts.route_rules import HttpRule


class MeshGatewayHTTPRouteSpec(Spec):
    """Which gateway, which hosts, and the rules."""

    target_ref: Annotated[TargetRef, doc("The gateway.")]
    rules: Annotated[tuple[HttpRule, ...], doc("The rules; the most specific match decides.")]
    hostnames: Annotated[tuple[str, ...], doc("Only requests to these hosts; all by default.")] = ()


clean = spelling.chain(spelling.refs, spelling.field("rules", route_rules.reading))


def validate(spec: MeshGatewayHTTPRouteSpec, context: ValidationContext) -> Iterator[Violation]:
    """What is refused in a MeshHTTPRoute on a gateway is refused here."""
    yield from target_ref.violations(spec.target_ref, "spec.targetRef", ("MeshGateway",))
    yield from route_rules.hostname_violations(spec.hostnames, "spec.hostnames")
    yield from route_rules.violations(spec.rules, "spec.rules", context, gateway=True)


def warn(spec: MeshGatewayHTTPRouteSpec, _context: ValidationContext) -> Iterator[str]:
    """What stands there and cannot act."""
    if not spec.rules:
        yield "spec.rules is empty, so this route changes nothing"
    yield from route_rules.warnings(spec.rules, "spec.rules")


KIND = Kind(
    name="MeshGatewayHTTPRoute",
    plural="meshgatewayhttproutes",
    short="mgwhttpr",
    doc=__doc__,
    spec=MeshGatewayHTTPRouteSpec,
    columns=columns.GATEWAY_ROUTE,
    sync=POLICY,
    policy=Policy(phase=Phase.GATEWAY_ROUTES, rules_are_routes=True, read_by_build=True),
    clean=clean,
    v1=route_rules.clean_shape("spec.rules"),
    validate=validate,
    warn=warn,
)
