"""duly.cancel and duly.reschedule: what they answer in every state, and which of two that come together wins."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from ledger import transitions
from ledger.answers import Answer
from ledger.states import ENDINGS, UNCERTAIN, State
from tests.integration.ledger_steps import Books, session, sqlstate, together

RACES = 300
"""A few hundred: in trials without the row lock, losers appeared within thirty."""


async def cancel(books: Books, key: str = "k", reason: str = "not wanted") -> Answer:
    return await transitions.cancel(books.engine, key, reason)


async def reschedule(books: Books, key: str = "k", due: float = 600, deadline: float = 1200, **more: Any) -> Answer:
    now = await books.now()
    times = (now + timedelta(seconds=due), now + timedelta(seconds=deadline))
    return await transitions.reschedule(books.engine, key, *times, more.get("reason", "moved"))


@pytest.mark.parametrize("state", sorted(State))
async def test_a_cancel_says_which_state_won(books: Books, state: State) -> None:
    await books.bring_to(state)
    before = await books.row()
    answer = await cancel(books)
    after = await books.row()
    if state in (State.SCHEDULED, State.BLOCKED):
        assert (answer.done, answer.state, after["state"]) == (True, "cancelled", "cancelled")
    elif state in UNCERTAIN:
        assert (answer.done, answer.state, after["state"]) == (False, state, state)
        assert "too late to be sure: attempt 1 may have been sent" in answer.answer
        assert after["stop_requested"] == "not wanted"
        assert after["wake_at"] <= await books.now()
    else:
        assert state in ENDINGS
        assert answer.done == (state is State.CANCELLED)
        assert answer.state == state
        assert after == before


async def test_a_cancelled_operation_is_never_claimed_or_swept(books: Books) -> None:
    await books.schedule()
    await cancel(books)
    assert await books.dispatch() == []
    claimed = await books.claim()
    assert (claimed.granted, claimed.act, claimed.state) == (False, "ended", "cancelled")


async def test_a_second_cancel_is_a_no_op_and_the_first_reason_stands(books: Books) -> None:
    await books.schedule("a")
    await cancel(books, "a", "first")
    again = await cancel(books, "a", "second")
    assert (again.done, again.answer) == (True, "it was cancelled already")
    await books.schedule("b")
    await books.granted("b")
    await cancel(books, "b", "first")
    await cancel(books, "b", "second")
    assert (await books.row("b"))["stop_requested"] == "first"


@pytest.mark.parametrize("outcome", ["not_sent", "not_processed", "throttled", "denied", "rejected", "invalid",
                                     "key_mismatch", "defect"])  # fmt: skip
async def test_proof_of_no_effect_after_a_stop_was_requested_ends_it_cancelled(books: Books, outcome: str) -> None:
    await books.schedule()
    await books.granted()
    await cancel(books)
    step = await books.reply(outcome)
    assert (step.act, step.state) == ("ended", "cancelled")
    assert "stop was requested: not wanted" in (await books.row())["history"][-1]["why"]


@pytest.mark.parametrize(
    ("outcome", "state"), [("delivered", "delivered"), ("accepted", "accepted"), ("unknown", "unknown")]
)
async def test_a_stop_that_was_requested_hides_neither_an_effect_nor_a_doubt(
    books: Books, outcome: str, state: str
) -> None:
    await books.schedule()
    await books.granted()
    await cancel(books)
    await books.reply(outcome)
    assert await books.state() == state


async def test_an_unknown_one_with_a_stop_requested_ends_cancelled_when_said_not_delivered(books: Books) -> None:
    await books.bring_to("unknown")
    await cancel(books)
    await books.not_delivered()
    assert await books.state() == "cancelled"


@pytest.mark.parametrize("state", sorted(State))
async def test_a_reschedule_says_which_state_won(books: Books, state: State) -> None:
    await books.bring_to(state)
    before = await books.row()
    answer = await reschedule(books)
    after = await books.row()
    if state is State.SCHEDULED:
        assert answer.done
        assert after["due_at"] - before["due_at"] > timedelta(seconds=599)
        assert after["wake_at"] == after["due_at"]
    else:
        assert (answer.done, answer.answer) == (False, f"too late: it is {state}")
        assert after == before


async def test_a_reschedule_wakes_a_workflow_that_sleeps_until_the_old_time(books: Books) -> None:
    await books.schedule(due=3600)
    await books.sql("UPDATE duly.operation SET wake_at = duly.now()")
    assert len(await books.dispatch()) == 1
    await books.instruct()
    assert await books.dispatch() == []
    await reschedule(books, due=60)
    (row,) = await books.dispatch()
    assert (row.fresh, row.delay_ms > 55_000) == (False, True)
    claimed = await books.claim()
    assert (claimed.granted, claimed.act) == (False, "attempt")
    assert claimed.delay_ms is not None
    assert 50_000 < claimed.delay_ms <= 60_000


async def test_after_an_attempt_the_deadline_may_come_earlier_but_not_later(books: Books) -> None:
    await books.schedule(deadline=1000)
    await books.attempt("not_processed")
    later = await reschedule(books, deadline=2000)
    assert (later.done, "only an owner" in later.answer) == (False, True)
    assert (await reschedule(books, due=0, deadline=500)).done


@pytest.mark.parametrize(
    ("due", "deadline", "words"),
    [(10, 5, "is not after due_at"), (-10, -5, "is already past"), (4e9, 5e9, "more than a century ahead")],
)
async def test_a_reschedule_to_times_that_cannot_be_meant_is_refused(
    books: Books, due: float, deadline: float, words: str
) -> None:
    await books.schedule()
    before = await books.row()
    with pytest.raises(DBAPIError, match=words) as caught:
        await reschedule(books, due=due, deadline=deadline)
    assert sqlstate(caught.value) == "22023"
    assert await books.row() == before


@pytest.mark.parametrize("reason", ["", "   ", None])
async def test_both_want_a_reason(books: Books, reason: Any) -> None:
    await books.schedule()
    for call in (cancel(books, reason=reason), reschedule(books, reason=reason)):
        with pytest.raises(DBAPIError, match="reason for") as caught:
            await call
        assert sqlstate(caught.value) == "22023"
    assert await books.state() == "scheduled"


async def test_both_say_that_a_key_is_not_there(books: Books) -> None:
    for call in (cancel(books, "nowhere"), reschedule(books, "nowhere")):
        with pytest.raises(DBAPIError, match="'nowhere' is not in the ledger") as caught:
            await call
        assert sqlstate(caught.value) == "P0002"


async def test_a_cancel_is_part_of_the_applications_transaction(books: Books) -> None:
    await books.schedule()
    async with session(books.url) as application, application.transaction(force_rollback=True):
        await application.execute("SELECT duly.cancel('k', 'not wanted')")
    assert await books.state() == "scheduled"


async def test_of_a_cancel_and_a_claim_that_come_together_exactly_one_wins(books: Books) -> None:
    won = {"cancel": 0, "claim": 0}
    for number in range(RACES):
        key = f"k{number}"
        await books.schedule(key)
        calls = [cancel(books, key), books.claim(key, 1)]
        if number % 2:  # whoever is asked first has the better start
            claimed, answer = await together(*reversed(calls))
        else:
            answer, claimed = await together(*calls)
        assert answer.done != claimed.granted, (answer, claimed)
        row = await books.row(key)
        if answer.done:
            won["cancel"] += 1
            assert (row["state"], row["attempts"], claimed.act) == ("cancelled", 0, "ended")
        else:
            won["claim"] += 1
            assert (row["state"], row["stop_requested"]) == ("calling", "not wanted")
            assert "attempt 1 may have been sent" in answer.answer
    assert min(won.values()) > 0, f"the race was not run: {won}"


async def test_of_a_cancel_and_a_reply_that_come_together_none_is_lost(books: Books) -> None:
    for number in range(RACES // 4):
        key = f"k{number}"
        await books.schedule(key)
        await books.granted(key)
        answer, _ = await together(cancel(books, key), books.reply("not_processed", key, 1))
        assert await books.state(key) == "cancelled", answer


async def test_a_cancel_while_a_claim_is_uncommitted_waits_and_then_says_too_late(books: Books) -> None:
    await books.schedule()
    async with session(books.url) as worker, worker.transaction():
        await worker.execute("SELECT duly.claim('k', 1, 1, gen_random_uuid(), 'w', 'r', 'a', NULL)")
        async with session(books.url) as impatient:
            await impatient.execute("SET lock_timeout = 50")  # milliseconds; any number shows that it waits
            with pytest.raises(Exception, match="lock timeout"):
                await impatient.execute("SELECT duly.cancel('k', 'not wanted')")
    answer = await cancel(books)
    assert (answer.done, answer.state) == (False, "calling")
