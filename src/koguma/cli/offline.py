"""Offline: the objects of files in the engine, as a control plane would have them, without one.

Files go through the same admission as on the server, then what a control plane adds by itself is added: the
policies of a new mesh, and MeshServices made of proxies. What the server holds can lie beneath the files.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import click

from koguma.cli import inputs, kind_lookup, objects, terminal
from koguma.cli.client import ApiClient
from koguma.cli.failures import ApiError, CommandFailure
from koguma.core import admission, defaults, identity, loading, services, world
from koguma.core.incremental import Db
from koguma.model import documents, forms, kri, labels
from koguma.model.control_plane_info import ControlPlaneInfo, Mode
from koguma.model.documents import Document
from koguma.model.errors import BadRequest, Invalid, KogumaError
from koguma.model.forms import Draft
from koguma.model.kind import Kinds, PatchChecks, ValidationContext
from koguma.model.page import yaml_text
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation

_GROUP: Final = "koguma.policies"
_BUILTIN: Final = "koguma.policies:POLICIES"
# What the engine looks at, beside policies.
_WORLD: Final = ("Mesh", "Dataplane", "MeshGateway", *world.DESTINATION_KINDS)


class FileViolation(NamedTuple):
    """Something in a file that would not be stored, and why."""

    document: Document
    violation: Violation


class FileWarning(NamedTuple):
    """Something that would be stored, and what its writer would hear."""

    key: Key
    text: str


class LoadedFiles(NamedTuple):
    """The engine, where the objects of the files stand, and what is to be said about them."""

    db: Db
    documents: dict[Key, Document]
    wrong: tuple[FileViolation, ...]
    warned: tuple[FileWarning, ...]

    @property
    def meshes(self) -> tuple[str, ...]:
        """The meshes that the files are about."""
        return tuple(
            sorted({key.mesh or key.name for key in self.documents if key.mesh or key.kind == "Mesh"})
        )


def known_kinds() -> Kinds:
    """The kinds of this program and of the packages that are installed beside it."""
    from importlib import metadata  # noqa: PLC0415 - only here

    if all(entry.value == _BUILTIN for entry in metadata.entry_points(group=_GROUP)):
        return kind_lookup.local_kinds()
    from koguma import kinds, plugins  # noqa: PLC0415 - only where there are any

    return plugins.load(kinds.KINDS, plugins.installed(), terminal.print_stderr).kinds


def load(
    read: Sequence[Document], control_plane: ControlPlaneInfo, beneath: Iterable[Resource] = ()
) -> LoadedFiles:
    """The objects of files, on top of those that lie beneath."""
    files = _Files(known_kinds(), control_plane, beneath)
    for document in read:
        files.add(document)
    written = [*files.there.values(), *files.companions()]
    db = loading.load(files.kinds, control_plane, written)
    loaded = LoadedFiles(db, files.documents, tuple(files.wrong), tuple(files.warned))
    for mesh in loaded.meshes:
        loading.take(db, _made_of_proxies(db, mesh, files))
    return loaded


def load_stored(values: Iterable[Json], control_plane: ControlPlaneInfo) -> LoadedFiles:
    """The objects that a server holds, as plain documents; their places are those in `koguma get -o yaml`.

    They are not admitted again, since some were never this program's to write: those that came from another
    zone, and those that the control plane makes.
    """
    kinds = known_kinds()
    resources: list[Resource] = []
    read: dict[Key, Document] = {}
    wrong: list[FileViolation] = []
    warned: list[FileWarning] = []
    for value in values:
        resource = _resource(value, kinds)
        if resource is None:
            continue
        name = objects.shown(resource.kind, resource.core_name, resource.mesh)
        (document,) = documents.load(yaml_text(value), name)
        resources.append(resource)
        read[resource.key] = document
        kind = kinds[resource.kind]
        context = ValidationContext(
            control_plane=control_plane, name=resource.name, mesh=resource.mesh, namespace=resource.namespace
        )
        found = tuple(kind.violations(resource.spec, context))
        wrong += (FileViolation(document, violation) for violation in found)
        if not found:
            warned += (
                FileWarning(resource.key, text) for text in admission.remarks(kind, resource.spec, context)
            )
    return LoadedFiles(loading.load(kinds, control_plane, resources), read, tuple(wrong), tuple(warned))


@functools.cache
def _patch_checks() -> PatchChecks | None:
    """What judges patches by the Envoy of this machine; None where there is none."""
    from koguma.envoy import patch_check, schema  # noqa: PLC0415 - half a second that most files do not need

    try:
        return patch_check.PatchChecker(schema.load(schema.find_envoy()))
    except KogumaError:
        return None


class _Files:
    """The objects so far."""

    def __init__(self, kinds: Kinds, control_plane: ControlPlaneInfo, beneath: Iterable[Resource]) -> None:
        self.kinds = kinds
        self.control_plane = control_plane
        self.there = {resource.key: resource for resource in beneath}
        self.documents: dict[Key, Document] = {}
        self.wrong: list[FileViolation] = []
        self.warned: list[FileWarning] = []
        self._old_meshes = {key for key in self.there if key.kind == "Mesh"}
        self._by_name = {(key.kind, key.mesh, one.core_name): key for key, one in self.there.items()}

    def add(self, document: Document) -> None:
        """Take an object, or note what is wrong with it."""
        try:
            draft = forms.read(document.value, self.kinds)
            checks = _patch_checks() if draft.kind.name == "MeshProxyPatch" else None
            made = admission.admitted(draft, self._stored(draft), self.control_plane, patch_checks=checks)
        except (Invalid, BadRequest) as error:
            found = error.violations or (Violation("", error.detail),)
            self.wrong += (FileViolation(document, violation) for violation in found)
            return
        key = made.resource.key
        if key in self.documents:
            other = f"is the same object as the one at {inputs.place(self.documents[key])}"
            self.wrong.append(FileViolation(document, Violation("", other, "duplicate")))
            return
        self.there[key], self.documents[key] = made.resource, document
        self.warned += (FileWarning(key, text) for text in made.warnings)

    def _stored(self, draft: Draft) -> Resource | None:
        wanted = identity.of(draft, self.control_plane)
        named = self._by_name.get((wanted.key.kind, wanted.key.mesh, wanted.core_name), wanted.key)
        return self.there.get(named) if named not in self.documents else None

    def companions(self) -> Iterator[Resource]:
        """What comes with the new meshes, less what the files say themselves."""
        for key in self.documents:
            if key.kind == "Mesh" and key not in self._old_meshes:
                made = map(self.made, defaults.mesh_policies(self.kinds, key.name, self.there[key].spec))
                yield from (resource for resource in made if resource.key not in self.there)

    def made(self, document: Json) -> Resource:
        """An object that a control plane writes itself, from its plain document."""
        origin = {labels.ORIGIN: self.control_plane.origin}
        whole = {**document, "labels": {**origin, **document.get("labels", {})}}
        draft = forms.read_plain(whole, self.kinds[document["type"]])
        return admission.admitted(draft, None, self.control_plane).resource


def _made_of_proxies(db: Db, mesh: str, files: _Files) -> Iterator[Resource]:
    step = services.plan(services.desired(db, mesh), services.stored(db, mesh), datetime.now(UTC))
    for change in step.changes:
        match change:
            case services.CreateObject(document=document):
                yield files.made(document)
            case services.ReplaceObject(resource=resource):
                yield resource


def sound(loaded: LoadedFiles) -> LoadedFiles:
    """The same, if all objects could be stored; otherwise all that is wrong is told."""
    if loaded.wrong:
        lines = tuple(
            ": ".join(filter(None, (inputs.place(d, v.field), v.field, v.message))) for d, v in loaded.wrong
        )
        raise CommandFailure("the files hold objects that would be refused", lines)
    return loaded


def control_plane(*, zone: str, is_global: bool) -> ControlPlaneInfo:
    """Which control plane the files are for."""
    return ControlPlaneInfo(mode=Mode.GLOBAL, zone="") if is_global else ControlPlaneInfo(zone=zone)


def control_plane_of(client: ApiClient, given: ControlPlaneInfo) -> ControlPlaneInfo:
    """Which control plane the server is; what it does not tell this user is as given."""
    is_global = client.get("/").object.get("mode") == Mode.GLOBAL.value
    try:
        config = client.get("/config").object
    except ApiError:
        config = {}
    return ControlPlaneInfo(
        mode=Mode.GLOBAL if is_global else Mode.ZONE,
        zone="" if is_global else str(config.get("zoneName") or given.zone or "default"),
        system_namespace=str(config.get("systemNamespace") or given.system_namespace),
        allow_proxy_data_sources=bool(config.get("allowProxyDataSources")),
    )


def served(client: ApiClient) -> Iterator[Resource]:
    """What the server holds of the kinds that the engine looks at and this program knows."""
    kinds = known_kinds()
    for value in stored(client):
        found = _resource(value, kinds)
        if found is not None:
            yield found


def stored(client: ApiClient) -> Iterator[Json]:
    """What the server holds of the kinds that the engine looks at, as plain documents."""
    for kind in kind_lookup.from_server(client):
        if kind.is_policy or kind.name in _WORLD:
            yield from client.pages(kind.path(None))


def _resource(value: Json, kinds: Kinds) -> Resource | None:
    kind = kinds.get(value["type"])
    if kind is None or not value.get("kri"):
        return None
    own, draft = kri.parse(value["kri"]), forms.read_plain(value, kind)
    return Resource(
        kind=kind.name,
        mesh=own.mesh,
        zone=own.zone,
        namespace=own.namespace,
        name=own.name,
        core_name=draft.name,
        labels=draft.labels,
        spec=draft.spec,
        status=value.get("status"),
    )


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
