"""One filter of a route, for routes of the Gateway API, which lack some of ours.

An HTTPRoute or GRPCRoute names it with a filter of type ExtensionRef, and it acts as if it stood there: above
all DirectResponse, which the Gateway API does not have. The fields are those of a MeshHTTPRoute's filters. It
must be in the route's own namespace and in the mesh where the route acts. While it is not there, requests of
such a rule are answered with 500.

```yaml
type: RouteFilter
name: maintenance
mesh: default
spec:
  type: DirectResponse
  directResponse:
    status: 503
    body: {inlineString: "we are back at noon"}
```
"""

from collections.abc import Iterator

from koguma.model import columns
from koguma.model.kind import ZONE_TO_GLOBAL, Kind, V1Conversion, ValidationContext
from koguma.model.target_ref import BackendRef
from koguma.model.violation import Violation, child
from koguma.policies.parts import route_filters
from koguma.policies.parts.route_filters import HttpFilter


class RouteFilterSpec(HttpFilter):
    """One step; the field that belongs to `type` says how."""


def validate(spec: RouteFilterSpec, context: ValidationContext) -> Iterator[Violation]:
    """What a MeshHTTPRoute refuses in a filter, whatever the rule; and mirrors that nothing could permit."""
    setting = route_filters.Setting(gateway=False, prefixes=True, context=context)
    yield from route_filters.filter_violations(spec, "spec", setting)
    if spec.type == "RequestMirror" and spec.request_mirror is not None:
        yield from _mirrored(spec.request_mirror.backend_ref, "spec.requestMirror.backendRef")


def _mirrored(ref: BackendRef, path: str) -> Iterator[Violation]:
    if ref.kind == "MeshServiceSubset":
        message = "Envoy copies requests to whole services only; use MeshService"
        yield Violation(child(path, "kind"), message, "enum")
    elif ref.labels is not None:
        message = (
            "write the name: whether routes may refer to it (ReferenceGrant) is decided by its namespace"
        )
        yield Violation(child(path, "labels"), message, "forbidden")


def warn(spec: RouteFilterSpec, _context: ValidationContext) -> Iterator[str]:
    """Fields that are not read."""
    yield from route_filters.unread_fields(spec, "spec")


KIND = Kind(
    name="RouteFilter",
    plural="routefilters",
    short="rf",
    doc=__doc__,
    spec=RouteFilterSpec,
    columns=(columns.text("Type", "type", doc="What the filter does."),),
    sync=ZONE_TO_GLOBAL,
    clean=route_filters.filter_reading,
    v1=V1Conversion(lacks=route_filters.deprecations("spec")),
    validate=validate,
    warn=warn,
)
