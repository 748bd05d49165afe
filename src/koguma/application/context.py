"""Context: what every handler of the API works with. Built once by main, handed in."""

from collections.abc import Awaitable, Callable, Mapping
from typing import NoReturn

import msgspec

from koguma.access.authorizer import Attempt, Authorizer, namespace_of
from koguma.access.user import User
from koguma.application.trial_engine import TrialEngine
from koguma.core.incremental import Db
from koguma.model import kri
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.errors import KogumaError, NotFound
from koguma.model.kind import Kind, Kinds, PatchChecks
from koguma.model.nearest import nearest
from koguma.model.resource import Key, Resource
from koguma.model.schema import Json
from koguma.model.violation import Violation
from koguma.runtime.background import Background
from koguma.store.contract import Unreadable
from koguma.store.state import State
from koguma.store.store import Store


class InstanceInfo(msgspec.Struct, frozen=True):
    """What this control plane says about itself."""

    hostname: str
    instance_id: str
    cluster_id: Callable[[], str]
    version: str
    settings: Callable[[], Mapping[str, Json]]  # effective, secrets masked, with the ports really used


class Context(msgspec.Struct, frozen=True):
    """The parts that handlers share."""

    kinds: Kinds
    control_plane: ControlPlaneInfo
    store: Store
    access: Authorizer
    about: InstanceInfo
    signing_key: Callable[[], str]  # a new private key, as a secret's data
    database: Callable[[], Awaitable[Db]]  # the engine, as new as the store
    background: Background = msgspec.field(default_factory=Background)
    patch_checks: Callable[[], PatchChecks | None] = lambda: None  # of the Envoy that is here, if one is
    trials: TrialEngine = msgspec.field(default_factory=TrialEngine)  # for what is only tried

    @property
    def state(self) -> State:
        """The newest committed state."""
        return self.store.state

    def check_mesh(self, user: User, mesh: str) -> None:
        """Raise NotFound where a mesh does not exist."""
        if self.state.get(mesh_key(mesh)) is None:
            raise self.no_mesh(user, mesh)

    def no_mesh(self, user: User, mesh: str, field: str = "mesh") -> NotFound:
        """The refusal for a mesh that does not exist, with the nearest one that does."""
        text = f'there is no mesh "{mesh}"{self._nearest(user, self.kinds["Mesh"], "", mesh)}'
        return NotFound(title="Failed to retrieve Mesh", violations=[Violation(field, text, "missing")])

    def check(
        self,
        user: User,
        verb: str,
        kind: Kind,
        mesh: str = "",
        name: str = "",
    ) -> None:
        """Raise Forbidden unless the user may do this to objects of a kind.

        Rules of a namespace see the one where the object is; of one that does not exist, the one that its
        name would have it in, so that whoever may look there hears that it is not there.
        """
        found = self.state.named(kind.name, mesh, name) if name else None
        namespace = namespace_of(kind, self.control_plane, mesh, found) if name else ""
        if self.access.allows_on(user, verb, kind.plural, name, mesh, namespace):
            return
        _, dot, suffix = name.rpartition(".")
        may_be_there = bool(dot) and found is None and kind.namespaced
        if may_be_there and self.access.allows_on(user, verb, kind.plural, name, mesh, suffix):
            return
        self.refuse(user, kind, Attempt(verb, kind.plural, name, mesh, namespace=namespace))

    def check_any_write(self, user: User, kind: Kind, mesh: str, name: str) -> None:
        """Raise Forbidden where no rule lets the user write any object of a kind: then no body is read."""
        if not self.access.allows_any(user, ("create", "update"), kind.plural):
            self.check(user, "create", kind, mesh, name)

    def refuse(self, user: User, kind: Kind, attempt: Attempt) -> NoReturn:
        """Raise Forbidden for an attempt of the plain form, saying what is missing."""
        words = f'user "{user}" cannot access the resource of type "{kind.name}"' if kind.admin_only else ""
        raise self.access.refusal(user, attempt, words)

    def named_by(self, text: str) -> tuple[Kind, Key, str]:
        """The kind, the key and the section that a KRI in a path means."""
        try:
            wanted = kri.parse(text, self.kinds.by_short)
        except kri.InvalidKri as error:
            raise kri.InvalidKri(f"bad request: {error.detail}", violations=error.violations) from None
        kind = self.kinds.by_short[wanted.short]
        key = Key(kind.name, wanted.mesh, wanted.zone, wanted.namespace, wanted.name)
        return kind, key, wanted.section

    def find(self, user: User, kind: Kind, mesh: str, core_name: str) -> Resource:
        """The object of that core name."""
        found = self.state.named(kind.name, mesh, core_name)
        if found is None:
            broken = self.broken(kind, mesh, core_name)
            if broken is not None:
                what = f"{broken.key} is stored and cannot be read ({broken.error})"
                raise KogumaError(f"{what}; delete it, or write it again")
            where = f' in mesh "{mesh}"' if mesh else ""
            meant = self._nearest(user, kind, mesh, core_name)
            text = f'there is no {kind.name} "{core_name}"{where}{meant}'
            raise NotFound(violations=[Violation("name", text, "missing")])
        return found

    def _nearest(self, user: User, kind: Kind, mesh: str, name: str) -> str:
        """A question about what was probably meant, for who may see the names anyway."""
        if not self.access.allows_on(user, "list", kind.plural, "", mesh):
            return ""
        there = [found.core_name for found in self.state.listed(kind.name, mesh)]
        near = nearest(name, there)
        return f'; did you mean "{near}"?' if near else ""

    def broken(self, kind: Kind, mesh: str, core_name: str) -> Unreadable | None:
        """What is stored under that core name and cannot be read, if anything."""
        key = self.state.key_named(kind.name, mesh, core_name)
        return self.state.unreadable.get(key) if key is not None else None


def mesh_key(mesh: str) -> Key:
    """Where a Mesh is stored."""
    return Key("Mesh", "", "", "", mesh)
