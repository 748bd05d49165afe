"""Snapshot: everything that one Envoy gets, as named and encoded xDS resources.

A resource is encoded once and its version is the hash of its bytes, so that equal content has an equal
version on every control plane. Resources that proxies share come in bundles that are shared too: where two
snapshots hold the same bundle object, its resources need not be compared.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

import msgspec

from koguma.model.protobuf_wire import varint

CLUSTER: Final = "cluster"
ENDPOINTS: Final = "endpoints"
LISTENER: Final = "listener"
ROUTES: Final = "routes"
SECRET: Final = "secret"  # noqa: S105 - the word for a type
EXTENSION: Final = "extension"
RUNTIME: Final = "runtime"
VIRTUAL_HOST: Final = "virtual_host"

# In the order in which they are sent: what is referred to before what refers to it. A virtual host comes
# after the route configuration that it is a part of.
TYPE_URLS: Final[Mapping[str, str]] = {
    SECRET: "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
    CLUSTER: "type.googleapis.com/envoy.config.cluster.v3.Cluster",
    ENDPOINTS: "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
    EXTENSION: "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
    RUNTIME: "type.googleapis.com/envoy.service.runtime.v3.Runtime",
    LISTENER: "type.googleapis.com/envoy.config.listener.v3.Listener",
    ROUTES: "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
    VIRTUAL_HOST: "type.googleapis.com/envoy.config.route.v3.VirtualHost",
}
TYPES: Final = tuple(TYPE_URLS)

Id = tuple[str, str]  # type word and name
VersionSum = tuple[int, int]  # sums of hashes: of names, and of names with versions

_OF_PROXY: Final = ("kri_dp_", "kri_ze_")  # in names


def is_of_inbound(id_: Id) -> bool:
    """Whether it is part of an inbound: named by the proxy's object, or an extension of its listener."""
    type_, name = id_
    return type_ == EXTENSION or (type_ != CLUSTER and name.startswith(_OF_PROXY))


def version_of(body: bytes) -> str:
    """The version of a resource with these bytes: a hash."""
    return hashlib.blake2b(body, digest_size=12).hexdigest()


def version_entry(name: str, version: str) -> bytes:
    """An entry of `initial_resource_versions`, a protobuf map, as a reconnecting proxy encodes it."""
    text = f"\x0a{chr(len(name))}{name}\x12{chr(len(version))}{version}"
    if text.isascii():  # then characters are bytes, and each length fits into one
        return text.encode()
    key, value = name.encode(), version.encode()
    return b"\x0a%b%b\x12%b%b" % (varint(len(key)), key, varint(len(value)), value)


class XdsResource(msgspec.Struct, frozen=True, weakref=True):
    """One encoded resource of an Envoy."""

    type: str
    name: str
    version: str
    body: bytes
    needs: tuple[Id, ...] = ()  # the resources that it refers to

    @property
    def id(self) -> Id:
        """Type and name."""
        return self.type, self.name

    def __repr__(self) -> str:
        return f"XdsResource({self.type} {self.name} {self.version})"  # the body may hold a key

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, XdsResource):
            return NotImplemented
        return (self.version, self.name, self.type) == (other.version, other.name, other.type)

    def __hash__(self) -> int:
        return hash((self.version, self.name))


POLICY: Final = "policy"  # the type of a failure of a policy's part


class Failure(msgspec.Struct, frozen=True):
    """A resource that could not be built: a mistake of ours, or data that no check caught."""

    type: str
    name: str
    text: str
    origin: str = ""  # the object that it is for

    @property
    def is_of_policy(self) -> bool:
        """Whether it is a policy's part alone that is missing: everything else was built."""
        return self.type == POLICY

    @property
    def id(self) -> Id:
        """Type and name."""
        return self.type, self.name


