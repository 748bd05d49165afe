"""External addresses: MeshExternalServices that match the same calls, and take them from each other."""

from collections.abc import Iterator

from koguma.core import external_overlaps
from koguma.core.incremental import Db
from koguma.core.lint.problem import SHARED_ADDRESSES, Problem
from koguma.model.resource import Key
from koguma.model.violation import item


def shared(db: Db, key: Key) -> Iterator[Problem]:
    """A service and each other one of its mesh that matches the same calls."""
    for overlap in external_overlaps.of_mesh(db, key.mesh).get(key, ()):
        path = item("spec.match", overlap.indices[0])
        yield Problem(SHARED_ADDRESSES, overlap.message, (overlap.first, overlap.second), path=path)
