"""Objects of the Gateway API for commands without a control plane: read from files, or asked of a server."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from koguma.cli.client import ApiClient
from koguma.cli.failures import ApiError, ExitCode
from koguma.core.gateway_api import objects
from koguma.kube.kinds.gateway_api import KINDS, OLDER_VERSIONS
from koguma.model import forms
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.errors import Invalid
from koguma.model.kind import Kind, ValidationContext
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation

_BY_NAME: Final[Mapping[str, Kind]] = {kind.name: kind for kind in KINDS}
_CLASS: Final = "koguma"  # is there from the start
# Kinds of Kubernetes that Gateways and policies for backends depend on, and where they are listed.
_CORE: Final[Mapping[str, str]] = {"Namespace": "namespaces", "Secret": "secrets", "ConfigMap": "configmaps"}


def is_one(value: Json) -> bool:
    """Whether a document is of the Gateway API, or of a kind that its objects depend on."""
    version, kind = (objects.text(objects.fields(value).get(name)) for name in ("apiVersion", "kind"))
    is_ours = kind == "Secret" and objects.text(value.get("type")).startswith("system.kuma.io/")
    return version.startswith(f"{objects.GROUP}/") or (version == "v1" and kind in _CORE and not is_ours)


def read(value: Mapping[str, Json], control_plane: ControlPlaneInfo) -> Resource:
    """An object as a control plane would store it; Invalid with all that is wrong with it."""
    name, version = (objects.text(value.get(field)) for field in ("kind", "apiVersion"))
    if name in _CORE and version == "v1":
        return _core(value)
    kind = _BY_NAME.get(name)
    if kind is None:
        known = ", ".join(_BY_NAME)
        raise Invalid([Violation("kind", f'unknown kind "{name}"; the Gateway API has {known}', "kind")])
    versions = [f"{objects.GROUP}/{each}" for each in ("v1", *OLDER_VERSIONS.get(name, ()))]
    if version not in versions:
        raise Invalid([Violation("apiVersion", f"must be one of {', '.join(versions)}")])
    resource = _resource(kind.stored_as, value, is_namespaced=kind.namespaced)
    violations = list(kind.violations(resource.spec, ValidationContext(control_plane, resource.name)))
    if not resource.name:
        violations.insert(0, Violation("metadata.name", "must be set", "required"))
    if violations:
        raise Invalid(violations)
    return msgspec.structs.replace(resource, spec=kind.clean(resource.spec))


def served(client: ApiClient) -> Iterator[Json]:
    """The server's objects; none of a kind that this user may not read."""
    group = f"/apis/{objects.GROUP}/v1"
    listed = [(f"{group}/{kind.plural}", f"{objects.GROUP}/v1", kind.name) for kind in KINDS]
    listed += [(f"/api/v1/{plural}", "v1", name) for name, plural in _CORE.items()]
    for path, version, kind in listed:
        try:
            items = client.get(path).field("items")
        except ApiError as error:
            if error.code is not ExitCode.DENIED:
                raise
            continue
        for each in items:
            yield {"apiVersion": version, "kind": kind, **each}


def stored(value: Mapping[str, Json]) -> Resource:
    """An object of a server, which has been checked there."""
    kind = _BY_NAME.get(objects.text(value.get("kind")))
    if kind is None:
        return _core(value)
    return _resource(kind.stored_as, value, is_namespaced=kind.namespaced)


def _core(value: Mapping[str, Json]) -> Resource:
    name = objects.text(value.get("kind"))
    return _resource(f"{name}.core", value, is_namespaced=name != "Namespace")


def shown(resource: Resource) -> str:
    """An object as messages name it."""
    return "/".join(filter(None, (objects.word(resource.kind).lower(), resource.namespace, resource.name)))


def _resource(stored_as: str, value: Mapping[str, Json], *, is_namespaced: bool) -> Resource:
    metadata = objects.fields(value.get("metadata"))
    name = objects.text(metadata.get("name"))
    namespace = objects.text(metadata.get("namespace")) or forms.reserved_namespace("default")
    outside = ("apiVersion", "kind", "metadata", "status")
    return Resource(
        kind=stored_as,
        namespace=namespace if is_namespaced else "",
        name=name,
        core_name=f"{name}.{namespace}" if is_namespaced else name,
        labels=dict(objects.fields(metadata.get("labels"))),
        annotations=dict(objects.fields(metadata.get("annotations"))),
        spec=value["spec"] if "spec" in value else {n: v for n, v in value.items() if n not in outside},
        creation_time=objects.text(metadata.get("creationTimestamp")),
    )


def classes(resources: Mapping[Key, Resource]) -> Iterator[Resource]:
    """The class that is there from the start, where no other object has its name."""
    spec = {"controllerName": objects.CONTROLLER}
    own = Resource(kind=objects.GATEWAY_CLASS, name=_CLASS, core_name=_CLASS, spec=spec)
    if own.key not in resources:
        yield own
