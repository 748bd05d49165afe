"""Configuration: asks what Envoys get, whichever control plane of the store they are connected to.

What a proxy gets depends on what it said of itself. The live engine knows that of its own proxies alone, for
which it compiles; others are asked of the trial engine, which knows it of all.
"""

from collections.abc import Callable
from typing import TypeVar, cast

from koguma.application.context import Context
from koguma.core.build import network
from koguma.core.incremental import Db
from koguma.model.errors import KogumaError
from koguma.model.resource import Key

T = TypeVar("T")


async def ask(context: Context, answer: Callable[[Db], T], proxy: Key | None = None) -> T:
    """The answer about what a proxy gets, or any, computed in a thread: other requests do not wait for it."""
    live = await context.database()
    elsewhere = context.trials.nodes_elsewhere()
    asked = elsewhere if proxy is None else [key for key in (proxy,) if key in elsewhere]
    if all(network.NODE_METADATA.get(live, key) is not None for key in asked):
        answered, _ = cast("tuple[T, int]", await context.beside(answer))
        return answered

    def answer_or_error(db: Db) -> T | KogumaError:
        try:
            return answer(db)
        except KogumaError as error:  # an answer too: the trial engine is as good as before
            return error

    found = await context.trials.ask(live, context.store, (), answer_or_error, compiles=True)
    if isinstance(found, KogumaError):
        raise found
    return found
