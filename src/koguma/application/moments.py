"""Moments: which revision a text means, and a context in which that revision is the present.

A moment is the number of a revision, a time (RFC 3339), or how long ago it was (`2h`). Rights are those of
today, asked about the objects as they were then; and where an object is still there, about that one too. So
nobody reads of the past what he may not read now (docs/decisions/0021-history.md).
"""

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from koguma.application.computed_objects import NothingComputed
from koguma.application.context import Context
from koguma.kube import times
from koguma.model import duration
from koguma.model.errors import BadRequest, Gone, Invalid, NotAllowed
from koguma.model.kind import Kind
from koguma.model.violation import Violation
from koguma.runtime.clock import now

MESSAGE: Final = (
    "must be a revision such as 4711, a time such as 2026-11-15T09:22:00Z, or how long ago, such as 2h"
)
_DIGITS_MAX: Final = 18


def time_of(text: str, field: str, present: datetime) -> datetime:
    """The time that a text means: RFC 3339, or how long ago."""
    if duration.is_duration(text):
        try:
            return present - timedelta(seconds=abs(duration.seconds(text)))
        except OverflowError:
            return datetime.min.replace(tzinfo=UTC)
    moment = times.read(text)
    if moment is None:
        wrong = "must be a time such as 2026-11-15T09:22:00Z, or how long ago, such as 2h"
        raise Invalid([Violation(field, wrong, "format")], "A query parameter is not valid")
    return moment


def is_revision(text: str) -> bool:
    """Whether a text is the number of a revision."""
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


async def revision_of(context: Context, text: str, field: str = "at") -> int:
    """The revision that a text means."""
    if is_revision(text):
        return int(text)
    try:
        moment = time_of(text, field, now())
    except Invalid:
        raise Invalid([Violation(field, MESSAGE, "format")], "A query parameter is not valid") from None
    return min(await context.store.revision_at(moment), context.store.state.revision)


async def context_at(context: Context, text: str) -> Context:
    """A context in which a past revision is the present; nothing can be written with it."""
    revision = await revision_of(context, text)
    past = await context.past.at(context.store, await context.database(), revision)
    return msgspec.structs.replace(context, moment=past, computed=NothingComputed())


async def check_kind(context: Context, kind: Kind) -> None:
    """Raise where a past context does not know the objects of a kind."""
    if context.moment is None:
        return
    if kind.computed is not None:
        raise NotAllowed(
            f"{kind.name} is computed from what is there now, and has no history; leave out the parameter at"
        )
    oldest = (await context.store.history_bounds()).oldest_short
    if kind.short_history and context.state.revision < oldest:
        raise Gone(
            f"a superseded {kind.name} is kept for an hour only; the oldest revision to ask for is {oldest}"
        )


def refuse_with_watch(text: str | None) -> None:
    """Raise where a watch is asked for the past."""
    if text is not None:
        raise BadRequest('query parameter "at" does not go with watch; revision says where a watch begins')
