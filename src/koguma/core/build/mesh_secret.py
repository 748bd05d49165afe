"""Mesh secret: the text of a Secret that a MeshExternalService or a MeshGateway names."""

import base64

from koguma.core import world
from koguma.core.incremental import Db, question
from koguma.model import reserved_secrets
from koguma.model.resource import Key


@question
def text(db: Db, mesh: str, zone: str, name: str) -> str | None:
    """The data of a Secret; None where there is none of that name."""
    found = key(db, mesh, zone, name)
    resource = world.RESOURCES.get(db, found) if found is not None else None
    return None if resource is None else decoded(resource.spec.get("data") or "")


@question
def key(db: Db, mesh: str, zone: str, name: str) -> Key | None:
    """The Secret that a name means: of the object's zone first, then of this zone, then of any other."""
    here = world.control_plane(db).zone
    keys = [key for key in world.BY_KIND.keys(db, ("Secret", mesh)) if key.name == name]
    return min(keys, key=lambda key: (key.zone != zone, key.zone != here, key), default=None)


def problem(db: Db, mesh: str, zone: str, name: str) -> str:
    """Why a Secret cannot be used; empty where it can."""
    if reserved_secrets.is_reserved(name):  # stored before that was refused, or past the API
        return f'"{name}" {reserved_secrets.MESSAGE}'
    if text(db, mesh, zone, name) is None:
        return f'there is no Secret "{name}" in mesh "{mesh}"; write it, or name another one'
    return ""


def decoded(data: str) -> str:
    """The text of base64 data; what is no text becomes replacement characters."""
    try:
        return base64.b64decode(data).decode(errors="replace")
    except ValueError:
        return ""
