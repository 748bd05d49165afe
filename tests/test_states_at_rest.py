"""What states of proxies cost a database at rest: rows are counted by PostgreSQL itself."""

import asyncio
from datetime import UTC, datetime

import asyncpg
import pytest

from koguma.fleet.proxy_state import ProxyState
from koguma.fleet.state_mirror import POLL_SECONDS, StateMirror
from koguma.fleet.state_writer import FLUSH_SECONDS, StateWriter
from koguma.model.resource import Key
from koguma.store import log_at

N_PROXIES = 10_000
SECONDS = 10
ROWS_A_SECOND_MAX = 50
BUSY = """
SELECT count(*) FROM pg_stat_activity WHERE application_name = 'koguma' AND datname = current_database()
"""
NOW = datetime(2026, 1, 1, tzinfo=UTC)
COUNTS = """
SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) AS written,
sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) AS read
FROM pg_stat_user_tables WHERE relname IN ('instances', 'proxy_states')
"""


class Connections:
    """Proxies that stay as they are."""

    def __init__(self, instance, n_proxies):
        states = (self._state(instance, number) for number in range(n_proxies))
        self._states = {state.key: state for state in states}
        self._changed = list(self._states)

    @staticmethod
    def _state(instance, number):
        name = f"{instance}-{number}"
        key = Key("Dataplane", "default", "default", "", name)
        return ProxyState(key=key, core_name=name, instance=instance, connected_at=NOW, state="synced")

    def __iter__(self):
        return iter(self._states)

    def of(self, key):
        return self._states.get(key)

    def take_changed(self):
        changed, self._changed = self._changed, []
        return changed

    def forget_gone(self, _changed):
        return []


async def counts(url):
    """Rows that were written and read so far; what a connection did is counted when it has ended."""
    db = await asyncpg.connect(url)
    try:
        for _ in range(3000):
            if not await db.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'koguma'"
            ):
                break
            await asyncio.sleep(0.02)
        record = await db.fetchrow(COUNTS)
    finally:
        await db.close()
    return int(record["written"]), int(record["read"])


class Plane:
    """What one control plane writes and reads of states."""

    def __init__(self, url, instance, n_proxies):
        self._url, self._instance = url, instance
        self.log = log_at(url)
        self.writer = StateWriter(self.log.proxy_states, instance, lambda: NOW, beats=True)
        self.writer.local = Connections(instance, n_proxies)
        self.mirror = StateMirror(
            self.log.proxy_states, instance, lambda: NOW, lambda _key: True, is_alone=False
        )


@pytest.mark.slow
async def test_ten_thousand_proxies_at_rest_cost_less_than_fifty_rows_a_second(postgres):
    url = postgres.database()
    planes = [Plane(url, name, N_PROXIES // 2) for name in ("one", "two")]
    for plane in planes:
        await plane.log.open()
    for plane in planes:
        await plane.writer.flush()
    for plane in planes:
        await plane.mirror.poll()
        assert len(plane.mirror.connected()) == N_PROXIES // 2
        await plane.log.close()
    before = await counts(url)
    for plane in planes:
        for _ in range(round(SECONDS / FLUSH_SECONDS)):
            await plane.writer.flush()
        for _ in range(round(SECONDS / POLL_SECONDS)):
            await plane.mirror.poll()
        await plane.log.close()
    after = await counts(url)
    written, read = (after[0] - before[0]) / SECONDS, (after[1] - before[1]) / SECONDS
    assert written == len(planes) / FLUSH_SECONDS, "signs of life alone"
    assert written + read < ROWS_A_SECOND_MAX
    postgres.drop(url)
