"""Meta: the metadata by which API answers name an object."""

from koguma.core import world
from koguma.core.incremental import Db
from koguma.model import derived
from koguma.model.resource import Key
from koguma.model.schema import Json


def meta(db: Db, key: Key) -> Json:
    """Kind, mesh, core name and labels of an object, and its KRI where the kind has one."""
    resource = world.RESOURCES.get(db, key)
    source = derived.source_name(key)  # people know the object that it was computed from
    metadata: dict[str, Json] = {
        "type": source.kind if source else key.kind,
        "mesh": key.mesh,
        "name": derived.display_name(key) if source or not resource else resource.core_name,
        "labels": dict(resource.labels) if resource else {},
    }
    text = kri(db, key)
    if text:
        metadata["kri"] = text
    return metadata


def kri(db: Db, key: Key, section: str = "") -> str:
    """The KRI of an object or of a section of it, as text; empty where it has none."""
    resource = world.RESOURCES.get(db, key)
    short = world.kind_of(db, key.kind).short
    parsed = derived.identifier(key, short, section) if resource and short else None
    return str(parsed) if parsed else ""
