"""The cost of a sweep: it reads its own index and the rows that it takes, however many others there are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from psycopg import AsyncConnection

from ledger.database import connect
from tests.integration.ledger_steps import Books, session

MANY = 20_000
"""Future rows, and as many finished ones: with a scan or a sort the numbers below are off by thousands."""

DUE, BATCH = 1500, 50

# In bulk, past duly.schedule: 40,000 calls of it would be most of the test.
FILL = f"""
INSERT INTO duly.operation (key, kind, payload, payload_digest, due_at, deadline, state, state_since, wake_at, ended_at,
  created_at)
SELECT rows.name || '-' || rows.n, 'mail', '{{"n": 1}}', 'd', now() + due, now() + due + interval '10 days',
  CASE rows.name WHEN 'ended' THEN 'cancelled' ELSE 'scheduled' END, now(),
  CASE WHEN rows.name <> 'ended' THEN now() + due END, CASE rows.name WHEN 'ended' THEN now() END, now()
FROM (
  SELECT 'future' AS name, n, interval '1 day' + n * interval '1 second' AS due FROM generate_series(1, {MANY}) n
  UNION ALL SELECT 'ended', n, interval '0' FROM generate_series(1, {MANY}) n
  UNION ALL SELECT 'due', n, n * interval '-1 second' FROM generate_series(1, {DUE}) n) rows
"""


@pytest.fixture
async def full(database: str) -> AsyncIterator[Books]:
    """A ledger with many rows and no history of them, so that none is audited."""
    books = Books(connect(database), database)
    try:
        await books.configure()
        async with books.engine.begin() as connection:
            await connection.exec_driver_sql(FILL, execution_options={"no_parameters": True})
        yield books
    finally:
        await books.engine.dispose()


async def reads(connection: AsyncConnection[Any]) -> dict[str, int]:
    """What this connection has read of the operations so far: by whole-table scans, and entries of each index."""
    table = await connection.execute(
        "SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relid = 'duly.operation'::regclass"
    )
    row = await table.fetchone()
    indexes = await connection.execute(
        "SELECT replace(i.indexrelid::regclass::text, 'duly.operation_', ''), "
        "pg_stat_get_xact_tuples_returned(i.indexrelid) FROM pg_index i WHERE i.indrelid = 'duly.operation'::regclass"
    )
    return {"scan": row[0] if row else 0, **{name: number for name, number in await indexes.fetchall() if number}}


async def swept(books: Books, mode: str, limit: int, in_hand: int) -> tuple[list[str], dict[str, int]]:
    """The keys that one sweep would take, and what it read for that; with custom or generic plans."""
    async with session(books.url) as connection:
        await connection.execute(
            "VACUUM (INDEX_CLEANUP ON) duly.operation"
        )  # what an earlier sweep put back left dead entries
    async with session(books.url) as connection, connection.transaction(force_rollback=True):
        await connection.execute(f"SET LOCAL plan_cache_mode = force_{mode}_plan".encode())
        found = await connection.execute("SELECT key FROM duly.dispatch(%s, %s, 'w')", [limit, in_hand])
        return [row[0] for row in await found.fetchall()], await reads(connection)


async def test_a_sweep_reads_its_index_and_its_batch_and_nothing_else(full: Books) -> None:
    for statistics in (False, True):
        if statistics:
            async with session(full.url) as connection:
                await connection.execute("VACUUM ANALYZE")
        for mode in ("custom", "generic"):
            for limit in (BATCH, DUE):
                keys, read = await swept(full, mode, limit, in_hand=1000)
                assert keys == [f"due-{DUE - n}" for n in range(min(limit, DUE))], "oldest first"
                assert read == {"scan": 0, "wake": len(keys), "pkey": len(keys)}, (statistics, mode, limit)


async def test_a_sweep_with_enough_in_hand_reads_what_is_due_at_most(full: Books) -> None:
    async with session(full.url) as connection:
        await connection.execute(
            "UPDATE duly.operation SET in_hand = true, dispatched_at = now() WHERE key IN ('due-1', 'due-2')"
        )
        await connection.execute("VACUUM ANALYZE")
    for mode in ("custom", "generic"):
        keys, read = await swept(full, mode, BATCH, in_hand=2)
        assert keys == ["due-2", "due-1"]
        assert (read["scan"], read["in_hand"], read["pkey"]) == (0, 2, 2)
        assert read["wake"] <= DUE


async def test_the_next_wake_is_one_entry_of_the_index(full: Books) -> None:
    async with session(full.url) as connection, connection.transaction():
        for _ in range(10):  # plans become generic after five
            await connection.execute("SELECT duly.next_wake()")
        assert await reads(connection) == {"scan": 0, "wake": 10}


async def test_the_alerts_are_read_without_a_look_at_what_needs_nobody(full: Books) -> None:
    async with session(full.url) as connection:
        await connection.execute("VACUUM ANALYZE")
    async with session(full.url) as connection, connection.transaction():
        found = await connection.execute("SELECT DISTINCT alert FROM duly.alerts")
        assert await found.fetchall() == [("late",)]
        read = await reads(connection)
    assert read["scan"] == 0
    assert sum(read.values()) <= DUE
