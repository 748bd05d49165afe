"""Permissions: a mesh with mTLS in which nobody may call anybody.

Without mTLS permissions do not act. With it a call that nothing allows is denied, so switching mTLS on before
there is a permission stops all traffic, and so does deleting the last permission.
"""

from collections.abc import Iterator
from typing import Final

from koguma.core import world
from koguma.core.build import tls
from koguma.core.incremental import Db
from koguma.core.items import clean_spec
from koguma.core.oddities.problem import NO_PERMISSION, Problem
from koguma.model.resource import Key
from koguma.model.schema import Json

KIND: Final = "MeshTrafficPermission"
_LETS_IN: Final = ("Allow", "AllowWithShadowDeny")


def none_allows(db: Db, mesh: str) -> Iterator[Problem]:
    """A mesh with mTLS in which no permission lets anybody in."""
    if tls.mtls(db, mesh) is None or allowing(db, mesh):
        return
    there = world.BY_KIND.keys(db, (KIND, mesh))
    which = f"each {KIND} in it only denies" if there else f"there is no {KIND} in it"
    message = (
        f'mesh "{mesh}" has mTLS, and {which}, so every call between its proxies is denied; write a {KIND}'
        " that allows somebody"
    )
    objects = (Key("Mesh", "", "", "", mesh), *sorted(there))
    yield Problem(NO_PERMISSION, message, objects, path="mtls.enabledBackend")


def of_policy(db: Db, policy: Key) -> Iterator[Problem]:
    """The same, where a permission is asked about."""
    if policy.kind == KIND:
        yield from none_allows(db, policy.mesh)


def allowing(db: Db, mesh: str) -> tuple[Key, ...]:
    """The permissions of a mesh that let somebody in, wherever they act."""
    keys = world.BY_KIND.keys(db, (KIND, mesh))
    return tuple(sorted(key for key in keys if _allows(clean_spec(db, key))))


def _allows(spec: Json) -> bool:
    decided = ((each.get("default") or {}).get("action") for each in spec.get("from") or ())
    if any(action in _LETS_IN for action in decided):
        return True
    confs = [each.get("default") or {} for each in spec.get("rules") or ()]
    return any(conf.get("allow") or conf.get("allowWithShadowDeny") for conf in confs)
