"""External plugins: MeshExternalServices that name a plugin which is not installed."""

from collections.abc import Iterator

from koguma.core import world
from koguma.core.build import extension, external
from koguma.core.incremental import Db
from koguma.core.lint.problem import NO_PLUGIN, Problem
from koguma.model.resource import Key
from koguma.model.violation import child


def missing(db: Db, key: Key) -> Iterator[Problem]:
    """A service whose plugin is not installed. Any type is legal, since it may be installed later."""
    resource = world.RESOURCES.get(db, key)
    section, path = external.extension_of(resource.spec) if resource else (None, "")
    type_ = (section or {}).get("type") or ""
    if section is None or not type_ or extension.plugin(db, type_) is not None:
        return
    message = f"calls of this service fail, and all else works: {extension.not_installed(db, type_)}"
    yield Problem(NO_PLUGIN, message, (key,), path=child(path, "type"))
