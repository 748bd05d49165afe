"""Context: the store, access rules and engine that handlers and writers work with; built once at start."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NoReturn, TypeVar

import msgspec

from koguma.access.authorizer import Attempt, Authorizer, namespace_of
from koguma.access.user import User
from koguma.application.computed_objects import ComputedObjects, NothingComputed
from koguma.application.conversions import Conversions
from koguma.application.live_catalog import LiveCatalog
from koguma.application.past_engines import PastEngine, PastEngines
from koguma.application.trial_engine import TrialEngine
from koguma.application.webhook_failures import WebhookFailures
from koguma.application.write_queue import WriteQueue
from koguma.core.incremental import Db
from koguma.kube.catalog import Catalog
from koguma.model import kri
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.errors import KogumaError, NotFound
from koguma.model.kind import Kind, Kinds, PatchChecks
from koguma.model.nearest import nearest
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation
from koguma.runtime.background import Background
from koguma.runtime.outgoing_calls import OutgoingCalls
from koguma.store.contract import Unreadable
from koguma.store.state import State
from koguma.store.store import Store

T = TypeVar("T")

_FILLED_AT_ONCE: Final = 100  # objects, which takes some milliseconds


class InstanceInfo(msgspec.Struct, frozen=True):
    """The running instance of the control plane, as `GET /` and `GET /config` show it."""

    hostname: str
    instance_id: str
    cluster_id: Callable[[], str]
    version: str
    settings: Callable[[], Mapping[str, Json]]  # effective, secrets masked, with the ports really used


class Context(msgspec.Struct, frozen=True):
    """What handlers and writers share."""

    kinds: Kinds
    control_plane: ControlPlaneInfo
    store: Store
    access: Authorizer
    about: InstanceInfo
    signing_key: Callable[[], str]  # a new private key, as a secret's data
    database: Callable[[], Awaitable[Db]]  # the engine, up to date with the store
    beside: Callable[[Callable[[Db], object]], Awaitable[object]]  # the same in a thread, for long work
    background: Background = msgspec.field(default_factory=Background)
    patch_checks: Callable[[], PatchChecks | None] = lambda: (
        None
    )  # of the local Envoy binary, if there is one
    calls: OutgoingCalls = msgspec.field(default_factory=OutgoingCalls)  # to hosts that objects name
    webhook_failures: WebhookFailures = msgspec.field(default_factory=WebhookFailures)
    trials: TrialEngine = msgspec.field(default_factory=TrialEngine)  # for dry runs
    past: PastEngines = msgspec.field(default_factory=PastEngines)
    moment: PastEngine | None = None  # the past revision that is asked about, instead of the newest one
    catalogs: LiveCatalog = msgspec.field(default_factory=LiveCatalog)
    conversions: Conversions = msgspec.field(default_factory=lambda: Conversions(OutgoingCalls()))
    writes: WriteQueue = msgspec.field(default_factory=WriteQueue)  # turns of the writers of one object
    computed: ComputedObjects = msgspec.field(default_factory=NothingComputed)  # objects that are not stored

    @property
    def state(self) -> State:
        """The newest committed state, or that of the past moment."""
        return self.store.state if self.moment is None else self.moment.state

    async def view(self, find: Callable[[], Key], view: Callable[[Db, Key], T]) -> T:
        """What `view` makes of the object that `find` gives: on the live engine, or beside on a past one.

        The object is looked for when the engine is up to date, and nothing happens in between.
        """
        if self.moment is None:
            db = await self.database()
            return view(db, find())
        key = find()
        return await self.moment.ask(lambda db: view(db, key))

    @property
    def catalog(self) -> Catalog:
        """The endpoints that are served now; ask again for each request, since they come and go."""
        return self.catalogs.current(self.kinds, self.state)

    async def in_storage_version(self, resource: Resource) -> Resource:
        """An object in the version in which it would be stored today; only custom ones may have another."""
        endpoint = self.catalog.custom(resource.kind)
        return resource if endpoint is None else await self.conversions.to_store(resource, endpoint)

    def check_mesh(self, user: User, mesh: str) -> None:
        """Raise NotFound where a mesh does not exist."""
        if self.state.get(mesh_key(mesh)) is None:
            raise self.mesh_not_found(user, mesh)

    def mesh_not_found(self, user: User, mesh: str, field: str = "mesh") -> NotFound:
        """The error for a mesh that does not exist, with the nearest name that does."""
        text = f'there is no mesh "{mesh}"{self._nearest(user, self.kinds["Mesh"], "", mesh)}'
        return NotFound(title="Failed to retrieve Mesh", violations=[Violation(field, text, "missing")])

    def check(
        self,
        user: User,
        verb: str,
        kind: Kind,
        mesh: str = "",
        name: str = "",
        subresource: str = "",
    ) -> None:
        """Raise Forbidden unless the user may do this to objects of a kind, or to a subresource of them.

        Rules of a namespace apply to the namespace where the object is. For an object that does not exist it
        is the one in its name, so that whoever may read there gets a 404 and not a 403. For a past moment it
        is where the object was then; one that still exists is asked about as it is now, too.
        """
        if self.moment is not None and name and self.store.state.named(kind.name, mesh, name) is not None:
            msgspec.structs.replace(self, moment=None).check(user, verb, kind, mesh, name, subresource)
        stored = self._place_of(kind, mesh, name) if name else None
        namespace = namespace_of(kind, self.control_plane, mesh, stored) if name else ""
        if not subresource and self.access.allows_on(user, verb, kind.plural, name, mesh, namespace):
            return  # most requests
        attempt = Attempt(verb, kind.plural, name, mesh, namespace=namespace, subresource=subresource)
        if subresource and self.access.allows(user, attempt):
            return
        _, dot, suffix = name.rpartition(".")
        may_be_there = bool(dot) and stored is None and kind.namespaced
        if may_be_there and self.access.allows(user, msgspec.structs.replace(attempt, namespace=suffix)):
            return
        self.refuse(user, kind, attempt)

    def _place_of(self, kind: Kind, mesh: str, name: str) -> Resource | None:
        """The stored object whose namespace counts: of one that is computed, what it is about."""
        if kind.computed is None or kind.computed.is_summary:
            return self.state.named(kind.name, mesh, name)
        return self.state.named(kind.computed.kind, mesh, name)

    def listed(self, kind: Kind, mesh: str | None) -> Sequence[Resource]:
        """The objects of a kind, stored or computed, in all meshes or in one, sorted by mesh and core name.

        Those that are computed may have no spec yet: see `filled`.
        """
        if kind.computed is None:
            return self.state.listed(kind.stored_as, mesh)
        return self.computed.listed(kind.name, mesh)

    def problem_of(self, kind: Kind) -> str:
        """Why objects of a kind may be old: they are computed, and the store does not answer; or empty."""
        return self.computed.problem if kind.computed is not None else ""

    async def prepare(self, kind: Kind, mesh: str | None) -> None:
        """Compute ahead what objects of a kind need that are not stored."""
        if kind.computed is not None:
            await self.computed.prepare(kind.name, mesh)

    async def filled(self, kind: Kind, resources: Sequence[Resource]) -> Sequence[Resource]:
        """Objects of a list with their specs; computing many of them lets other requests be served."""
        if kind.computed is None:
            return resources
        filled: list[Resource] = []
        for start in range(0, len(resources), _FILLED_AT_ONCE):
            filled += map(self.computed.filled, resources[start : start + _FILLED_AT_ONCE])
            await asyncio.sleep(0)
        return filled

    def check_any_write(self, user: User, kind: Kind, mesh: str, name: str) -> None:
        """Raise Forbidden where no rule lets the user write any object of a kind: then no body is read."""
        if not self.access.allows_any(user, ("create", "update"), kind.plural):
            self.check(user, "create", kind, mesh, name)

    def refuse(self, user: User, kind: Kind, attempt: Attempt) -> NoReturn:
        """Raise Forbidden for an attempt through the plain form, naming the missing right."""
        words = f'user "{user}" cannot access the resource of type "{kind.name}"' if kind.admin_only else ""
        raise self.access.refusal(user, attempt, words)

    def parse_kri(self, kri_text: str) -> tuple[Kind, Key, str]:
        """The kind, the key and the section of a KRI in a path."""
        try:
            parsed = kri.parse(kri_text, self.kinds.by_short)
        except kri.InvalidKri as error:
            raise kri.InvalidKri(f"bad request: {error.detail}", violations=error.violations) from None
        kind = self.kinds.by_short[parsed.short]
        key = Key(kind.name, parsed.mesh, parsed.zone, parsed.namespace, parsed.name)
        return kind, key, parsed.section

    def find(self, user: User, kind: Kind, mesh: str, core_name: str) -> Resource:
        """The object of that core name."""
        if kind.computed is not None:
            computed = self.computed.named(kind.name, mesh, core_name)
            resource = self.computed.filled(computed) if computed is not None else None
        else:
            resource = self.state.named(kind.name, mesh, core_name)
        if resource is None:
            unreadable = self.unreadable(kind, mesh, core_name)
            if unreadable is not None:
                what = f"{unreadable.key} is stored and cannot be read ({unreadable.error})"
                raise KogumaError(f"{what}; delete it, or write it again")
            where = f' in mesh "{mesh}"' if mesh else ""
            hint = self._nearest(user, kind, mesh, core_name)
            text = f'there is no {kind.name} "{core_name}"{where}{hint}'
            raise NotFound(violations=[Violation("name", text, "missing")])
        return resource

    def _nearest(self, user: User, kind: Kind, mesh: str, name: str) -> str:
        """A "did you mean" hint, where the user may list the names anyway."""
        if not self.access.allows_on(user, "list", kind.plural, "", mesh):
            return ""
        names = [resource.core_name for resource in self.listed(kind, mesh)]
        name_meant = nearest(name, names)
        return f'; did you mean "{name_meant}"?' if name_meant else ""

    def unreadable(self, kind: Kind, mesh: str, core_name: str) -> Unreadable | None:
        """The stored row of that core name that cannot be decoded, if there is one."""
        key = self.state.key_named(kind.name, mesh, core_name)
        return self.state.unreadable.get(key) if key is not None else None


def mesh_key(mesh: str) -> Key:
    """Where a Mesh is stored."""
    return Key("Mesh", "", "", "", mesh)
