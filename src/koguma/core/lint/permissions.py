"""Permissions: a mesh with mTLS in which no call is allowed.

Without mTLS, permissions do not act. With it, a call that no policy allows is denied: enabling mTLS before
there is a permission stops all traffic, and so does deleting the last permission.
"""

from collections.abc import Callable, Iterator

from koguma.core import match, world
from koguma.core.build import tls
from koguma.core.incremental import Db, question
from koguma.core.items import clean_spec
from koguma.core.lint.problem import NO_PERMISSION, Problem
from koguma.model.resource import Key
from koguma.model.schema import Json


def none_allows(db: Db, mesh: str) -> Iterator[Problem]:
    """A mesh with mTLS in which no permission allows any call."""
    if tls.mtls(db, mesh) is None or not kinds(db) or any(_shards_of_allowing(db, mesh)):
        return
    kind = " or ".join(kinds(db))
    existing = _permissions(db, mesh)
    which = f"each {kind} in it only denies" if existing else f"there is no {kind} in it"
    message = (
        f'mesh "{mesh}" has mTLS, and {which}, so every call between its proxies is denied; write a {kind}'
        " that allows somebody"
    )
    objects = (Key("Mesh", "", "", "", mesh), *existing)
    yield Problem(NO_PERMISSION, message, objects, path="mtls.enabledBackend")


def kinds(db: Db) -> tuple[str, ...]:
    """The kinds whose policies decide who may call, in the order of their phases."""
    return tuple(kind for kind in match.policy_kinds(db) if _hook(db, kind) is not None)


def _hook(db: Db, kind: str) -> Callable[[Json], bool] | None:
    policy = world.kind_of(db, kind).policy
    return policy.lets_in if policy else None


def of_policy(db: Db, policy: Key) -> Iterator[Problem]:
    """The same problem, reported for a permission."""
    if _hook(db, policy.kind) is not None:
        yield from none_allows(db, policy.mesh)


def allowing(db: Db, mesh: str) -> tuple[Key, ...]:
    """The permissions of a mesh that allow some call, on whichever proxies."""
    return tuple(sorted(key for keys in _shards_of_allowing(db, mesh) for key in keys))


def _shards_of_allowing(db: Db, mesh: str) -> Iterator[tuple[Key, ...]]:
    return (_allowing_in(db, kind, mesh, number) for kind in kinds(db) for number in world.SHARDS)


@question
def _allowing_in(db: Db, kind: str, mesh: str, shard: int) -> tuple[Key, ...]:
    return tuple(key for key in world.BY_SHARD.keys(db, (kind, mesh, shard)) if _allows(db, key))


def _permissions(db: Db, mesh: str) -> tuple[Key, ...]:
    return tuple(sorted(key for kind in kinds(db) for key in world.BY_KIND.keys(db, (kind, mesh))))


def _allows(db: Db, key: Key) -> bool:
    hook = _hook(db, key.kind)
    try:
        return hook is not None and hook(clean_spec(db, key))
    except Exception:  # noqa: BLE001 - a policy of another package may raise anything
        return False
