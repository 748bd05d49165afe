"""Custom definitions that end take their objects along; names that become free are accepted.

Both are part of housekeeping: they are done by every control plane, by compare-and-swap.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec

from koguma.application import custom_definitions, kube_admission
from koguma.application.context import Context
from koguma.kube.kinds.custom_definitions import CLEANUP
from koguma.model.errors import Conflict
from koguma.model.resource import Resource, is_same
from koguma.store.contract import Delete, Operation, Put, RequireNone

Write = Callable[[Sequence[Operation]], Awaitable[bool]]


class DefinitionKeeper:
    """Keeps the conditions of definitions true, and deletes the objects of those that end."""

    def __init__(self, context: Context, write: Write) -> None:
        self._context = context
        self._write = write
        self._seen: tuple[Resource, ...] = ()

    async def settle(self) -> bool:
        """Do what is due; whether all of it is done."""
        definitions = self._context.state.listed(custom_definitions.STORED_AS)
        is_done = True
        for definition in definitions:
            if definition.meta.deletion_timestamp:
                is_done &= await self._end(definition)
        if definitions is not self._seen:
            for definition in custom_definitions.in_doubt(definitions):
                is_done &= await self._review(definition, definitions)
        self._seen = definitions if is_done else ()
        return is_done

    async def _review(self, definition: Resource, definitions: Iterable[Resource]) -> bool:
        status = custom_definitions.reviewed_status(definition, definitions)
        if definition.meta.deletion_timestamp or is_same(status, definition.status):
            return True
        changed = msgspec.structs.replace(definition, status=status)
        return await self._write([Put(changed, definition.revision)])

    async def _end(self, definition: Resource) -> bool:
        """Delete the objects of a definition, then the definition."""
        context = self._context
        if CLEANUP not in definition.meta.finalizers:
            return True  # others hold it
        for resource in context.state.listed(definition.name):
            if not resource.meta.deletion_timestamp:
                await self._write(kube_admission.deletion(context, resource, resource.revision))
        broken = [key for key in context.state.unreadable if key.kind == definition.name]
        if broken:
            await self._write([Delete(key) for key in broken])
        if any(True for _ in custom_definitions.objects_of(context, definition)):
            return True  # their finalizers hold them; the change that frees the last one wakes us
        left = Conflict(f"objects of {definition.name} are left")
        free = tuple(name for name in definition.meta.finalizers if name != CLEANUP)
        if not free:
            return await self._write(
                [RequireNone(definition.name, "", left), Delete(definition.key, definition.revision)]
            )
        meta = msgspec.structs.replace(definition.meta, finalizers=free)
        return await self._write([Put(msgspec.structs.replace(definition, meta=meta), definition.revision)])
