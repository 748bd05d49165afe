"""Peer key: the secret by which the control planes of a store know each other, made by whoever starts first.

It is of an internal kind: it is sealed, and no endpoint of the API serves it.
"""

import secrets
from typing import Final

from koguma.access.user import SYSTEM
from koguma.application import compare_and_swap
from koguma.model.internal_kinds import CONTROL_PLANE_KEY
from koguma.model.redacted import Redacted
from koguma.model.resource import Key, Resource
from koguma.store.contract import Put, Transaction
from koguma.store.state import State
from koguma.store.store import Store

KEY: Final = Key(CONTROL_PLANE_KEY, "", "", "", "peers")
_BYTES: Final = 32
_REASON: Final = "the key of the control planes"


def stored_in(state: State) -> Redacted | None:
    """The key in a store; None where it has none, or none that can be read."""
    entry = state.entry(KEY)
    text = entry.spec.get("key") if isinstance(entry, Resource) else None
    return Redacted(text) if isinstance(text, str) and len(text) >= _BYTES else None


async def ensure(store: Store) -> None:
    """Make a key in a store that has none."""
    if store.state.entry(KEY) is None:
        spec = {"key": secrets.token_hex(_BYTES)}
        resource = Resource(kind=KEY.kind, name=KEY.name, core_name=KEY.name, spec=spec)
        await compare_and_swap.written_if_first(store, Transaction((Put(resource, 0),), SYSTEM, _REASON))
