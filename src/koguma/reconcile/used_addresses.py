"""Used addresses: the note in the store of which virtual addresses were ever allocated.

It is a Config, one for each zone, that holds the highest address of each range. It is written before an
address above it is given to an object, and only over the revision that was read: so two control planes never
allocate the same new address, and an address is not forgotten with the object that had it.
"""

from typing import Final

import msgspec

from koguma.access.user import SYSTEM
from koguma.application import compare_and_swap, transactions
from koguma.application.context import Context
from koguma.core import address_history
from koguma.core.address_history import UsedAddresses
from koguma.store.contract import Put, Transaction

REASON: Final = "addresses allocated"
_KIND: Final = "Config"


class NotedAddresses(msgspec.Struct, frozen=True):
    """The highest addresses that are noted, and the revision of the note; 0 where there is none."""

    used: UsedAddresses
    revision: int


def name(zone: str) -> str:
    """The name of the note of a zone."""
    return f"koguma-used-addresses-{zone}"


def stored(context: Context) -> NotedAddresses:
    """What is noted."""
    note = context.state.named(_KIND, "", name(context.control_plane.zone))
    if note is None:
        return NotedAddresses({}, 0)
    return NotedAddresses(address_history.from_store(str(note.spec.get("config") or "")), note.revision)


async def note(context: Context, before: NotedAddresses, used: UsedAddresses) -> bool:
    """Note these addresses over what was read before; False if another control plane was first."""
    text = address_history.stored_form(used)
    document = {"type": _KIND, "name": name(context.control_plane.zone), "config": text}
    resource = transactions.control_plane_object(context, document)
    transaction = Transaction((Put(resource, before.revision),), SYSTEM, REASON)
    return await compare_and_swap.written_if_first(context.store, transaction)
