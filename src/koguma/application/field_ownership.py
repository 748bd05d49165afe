"""Field ownership: managed fields (server-side apply) after a write through the plain form.

Fields that the plain form changes get its own field manager, so that the next apply of another manager meets
a conflict instead of silently overwriting them. An object without managed fields stays without.
"""

from datetime import datetime

import msgspec

from koguma.application.context import Context
from koguma.kube import codec, server_side_apply
from koguma.kube.server_side_apply import FieldManager
from koguma.model.resource import Resource
from koguma.store.contract import rfc3339


def with_changed_fields_owned(
    context: Context, before: Resource, after: Resource, manager: str, now: datetime
) -> Resource:
    """The object to store, with its changed fields owned by a manager."""
    catalog = context.catalog
    endpoint = catalog.stored(after.kind)
    live = codec.document(before, endpoint, context.control_plane)
    changed = codec.document(after, endpoint, context.control_plane)
    writer = FieldManager(manager, endpoint.api_version, rfc3339(now))
    fields = tuple(server_side_apply.updated(live, changed, writer, catalog.merge_schema(endpoint)))
    return msgspec.structs.replace(after, meta=msgspec.structs.replace(after.meta, managed_fields=fields))
