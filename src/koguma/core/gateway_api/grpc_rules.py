"""gRPC rules: the rules of a GRPCRoute as those of a MeshHTTPRoute, whose matches are for gRPC calls."""

from collections.abc import Mapping
from typing import Final

from koguma.core.gateway_api import http_rules, objects
from koguma.core.gateway_api.backend_refs import RouteScope
from koguma.core.gateway_api.conversion import Conversion
from koguma.core.incremental import Db
from koguma.model import schema
from koguma.model.gateway_api.grpc_routes import GrpcRouteRule
from koguma.model.schema import Json

_ANY_CALL: Final[Mapping[str, Json]] = {"grpc": {}}


def converted(db: Db, scope: RouteScope, spec: Mapping[str, Json]) -> Conversion:
    """The rules of a GRPCRoute."""
    form = http_rules.RuleForm(_match, _ANY_CALL, schema.checker(GrpcRouteRule))
    return http_rules.converted_rules(db, scope, spec, form)


def _match(written: Mapping[str, Json]) -> Mapping[str, Json]:
    headers = http_rules.distinct(written.get("headers"), lower=True)
    return {"grpc": dict(objects.fields(written.get("method"))), **({"headers": headers} if headers else {})}
