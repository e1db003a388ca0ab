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
    """Counts what this engine begins and commits from now on."""
    counted: Counter[str] = Counter()
    event.listen(engine.sync_engine, "begin", lambda _connection: counted.update(["begun"]))
    event.listen(engine.sync_engine, "commit", lambda _connection: counted.update(["committed"]))
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
    assert by_workers == {"begun": 2 * OPERATIONS, "committed": 2 * OPERATIONS}
    dispatches = len({row["at"] for row in site.sql("SELECT dispatched_at AS at FROM duly.operation")})
    assert dispatches <= 2  # one, unless a sweep fell between two commits
    assert by_sweeps["begun"] == by_sweeps["committed"]

    for key in keys:
        kinds = [
            (one.WhichOneof("attributes") or "").removesuffix("_event_attributes")
            async for one in bench.client.get_workflow_handle(key).fetch_history_events()
        ]
        assert len(kinds) == 11, kinds
        assert kinds.count("activity_task_scheduled") == 1
        assert len(site.sandbox.requests(key=key)) == 1
    assert site.sql("SELECT count(*) AS n FROM duly.history WHERE key = ANY(%s)", keys) == [{"n": 3 * OPERATIONS}]
