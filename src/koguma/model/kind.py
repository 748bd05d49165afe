"""Kind: everything that is known about one kind of resource, in one record.

REST paths, both API forms, OpenAPI, KRI short name, CLI nouns, sync direction and the reference
page are derived from it. Records are plain values in a tuple; nothing registers itself on import.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cached_property
from typing import Any, Protocol

import msgspec

from koguma.model import ref_kinds
from koguma.model.control_plane_info import ControlPlaneInfo
from koguma.model.destination import DestinationPlugin
from koguma.model.errors import NotFound
from koguma.model.legacy_kinds import successor
from koguma.model.nearest import nearest
from koguma.model.overlay import PolicyHooks
from koguma.model.phase import Phase
from koguma.model.schema import UNKNOWN, Checker, Json, Spec, read
from koguma.model.typed_parts import NamedTypes
from koguma.model.violation import Violation


class Scope(Enum):
    """Whether names are unique in a mesh or everywhere."""

    GLOBAL = "Global"
    MESH = "Mesh"


class Sync(msgspec.Struct, frozen=True):
    """Where a kind may be written and to whom it travels (Kuma's KDS flags)."""

    provided_by_global: bool = False
    provided_by_zone: bool = False
    consumed_by_zone: bool = False
    consumed_by_global: bool = False
    across_zones: bool = False
    keeps_name: bool = False  # the core name is not hashed when it travels

    @property
    def global_to_zones(self) -> bool:
        """Global writes it and zones need it."""
        return self.provided_by_global and self.consumed_by_zone

    @property
    def zone_to_global(self) -> bool:
        """Zones write it and Global needs it."""
        return self.provided_by_zone and self.consumed_by_global


LOCAL = Sync()
GLOBAL_TO_ZONES = Sync(provided_by_global=True, consumed_by_zone=True)
ZONE_TO_GLOBAL = Sync(provided_by_zone=True, consumed_by_global=True)
ACROSS_ZONES = Sync(provided_by_zone=True, consumed_by_global=True, across_zones=True)
BOTH_WAYS = Sync(
    provided_by_global=True, provided_by_zone=True, consumed_by_zone=True, consumed_by_global=True
)
POLICY = Sync(
    provided_by_global=True,
    provided_by_zone=True,
    consumed_by_zone=True,
    consumed_by_global=True,
    across_zones=True,  # for producer policies only
)


class DefaultPolicy(msgspec.Struct, frozen=True):
    """A policy that comes with each new mesh, under the name `<prefix>-<mesh>`."""

    prefix: str
    spec: Json

    def __hash__(self) -> int:
        return hash(self.prefix)  # a spec has no hash, and kinds are keys of caches


class Policy(msgspec.Struct, frozen=True):
    """What a policy is made of: which lists it has, when it acts, and what it does to an Envoy."""

    phase: Phase = Phase.EXTENSIONS
    has_to: bool = False
    has_from: bool = False
    has_rules: bool = False
    from_as_rules: bool = False  # `from` with kind Mesh is also read as a rule
    hooks: PolicyHooks = PolicyHooks()  # what it does to an Envoy
    read_by_build: bool = False  # the build itself reads it, since no hook could say what it does
    rules_are_routes: bool = False  # its `rules` say where requests go, and nothing about calls that arrive
    mesh_defaults: tuple[DefaultPolicy, ...] = ()
    # Fields of its conf, and what a route's own rule may say instead (envoy/route_timeouts.py); the first
    # that is the field or above it counts.
    set_by_rules: tuple[tuple[str, str], ...] = ()
    # Whether a clean spec lets anybody call. A mesh with mTLS and no such policy is reported (KG016).
    lets_in: Callable[[Json], bool] | None = None
    # Whether a clean spec sets a field of Envoy that another built-in kind has too; then both are compared
    # (KG017). The fields of all other built-in kinds are their own.
    sets_shared_field: Callable[[Json], bool] | None = None

    def setting_of_rules(self, field: str) -> str:
        """What a route's rule may say instead of a field of its conf; empty where there is nothing."""
        found = (setting for name, setting in self.set_by_rules if f"{field}.".startswith(f"{name}."))
        return next(found, "")

    @property
    def acts(self) -> bool:
        """Whether anything of it reaches an Envoy; else it is stored, and that is all."""
        return any(self.acts_by(of) for of in ("to", "from", "rules", ""))

    def acts_by(self, list_: str) -> bool:
        """Whether entries of one of its lists reach an Envoy; without one, what it says of whole proxies."""
        return self.acts_on_sidecars(list_) or (list_ == "to" and self.hooks.gateway is not None)

    def acts_on_sidecars(self, list_: str) -> bool:
        """Whether entries of one of its lists reach the Envoy of a sidecar."""
        hooks = self.hooks
        acting = {
            "to": (hooks.outbound, hooks.locality),
            "from": (hooks.inbound,),
            "rules": (hooks.inbound,),
        }.get(list_, (hooks.outbound, hooks.inbound, hooks.whole, hooks.modifications))
        return self.read_by_build or any(acting)

    def acts_on_gateways(self, list_: str) -> bool:
        """Whether entries of one of its lists reach the Envoy of a built-in gateway."""
        hooks = self.hooks
        if self.read_by_build:
            return True
        match list_:
            case "to":
                return any((hooks.gateway, hooks.outbound, hooks.locality))
            case "from" | "rules":
                return hooks.at_gateways
            case _:
                return any((hooks.outbound, hooks.at_gateways, hooks.whole, hooks.modifications))


class Column(msgspec.Struct, frozen=True):
    """One column of a table. `value` reads spec and status; where it cannot, the cell is empty."""

    title: str
    value: Callable[[Json, Json], str | int | None]
    doc: str = ""
    is_wide: bool = False  # shown with `-o wide` only


class PatchChecks(Protocol):
    """Judges what a MeshProxyPatch changes, by the messages of an Envoy."""

    def violations(self, modification: Json, path: str) -> Iterator[Violation]:
        """What is wrong with a modification at a path."""


class ValidationContext(msgspec.Struct, frozen=True):
    """What a validator may know beside the spec: the control plane, the object, and the stored spec."""

    control_plane: ControlPlaneInfo
    name: str
    mesh: str = ""
    namespace: str = ""
    labels: Mapping[str, str] = {}
    stored: Json = None  # the spec that this one replaces
    patch_checks: PatchChecks | None = None  # None where there is no Envoy to ask

    @property
    def is_system(self) -> bool:
        """Whether this object's policy role is `system`: no namespace, or the system one."""
        return self.namespace in ("", self.control_plane.system_namespace)


def _as_written(spec: Json) -> Json:
    return spec


def _as_given(spec: Json, _stored: Json) -> Json:
    return spec


def _no_violations(_spec: Any, _context: ValidationContext) -> Iterator[Violation]:
    return iter(())


def _no_warnings(_spec: Any, _context: ValidationContext) -> Iterator[str]:
    return iter(())


class Deprecation(msgspec.Struct, frozen=True):
    """A deprecated field or value, and what to write instead."""

    field: str  # from `spec`, elements of lists as `[]`
    instead: str  # a clause that a sentence can end with
    value: str = ""  # where only this value of the field is deprecated
    becomes: str = ""  # the field whose entries it becomes, one by one
    kept: str = ""  # why `koguma.io/v1` has it all the same: it has no exact replacement


class V1Conversion(msgspec.Struct, frozen=True):
    """The conversion between `kuma.io/v1alpha1` and `koguma.io/v1`, where `Kind.clean` is not all of it.

    `to_v1` takes a spec that was read with `clean`; `from_v1` gives what is stored. Both ignore what they do
    not know, and `to_v1(from_v1(spec))` is the spec itself.
    """

    to_v1: Callable[[Json], Json] = _as_written
    from_v1: Callable[[Json], Json] = _as_written
    lacks: tuple[Deprecation, ...] = ()
    keeps: tuple[Deprecation, ...] = ()


class ComputedFrom(msgspec.Struct, frozen=True):
    """What the objects of a kind that is not stored are computed from when they are read.

    Who may not read that may not read them either.
    """

    kind: str
    is_summary: bool = False  # one object is about all of a mesh; else there is one for each of them


class Kind(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One kind. `validate` and `warn` see a spec that already fits the schema.

    `validate` yields whole paths: from `spec` for ordinary kinds, from the root for inline ones.
    """

    name: str
    plural: str
    spec: type[Spec]
    doc: str  # the module's docstring: the page of the manual
    short: str = ""
    scope: Scope = Scope.MESH
    sync: Sync = LOCAL
    aliases: tuple[str, ...] = ()
    namespaced: bool = True
    system_namespace_only: bool = False
    inline: bool = False  # spec fields stand at the top level of the plain form
    read_only: bool = False
    computed: ComputedFrom | None = None  # nothing is stored, so there are no revisions and no watches
    admin_only: bool = False
    admin_written: bool = False  # can do anything to a proxy, so that `edit` does not let one write it
    policy: Policy | None = None
    status: type[Spec] | None = None
    clean: Callable[[Json], Json] = _as_written  # several spellings read as one, before the schema
    v1: V1Conversion = V1Conversion()  # what `koguma.io/v1` has in place of older fields
    validate: Callable[[Any, ValidationContext], Iterator[Violation]] = _no_violations
    warn: Callable[[Any, ValidationContext], Iterator[str]] = _no_warnings
    filled: Callable[[Json, Json], Json] = (
        _as_given  # a written spec with what we decide, over the stored one
    )
    display: tuple[str, str] | None = None
    short_history: bool = False  # payloads are kept for the watch window only
    dns_name: bool = False  # the display name must be an RFC 1035 label
    group: str = "kuma.io"
    set_name: str = ""  # Kubernetes' own kinds: what objects are stored as, since our names come first
    at_root: bool = False  # also in the Kubernetes form the spec's fields stand at the top level
    columns: tuple[Column, ...] = ()  # what a table shows beside name, mesh and age
    # Proxies: the value of their label kuma.io/proxy-type, from a spec that was read with `clean`.
    proxy_type: Callable[[Json], str] | None = None
    extensions: tuple[DestinationPlugin, ...] = ()  # what `extension.type` of its specs can name

    @property
    def stored_as(self) -> str:
        """The word for its objects in keys: no two kinds share it."""
        return self.set_name or self.name

    @cached_property
    def named_types(self) -> NamedTypes:
        """The types of configurations that a spec can name, for `typed_parts`."""
        return tuple((plugin.type, plugin.config) for plugin in self.extensions)

    @cached_property
    def checker(self) -> Checker:
        """The structural check of a spec."""
        return Checker(self.spec)

    def violations(self, written: Json, context: ValidationContext) -> Iterator[Violation]:
        """All that is wrong with a spec: its schema first; the kind's own rules only if that holds."""
        root = "" if self.inline else "spec"
        spec = self.clean(written)
        structural = tuple(self.checker(spec, root))
        broken = tuple(violation for violation in structural if violation.rule != UNKNOWN)
        if broken and self.policy is not None and all(map(ref_kinds.is_unknown, broken)):
            yield from (self._with_kinds(violation, spec, root, context) for violation in structural)
            return
        yield from structural
        if not broken:
            yield from self.validate(self.read(spec), context)

    def _with_kinds(
        self, violation: Violation, spec: Json, root: str, context: ValidationContext
    ) -> Violation:
        """A reference to a kind that does not exist, with the kinds that the field accepts."""
        if violation.rule == UNKNOWN:
            return violation

        def validated(changed: Json) -> Iterator[Violation]:
            # Other references of the same spec may still be broken, so that it cannot be read.
            return (
                iter(()) if any(self.checker(changed, root)) else self.validate(self.read(changed), context)
            )

        return ref_kinds.advised(violation, spec, root, validated)

    @cached_property
    def status_checker(self) -> Checker:
        """The structural check of a status; only for kinds that have one."""
        assert self.status is not None, f"{self.name} has no status"
        return Checker(self.status)

    def read(self, spec: Json) -> Any:
        """A checked spec as an instance of its type."""
        return read(self.spec, spec)

    @property
    def path(self) -> str:
        """The word in the URL."""
        return self.plural

    @property
    def storage_prefix(self) -> str:
        """Where the objects are kept, as discovery identifies it; never shown."""
        is_kubernetes_own = bool(self.set_name)
        return f"/registry/{self.plural}" if is_kubernetes_own else f"/registry/{self.group}/{self.plural}"

    @cached_property
    def resource_id(self) -> str:
        """The opaque token that is equal exactly for endpoints over the same objects."""
        return hashlib.sha256(self.storage_prefix.encode()).hexdigest()

    @property
    def is_mesh_scoped(self) -> bool:
        """Whether it lives in a mesh."""
        return self.scope is Scope.MESH

    @cached_property
    def display_names(self) -> tuple[str, str]:
        """Singular and plural for people: `Mesh HTTP Route`, `Mesh HTTP Routes`."""
        if self.display:
            return self.display
        words = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", self.name)
        return words, f"{words}s"

    def read_only_at(self, control_plane: ControlPlaneInfo) -> bool:
        """Whether this control plane must not write it."""
        if self.read_only:
            return True
        if control_plane.is_global:
            return not self.sync.provided_by_global
        return control_plane.federated and not self.sync.provided_by_zone


class Kinds:
    """The kinds of one control plane, found by name, path, or short name."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self.all = tuple(sorted(kinds, key=lambda kind: kind.name))
        self.by_name = {kind.name: kind for kind in self.all}
        self.by_path = {path: kind for kind in self.all for path in (kind.plural, *kind.aliases)}
        self.by_short = {kind.short: kind for kind in self.all if kind.short}
        self._words = {
            word: kind
            for kind in self.all
            for word in (
                kind.short,
                kind.name.lower(),
                kind.plural,
                kind.plural.replace("-", ""),
                *kind.aliases,
            )
            if word
        }

    def __iter__(self) -> Iterator[Kind]:
        return iter(self.all)

    def __getitem__(self, name: str) -> Kind:
        return self.by_name[name]

    def get(self, name: str) -> Kind | None:
        """The kind of that name, if there is one."""
        return self.by_name.get(name)

    def word(self, word: str) -> Kind:
        """The kind that a word names: `MeshTimeout`, `meshtimeouts`, `mt`, in any case."""
        kind = self._words.get(word.lower())
        if kind is None:
            raise NotFound(unknown_kind(word, self))
        return kind


def unknown_kind(word: str, kinds: Kinds) -> str:
    """The sentence for a kind that does not exist, with the nearest one that does."""
    old = successor(word)
    if old:
        return f'unknown kind "{word}": {old}'
    near = nearest(word, (kind.name for kind in kinds))
    return f'unknown kind "{word}"' + (f'; did you mean "{near}"?' if near else "")
