"""Snapshot: everything that one Envoy gets, as named and encoded pieces.

A piece is encoded once and its version is the hash of its bytes, so that equal content has an equal
version on every control plane. Pieces that proxies share come in bundles that are shared too: two snapshots
that hold the same bundle are equal there without a look inside.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

CLUSTER: Final = "cluster"
ENDPOINTS: Final = "endpoints"
LISTENER: Final = "listener"
ROUTES: Final = "routes"
SECRET: Final = "secret"  # noqa: S105 - the word for a type
EXTENSION: Final = "extension"

# In the order in which they are sent: what is referred to before what refers to it.
TYPE_URLS: Final[Mapping[str, str]] = {
    SECRET: "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
    CLUSTER: "type.googleapis.com/envoy.config.cluster.v3.Cluster",
    ENDPOINTS: "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
    EXTENSION: "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
    LISTENER: "type.googleapis.com/envoy.config.listener.v3.Listener",
    ROUTES: "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
}
TYPES: Final = tuple(TYPE_URLS)

Id = tuple[str, str]  # type word and name


def version_of(body: bytes) -> str:
    """The version of a piece with these bytes."""
    return hashlib.blake2b(body, digest_size=12).hexdigest()


class Piece(msgspec.Struct, frozen=True, gc=False):
    """One resource of an Envoy, encoded."""

    type: str
    name: str
    version: str
    body: bytes
    needs: tuple[Id, ...] = ()  # what it refers to

    @property
    def id(self) -> Id:
        """Type and name."""
        return self.type, self.name

    def __repr__(self) -> str:
        return f"Piece({self.type} {self.name} {self.version})"  # the body may hold a key

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Piece):
            return NotImplemented
        return (self.version, self.name, self.type) == (other.version, other.name, other.type)

    def __hash__(self) -> int:
        return hash((self.version, self.name))


class Failure(msgspec.Struct, frozen=True):
    """A resource that could not be made: our own mistake, or data that no check caught."""

    type: str
    name: str
    text: str
    origin: str = ""  # the object that asked for it

    @property
    def id(self) -> Id:
        """Type and name."""
        return self.type, self.name


class Bundle(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """Pieces that belong together, found by type and name."""

    pieces: Mapping[Id, Piece]
    failures: tuple[Failure, ...] = ()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Bundle):
            return NotImplemented
        return self.pieces == other.pieces and self.failures == other.failures

    def __hash__(self) -> int:
        return hash(tuple(self.pieces))


def bundle(pieces: Iterable[Piece], failures: Iterable[Failure] = ()) -> Bundle:
    """Pieces as a bundle; of two with one id the later one counts."""
    return Bundle({piece.id: piece for piece in pieces}, tuple(failures))


class Snapshot(msgspec.Struct, frozen=True):
    """Everything that one Envoy gets."""

    bundles: tuple[Bundle, ...] = ()

    def get(self, id_: Id) -> Piece | None:
        """The piece of that type and name."""
        for each in self.bundles:
            if (found := each.pieces.get(id_)) is not None:
                return found
        return None

    def of_type(self, type_: str) -> dict[str, Piece]:
        """The pieces of one type by name."""
        return {piece.name: piece for piece in self if piece.type == type_}

    def __iter__(self) -> Iterator[Piece]:
        for each in self.bundles:
            yield from each.pieces.values()

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What could not be made."""
        return tuple(failure for each in self.bundles for failure in each.failures)
