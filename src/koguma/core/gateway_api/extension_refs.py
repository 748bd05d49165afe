"""Extension references: filters of a rule that stand in objects of their own, our RouteFilters.

A filter that is not found is never skipped: the rule's requests are answered with an error until it is there.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from koguma.core import world
from koguma.core.gateway_api import backend_refs, objects
from koguma.core.gateway_api.backend_refs import RefProblem, RouteScope
from koguma.core.incremental import Db
from koguma.model import forms
from koguma.model.resource import Key
from koguma.model.schema import Json
from koguma.model.target_ref import ROUTE_FILTER
from koguma.model.violation import child, item

EXTENSION: Final = "ExtensionRef"  # the type of such a filter
REFERRERS: Final = (objects.HTTP_ROUTE, objects.GRPC_ROUTE)


def key(db: Db, route: Key, mesh: str, ref: Mapping[str, Json]) -> Key | None:
    """The RouteFilter that a reference names, if it is there: one of the route's namespace."""
    if not _is_ours(ref):
        return None
    zone = world.control_plane(db).zone
    namespace, name = forms.key_namespace(route.namespace), objects.text(ref.get("name"))
    keys = (Key(ROUTE_FILTER, mesh, place, namespace, name) for place in (zone, ""))
    return next((each for each in keys if world.RESOURCES.get(db, each) is not None), None)


def content(db: Db, route_filter: Key) -> Mapping[str, Json]:
    """The filter in a RouteFilter, with one spelling for each meaning."""
    resource = world.RESOURCES.get(db, route_filter)
    return objects.fields(world.kind_of(db, ROUTE_FILTER).clean(resource.spec)) if resource else {}


def problem(scope: RouteScope, ref: Mapping[str, Json], path: str) -> RefProblem:
    """Why a reference finds no filter."""
    kind, group = objects.text(ref.get("kind")), objects.text(ref.get("group"))
    if not _is_ours(ref):
        message = f"{path}: there is no filter of kind {kind} in group {group}; use {ROUTE_FILTER} of kuma.io"
        return RefProblem(backend_refs.INVALID_KIND, message)
    named = f"{kind} {scope.namespace}/{objects.text(ref.get('name'))}"
    return RefProblem(
        backend_refs.BACKEND_NOT_FOUND,
        f"{path}: there is no {named} in mesh {scope.mesh}; requests get 500 until it is there",
    )


def _is_ours(ref: Mapping[str, Json]) -> bool:
    is_kind = objects.text(ref.get("kind")) == ROUTE_FILTER
    return is_kind and objects.text(ref.get("group")) in backend_refs.OUR_GROUPS


def references(spec: Json) -> Iterator[tuple[str, Mapping[str, Json]]]:
    """The references of a route to filters, with their paths."""
    for number, rule in objects.items(objects.fields(spec).get("rules")):
        for index, each in objects.items(rule.get("filters")):
            if each.get("type") == EXTENSION:
                path = child(item(child(item("spec.rules", number), "filters"), index), "extensionRef")
                yield path, objects.fields(each.get("extensionRef"))
