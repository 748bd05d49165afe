"""Routes: what a route of the Gateway API becomes: our routes, one for each listener or Service it is on."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from koguma.core import world
from koguma.core.gateway_api import conversion, grpc_rules, http_rules, objects, parents, stream_rules
from koguma.core.gateway_api.attachment import RouteListener
from koguma.core.gateway_api.backend_refs import RouteScope
from koguma.core.gateway_api.conversion import Conversion, ConvertedRule
from koguma.core.gateway_api.parents import RouteParent
from koguma.core.incremental import Db, question
from koguma.model import derived as derived_keys
from koguma.model import labels, target_ref
from koguma.model.derived import DerivedResource
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.model.violation import item

_PORTS: Final = {"http": 80, "https": 443}


class RouteKind(NamedTuple):
    """How routes of one kind are converted, and to what."""

    converted: Callable[[Db, RouteScope, Mapping[str, Json]], Conversion]
    kind: str


KINDS: Final[Mapping[str, RouteKind]] = {
    objects.HTTP_ROUTE: RouteKind(http_rules.converted, target_ref.HTTP_ROUTE),
    objects.GRPC_ROUTE: RouteKind(grpc_rules.converted, target_ref.HTTP_ROUTE),
    objects.TCP_ROUTE: RouteKind(stream_rules.converted, target_ref.TCP_ROUTE),
    objects.TLS_ROUTE: RouteKind(stream_rules.converted, target_ref.TCP_ROUTE),
}


@question
def converted(db: Db, route: Key, mesh: str) -> Conversion:
    """The rules of a route, as it acts in a mesh."""
    resource = world.RESOURCES.get(db, route)
    spec = objects.fields(resource.spec) if resource else {}
    return KINDS[route.kind].converted(db, RouteScope(route, mesh), spec)


def derived(db: Db, route: Key) -> tuple[DerivedResource, ...]:
    """What a route becomes. Of several parentRefs to one listener or Service the first counts."""
    resource = world.RESOURCES.get(db, route)
    if resource is None:
        return ()
    by_key: dict[Key, DerivedResource] = {}
    for parent in parents.of(db, route):
        rules = () if parent.reason else converted(db, route, parent.mesh).rules
        if rules:
            for each in _of_parent(db, resource, parent, rules):
                by_key.setdefault(each.key, each)
    return tuple(by_key.values())


def _of_parent(
    db: Db, route: Resource, parent: RouteParent, rules: tuple[ConvertedRule, ...]
) -> Iterator[DerivedResource]:
    kind = KINDS[route.kind].kind
    hostnames = parents.hostnames_of(objects.fields(route.spec))
    for listener in parent.listeners:
        ref = {"kind": "MeshGateway", "name": parent.target.name, "sectionName": listener.section}
        entry = {
            "targetRef": {"kind": "Mesh"},
            **({"hostnames": list(hostnames)} if hostnames else {}),
            "rules": [_with_port(each.rule, listener) for each in rules],
        }
        part = f"{parent.target.name}/{listener.section}"
        spec = {"targetRef": ref, "to": [entry]}
        yield _resource(db, route, parent, kind, part, spec, rules)
    if parent.target.kind == "MeshService":
        yield _on_service(db, route, parent, kind, rules)


def _on_service(
    db: Db, route: Resource, parent: RouteParent, kind: str, rules: tuple[ConvertedRule, ...]
) -> DerivedResource:
    service = parent.target
    ref = {"kind": "MeshService", "name": service.name, "namespace": service.namespace}
    if parent.port is not None:
        ref["sectionName"] = str(parent.port)
    # What no rule matches goes nowhere: a Service with routes is called through them only.
    entry = {"targetRef": ref, "rules": [each.rule for each in rules], "unmatched": "NotFound"}
    part = f"{service.namespace}/{service.name}/{parent.port or ''}"
    return _resource(db, route, parent, kind, part, {"to": [entry]}, rules)


def _resource(
    db: Db,
    route: Resource,
    parent: RouteParent,
    kind: str,
    part: str,
    spec: Json,
    rules: tuple[ConvertedRule, ...],
) -> DerivedResource:
    here = world.control_plane(db)
    key = derived_keys.key(kind, parent.mesh, here.zone, route.key, part)
    at = item("spec.parentRefs", parent.number)
    places = (
        ("spec.targetRef", at),
        ("spec.to[0].targetRef", at),
        ("spec.to[0].hostnames", "spec.hostnames"),
        *conversion.paths(rules, "spec.to[0].rules"),
    )
    return DerivedResource(
        kind=kind,
        mesh=key.mesh,
        zone=key.zone,
        namespace=key.namespace,
        name=key.name,
        core_name=key.name,
        labels={
            labels.ORIGIN: here.origin,
            labels.ROLE: parent.role.value,
            **({labels.NAMESPACE: key.namespace} if key.namespace else {}),
        },
        spec=spec,
        creation_time=route.creation_time,
        generation=route.generation,
        source=route.key,
        paths=places,
        elsewhere=tuple(conversion.elsewhere(rules, "spec.to[0].rules")),
    )


def _with_port(rule: Mapping[str, Json], listener: RouteListener) -> Mapping[str, Json]:
    """A rule whose redirects lead to the right port: without one, that of their scheme or the listener's."""
    conf = rule["default"]
    filters = [_redirect(each, listener) for each in conf.get("filters") or ()]
    return {**rule, "default": {**conf, "filters": filters}} if "filters" in conf else rule


def _redirect(each: Mapping[str, Json], listener: RouteListener) -> Mapping[str, Json]:
    redirect = each.get("requestRedirect")
    if each["type"] != "RequestRedirect" or not isinstance(redirect, dict):
        return each
    own_scheme = "https" if listener.protocol == "HTTPS" else "http"
    scheme = redirect.get("scheme")
    port = redirect.get("port") or (_PORTS.get(scheme) if scheme else listener.port)
    rest = {name: value for name, value in redirect.items() if name != "port"}
    is_written = port != _PORTS.get(scheme or own_scheme)  # the port of a scheme is not part of a Location
    return {**each, "requestRedirect": {**rest, "port": port} if is_written else rest}
