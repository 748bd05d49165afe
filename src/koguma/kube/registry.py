"""Registry: which endpoints there are, and which of them serve the same stored objects.

A storage set is where objects are kept: a prefix, an id made of it, and the storage version. An endpoint is a
way to reach them: a group, a version and a plural, with a converter to and from the storage version. What
belongs to objects (discovery's `resourceID`, watches, garbage collection) asks the set; what belongs to paths
(URLs, access rules) asks the endpoint.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Final

import msgspec

from koguma.kube.custom.version import CustomVersion
from koguma.model.kind import Kind
from koguma.model.schema import Json
from koguma.model.violation import Violation

KUMA: Final = "kuma.io"
KOGUMA: Final = "koguma.io"
_VERSION: Final = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?")
READ_VERBS: Final = ("get", "list", "watch")
COMPUTED_VERBS: Final = ("get", "list")  # of objects that are computed when they are read
ALL_VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")

Convert = Callable[[Json], Json]  # a spec (for kinds at the root: all fields beside metadata) to another


class StorageSet(msgspec.Struct, frozen=True, dict=True):
    """A set of stored objects, or of requests that are answered and not stored (then `kind` is None)."""

    prefix: str
    version: str  # the group and version in which objects are written, as in `apiVersion`
    kind_name: str
    kind: Kind | None = None

    @cached_property
    def id(self) -> str:
        """The opaque token that is equal exactly for endpoints over the same objects."""
        return hashlib.sha256(self.prefix.encode()).hexdigest()

    @cached_property
    def version_hash(self) -> str:
        """What Kubernetes' discovery says of the stored version; empty for what is not stored."""
        if self.kind is None:
            return ""
        group, _, version = self.version.rpartition("/")
        digest = hashlib.sha256(f"{group}/{version}/{self.kind_name}".encode()).digest()
        return base64.b64encode(digest[:8]).decode()

    @property
    def stored_as(self) -> str:
        """The word for its objects in keys."""
        assert self.kind is not None, f"{self.kind_name} is not stored"
        return self.kind.stored_as


def _nothing(_spec: Json) -> Iterator[Violation]:
    return iter(())


class Converter(msgspec.Struct, frozen=True):
    """Converts specs between the storage version and the version of an endpoint."""

    from_storage: Convert
    to_storage: Convert
    refusals: Callable[[Json], Iterator[Violation]] = _nothing  # what this version does not accept in a spec
    # Violations of a stored spec, with the fields at which they stand in this version.
    relocated: Callable[[Iterable[Violation]], Iterator[Violation]] = iter


def _same(spec: Json) -> Json:
    return spec


IDENTITY: Final = Converter(_same, _same)


class View(msgspec.Struct, frozen=True):
    """How an endpoint that is only read shows the objects of its set as another kind."""

    kind: Kind
    show: Convert  # a document in the storage version to one without `apiVersion` and `kind`
    instead: str  # what to write, for those who try to write here


class KubeEndpoint(msgspec.Struct, frozen=True, dict=True, kw_only=True):
    """One group, version and plural (an APIResource).

    Endpoints of other versions than the storage version have a `converter`, or are a `view`.
    """

    group: str  # empty: the core group
    version: str
    plural: str
    set: StorageSet
    namespaced: bool
    verbs: tuple[str, ...] = ALL_VERBS
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()  # "status", "finalize"
    converter: Converter | None = None
    view: View | None = None
    strategic: bool = False  # takes strategic merge patches, as Kubernetes' own kinds do
    singular_name: str = ""  # the kind in lower case by default
    list_kind_name: str = ""  # the kind with `List` behind it by default
    custom: CustomVersion | None = None  # of a custom resource: what its definition says of this version

    @property
    def kind_name(self) -> str:
        """The `kind` of its objects."""
        return self.view.kind.name if self.view else self.set.kind_name

    @property
    def shown_kind(self) -> Kind:
        """The kind as which its objects are shown."""
        return self.view.kind if self.view else self.kind

    @property
    def kind(self) -> Kind:
        """The kind of its stored objects."""
        assert self.set.kind is not None, f"{self.plural} are not stored"
        return self.set.kind

    @property
    def singular(self) -> str:
        """The name of one, in lower case."""
        return self.singular_name or self.kind_name.lower()

    @property
    def list_kind(self) -> str:
        """The `kind` of its lists."""
        return self.list_kind_name or f"{self.kind_name}List"

    @cached_property
    def api_version(self) -> str:
        """As in the objects' `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @cached_property
    def shape_id(self) -> str:
        """A key for caches of its documents: with another definition the same object looks different."""
        return f"{self.api_version}@{self.custom.definition_revision}" if self.custom else self.api_version

    @property
    def qualified(self) -> str:
        """As in messages: `meshtimeouts.kuma.io`, `secrets`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def conversion(self) -> Converter:
        """Its converter; the stored version's own is the identity."""
        return self.converter or IDENTITY


