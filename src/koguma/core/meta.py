"""Meta: the metadata by which API answers name an object."""

from koguma.core import world
from koguma.core.incremental import Db
from koguma.model.resource import Key
from koguma.model.schema import Json


def meta(db: Db, key: Key) -> Json:
    """Kind, mesh, core name and labels of an object, and its KRI where the kind has one."""
    resource = world.RESOURCES.get(db, key)
    metadata: dict[str, Json] = {
        "type": key.kind,
        "mesh": key.mesh,
        "name": resource.core_name if resource else key.name,
        "labels": dict(resource.labels) if resource else {},
    }
    text = kri(db, key)
    if text:
        metadata["kri"] = text
    return metadata


def kri(db: Db, key: Key, section: str = "") -> str:
    """The KRI of an object or of a section of it, as text; empty where it has none."""
    resource = world.RESOURCES.get(db, key)
    parsed = resource.kri(world.kind_of(db, key.kind).short, section) if resource else None
    return str(parsed) if parsed else ""
