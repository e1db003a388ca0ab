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

    histories = {
        key: [
            (one.WhichOneof("attributes") or "").removesuffix("_event_attributes")
            async for one in bench.client.get_workflow_handle(key).fetch_history_events()
        ]
        for key in keys
    }
    # A machine that is short of processor time lets a claim come too late to send, or a workflow task fail: those
    # operations are not the happy ones, and what they cost besides is counted as theirs.
    claims = site.sql("SELECT count(*) AS n FROM duly.attempt WHERE key = ANY(%s)", keys)[0]["n"]
    others = sum(kinds.count("activity_task_scheduled") for kinds in histories.values()) - claims
    assert by_workers == {"used": 2 * claims + others}  # claim and record, nothing else
    wrote = "SELECT count(DISTINCT xmin::text) AS n FROM duly.history WHERE key = ANY(%s)"
    assert site.sql(wrote, keys) == [{"n": 1 + 2 * claims}]  # the one that scheduled them all, claims and records
    assert not by_sweeps["failed"]

    trouble = {"workflow_task_failed", "workflow_task_timed_out"}
    happy = [key for key in keys if not trouble & set(histories[key]) and len(site.attempts(key)) == 1]
    assert len(happy) > OPERATIONS / 2
    for key in happy:
        assert len(histories[key]) == 11, histories[key]
        assert histories[key].count("activity_task_scheduled") == 1
        assert len(site.sandbox.requests(key=key)) == 1
        assert site.history(key) == ["scheduled", "calling", "delivered"]