class Registry:
    """All endpoints of a control plane, added at the start, in an order that does not matter.

    `remote_ids` are the ids of sets that other servers serve under a plural and a group, where an
    administrator trusts them to mean the sets of this control plane.
    """

    def __init__(
        self,
        endpoints: Iterable[KubeEndpoint] = (),
        remote_ids: Mapping[tuple[str, str], str] | None = None,
    ) -> None:
        self._remote_ids = remote_ids or {}
        self._by_path: dict[tuple[str, str, str], KubeEndpoint] = {}
        self._by_kind: dict[tuple[str, str], KubeEndpoint] = {}
        self._sets: dict[str, StorageSet] = {}
        for endpoint in endpoints:
            self.add(endpoint)

    def add(self, endpoint: KubeEndpoint) -> None:
        """Serve one more endpoint; one in another version than the stored one needs a converter."""
        path = (endpoint.group, endpoint.version, endpoint.plural)
        what = f"{endpoint.plural} in {endpoint.api_version}"
        if path in self._by_path:
            raise ValueError(f"{what} are served already")
        known = self._sets.setdefault(endpoint.set.prefix, endpoint.set)
        if known != endpoint.set:
            raise ValueError(f"{what} name a set that stands for other objects: {known.kind_name}")
        is_alias = endpoint.set.kind is not None and endpoint.api_version != endpoint.set.version
        if endpoint.view and set(endpoint.verbs) - set(READ_VERBS):
            raise ValueError(f"{what} are a view, so they can only be read")
        if is_alias and endpoint.converter is None and endpoint.view is None:
            raise ValueError(
                f"{what} are stored as {endpoint.set.version}, and there is no converter from it"
            )
        self._by_path[path] = endpoint
        self._by_kind[endpoint.api_version, endpoint.kind_name] = endpoint

    def __iter__(self) -> Iterator[KubeEndpoint]:
        return iter(sorted(self._by_path.values(), key=lambda e: (e.group, e.version, e.plural)))

    def find(self, group: str, version: str, plural: str) -> KubeEndpoint | None:
        """The endpoint of a path."""
        return self._by_path.get((group, version, plural))

    def of_kind(self, api_version: str, kind: str) -> KubeEndpoint | None:
        """The endpoint that an object's own `apiVersion` and `kind` name."""
        return self._by_kind.get((api_version, kind))

    def over(self, of: StorageSet) -> tuple[KubeEndpoint, ...]:
        """All endpoints that serve a set, in order."""
        return tuple(endpoint for endpoint in self if endpoint.set == of)

    def at(self, group: str, version: str) -> tuple[KubeEndpoint, ...]:
        """The endpoints of one group and version, by plural."""
        return tuple(e for e in self if (e.group, e.version) == (group, version))

    @property
    def remote_names(self) -> Mapping[tuple[str, str], StorageSet]:
        """The sets that other servers serve too, by plural and group; only what an administrator trusts."""
        by_id = {each.id: each for each in self._sets.values()}
        return {name: by_id[set_id] for name, set_id in self._remote_ids.items() if set_id in by_id}

    @property
    def sets(self) -> tuple[StorageSet, ...]:
        """All sets, by prefix."""
        return tuple(self._sets[prefix] for prefix in sorted(self._sets))

    def groups(self) -> dict[str, tuple[str, ...]]:
        """Each group's versions, the preferred one first. A bare name means the first group that has it.

        So our own comes after Kuma's, and those of definitions last: nobody who may write a definition takes
        the names of built-in kinds.
        """
        versions: dict[str, set[str]] = {}
        for endpoint in self:
            versions.setdefault(endpoint.group, set()).add(endpoint.version)
        built_in = {endpoint.group for endpoint in self if endpoint.custom is None}

        def rank(group: str) -> tuple[bool, bool, str]:
            return group not in built_in, group == KOGUMA, group

        return {group: tuple(sorted(versions[group], key=maturity)) for group in sorted(versions, key=rank)}


def maturity(version: str) -> tuple[int, int, int, str]:
    """A sort key: released versions first, then beta, then alpha; higher ones first."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return 3, 0, 0, version
    major, stage, minor = match.groups()
    return {None: 0, "beta": 1, "alpha": 2}[stage], -int(major), -int(minor or 0), version
