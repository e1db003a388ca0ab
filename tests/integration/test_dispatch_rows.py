"""Dispatch on real Temporal and Postgres: what a row and its workflow may have been through before a sweep comes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from ledger import transitions
from ledger.answers import Reply
from tests.integration.dispatching import MINUTES, Starts, alerts, all_delivered_once, eventually_runs, requests
from tests.workbench import Bench, eventually
from workflows import contract


@workflow.defn(name="Done")
class Done:
    """Completes at once."""

    @workflow.run
    async def run(self) -> None:
        return


async def waits_after_the_nudge(bench: Bench, key: str) -> bool:
    """Whether its history shows a timer that was started after the last signal."""
    events = (await bench.client.get_workflow_handle(key).fetch_history()).events
    last = {event.WhichOneof("attributes"): event.event_id for event in events}
    signaled = last.get("workflow_execution_signaled_event_attributes")  # a signal is accepted before it is an event
    return signaled is not None and last.get("timer_started_event_attributes", 0) > signaled


async def test_a_fresh_key_that_temporal_knows_is_unknown_with_that_cause_and_never_sent(bench: Bench) -> None:
    site = bench.site
    running, closed = site.schedule("running", "closed")
    for key in (running, closed):
        await bench.client.start_workflow("Done", id=key, task_queue="nobody")
    await bench.client.get_workflow_handle(closed).terminate()
    (run,) = await bench.runs(running)

    report = await bench.sweep.once()
    assert (report.starts_accepted, report.forgotten) == (0, 2)
    for key in (running, closed):
        row = site.operation(key)
        assert (row["state"], row["attempts"], row["open_attempts"]) == ("unknown", 1, 1)
        assert "older ledger was restored" in alerts(site, key)["unknown"]
    assert site.attempts(running)[0]["run_id"] == run.run_id
    async with bench.working():
        for hours in (1, 3, 9):
            site.move_clock(timedelta(hours=hours))
            (marker,) = site.schedule(
                f"marker-{hours}", due=timedelta(hours=hours), deadline=timedelta(hours=hours + 1)
            )
            await bench.wait_state(marker, "delivered")
    assert requests(site, running, closed) == {running: 0, closed: 0}
    assert {site.state(key) for key in (running, closed)} == {"unknown"}


async def test_a_row_whose_workflow_was_terminated_or_cancelled_gets_a_new_run_and_one_effect(bench: Bench) -> None:
    site = bench.site
    terminated, cancelled = keys = site.schedule("terminated", "cancelled")
    await bench.sweep.once()
    await bench.client.get_workflow_handle(terminated).terminate("by hand")
    # A run that waits, so that the cancellation finds it idle: its connection is held.
    site.sql("UPDATE duly.connection SET held = 'by the test', held_at = duly.now()")
    async with bench.working(dispatching=False):
        handle = bench.client.get_workflow_handle(cancelled)
        await eventually(lambda: site.operation(cancelled)["waiting_for"], "the workflow to wait")
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    assert (await handle.describe()).status == WorkflowExecutionStatus.CANCELED
    site.sql("UPDATE duly.connection SET held = NULL, held_at = NULL")
    assert {site.state(key) for key in keys} == {"scheduled"}
    site.move_clock(timedelta(minutes=50))
    site.sql("UPDATE duly.operation SET wake_at = duly.now() WHERE key = %s", cancelled)
    await all_delivered_once(bench, keys)
    for key in keys:
        assert len(await eventually_runs(bench, 2, key)) == 2


async def test_a_completed_run_of_an_earlier_generation_makes_room_for_a_new_one(bench: Bench) -> None:
    (key,) = bench.site.schedule("generation")
    await bench.sweep.once()
    bench.site.sql("UPDATE duly.operation SET generation = 2 WHERE key = %s", key)
    async with bench.working(dispatching=False):
        assert await bench.client.get_workflow_handle(key).result() == "ended"  # it serves generation 1
    bench.site.move_clock(MINUTES)
    await all_delivered_once(bench, [key])
    assert len(await eventually_runs(bench, 2, key)) == 2


async def test_a_completed_run_of_the_same_generation_makes_an_open_row_unknown(bench: Bench) -> None:
    site = bench.site
    (key,) = site.schedule("same-generation")
    await transitions.dispatch(bench.engine, 10, 10, "died before the start")
    async with Worker(bench.client, task_queue="done", workflows=[Done], workflow_runner=UnsandboxedWorkflowRunner()):
        await bench.client.execute_workflow(
            "Done", id=key, task_queue="done", memo={contract.GENERATION: site.operation(key)["generation"]}
        )
    site.move_clock(MINUTES)
    report = await bench.sweep.once()
    assert (report.starts_accepted, report.forgotten) == (0, 1)
    assert site.state(key) == "unknown"
    assert "has completed" in alerts(site, key)["unknown"]
    async with bench.working():
        site.move_clock(timedelta(hours=5))
        (marker,) = site.schedule("marker", due=timedelta(hours=5), deadline=timedelta(hours=6))
        await bench.wait_state(marker, "delivered")
    assert requests(site, key) == {key: 0}


async def test_a_start_error_of_one_row_is_recorded_backs_off_and_holds_up_nobody(bench: Bench) -> None:
    site = bench.site
    site.sql(
        "SELECT duly.schedule(key => %s, kind => 'note', payload => '{\"n\": 1}', tenant => 'acme',"
        " due_at => now() - interval '1 second', deadline => now() + interval '5 hours')",
        bad := site.key("bad"),
    )
    behind = site.schedule(*(f"behind-{n}" for n in range(3)), deadline=timedelta(hours=9))
    # No attribute is registered in this namespace, and only the row with a tenant has a value for this one.
    unregistered = replace(bench.sweep, attributes=["DulyTenant"])
    report = await unregistered.once()
    assert (report.taken, report.starts_accepted, report.failed, report.broker_trouble) == (4, 3, 1, None)
    row = site.operation(bad)
    assert (row["state"], row["attempts"], row["in_hand"]) == ("scheduled", 0, False)
    assert "DulyTenant" in alerts(site, bad)["not started"]

    waits = [1]
    for _ in range(3):
        site.move_clock(timedelta(minutes=sum(waits) + 1))
        assert (await unregistered.once()).failed == 1
        (row,) = site.sql("SELECT wake_at - duly.now() AS wait, dispatch_error FROM duly.operation WHERE key = %s", bad)
        waits.append(round(row["wait"].total_seconds() / 60))
        assert row["dispatch_error"]
    assert waits == [1, 2, 4, 8]  # minutes

    site.move_clock(timedelta(minutes=sum(waits) + 1))
    await all_delivered_once(bench, [bad, *behind])
    assert site.operation(bad)["dispatch_error"] is None
    assert alerts(site, bad) == {}


async def test_with_a_start_lead_the_workflow_is_there_early_and_the_call_is_not(bench: Bench) -> None:
    site = bench.site
    await asyncio.to_thread(site.configure, more='start_lead = "2h"')
    (key,) = site.schedule("early", due=timedelta(hours=1), deadline=timedelta(hours=2))
    (too_far,) = site.schedule("too-far", due=timedelta(hours=3), deadline=timedelta(hours=4))
    async with bench.working(dispatching=False):
        assert (await bench.sweep.once()).starts_accepted == 1
        assert [run.id for run in await eventually_runs(bench, 1)] == [key]
        # Whatever wakes it early, the claim alone decides that it is time.
        await bench.client.get_workflow_handle(key).signal(contract.NUDGE)
        await eventually(lambda: site.operation(key)["wake_at"], "the workflow to ask")
        assert site.attempts(key) == []
        site.move_clock(timedelta(hours=1, seconds=1))
        await bench.client.get_workflow_handle(key).signal(contract.NUDGE)
        await bench.wait_state(key, "delivered")
    assert site.attempts(too_far) == []
    assert requests(site, key, too_far) == {key: 1, too_far: 0}


async def test_due_far_beyond_every_timeout_is_one_attempt_whatever_restarts_meanwhile(bench: Bench) -> None:
    site = bench.site
    await asyncio.to_thread(site.configure, more='start_lead = "90d"')
    (key,) = site.schedule("far", due=timedelta(days=60), deadline=timedelta(days=61))
    handle = bench.client.get_workflow_handle(key)
    for _ in range(3):
        async with bench.working():
            await eventually_runs(bench, 1, key)
            await handle.signal(contract.NUDGE)
            await eventually(lambda: waits_after_the_nudge(bench, key), "the workflow to ask and to wait")
            assert not (await handle.describe()).raw_description.pending_activities
    assert site.attempts(key) == []
    site.move_clock(timedelta(days=60, minutes=2))
    await all_delivered_once(bench, [key])
    assert len(await bench.runs(key)) == 1


async def test_endings_and_unknowns_are_never_sent_again_however_often_the_sweep_comes(bench: Bench) -> None:
    site = bench.site
    names = ("delivered", "rejected", "unknown", "abandoned", "cancelled", "expired", "person")
    keys = dict(zip(names, site.schedule(*names), strict=True))
    site.sandbox.tell("status:422", key=keys["rejected"])
    for name in ("unknown", "abandoned", "person"):
        site.sandbox.tell("commit_then_close", key=keys[name])
    site.sql("SELECT duly.cancel(%s, 'by the test')", keys["cancelled"])
    site.sql("SELECT duly.reschedule(%s, now(), now() + interval '1 second', 'by the test')", keys["expired"])
    for version in (1, 2):
        site.sql(
            "SELECT duly.schedule(key => %s, kind => 'note', payload => '{\"n\": 1}', subject => %s, version => %s,"
            " due_at => now() + interval '20 days', deadline => now() + interval '30 days')",
            site.key(f"superseded-{version}"), site.key("subject"), version,
        )  # fmt: skip
    keys["superseded"] = site.key("superseded-1")
    async with bench.working():
        for name in ("delivered", "rejected", "unknown", "expired"):
            await bench.wait_state(keys[name], name)
        for name, choice in (("abandoned", "abandon"), ("person", "delivered")):
            await bench.wait_state(keys[name], "unknown")
            site.sql("SELECT duly.decide(%s, %s, 'seen by the test', 'ref-1')", keys[name], choice)
        await bench.wait_asked(keys["unknown"])
        states = {name: site.state(key) for name, key in keys.items()}
        before = requests(site, *keys.values())
        for hours in range(1, 60, 6):
            site.move_clock(timedelta(hours=hours))
            assert (await bench.sweep.once()).taken == 0
        assert requests(site, *keys.values()) == before
    assert states == {**{name: name for name in keys}, "person": "delivered"}
    assert {name: site.state(key) for name, key in keys.items()} == states
    assert set(before.values()) == {0, 1}


async def test_every_open_state_is_found_by_the_sweep_or_stands_in_the_alerts(bench: Bench) -> None:
    site = bench.site
    names = ("scheduled", "calling", "accepted", "unknown", "pending", "blocked")
    keys = dict(zip(names, site.schedule(*names, deadline=timedelta(days=9)), strict=True))
    site.sandbox.tell("status:202", key=keys["accepted"])
    for name in ("unknown", "pending"):
        site.sandbox.tell("commit_then_close", key=keys[name])
    site.sql("UPDATE duly.operation SET due_at = due_at + interval '1 hour', wake_at = wake_at + interval '1 hour'"
             " WHERE key = %s", keys["scheduled"])  # fmt: skip
    async with bench.working(dispatching=False):
        for name in ("calling", "blocked"):
            token = uuid4()
            await transitions.claim(
                bench.engine,
                key=keys[name],
                generation=1,
                attempt=1,
                token=token,
                worker="test",
                run_id="",
                activity_id="",
            )
        defect = Reply("defect", sent=False)
        await transitions.record(bench.engine, key=keys["blocked"], attempt=1, token=token, reply=defect, who="test")
        await bench.sweep.once()
        for name in ("accepted", "unknown"):
            await bench.wait_state(keys[name], name)
        await bench.wait_state(keys["pending"], "unknown")
        site.sql("SELECT duly.decide(%s, 'not delivered', 'seen by the test')", keys["pending"])
    for run in await bench.runs():
        if run.status == WorkflowExecutionStatus.RUNNING:
            await bench.client.get_workflow_handle(run.id).terminate()
    site.move_clock(timedelta(days=2))
    starts = Starts(lambda _number, start: start())
    report = await (await bench.with_interceptor(starts)).once()
    assert {name for name in keys if keys[name] in starts.seen} == {"scheduled", "calling", "accepted", "pending"}
    assert report.starts_accepted == 4
    assert {name for name, key in keys.items() if alerts(site, key)} == {"unknown", "pending", "blocked"}
