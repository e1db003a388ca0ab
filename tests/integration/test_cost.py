"""What one happy operation costs: counted, never timed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from ledger import database
from tests.workbench import Bench

OPERATIONS = 30


def count_transactions(engine: AsyncEngine) -> Counter[str]:
    """Counts from now on: each use of one of this engine's connections is one transaction."""
    counted: Counter[str] = Counter()
    event.listen(engine.sync_engine, "checkout", lambda *_: counted.update(["used"]))
    event.listen(engine.sync_engine, "invalidate", lambda *_: counted.update(["failed"]))
    return counted


async def test_a_happy_operation_costs_one_activity_eleven_events_two_transactions_and_one_request(
    bench: Bench,
) -> None:
    site = bench.site
    sweeping = database.connect(site.worker_database, pool_size=2)
    by_sweeps, by_workers = count_transactions(sweeping), count_transactions(bench.engine)
    bench = replace(bench, sweep=replace(bench.sweep, engine=sweeping))
    keys = site.schedule(*(f"op-{n}" for n in range(OPERATIONS)))
    async with bench.working():
        for key in keys:
            await bench.wait_state(key, "delivered")
            assert await bench.client.get_workflow_handle(key).result() == "delivered"
    await sweeping.dispose()

    # Claim and record; everything else is the sweeps', and is shared: one look and one batch for all of them.
    assert by_workers == {"used": 2 * OPERATIONS}
    wrote = "SELECT count(DISTINCT xmin::text) AS n FROM duly.history WHERE key = ANY(%s)"
    assert site.sql(wrote, keys) == [{"n": 1 + 2 * OPERATIONS}]  # the one that scheduled them all, claims and records
    dispatches = len({row["at"] for row in site.sql("SELECT dispatched_at AS at FROM duly.operation")})
    assert dispatches <= 2  # one, unless a sweep fell between two commits
    assert not by_sweeps["failed"]

    for key in keys:
        kinds = [
            (one.WhichOneof("attributes") or "").removesuffix("_event_attributes")
            async for one in bench.client.get_workflow_handle(key).fetch_history_events()
        ]
        assert len(kinds) == 11, kinds
        assert kinds.count("activity_task_scheduled") == 1
        assert len(site.sandbox.requests(key=key)) == 1
    assert site.sql("SELECT count(*) AS n FROM duly.history WHERE key = ANY(%s)", keys) == [{"n": 3 * OPERATIONS}]
