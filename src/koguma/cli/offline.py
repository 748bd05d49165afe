"""Offline: loads the objects of files into the policy engine, as a control plane would, without one.

Files go through the same admission as on the server. Then the objects that a control plane generates are
added: the default policies of a new mesh, and the MeshServices of Dataplanes. The objects of a server can be
loaded beneath the files.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import click

from koguma.cli import gateway_api_objects, inputs, kind_lookup, objects, terminal
from koguma.cli import options as shared_options
from koguma.cli.client import ApiClient, Query
from koguma.cli.failures import ApiError, CommandFailure, ExitCode
from koguma.core import admission, defaults, identity, loading, services, world
from koguma.core.incremental import Db
from koguma.model import documents, forms, kri, labels
from koguma.model.control_plane_info import ControlPlaneInfo, Mode
from koguma.model.derived import DerivedResource
from koguma.model.documents import Document
from koguma.model.errors import BadRequest, Invalid, KogumaError
from koguma.model.forms import Draft
from koguma.model.kind import Kinds, PatchChecks, ValidationContext
from koguma.model.printed_yaml import yaml_text
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.model.target_ref import ROUTE_FILTER
from koguma.model.violation import Violation

_GROUPS: Final = ("koguma.policies", "koguma.destinations")
_BUILTIN: Final = "koguma.policies:POLICIES"
_GONE: Final = 410
_SECRET: Final = "Secret"  # noqa: S105 - the name of a kind
# The kinds that the policy engine reads, beside policies.
_ENGINE_KINDS: Final = (
    *("Mesh", "Dataplane", "MeshGateway", "ZoneEgress", "HostnameGenerator"),
    *(*world.DESTINATION_KINDS, ROUTE_FILTER),
)


class FileViolation(NamedTuple):
    """A violation in a file, for which the server would refuse the object."""

    document: Document
    violation: Violation


class FileWarning(NamedTuple):
    """A warning that the server would give about an object."""

    key: Key
    text: str


class LoadedFiles(NamedTuple):
    """The policy engine, the documents of the files' objects, and the violations and warnings about them."""

    db: Db
    documents: dict[Key, Document]
    violations: tuple[FileViolation, ...]
    warnings: tuple[FileWarning, ...]

    @property
    def meshes(self) -> tuple[str, ...]:
        """The meshes that the files are about."""
        own = {key.mesh or key.name for key in self.documents if key.mesh or key.kind == "Mesh"}
        sources = (each for _, each in world.RESOURCES.items(self.db) if isinstance(each, DerivedResource))
        return tuple(sorted(own | {each.mesh for each in sources if each.source in self.documents}))


def known_kinds() -> Kinds:
    """The kinds of this program and of installed plugin packages."""
    from importlib import metadata  # noqa: PLC0415 - only here

    entries = (entry for group in _GROUPS for entry in metadata.entry_points(group=group))
    if all(entry.value == _BUILTIN for entry in entries):
        return kind_lookup.local_kinds()
    from koguma import kinds, plugins  # noqa: PLC0415 - only where there are any

    return plugins.load(kinds.KINDS, plugins.installed(), terminal.print_stderr).kinds


def load(
    read: Sequence[Document], control_plane: ControlPlaneInfo, beneath: Iterable[Resource] = ()
) -> LoadedFiles:
    """Load the objects of files; they replace those in `beneath`."""
    files = _Files(known_kinds(), control_plane, beneath)
    for document in read:
        files.add(document)
    classes = gateway_api_objects.classes(files.resources)
    resources = [*files.resources.values(), *files.mesh_defaults(), *classes]
    db = loading.load(files.kinds, control_plane, resources)
    loaded = LoadedFiles(db, files.documents, tuple(files.violations), tuple(files.warnings))
    for mesh in loaded.meshes:
        loading.take(db, _generated_services(db, mesh, files))
    return loaded


