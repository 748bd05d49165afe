"""Meta: how an answer names an object without showing it."""

from koguma.core import world
from koguma.core.incremental import Db
from koguma.model.resource import Key
from koguma.model.schema import Json


def meta(db: Db, key: Key) -> Json:
    """Kind, mesh, core name and labels of an object, and its KRI where the kind has one."""
    resource = world.RESOURCES.get(db, key)
    shown: dict[str, Json] = {
        "type": key.kind,
        "mesh": key.mesh,
        "name": resource.core_name if resource else key.name,
        "labels": dict(resource.labels) if resource else {},
    }
    text = kri(db, key)
    if text:
        shown["kri"] = text
    return shown


def kri(db: Db, key: Key, section: str = "") -> str:
    """The KRI of an object or of one part of it, as text; empty where it cannot have one."""
    resource = world.RESOURCES.get(db, key)
    found = resource.kri(world.kind_of(db, key.kind).short, section) if resource else None
    return str(found) if found else ""
