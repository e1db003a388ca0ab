"""What is recorded of an attempt while the operation waits for it, and what follows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy.exc import DBAPIError

from ledger.answers import Reply
from ledger.transitions import record
from tests.integration.ledger_steps import BOUND, GRACE, LEASE, MAX_ATTEMPTS, Books, sqlstate, tally, together

# Outcome, whether a byte left, then the state after a first attempt, whether the attempt stays open, whether it is
# one of the kind's max_attempts, and what is believed of its effect. Design section 5.
FIRST: list[tuple[str, bool, str, bool, bool, bool | None]] = [
    ("delivered", True, "delivered", False, True, True),
    ("accepted", True, "accepted", True, True, None),
    ("not_sent", False, "scheduled", False, False, False),
    ("not_processed", True, "scheduled", False, True, False),
    ("throttled", True, "scheduled", False, False, False),
    ("in_flight", True, "unknown", True, True, None),
    ("unknown", True, "unknown", True, True, None),
    ("duplicate", True, "unknown", True, True, None),
    ("rejected", True, "rejected", False, True, False),
    ("denied", True, "scheduled", False, False, False),
    ("key_mismatch", True, "blocked", False, True, False),
    ("invalid", False, "rejected", False, True, False),
    ("defect", False, "blocked", False, True, False),
    # Our own words for "nothing left" are not believed when bytes left.
    ("defect", True, "unknown", True, True, None),
    ("not_sent", True, "unknown", True, True, None),
    ("invalid", True, "unknown", True, True, None),
]
IDS = [f"{case[0]}{'' if case[1] else ', not sent'}" for case in FIRST]
ACT = {"scheduled": "attempt", "accepted": "wait", "unknown": "wait", "blocked": "wait"}


async def test_every_outcome_is_in_these_tables(books: Books) -> None:
    assert {row["outcome"] for row in await books.sql("SELECT outcome FROM duly.rule")} == {case[0] for case in FIRST}


@pytest.mark.parametrize(("outcome", "sent", "state", "is_open", "counts", "effect"), FIRST, ids=IDS)
async def test_a_first_attempt_ends_as_its_outcome_says_and_a_second_record_of_it_changes_nothing(
    books: Books, outcome: str, sent: bool, state: str, is_open: bool, counts: bool, effect: bool | None
) -> None:
    # A reply after the lease is as good as one before it, while nobody has looked.
    for key, after in (("in-time", 0), ("after-lease", LEASE + 5)):
        await books.schedule(key)
        await books.granted(key)
        await books.move_time(after)
        step = await books.reply(
            outcome, key, sent=sent, status_code=299, reference="ref", detail="said so", call_ms=12.5
        )
        row = await books.row(key)
        (attempt,) = row["attempt"]
        assert (row["state"], row["open_attempts"], row["spent"]) == (state, int(is_open), int(counts))
        assert (step.state, step.act, step.refused) == (state, ACT.get(state, "ended"), None)
        assert (attempt["outcome"], attempt["sent"], attempt["effect"]) == (outcome, sent, effect)
        assert (attempt["status_code"], attempt["provider_reference"], attempt["detail"]) == (299, "ref", "said so")
        assert attempt["resolved_by"] == (None if is_open else "reply")
        assert (row["evidence"], row["contradicted"]) == ([], False)
        assert row["provider_reference"] == ("ref" if state in ("delivered", "accepted") else None)
        assert row["settled_by"] == ("reply" if state == "delivered" else None)
        assert row["history"][-1]["why"].startswith(f"attempt 1: {outcome}, status 299")

        again = await books.reply(outcome, key, sent=sent)
        assert again.refused == f"attempt 1 is on record as {outcome}"
        assert (again.act, again.state) == (step.act, step.state)
        assert await books.row(key) == row
        await books.sql("UPDATE duly.connection SET held = NULL, held_at = NULL")


@pytest.mark.parametrize(("outcome", "sent"), [case[:2] for case in FIRST], ids=IDS)
async def test_no_outcome_of_a_repeat_hides_that_an_earlier_attempt_is_in_doubt(
    books: Books, outcome: str, sent: bool
) -> None:
    await books.bring_to("unknown")
    await books.repeat()
    await books.reply(outcome, sent=sent)
    row = await books.row()
    if outcome == "delivered":
        assert (row["state"], row["open_attempts"]) == ("delivered", 0)
        assert row["attempt"][0]["resolved_by"] == "the reply to attempt 2"
        assert row["attempt"][0]["effect"] is None, "the reply to the second says nothing about the first"
    else:
        assert row["state"] == ("accepted" if outcome == "accepted" else "unknown")
        assert row["attempt"][0]["resolved_at"] is None
        assert row["open_attempts"] >= 1


async def test_two_records_of_one_reply_at_once_are_one(books: Books) -> None:
    for number in range(20):  # rounds; each is a race of two connections for one row lock
        key = f"k{number}"
        await books.schedule(key)
        await books.granted(key)
        steps = await together(*(books.reply("not_processed", key, 1) for _ in range(2)))
        assert tally([step.refused is None for step in steps]) == {True: 1, False: 1}
        assert (await books.row(key))["spent"] == 1


@pytest.mark.parametrize("token", [uuid4(), None])
async def test_a_wrong_token_settles_nothing(books: Books, token: Any) -> None:
    await books.bring_to("calling")
    before = await books.row()
    step = await record(
        books.engine, key="k", attempt=1, token=token, reply=Reply(outcome="delivered", sent=True), who="stranger"
    )
    assert (step.refused, step.act) == ("another claim owns attempt 1", "wait")
    assert await books.row() == before


async def test_a_record_whose_attempt_row_is_gone_is_proof_of_loss_and_is_kept(books: Books) -> None:
    await books.schedule()
    step = await books.reply("delivered", attempt=1, reference="ref")
    assert (step.act, step.refused) == ("ended", "the ledger has no attempt 1 of this key")
    row = await books.row()
    assert (row["state"], row["evidence"][0]["finding"]) == ("scheduled", "delivered")
    assert row["evidence"][0]["detail"] == {"lost_attempt": True, "reference": "ref", "status": None}
    gone = await books.reply("delivered", "nowhere", 1)
    assert gone.act == "ended"


async def test_an_outcome_that_is_not_on_the_list_is_refused(books: Books) -> None:
    await books.bring_to("calling")
    with pytest.raises(DBAPIError, match="outcome 'fine' is not one of the closed list") as caught:
        await books.reply("fine")
    assert sqlstate(caught.value) == "22023"
    assert await books.state() == "calling"


@pytest.mark.parametrize("outcome", ["not_sent", "not_processed", "throttled", "denied"])
async def test_again_comes_after_the_delay_that_was_asked_for(books: Books, outcome: str) -> None:
    await books.schedule()
    step = await books.attempt(outcome, delay_ms=45_000)
    row = await books.row()
    assert (step.act, step.attempt) == ("attempt", 2)
    assert step.delay_ms is not None
    assert 40_000 < step.delay_ms <= 45_000
    assert row["retry_at"] - row["state_since"] > timedelta(seconds=44)
    assert abs(row["wake_at"] - row["retry_at"] - timedelta(seconds=GRACE)) < timedelta(seconds=1)
    assert not (await books.claim()).granted
    await books.move_time(45)
    if outcome != "denied":
        assert (await books.claim()).granted


async def test_an_operation_expires_now_instead_of_waiting_past_its_deadline(books: Books) -> None:
    cases = {"a": "throttled", "b": "not_processed", "c": "not_sent"}
    for key in cases:
        await books.schedule(key, deadline=300)
        await books.granted(key)
    for key, outcome in cases.items():
        await books.reply(outcome, key, delay_ms=295_000)
        assert await books.state(key) == "expired"
        assert "no call would fit before the deadline" in (await books.row(key))["history"][-1]["why"]


@pytest.mark.parametrize("delay_ms", [10**15, 2**63 - 1, -5000, None])
async def test_no_hint_of_a_provider_makes_a_record_fail(books: Books, delay_ms: Any) -> None:
    await books.schedule()
    await books.attempt("throttled", delay_ms=delay_ms)
    assert await books.state() == ("expired" if (delay_ms or 0) > 0 else "scheduled")


async def test_a_throttled_connection_waits_as_long_as_the_longest_hint_and_other_connections_go_on(
    books: Books,
) -> None:
    for key in ("a", "b", "c"):
        await books.schedule(key)
    await books.granted("a")
    await books.granted("b")
    await books.reply("throttled", "a", delay_ms=100_000)
    await books.reply("throttled", "b", delay_ms=20_000)
    held = await books.claim("c")
    assert held.reason == "connection main is throttled"
    assert held.delay_ms is not None
    assert 90_000 < held.delay_ms <= 100_000
    await books.configure(connection="spare")
    assert (await books.claim("c")).granted


async def test_a_denied_call_holds_its_connection_until_somebody_releases_it(books: Books) -> None:
    await books.schedule("a")
    await books.schedule("b", deadline=3600)
    await books.attempt("denied", "a", status_code=401, detail="token expired")
    (row,) = await books.sql("SELECT * FROM duly.connection WHERE name = 'main'")
    assert (row["held"], row["held_at"] is not None) == ("denied: token expired", True)
    for key in ("a", "b"):
        assert (await books.claim(key)).reason == "connection main is held"
        assert await books.state(key) == "scheduled"
    alerts = await books.sql("SELECT * FROM duly.alerts")
    assert [(alert["alert"], alert["name"]) for alert in alerts] == [("connection held", "main")]
    await books.move_time(3600)
    assert (await books.claim("b")).state == "expired"


async def test_the_first_reason_for_a_hold_stands(books: Books) -> None:
    for key in ("a", "b"):
        await books.schedule(key)
        await books.granted(key)
    await books.reply("denied", "a", detail="first")
    await books.reply("denied", "b", detail="second")
    assert (await books.sql("SELECT held FROM duly.connection WHERE name = 'main'"))[0]["held"] == "denied: first"


async def test_what_the_provider_accepted_is_awaited_until_its_bound_and_is_then_unknown(books: Books) -> None:
    await books.schedule()
    step = await books.attempt("accepted")
    assert (step.act, step.reason) == ("wait", "provider")
    assert step.delay_ms is not None
    assert (BOUND - 5) * 1000 < step.delay_ms <= BOUND * 1000
    await books.move_time(BOUND - 5)
    assert (await books.instruct()).state == "accepted"
    await books.move_time(5)
    assert (await books.instruct()).state == "unknown"
    assert (await books.row())["open_attempts"] == 1


async def test_the_last_attempt_of_its_number_is_exhausted(books: Books) -> None:
    await books.schedule()
    for number in range(MAX_ATTEMPTS):
        step = await books.attempt("not_processed")
        assert step.state == ("exhausted" if number + 1 == MAX_ATTEMPTS else "scheduled")
    assert (await books.row())["history"][-1]["why"].endswith(f"{MAX_ATTEMPTS} attempts used")
