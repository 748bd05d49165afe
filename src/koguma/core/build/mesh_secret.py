"""Mesh secret: the text of a Secret that a MeshExternalService names."""

import base64

from koguma.core import world
from koguma.core.incremental import Db, question
from koguma.model import reserved_secrets


@question
def text(db: Db, mesh: str, zone: str, name: str) -> str | None:
    """The data of a Secret: of the service's zone first, then of this zone, then of any other."""
    here = world.control_plane(db).zone
    keys = [key for key in world.BY_KIND.keys(db, ("Secret", mesh)) if key.name == name]
    for key in sorted(keys, key=lambda key: (key.zone != zone, key.zone != here, key)):
        resource = world.RESOURCES.get(db, key)
        if resource is not None:
            return decoded(resource.spec.get("data") or "")
    return None


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
