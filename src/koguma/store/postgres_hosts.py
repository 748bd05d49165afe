"""PostgreSQL's hosts: which one to use where the address of a store names several.

One of them takes writes (the primary), the others are standbys. All are asked at once, so that a host that is
gone delays nothing, and a standby is used as soon as it has become the primary. Where the address says
`target_session_attrs` itself, a host with these is used instead.

Passwords stay in this module and in `postgres_pooling`: errors name hosts alone.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Final

import asyncpg

from koguma.store.postgres_pooling import Connection, NoServer, ended_on_error, opened

_ADDRESS: Final = re.compile(r"(?P<before>\w+://(?:[^/?]*@)?)(?P<hosts>[^/?]*)(?P<after>.*)", re.DOTALL)

# The server disconnected, is shutting down or lacks resources: the statement may or may not have happened.
LOST: Final = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # asyncpg raises it when the server disconnects in the wrong moment
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,
)


class ReadOnlyHost(ConnectionError):
    """A host answers, and is not the primary."""


def one_line(error: BaseException) -> str:
    """An error as text, even where its message is empty."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def addresses(url: str) -> dict[str, str]:
    """The address of each host, by the host as written."""
    found = _ADDRESS.fullmatch(url)
    if found is None:
        return {"": url}
    before, hosts, after = found.group("before", "hosts", "after")
    return {host: f"{before}{host}{after}" for host in hosts.split(",")}


async def connect(url: str) -> Connection:
    """A new connection; where the address names several hosts, to one that takes writes."""
    by_host = addresses(url)
    if len(by_host) == 1:
        return await opened(url)
    connected = opened if "target_session_attrs=" in url else _writable
    attempts = {host: asyncio.ensure_future(connected(address)) for host, address in by_host.items()}
    chosen: Connection | None = None
    try:
        chosen = await _first(attempts)
        return chosen
    finally:
        for attempt in attempts.values():
            attempt.cancel()
        for ended in await asyncio.gather(*attempts.values(), return_exceptions=True):
            if not isinstance(ended, BaseException) and ended is not chosen:
                ended.terminate()


async def _writable(address: str) -> Connection:
    """A connection to one host, if that takes writes."""
    db = await opened(address)
    async with ended_on_error(db):
        async with db.transaction():
            statement = await db.prepare("SHOW transaction_read_only", name="")
            is_read_only = await statement.fetchval() == "on"
        if is_read_only:
            raise ReadOnlyHost("takes no writes, as a standby does")
    return db


async def _first(attempts: Mapping[str, "asyncio.Task[Connection]"]) -> Connection:
    """The first connection; where there is none, an error with the reason of each host."""
    waiting = set(attempts.values())
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for attempt in done:
            if attempt.exception() is None:
                return attempt.result()
    errors = {host: attempt.exception() for host, attempt in attempts.items()}
    for error in errors.values():
        if error is not None and not isinstance(error, LOST):
            raise error  # no host is of use, and this one says what to correct
    raise ConnectionError("; ".join(f"{host}: {_reason(error)}" for host, error in errors.items()))


def _reason(error: BaseException | None) -> str:
    if isinstance(error, ReadOnlyHost | NoServer | asyncpg.TargetServerAttributeNotMatched):
        return str(error)
    return one_line(error) if error is not None else ""
