"""Store format: what a control plane must understand to use a store, and the oldest release that does.

Most migrations only add tables that an older release does not look at: it starts beside a newer one, and the
other way round, as in a rolling upgrade. One after which an older release would misread something raises the
format. The store says which release it needs since then, and others refuse it with that number.
"""

from collections.abc import Sequence
from typing import Any, Final

from koguma import __version__
from koguma.store.contract import StoreUnusable

FORMAT: Final = 1
SINCE: Final = "0.1.0"  # the first release that understands this format

TABLE: Final = """
CREATE TABLE IF NOT EXISTS store_format (
    id     BIGINT PRIMARY KEY,
    format BIGINT NOT NULL,
    needs  TEXT NOT NULL
)
"""
READ: Final = "SELECT format, needs FROM store_format WHERE id = 1"
WRITE: Final = f"""
INSERT INTO store_format (id, format, needs) VALUES (1, {FORMAT}, '{SINCE}')
ON CONFLICT (id) DO UPDATE SET format = excluded.format, needs = excluded.needs
WHERE store_format.format < excluded.format
"""  # noqa: S608 - constants of this file


def is_noted(stored: Sequence[Any] | None, where: str) -> bool:
    """Whether a store has this format; False where it has an older one, or says none: it is the first.

    StoreUnusable where it has one that this release does not understand.
    """
    if stored is None:
        return False
    found, needs = stored
    if found > FORMAT:
        raise StoreUnusable(
            f"{where} has store format {found}, which Koguma {needs} and later can read; this is Koguma"
            f" {__version__}, which reads format {FORMAT}: start {needs} or a later one, or restore a backup"
            " from before the upgrade"
        )
    return bool(found == FORMAT)