def load_stored(values: Iterable[Json], control_plane: ControlPlaneInfo) -> LoadedFiles:
    """Load the objects of a server, from plain documents; their places are those in `koguma get -o yaml`.

    They are not admitted again, because no user could write some of them: those of other zones, and those
    that the control plane generates.
    """
    kinds = known_kinds()
    resources: list[Resource] = []
    read: dict[Key, Document] = {}
    violations: list[FileViolation] = []
    warnings: list[FileWarning] = []
    for value in values:
        resource = _resource(value, kinds)
        if resource is None:
            continue
        if resource.kind not in kinds.by_name:  # of the Gateway API, or what its objects depend on
            resources.append(resource)
            (read[resource.key],) = documents.load(yaml_text(value), gateway_api_objects.shown(resource))
            continue
        name = objects.shown(resource.kind, resource.core_name, resource.mesh)
        (document,) = documents.load(yaml_text(value), name)
        resources.append(resource)
        read[resource.key] = document
        kind = kinds[resource.kind]
        context = ValidationContext(
            control_plane=control_plane, name=resource.name, mesh=resource.mesh, namespace=resource.namespace
        )
        own_violations = tuple(kind.violations(resource.spec, context))
        violations += (FileViolation(document, violation) for violation in own_violations)
        if not own_violations:
            warnings += (
                FileWarning(resource.key, text)
                for text in admission.kind_warnings(kind, resource.spec, context)
            )
    return LoadedFiles(
        loading.load(kinds, control_plane, resources), read, tuple(violations), tuple(warnings)
    )


@functools.cache
def _patch_checks() -> PatchChecks | None:
    """The checker of MeshProxyPatches, by the Envoy of this machine; None where there is no Envoy."""
    from koguma.envoy import patch_check, schema  # noqa: PLC0415 - half a second that most files do not need

    try:
        return patch_check.PatchChecker(schema.load(schema.find_envoy()))
    except KogumaError:
        return None


class _Files:
    """The objects that are loaded so far."""

    def __init__(self, kinds: Kinds, control_plane: ControlPlaneInfo, beneath: Iterable[Resource]) -> None:
        self.kinds = kinds
        self.control_plane = control_plane
        self.resources = {resource.key: resource for resource in beneath}
        self.documents: dict[Key, Document] = {}
        self.violations: list[FileViolation] = []
        self.warnings: list[FileWarning] = []
        self._stored_meshes = {key for key in self.resources if key.kind == "Mesh"}
        self._by_name = {
            (key.kind, key.mesh, resource.core_name): key for key, resource in self.resources.items()
        }

    def add(self, document: Document) -> None:
        """Admit an object, or collect its violations."""
        try:
            resource, warnings = self._admitted(document.value)
        except (Invalid, BadRequest) as error:
            violations = error.violations or (Violation("", error.detail),)
            self.violations += (FileViolation(document, violation) for violation in violations)
            return
        key = resource.key
        if key in self.documents:
            other = f"is the same object as the one at {inputs.place(self.documents[key])}"
            self.violations.append(FileViolation(document, Violation("", other, "duplicate")))
            return
        self.resources[key], self.documents[key] = resource, document
        self.warnings += (FileWarning(key, text) for text in warnings)

    def _admitted(self, value: Json) -> tuple[Resource, Iterable[str]]:
        """An object as it would be stored, with the warnings that the server would give."""
        if gateway_api_objects.is_one(value):
            return gateway_api_objects.read(value, self.control_plane), ()
        draft = forms.read(value, self.kinds)
        checks = _patch_checks() if draft.kind.name == "MeshProxyPatch" else None
        admitted = admission.admitted(draft, self._stored(draft), self.control_plane, patch_checks=checks)
        return admitted.resource, admitted.warnings

    def _stored(self, draft: Draft) -> Resource | None:
        own = identity.of(draft, self.control_plane)
        key = self._by_name.get((own.key.kind, own.key.mesh, own.core_name), own.key)
        return self.resources.get(key) if key not in self.documents else None

    def mesh_defaults(self) -> Iterator[Resource]:
        """The default policies of new meshes, without those that the files define themselves."""
        for key in self.documents:
            if key.kind == "Mesh" and key not in self._stored_meshes:
                policies = map(
                    self.generated, defaults.mesh_policies(self.kinds, key.name, self.resources[key].spec)
                )
                yield from (policy for policy in policies if policy.key not in self.resources)

    def generated(self, document: Json) -> Resource:
        """An object that the control plane generates, from its plain document."""
        origin = {labels.ORIGIN: self.control_plane.origin}
        whole = {**document, "labels": {**origin, **document.get("labels", {})}}
        draft = forms.read_plain(whole, self.kinds[document["type"]])
        return admission.admitted(draft, None, self.control_plane).resource


def _generated_services(db: Db, mesh: str, files: _Files) -> Iterator[Resource]:
    plan = services.plan(services.desired(db, mesh), services.stored(db, mesh), datetime.now(UTC))
    for change in plan.changes:
        match change:
            case services.CreateObject(document=document):
                yield files.generated(document)
            case services.ReplaceObject(resource=resource):
                yield resource


