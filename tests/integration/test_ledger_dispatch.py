"""The sweep's own statements: what is taken, when again, by whom, and what is given back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from ledger import queries, transitions
from ledger.answers import Dispatch
from ledger.states import ENDINGS, State
from tests.integration.ledger_steps import LEASE, Books, session, together

MINUTE = timedelta(minutes=1)


def backoff(row: Dispatch) -> timedelta:
    """How long after its dispatch the row is looked at again."""
    return row.wake_at - row.marked_at


async def test_a_due_row_is_marked_and_its_alarm_is_moved_before_anything_is_started(books: Books) -> None:
    await books.schedule(tenant="t1")
    (row,) = await books.dispatch()
    assert (row.key, row.kind, row.provider, row.tenant) == ("k", "mail", "sandbox", "t1")
    assert (row.fresh, row.attempt, row.delay_ms, row.generation, row.state) == (True, 1, 0, 1, "scheduled")
    assert row.lease_ms == LEASE * 1000
    found = await books.row()
    assert (found["dispatched_at"], found["wake_at"]) == (row.marked_at, row.wake_at)
    assert (found["in_hand"], found["redispatches"]) == (True, 1)


async def test_what_is_not_due_is_not_taken(books: Books) -> None:
    await books.schedule("now")
    await books.schedule("later", due=60)
    assert [row.key for row in await books.dispatch()] == ["now"]
    await books.move_time(59)
    assert await books.dispatch() == []
    await books.move_time(1)
    assert {row.key for row in await books.dispatch()} == {"now", "later"}


async def test_a_kind_may_have_its_workflows_early_and_they_are_told_how_long_to_wait(books: Books) -> None:
    await books.configure(start_lead=30)
    await books.schedule(due=40)
    assert await books.dispatch() == []
    await books.move_time(10)
    (row,) = await books.dispatch()
    assert 25_000 < row.delay_ms <= 30_000
    assert not (await books.claim()).granted


async def test_batches_are_bounded_and_the_oldest_come_first(books: Books) -> None:
    for number in (3, 1, 4, 0, 2):
        await books.schedule(f"k{number}", due=number)
    await books.move_time(10)
    batches = [[row.key for row in await books.dispatch(limit=2)] for _ in range(4)]
    assert batches == [["k0", "k1"], ["k2", "k3"], ["k4"], []]


async def test_redispatch_backs_off_from_a_minute_to_an_hour(books: Books) -> None:
    await books.schedule(deadline=10 * 86_400)
    waited = []
    for _ in range(12):
        (row,) = await books.dispatch()
        assert await books.dispatch() == []
        waited.append(backoff(row) / MINUTE)
        await books.move_time(backoff(row).total_seconds())
    assert waited == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60, 60]


@pytest.mark.parametrize("how", ["claim", "instruct", "claim that waits"])
async def test_a_sign_of_life_starts_the_backoff_anew(books: Books, how: str) -> None:
    await books.schedule()
    for _ in range(3):
        (row,) = await books.dispatch()
        await books.move_time(backoff(row).total_seconds())
    match how:
        case "claim":
            await books.granted()
        case "instruct":
            await books.instruct()
        case "claim that waits":
            await books.sql("UPDATE duly.operation SET retry_at = duly.now() + interval '5 seconds'")
            await books.claim()
    row_now = await books.row()
    assert (row_now["in_hand"], row_now["redispatches"]) == (False, 0)
    await books.move_time(LEASE + 65)
    (row,) = await books.dispatch()
    assert (row.fresh, backoff(row)) == (False, MINUTE)


@pytest.mark.parametrize("state", sorted(set(State) - ENDINGS))
async def test_every_open_state_with_a_past_alarm_is_taken(books: Books, state: State) -> None:
    """Whatever was lost, a start, a nudge or a worker: one query finds the row."""
    await books.bring_to(state)
    await books.sql("UPDATE duly.operation SET wake_at = duly.now() - interval '1 second'")
    (row,) = await books.dispatch()
    assert (row.key, row.state) == ("k", state)
    assert (await books.row())["in_hand"] == (state is State.SCHEDULED)


@pytest.mark.parametrize("state", ["scheduled", "calling", "accepted", "unknown", "blocked"])
async def test_every_open_state_comes_up_again_by_itself_or_waits_for_a_person(books: Books, state: str) -> None:
    """Nobody touches the row again: the process that should died."""
    await books.bring_to(state)
    await books.dispatch()
    await books.move_time(2 * 3600)
    assert [row.key for row in await books.dispatch()] == ([] if state in ("unknown", "blocked") else ["k"])
    alerts = {row["alert"] for row in await books.sql("SELECT alert FROM duly.alerts")}
    assert (state in alerts) == (state in ("unknown", "blocked"))


async def test_what_ended_or_waits_for_a_person_is_never_taken_over_many_sweeps(books: Books) -> None:
    for state in [*ENDINGS, State.UNKNOWN, State.BLOCKED]:
        await books.bring_to(state, state)
    taken = set()
    for _ in range(30):  # sweeps, an hour apart
        taken |= {row.key for row in await books.dispatch()}
        await books.move_time(3600)
    assert taken <= {"superseded-newer"}


async def test_two_dispatchers_never_take_the_same_row_and_together_take_all(books: Books) -> None:
    keys = [f"k{number}" for number in range(60)]
    for key in keys:
        await books.schedule(key)
    taken: list[str] = []

    async def drain() -> None:
        while rows := await books.dispatch(limit=4):
            taken.extend(row.key for row in rows)

    assert await together(*(drain() for _ in range(4))) == [None] * 4
    # A dispatcher that finds only locked rows stops early: whatever it left, the next sweep takes.
    while rows := await books.dispatch(limit=4):
        taken.extend(row.key for row in rows)
    assert sorted(taken) == sorted(keys)


async def test_a_batch_that_was_not_committed_is_taken_by_nobody_and_then_by_somebody(books: Books) -> None:
    for number in range(4):
        await books.schedule(f"k{number}")
    async with session(books.url) as dying:
        async with dying.transaction(force_rollback=True):
            rows = await dying.execute("SELECT key FROM duly.dispatch(2, 1000, 'w')")
            first = {row[0] for row in await rows.fetchall()}
            other = {row.key for row in await asyncio.wait_for(books.dispatch(), timeout=5)}
            assert first == {"k0", "k1"}
            assert other == {"k2", "k3"}
        assert {row.key for row in await books.dispatch()} == first


async def test_enough_in_hand_stops_fresh_rows_only(books: Books) -> None:
    for number in range(6):
        await books.schedule(f"k{number}", due=number / 10)
    await books.move_time(1)
    assert len(await books.dispatch(limit=2, in_hand=2)) == 2
    assert await books.dispatch(in_hand=2) == []
    await books.move_time(60)
    again = await books.dispatch(in_hand=2)
    assert [(row.key, row.fresh) for row in again] == [("k0", False), ("k1", False)]
    await books.granted("k0")
    assert [row.key for row in await books.dispatch(limit=1, in_hand=2)] == ["k2"]


@pytest.mark.parametrize("state", sorted(set(State) - {State.SCHEDULED}))
async def test_only_what_may_still_be_claimed_is_in_hand(books: Books, state: State) -> None:
    await books.schedule("other")
    await books.bring_to(state)
    await books.sql("UPDATE duly.operation SET wake_at = duly.now() WHERE ended_at IS NULL AND key = 'k'")
    await books.dispatch()
    assert not (await books.row())["in_hand"]


async def test_a_row_that_was_not_started_comes_back_as_fresh_as_it_was(books: Books) -> None:
    await books.schedule()
    before = await books.row()
    (row,) = await books.dispatch()
    assert await transitions.give_back(books.engine, row, untried=True)
    after = await books.row()
    for name in ("dispatched_at", "in_hand", "redispatches"):
        assert after[name] == before[name]
    (again,) = await books.dispatch()
    assert (again.fresh, backoff(again)) == (True, MINUTE)


async def test_a_row_whose_start_may_have_arrived_comes_back_but_is_not_fresh(books: Books) -> None:
    await books.schedule()
    (row,) = await books.dispatch()
    assert await transitions.give_back(books.engine, row, untried=False)
    (again,) = await books.dispatch()
    assert (again.fresh, backoff(again)) == (False, MINUTE)
    assert await transitions.give_back(books.engine, again, untried=True)
    assert not (await books.dispatch())[0].fresh, "it was not fresh when it was taken"


async def test_nothing_is_given_back_that_somebody_has_moved_since(books: Books) -> None:
    await books.schedule()
    (row,) = await books.dispatch()
    await books.granted()
    before = await books.row()
    assert not await transitions.give_back(books.engine, row, untried=True)
    assert not await transitions.dispatch_failed(books.engine, row, "refused")
    await books.reply("delivered")
    assert not await transitions.give_back(books.engine, row, untried=True)
    assert (await books.row())["dispatched_at"] == before["dispatched_at"]


async def test_a_start_that_fails_for_one_row_is_shown_backs_off_and_is_forgotten_when_it_works(books: Books) -> None:
    await books.schedule()
    (row,) = await books.dispatch()
    assert await transitions.dispatch_failed(books.engine, row, "id too odd")
    (alert,) = await books.sql("SELECT alert, name, owner, why FROM duly.alerts")
    assert alert == {"alert": "not started", "name": "k", "owner": "orders", "why": "id too odd"}
    assert not (await books.row())["in_hand"]
    assert await books.dispatch() == []
    await books.move_time(180)
    (alert,) = await books.sql("SELECT alert, why FROM duly.alerts")
    assert alert == {"alert": "late", "why": "id too odd"}
    await books.dispatch()
    await books.granted()
    assert await books.sql("SELECT FROM duly.alerts") == []


async def test_a_run_that_the_ledger_has_forgotten_makes_a_fresh_row_unknown_and_nothing_is_sent(books: Books) -> None:
    await books.schedule()
    (row,) = await books.dispatch()
    assert await transitions.forgotten(books.engine, row, "sweep", "run-7", "Temporal knows a run of it")
    found = await books.row()
    assert (found["state"], found["open_attempts"], found["attempts"], found["in_hand"]) == ("unknown", 1, 1, False)
    (attempt,) = found["attempt"]
    assert (attempt["run_id"], attempt["outcome"], attempt["sent"]) == ("run-7", "unknown", None)
    assert found["history"][-1]["detail"] == {"run_id": "run-7"}
    assert not (await books.claim()).granted
    assert not await transitions.forgotten(books.engine, row, "sweep", "run-7", "again")
    await books.not_delivered()
    assert await books.state() == "scheduled"


async def test_a_call_whose_workflow_has_completed_is_unknown_at_once_and_its_reply_still_settles_it(
    books: Books,
) -> None:
    await books.bring_to("calling")
    await books.move_time(LEASE + 1)
    (row,) = await books.dispatch()
    assert await transitions.forgotten(books.engine, row, "sweep", "run-7", "the workflow has completed")
    found = await books.row()
    assert (found["state"], found["attempts"], found["open_attempts"]) == ("unknown", 1, 1)
    assert found["history"][-1]["why"] == "the workflow has completed"
    assert (await books.reply("delivered")).state == "delivered"


@pytest.mark.parametrize("state", ["calling", "delivered", "unknown"])
async def test_what_has_moved_on_since_its_dispatch_was_not_forgotten(books: Books, state: str) -> None:
    await books.schedule()
    (row,) = await books.dispatch()
    await books.granted()
    if state != "calling":
        await books.reply(state)
    before = await books.row()
    stale = replace(row, marked_at=row.marked_at - timedelta(microseconds=1))
    assert not await transitions.forgotten(books.engine, stale, "sweep", None, "stale")
    if state != "calling":
        assert not await transitions.forgotten(books.engine, row, "sweep", None, "it has a run")
    assert await books.row() == before


async def test_the_next_wake_is_the_time_until_the_next_row_or_how_late_the_oldest_is(books: Books) -> None:
    nothing = await queries.next_wake(books.engine)
    assert (nothing.wait_ms, nothing.oldest_eligible_s) == (None, None)
    await books.bring_to("delivered", "ended")
    await books.bring_to("unknown", "person")
    assert (await queries.next_wake(books.engine)).wait_ms is None
    await books.schedule("later", due=100)
    await books.schedule("soon", due=50)
    ahead = await queries.next_wake(books.engine)
    assert ahead.wait_ms is not None
    assert 45_000 < ahead.wait_ms <= 50_000
    assert ahead.oldest_eligible_s is None
    await books.move_time(70)
    late = await queries.next_wake(books.engine)
    assert late.wait_ms == 0
    assert late.oldest_eligible_s is not None
    assert 20 <= late.oldest_eligible_s < 25
