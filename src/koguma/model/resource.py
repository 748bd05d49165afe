"""Resource: one stored object, and the key under which it is stored.

The key is the KRI without the section. `spec` is kept as the user wrote it; reading several
spellings as one meaning happens later, in the core, so that what is read back equals what was written.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from koguma.model import labels
from koguma.model.kri import InvalidKri, Kri
from koguma.model.schema import Json

SLASH: Final = "/"  # stands in no name but those of derived resources


class Key(NamedTuple):
    """What identifies a stored object: kind name, mesh, zone of origin, namespace, display name."""

    kind: str
    mesh: str
    zone: str
    namespace: str
    name: str

    def __str__(self) -> str:
        if SLASH in self.name:  # derived from a stored object, which people know
            kind, namespace, name, *_ = self.name.split(SLASH, 3)
            return f'{kind} "{name}" (namespace {namespace})'
        scope = "".join(
            f" {word} {value}"
            for word, value in (("mesh", self.mesh), ("zone", self.zone), ("namespace", self.namespace))
            if value
        )
        return f'{self.kind} "{self.name}"' + (f" ({scope.strip()})" if scope else "")


class Meta(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", gc=False):
    """Metadata that only the Kubernetes form has: finalizers, owner references, managed fields."""

    finalizers: tuple[str, ...] = ()
    owner_references: tuple[Json, ...] = ()
    managed_fields: tuple[Json, ...] = ()
    deletion_timestamp: str = ""  # set: it is deleted as soon as the last finalizer is removed


NO_META: Final = Meta()

_sorted_json = msgspec.json.Encoder(order="sorted").encode


def is_same(one: Json, other: Json) -> bool:
    """Whether two values are the same JSON. Python alone would take 1, 1.0 and True for equal."""
    return one is other or (bool(one == other) and _sorted_json(one) == _sorted_json(other))


class Resource(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One object as it is stored. Times are RFC 3339 text; `revision` is the one that wrote it."""

    kind: str
    mesh: str = ""
    zone: str = ""
    namespace: str = ""
    name: str
    core_name: str
    uid: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    spec: Json = {}
    status: Json = None
    creation_time: str = ""
    modification_time: str = ""
    generation: int = 1
    revision: int = 0
    meta: Meta = NO_META
    # The group and version in which spec and status are stored, for kinds that have had several; else empty.
    stored_version: str = ""

    @property
    def key(self) -> Key:
        """Its key in the store."""
        return Key(self.kind, self.mesh, self.zone, self.namespace, self.name)

    @property
    def origin(self) -> str:
        """`global`, `zone`, or empty where unknown."""
        return self.labels.get(labels.ORIGIN, "")

    def kri(self, short: str, section: str = "") -> Kri | None:
        """The identifier, or None where the kind has no short name or the stored names cannot make one."""
        if not short:
            return None
        try:
            return Kri(short, self.mesh, self.zone, self.namespace, self.name, section)
        except InvalidKri:  # written under older rules; still readable by its path
            return None