def require_valid(loaded: LoadedFiles) -> LoadedFiles:
    """The same, where there are no violations; else a failure that lists all of them."""
    if loaded.violations:
        lines = tuple(
            ": ".join(filter(None, (inputs.place(d, v.field), v.field, v.message)))
            for d, v in loaded.violations
        )
        raise CommandFailure("the files hold objects that would be refused", lines)
    return loaded


def control_plane(*, zone: str, is_global: bool) -> ControlPlaneInfo:
    """Which control plane the files are for."""
    return ControlPlaneInfo(mode=Mode.GLOBAL, zone="") if is_global else ControlPlaneInfo(zone=zone)


def control_plane_of(client: ApiClient, default: ControlPlaneInfo) -> ControlPlaneInfo:
    """Mode and zone of the server; what this user may not read is taken from `default`."""
    is_global = client.get("/").object.get("mode") == Mode.GLOBAL.value
    try:
        config = client.get("/config").object
    except ApiError:
        config = {}
    return ControlPlaneInfo(
        mode=Mode.GLOBAL if is_global else Mode.ZONE,
        zone="" if is_global else str(config.get("zoneName") or default.zone or "default"),
        system_namespace=str(config.get("systemNamespace") or default.system_namespace),
        allow_proxy_data_sources=bool(config.get("allowProxyDataSources")),
    )


def served(client: ApiClient, at: str | None = None) -> Iterator[Resource]:
    """The server's objects of the kinds that the policy engine reads and this program knows, now or `at`."""
    kinds = known_kinds()
    for value in stored(client, at):
        resource = _resource(value, kinds)
        if resource is not None:
            yield resource


def stored(client: ApiClient, at: str | None = None) -> Iterator[Json]:
    """The server's objects of the kinds that the policy engine reads, as plain documents, now or `at`."""
    query = shared_options.at_query(at)
    for kind in kind_lookup.from_server(client):
        if kind.is_policy or kind.name in _ENGINE_KINDS:
            yield from client.pages(kind.path(None), query)
        elif kind.name == _SECRET:
            yield from _secrets(client, kind.path(None), query)
    if at is None:
        yield from gateway_api_objects.served(client)
    elif next(gateway_api_objects.served(client), None) is not None:
        terminal.print_stderr(
            "note: objects of the Gateway API are not shown as of the past; they are left out"
        )


def _secrets(client: ApiClient, path: str, query: Query) -> Iterator[Json]:
    """The server's Secrets; none for users who may not read them, and lint is silent about those then."""
    try:
        yield from client.pages(path, query)
    except ApiError as error:
        if error.status == _GONE:  # superseded ones are kept for an hour only
            yield from client.pages(path)
        elif error.code is not ExitCode.DENIED:
            raise


def _resource(value: Json, kinds: Kinds) -> Resource | None:
    if gateway_api_objects.is_one(value):
        return gateway_api_objects.stored(value)
    kind = kinds.get(value["type"])
    if kind is None or not (value.get("kri") or kind.name == _SECRET):
        return None
    draft = forms.read_plain(value, kind)
    key = _key(value, draft)
    return Resource(
        kind=kind.name,
        mesh=key.mesh,
        zone=key.zone,
        namespace=key.namespace,
        name=key.name,
        core_name=draft.name,
        labels=draft.labels,
        annotations=_ready(draft.labels),
        spec=draft.spec,
        status=value.get("status"),
        creation_time=value.get("creationTime", ""),
    )


def _key(value: Json, draft: Draft) -> Key:
    """The key of an object; a Secret has no identifier, its labels say where it is from."""
    if not value.get("kri"):
        zone = draft.labels.get(labels.ZONE, "")
        return Key(draft.kind.name, value.get("mesh", ""), zone, "", draft.name)
    own = kri.parse(value["kri"])
    return Key(draft.kind.name, own.mesh, own.zone, own.namespace, own.name)


def _ready(own: Mapping[str, str]) -> dict[str, str]:
    """Plain documents do not say whether a proxy that registered has started: it is taken to have."""
    return {labels.READY: labels.ready_mark(own)} if labels.REGISTERED_BY in own else {}


_OPTIONS: Final = (
    click.option(
        "--zone", default="default", show_default=True, help="Zone whose control plane the files are for."
    ),
    click.option("--global", "is_global", is_flag=True, help="The files are for the Global control plane."),
)


def options(function: Any) -> Any:
    """Add the options that say which control plane the files are for."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
