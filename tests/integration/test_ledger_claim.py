"""The claim: who wins, what is checked and in which order, how long is waited, and by which clock."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from tests.integration.ledger_steps import (
    CALL_LIMIT,
    LEASE,
    Books,
    tally,
    together,
)

ROUNDS = 60
"""Without the row's lock two winners appeared within ten."""


async def test_a_granted_claim_is_a_committed_attempt_with_its_limits(books: Books) -> None:
    await books.schedule(trace_context={"traceparent": "00-1-2-03"})
    claimed = await books.granted()
    row = await books.row()
    (attempt,) = row["attempt"]
    assert (row["state"], row["attempts"], row["open_attempts"], row["spent"]) == ("calling", 1, 1, 0)
    assert row["lease_until"] == attempt["lease_until"] == attempt["claimed_at"] + timedelta(seconds=LEASE)
    assert attempt["send_before"] == attempt["lease_until"] - timedelta(seconds=CALL_LIMIT)
    assert row["wake_at"] == row["lease_until"] + timedelta(seconds=1)
    assert (attempt["outcome"], attempt["token"]) == (None, books.tokens["k", 1])
    assert (attempt["run_id"], attempt["activity_id"], attempt["scope"]) == ("run", "1", "sandbox/main")
    assert (claimed.payload, claimed.trace_context) == ({"n": 1}, {"traceparent": "00-1-2-03"})
    assert (claimed.call_limit_ms, claimed.lease_ms) == (CALL_LIMIT * 1000, LEASE * 1000)
    assert claimed.send_within_ms == (LEASE - CALL_LIMIT) * 1000
    assert claimed.idempotency_key == attempt["idempotency_key"]


async def test_every_attempt_of_an_epoch_has_the_same_idempotency_key_and_no_other_operation_has_it(
    books: Books,
) -> None:
    await books.schedule()
    await books.schedule("other")
    first = await books.granted()
    await books.reply("not_processed")
    second = await books.granted()
    other = await books.granted("other")
    assert first.idempotency_key == second.idempotency_key != other.idempotency_key
    assert (await books.row())["attempt"][0]["token"] != (await books.row())["attempt"][1]["token"]


async def test_a_call_must_begin_early_enough_to_end_before_the_deadline(books: Books) -> None:
    await books.schedule(deadline=CALL_LIMIT + 7)
    claimed = await books.granted()
    assert 6_000 < claimed.send_within_ms <= 7_000
    row = await books.row()
    assert row["attempt"][0]["send_before"] == row["deadline"] - timedelta(seconds=CALL_LIMIT)


async def test_of_two_workers_that_race_for_one_row_one_wins_and_the_other_is_told_to_wait_for_the_lease(
    books: Books,
) -> None:
    for number in range(ROUNDS):
        key = f"k{number}"
        await books.schedule(key)
        answers = await together(books.claim(key, 1), books.claim(key, 1))
        assert tally([answer.granted for answer in answers]) == {True: 1, False: 1}
        loser = next(answer for answer in answers if not answer.granted)
        assert (loser.act, loser.attempt, loser.state, loser.reason) == ("wait", 1, "calling", "lease")
        assert (LEASE - 5) * 1000 < loser.delay_ms <= LEASE * 1000
        row = await books.row(key)
        assert (row["attempts"], len(row["attempt"])) == (1, 1)


async def test_a_second_run_waits_for_the_lease_and_after_it_the_attempt_is_unknown(books: Books) -> None:
    await books.schedule()
    await books.granted()
    await books.move_time(LEASE - 5)
    second = await books.claim(attempt=1)
    assert (second.act, second.state, second.reason) == ("wait", "calling", "lease")
    assert second.delay_ms is not None
    assert 1000 <= second.delay_ms <= 5000
    await books.move_time(5)
    third = await books.claim(attempt=1)
    assert (third.granted, third.act, third.state, third.reason) == (False, "wait", "unknown", "person")
    row = await books.row()
    assert (row["state"], row["open_attempts"], row["spent"], row["attempt"][0]["outcome"]) == (
        "unknown",
        1,
        1,
        "unknown",
    )
    assert row["attempt"][0]["sent"] is None
    assert "ended without a record" in row["history"][-1]["why"]


async def test_only_the_holder_of_the_token_may_go_on_after_a_cut_commit_and_only_for_what_is_left(
    books: Books,
) -> None:
    await books.schedule()
    first = await books.granted()
    await books.move_time(5)
    again = await books.claim(attempt=1, token=books.tokens["k", 1])
    assert again.granted
    assert (again.idempotency_key, again.payload) == (first.idempotency_key, first.payload)
    assert again.send_within_ms <= first.send_within_ms - 5000
    assert not (await books.claim(attempt=1, token=uuid4())).granted
    assert len((await books.row())["attempt"]) == 1
    await books.reply("delivered")
    assert not (await books.claim(attempt=1, token=books.tokens["k", 1])).granted


async def test_an_attempt_with_an_outcome_is_answered_by_what_follows_from_it(books: Books) -> None:
    await books.schedule("ended")
    await books.attempt("delivered", "ended")
    assert (await books.claim("ended", 1)).act == "ended"
    await books.schedule("again")
    await books.attempt("not_processed", "again", delay_ms=30_000)
    answer = await books.claim("again", 1)
    assert (answer.granted, answer.act, answer.attempt) == (False, "attempt", 2)
    assert answer.delay_ms is not None
    assert 20_000 < answer.delay_ms <= 30_000


@pytest.mark.parametrize("attempt", [0, 2, 7])
async def test_no_number_but_the_next_is_claimed(books: Books, attempt: int) -> None:
    await books.schedule()
    answer = await books.claim(attempt=attempt)
    assert (answer.granted, answer.act, answer.attempt, answer.delay_ms) == (False, "attempt", 1, 0)
    assert (await books.row())["attempts"] == 0


async def test_another_generation_and_an_unknown_key_are_told_that_it_ended(books: Books) -> None:
    await books.schedule()
    for generation in (0, 2):
        answer = await books.claim(generation=generation)
        assert (answer.act, answer.reason) == ("ended", "another generation: 1")
        assert (await books.instruct(generation=generation)).act == "ended"
    assert (await books.claim("nowhere", 1)).reason == "the ledger does not know this key"
    assert (await books.instruct("nowhere")).act == "ended"
    assert await books.state() == "scheduled"


@pytest.mark.parametrize(
    "state",
    ["delivered", "rejected", "expired", "exhausted", "cancelled", "superseded", "ineligible", "abandoned", "unknown",
     "accepted", "blocked"],
)  # fmt: skip
async def test_nothing_but_a_scheduled_operation_is_claimed(books: Books, state: str) -> None:
    await books.bring_to(state)
    answer = await books.claim()
    assert not answer.granted
    assert answer.act == ("wait" if state in ("unknown", "accepted", "blocked") else "ended")
    assert await books.state() == state