_POSITIONS: Final = {type_: place for place, type_ in enumerate(TYPES)}
_COUNTS: Final[dict[tuple[int, ...], tuple[int, ...]]] = {}  # interned; there are few
_NO_SUM: Final[VersionSum] = (0, 0)
# A bundle of fewer resources is most likely one proxy's own: what follows from it is not kept.
_KEPT_MIN: Final = 32


class Bundle:
    """Resources by type and name; immutable.

    A bundle that was joined from others may keep them as `parts`: then only parts that differ are compared.
    """

    __slots__ = (
        "__weakref__",
        "_counts",
        "_inbound_resources",
        "_needed_secrets",
        "_parts",
        "_version_sums",
        "failures",
        "resources",
    )

    def __init__(
        self,
        resources: Mapping[Id, XdsResource],
        failures: tuple[Failure, ...] = (),
        parts: "tuple[Bundle, ...]" = (),
    ) -> None:
        self.resources = resources
        self.failures = failures
        self._parts = parts
        self._counts: tuple[int, ...] = ()
        self._version_sums: tuple[VersionSum, ...] = ()
        self._needed_secrets: frozenset[str] | None = None
        self._inbound_resources: tuple[XdsResource, ...] | None = None

    def count(self, type_: str) -> int:
        """How many resources there are of a type."""
        return self.counts[_POSITIONS[type_]]

    @property
    def counts(self) -> tuple[int, ...]:
        """How many resources there are, in the order of the types; counted once."""
        if not self._counts:
            by_type = Counter([type_ for type_, _ in self.resources])
            counts = tuple([by_type[each] for each in TYPES])
            self._counts = _COUNTS.setdefault(counts, counts)
        return self._counts

    @property
    def needed_secrets(self) -> frozenset[str]:
        """The names of the secrets to which resources refer."""
        if self._needed_secrets is not None:
            return self._needed_secrets
        if self._parts:
            found = frozenset(chain.from_iterable(each.needed_secrets for each in self._parts))
        else:
            needs = chain.from_iterable(each.needs for each in self.resources.values() if each.needs)
            found = frozenset(name for type_, name in needs if type_ == SECRET)
        if len(self.resources) >= _KEPT_MIN:
            self._needed_secrets = found
        return found

    @property
    def inbound_resources(self) -> tuple[XdsResource, ...]:
        """What a proxy needs to be called."""
        if self._inbound_resources is not None:
            return self._inbound_resources
        if self._parts:
            found = tuple(chain.from_iterable(each.inbound_resources for each in self._parts))
        else:
            found = tuple(resource for id_, resource in self.resources.items() if is_of_inbound(id_))
        if len(self.resources) >= _KEPT_MIN:
            self._inbound_resources = found
        return found

    @property
    def version_sums(self) -> tuple[VersionSum, ...]:
        """Sums of hashes over the resources of each type, in the order of the types.

        They equal the sums over the names and versions that a reconnecting proxy lists, in any order, if it
        has all resources. Python's hashes have a random key per process, so that sums cannot be forged.
        """
        if len(self.resources) < _KEPT_MIN and not self._version_sums:
            return _version_sums(self.resources.values())
        return self._kept_version_sums()

    def _kept_version_sums(self) -> tuple[VersionSum, ...]:
        if not self._version_sums:
            if self._parts and sum(len(each.resources) for each in self._parts) == len(self.resources):
                # Joined bundles have the total of the sums of their parts, which other bundles share.
                self._version_sums = _total(each._kept_version_sums() for each in self._parts)  # noqa: SLF001 - of the same class
            else:
                self._version_sums = _version_sums(self.resources.values())
        return self._version_sums

    def copy_counts(self, other: "Bundle") -> None:
        """Copy the counts of a bundle that has resources of the same names."""
        self._counts = other._counts  # noqa: SLF001 - of the same class

    def __repr__(self) -> str:
        return f"Bundle({list(self.resources.values())!r}, {self.failures!r})"

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Bundle):
            return NotImplemented
        return self.failures == other.failures and self._has_equal_resources(other)

    def _has_equal_resources(self, other: "Bundle") -> bool:
        if len(self.resources) != len(other.resources):
            return False
        differing = self._differing_parts(other)
        if differing is None:
            return self.resources == other.resources
        ours, theirs = self.resources.get, other.resources.get
        for id_ in chain.from_iterable(each.resources for each in differing):
            one, another = ours(id_), theirs(id_)
            if one is not another and one != another:  # most are the same object, and comparing is expensive
                return False
        return True

    def possible_differences(self, other: "Bundle") -> Iterable[Id] | None:
        """The ids that may differ; None where the parts do not tell."""
        differing = self._differing_parts(other)
        return (
            None
            if differing is None
            else dict.fromkeys(chain.from_iterable(one.resources for one in differing))
        )

    def _differing_parts(self, other: "Bundle") -> "list[Bundle] | None":
        """The smallest parts that only one of both has; None where the parts do not tell."""
        ours, theirs = self._parts, other._parts  # noqa: SLF001 - of the same class
        if not ours or len(ours) != len(theirs):
            return None
        differing: list[Bundle] = []
        for one, another in zip(ours, theirs, strict=True):
            if one is not another:
                inner = one._differing_parts(another)  # noqa: SLF001 - as above
                differing += [one, another] if inner is None else inner
        return differing

    def __hash__(self) -> int:
        return hash(tuple(self.resources))


