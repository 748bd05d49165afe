"""Ownership: who owns which field of an object after a write that does not come from the Kubernetes form.

What the plain form changes belongs to its own manager, so that the next apply of somebody else finds a
conflict and not a surprise. An object of which nobody owns anything stays so.
"""

from datetime import datetime

import msgspec

from koguma.application.context import Context
from koguma.kube import catalog, codec, server_side_apply
from koguma.kube.server_side_apply import FieldManager
from koguma.model.resource import Resource
from koguma.store.contract import rfc3339


def moved(context: Context, before: Resource, after: Resource, manager: str, now: datetime) -> Resource:
    """An object as it is to be stored, its changed fields owned by a manager."""
    known = catalog.of(context.kinds)
    endpoint = known.stored(after.kind)
    live = codec.document(before, endpoint, context.control_plane)
    new = codec.document(after, endpoint, context.control_plane)
    writer = FieldManager(manager, endpoint.api_version, rfc3339(now))
    fields = tuple(server_side_apply.updated(live, new, writer, known.merge_schema(endpoint)))
    return msgspec.structs.replace(after, meta=msgspec.structs.replace(after.meta, managed_fields=fields))
