"""Dispatch on real Temporal and Postgres: whatever happens to a sweep, each operation runs once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio.service import RPCError, RPCStatusCode

from reconcile import sweep as sweep_module
from reconcile.dispatcher import Dispatcher
from reconcile.sweep import Sweep
from stack.local import Stack
from tests.harness import wait_for
from tests.integration.dispatching import MINUTES, Starts, all_delivered_once, eventually_runs, requests
from tests.workbench import Bench, eventually
from workflows import contract


def refused(status: RPCStatusCode) -> RPCError:
    return RPCError("made by the test", status, b"")


async def test_rows_whose_ticks_were_missed_all_run_once_when_a_worker_comes(bench: Bench) -> None:
    keys = bench.site.schedule(*(f"op-{n}" for n in range(12)))
    late = bench.site.schedule("late", deadline=timedelta(minutes=5))
    bench.site.move_clock(timedelta(minutes=10))  # nobody swept meanwhile
    await all_delivered_once(bench, keys)
    assert bench.site.state(late[0]) == "expired"
    assert requests(bench.site, *late) == {late[0]: 0}


async def test_a_broker_that_refuses_the_second_start_stops_the_batch_and_the_rest_is_given_back(bench: Bench) -> None:
    site = bench.site
    keys = site.schedule(*(f"op-{n}" for n in range(30)))

    async def second_is_refused(number: int, start: Any) -> Any:
        if number == 2:
            raise refused(RPCStatusCode.UNAVAILABLE)
        return await start()

    report = await (await bench.with_interceptor(Starts(second_is_refused))).once()

    started = {run.id for run in await eventually_runs(bench, report.starts_accepted)}
    assert report.taken == 30
    assert report.broker_trouble is not None
    assert "UNAVAILABLE" in report.broker_trouble
    assert 1 <= report.starts_accepted < sweep_module.STARTS_AT_ONCE  # those that were in flight beside the second
    assert report.given_back == 30 - report.starts_accepted
    rows = {key: site.operation(key) for key in keys}
    waiting = [key for key in keys if key not in started]
    assert site.sql(
        "SELECT count(*) AS n FROM duly.operation WHERE key = ANY(%s) AND wake_at <= duly.now() AND NOT in_hand",
        waiting,
    ) == [{"n": len(waiting)}]
    # Only the refused one may have reached Temporal all the same; the others are as fresh as before.
    assert sum(rows[key]["dispatched_at"] is not None for key in waiting) == 1
    assert all(rows[key]["redispatches"] == 0 for key in waiting)
    assert {rows[key]["attempts"] for key in keys} == {0}

    second = await bench.sweep.once()
    assert (second.taken, second.starts_accepted) == (len(waiting), len(waiting))
    await all_delivered_once(bench, keys)


async def test_a_start_whose_reply_was_lost_is_only_nudged_by_the_next_sweep(bench: Bench) -> None:
    (key,) = bench.site.schedule("lost-reply")

    async def no_reply(_number: int, start: Any) -> Any:
        await start()
        await asyncio.Event().wait()

    report = await (await bench.with_interceptor(Starts(no_reply))).once()
    assert (report.starts_accepted, report.given_back) == (0, 1)
    assert report.broker_trouble is not None
    assert "no answer" in report.broker_trouble

    second = await bench.sweep.once()
    assert second.starts_accepted == 1
    (run,) = await eventually_runs(bench, 1)
    events = (await bench.client.get_workflow_handle(key).fetch_history()).events
    assert [event.workflow_execution_signaled_event_attributes.signal_name for event in events if event.HasField(
        "workflow_execution_signaled_event_attributes")] == [contract.NUDGE]  # fmt: skip
    await all_delivered_once(bench, [key])
    assert [one.run_id for one in await bench.runs(key)] == [run.run_id]


async def test_a_row_that_is_swept_over_and_over_has_one_run_and_one_effect(bench: Bench) -> None:
    (key,) = bench.site.schedule("again")
    for _ in range(5):
        assert (await bench.sweep.once()).starts_accepted == 1
        bench.site.sql("UPDATE duly.operation SET wake_at = duly.now() WHERE key = %s", key)
    await all_delivered_once(bench, [key])
    assert len(await bench.runs(key)) == 1


async def test_two_dispatchers_at_once_share_the_rows_and_each_has_one_effect(bench: Bench) -> None:
    keys = bench.site.schedule(*(f"op-{n}" for n in range(40)))
    other = replace(bench.sweep, identity="other")
    reports = [
        report for _ in range(5) for report in await asyncio.gather(
            replace(bench.sweep, batch=10).once(), replace(other, batch=10).once())
    ]  # fmt: skip
    assert sum(report.taken for report in reports) == 40
    assert sum(report.starts_accepted for report in reports) == 40
    await all_delivered_once(bench, keys)


async def test_a_second_dispatcher_beside_a_slow_drain_repeats_nothing_even_when_its_marks_expire(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_module, "START_LIMIT", 60.0)  # the slow one is slow, and not given up on
    keys = bench.site.schedule(*(f"op-{n}" for n in range(50)))
    gate, stuck = asyncio.Event(), asyncio.Event()

    async def slow(number: int, start: Any) -> Any:
        if number == sweep_module.STARTS_AT_ONCE:
            stuck.set()
        await gate.wait()
        return await start()

    slow_drain = asyncio.create_task((await bench.with_interceptor(Starts(slow))).once())
    await stuck.wait()
    assert (await bench.sweep.once()).taken == 0  # every row is marked
    bench.site.move_clock(MINUTES)
    assert (await bench.sweep.once()).starts_accepted == 50  # and the marks have expired
    gate.set()
    report = await slow_drain
    assert (report.starts_accepted, report.forgotten) == (0, 0)
    await all_delivered_once(bench, keys)
    assert len(await bench.runs()) == 50


@pytest.mark.parametrize("point", ["dispatch_marked", "dispatch_started"])
async def test_a_dispatcher_killed_between_its_steps_leaves_nothing_behind(bench: Bench, point: str) -> None:
    site = bench.site
    keys = site.schedule(*(f"op-{n}" for n in range(15)))
    worker = site.worker(crash=f"{point}=kill", wait=False)
    wait_for(lambda: not worker.running, f"the worker to die at {point}")
    rows = [site.operation(key) for key in keys]
    assert all(row["dispatched_at"] is not None for row in rows)  # F13: all are marked
    assert {row["attempts"] for row in rows} == {0}
    runs = len(await bench.runs())
    assert (runs == 0) if point == "dispatch_marked" else (0 < runs < len(keys))
    site.move_clock(MINUTES)
    await all_delivered_once(bench, keys)


async def test_a_dispatcher_notices_within_seconds_that_temporal_is_away_and_resumes_by_itself(
    bench: Bench, stack_env: Stack
) -> None:
    site = bench.site
    (before,) = site.schedule("before")
    async with bench.working() as dispatcher:
        await bench.wait_state(before, "delivered")
        stack_env.stop_temporal(kill=True)
        try:
            (during,) = site.schedule("during")
            # The limit of one start (2 s) and the time it takes to look.
            await eventually(lambda: dispatcher.trouble, "the dispatcher to notice", limit=10)
            assert dispatcher.trouble is not None
            assert "Temporal is away" in dispatcher.trouble
            assert site.state(during) == "scheduled"
        finally:
            await asyncio.to_thread(stack_env.start_temporal)
        await bench.wait_state(during, "delivered")
        await eventually(lambda: dispatcher.trouble is None, "the dispatcher to say that all is well")
    assert requests(site, before, during) == {before: 1, during: 1}
    assert site.operation(during)["attempts"] == 1


async def test_no_fresh_start_while_too_many_rows_are_in_hand(bench: Bench) -> None:
    keys = bench.site.schedule(*(f"op-{n}" for n in range(9)))
    small = replace(bench.sweep, batch=2, in_hand_limit=4)
    assert [(await small.once()).taken for _ in range(4)] == [2, 2, 0, 0]
    # What was with Temporal already is taken again all the same: its start may have been lost.
    bench.site.move_clock(MINUTES)
    assert (await small.once()).taken == 2
    await all_delivered_once(bench, keys)


async def test_a_defect_in_a_sweep_does_not_end_the_dispatcher(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    (key,) = bench.site.schedule("after-a-defect")
    real, broken = Sweep.once, [True]

    async def once(self: Sweep) -> Any:
        if broken:
            broken.clear()
            raise RuntimeError("made by the test")
        return await real(self)

    monkeypatch.setattr(Sweep, "once", once)
    dispatcher = Dispatcher(bench.sweep)
    task = asyncio.create_task(dispatcher.run())
    await eventually(lambda: dispatcher.trouble, "the dispatcher to say so")
    await eventually(lambda: bench.site.operation(key)["dispatched_at"], "the dispatcher to go on")
    dispatcher.stop.set()
    await task