def _version_sums(resources: Iterable[XdsResource]) -> tuple[VersionSum, ...]:
    """The sums of each type, in the order of the types."""
    sums = dict.fromkeys(TYPES, _NO_SUM)
    for resource in resources:
        names, entries = sums[resource.type]
        sums[resource.type] = (
            names + hash(resource.name),
            entries + hash(version_entry(resource.name, resource.version)),
        )
    return tuple(sums.values())


def _total(version_sums: Iterable[tuple[VersionSum, ...]]) -> tuple[VersionSum, ...]:
    """The sums of bundles that have no resource in common."""
    by_type = zip(*version_sums, strict=True)
    return tuple((sum([a for a, _ in each]), sum([b for _, b in each])) for each in by_type)


def bundle(resources: Iterable[XdsResource], failures: Iterable[Failure] = ()) -> Bundle:
    """Resources as a bundle; of two with one id the later one counts."""
    return Bundle({resource.id: resource for resource in resources}, tuple(failures))


class Snapshot(msgspec.Struct, frozen=True):
    """Everything that one Envoy gets."""

    bundles: tuple[Bundle, ...] = ()

    def get(self, id_: Id) -> XdsResource | None:
        """The resource of that type and name."""
        for each in self.bundles:
            if (resource := each.resources.get(id_)) is not None:
                return resource
        return None

    def of_type(self, type_: str) -> dict[str, XdsResource]:
        """The resources of one type by name."""
        by_name: dict[str, XdsResource] = {}
        for each in self.bundles:
            if each.count(type_):
                by_name |= {
                    p.name: p for p in each.resources.values() if p.type == type_ and p.name not in by_name
                }
        return by_name

    def n_of_type(self, type_: str) -> int:
        """How many resources of one type the bundles have."""
        return sum(each.count(type_) for each in self.bundles)

    def counts_and_sums(self) -> dict[str, tuple[int, VersionSum]]:
        """By type, the number of resources in the bundles, and their version sums."""
        bundles = self.bundles or (bundle(()),)
        counts = map(sum, zip(*(each.counts for each in bundles), strict=True))
        version_sums = _total(each.version_sums for each in bundles)
        return dict(zip(TYPES, zip(counts, version_sums, strict=True), strict=True))

    def __iter__(self) -> Iterator[XdsResource]:
        for each in self.bundles:
            yield from each.resources.values()

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What could not be built."""
        failing = [each for each in self.bundles if each.failures]  # mostly none, and read for each offer
        return tuple(failure for each in failing for failure in each.failures) if failing else ()
