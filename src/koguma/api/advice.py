"""Advice: what a writer hears beside success: what admission warns about, and what is odd in the mesh now."""

from collections.abc import Collection, Iterator, Sequence

from koguma.api.context import Context
from koguma.core import problems, world
from koguma.core.admission import Admitted
from koguma.core.incremental import Db
from koguma.core.oddities.problem import ADVICE, DEPRECATED_ROUTE
from koguma.model.resource import Key


async def told(context: Context, made: Sequence[Admitted]) -> list[tuple[str, ...]]:
    """The warnings for each object that was written; what is odd about several of them is told once."""
    written = [one.resource.key for one in made]
    if not any(_is_asked(context, key) for key in written):
        return [one.warnings for one in made]
    db = await context.database()
    problems.keep(db, [key for key in written if context.kinds[key.kind].policy is not None])
    return [(*one.warnings, *_odd(db, one.resource.key, set(written))) for one in made]


def _odd(db: Db, key: Key, written: Collection[Key]) -> Iterator[str]:
    for problem in problems.of_object(db, key):
        if problem.code in (ADVICE, DEPRECATED_ROUTE):
            continue  # admission has said so
        if key == next((each for each in problem.objects if each in written), key):
            yield problem.text if key == problem.objects[0] else f"{problem.message} ({problem.code})"


def _is_asked(context: Context, key: Key) -> bool:
    """Whether anything about it can be odd; Dataplanes that proxies bring do not come this way."""
    return context.kinds[key.kind].policy is not None or key.kind in (*world.DESTINATION_KINDS, "Dataplane")
