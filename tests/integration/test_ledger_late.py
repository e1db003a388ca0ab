"""A reply that comes late: it settles its own attempt, withdraws what it can, and is never lost."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.ledger_steps import LEASE, MAX_ATTEMPTS, Books

# Outcome and the state that it makes of an operation whose only attempt was taken for unknown.
FROM_UNKNOWN = [
    ("delivered", "delivered"), ("accepted", "accepted"), ("not_sent", "scheduled"), ("not_processed", "scheduled"),
    ("throttled", "scheduled"), ("denied", "scheduled"), ("rejected", "rejected"), ("invalid", "rejected"),
    ("key_mismatch", "blocked"), ("defect", "blocked"), ("unknown", "unknown"), ("in_flight", "unknown"),
    ("duplicate", "unknown"),
]  # fmt: skip

# What such a reply is, when the operation has moved on: an effect, none, or no proof.
EFFECT, NO_EFFECT, NO_PROOF = (
    ("delivered", "accepted"),
    ("not_sent", "not_processed", "throttled", "denied", "rejected", "invalid", "key_mismatch", "defect"),
    ("unknown", "in_flight", "duplicate"),
)


async def lease_over(books: Books, key: str = "k") -> None:
    """A worker claimed and fell silent."""
    await books.granted(key)
    await books.move_time(LEASE)
    await books.instruct(key)
    assert await books.state(key) == "unknown"


async def believed_absent(books: Books, key: str = "k") -> None:
    """The same, and a person said that nothing was delivered: it may be sent again."""
    await books.schedule(key)
    await lease_over(books, key)
    await books.not_delivered(key)
    assert await books.state(key) == "scheduled"


@pytest.mark.parametrize(("outcome", "state"), FROM_UNKNOWN)
async def test_after_the_lease_a_reply_still_settles_its_attempt(books: Books, outcome: str, state: str) -> None:
    await books.schedule()
    await lease_over(books)
    step = await books.reply(outcome, reference="ref", status_code=299)
    row = await books.row()
    assert (row["state"], step.state, step.refused) == (state, state, None)
    assert row["attempt"][0]["outcome"] == outcome
    (evidence,) = row["evidence"]
    assert (evidence["source"], evidence["finding"]) == ("late reply", outcome)
    assert evidence["detail"] == {"status": 299, "reference": "ref"}
    assert not row["contradicted"]
    assert (await books.reply(outcome)).refused == f"attempt 1 is on record as {outcome}"
    assert await books.row() == row, "it came twice"


@pytest.mark.parametrize(("outcome", "state"), [case for case in FROM_UNKNOWN if case[1] in ("accepted", "scheduled")])
async def test_a_late_reply_that_moves_an_operation_sets_its_alarm_to_now(
    books: Books, outcome: str, state: str
) -> None:
    """Whoever brought it may be an activity that its workflow gave up long ago."""
    await books.schedule()
    await lease_over(books)
    await books.reply(outcome)
    assert [row.key for row in await books.dispatch()] == ["k"]


async def test_a_late_reply_counts_as_what_it_was_and_not_as_what_was_feared(books: Books) -> None:
    await books.schedule("sent")
    await lease_over(books, "sent")
    await books.schedule("not")
    await lease_over(books, "not")
    assert (await books.row("not"))["spent"] == 1
    await books.reply("not_processed", "sent")
    await books.reply("not_sent", "not")
    assert ((await books.row("sent"))["spent"], (await books.row("not"))["spent"]) == (1, 0)


@pytest.mark.parametrize("outcome", EFFECT)
async def test_a_late_effect_withdraws_a_repeat_that_nobody_has_claimed(books: Books, outcome: str) -> None:
    await believed_absent(books)
    step = await books.reply(outcome, attempt=1, reference="ref")
    row = await books.row()
    assert (row["state"], row["provider_reference"], step.refused) == (outcome, "ref", None)
    assert row["open_attempts"] == (1 if outcome == "accepted" else 0)
    assert not row["contradicted"], "nothing was sent on the wrong belief"
    assert not (await books.claim(attempt=2)).granted


@pytest.mark.parametrize("outcome", EFFECT)
async def test_a_late_effect_ends_the_block_of_a_repeat(books: Books, outcome: str) -> None:
    """The key mismatch of the second was the effect of the first: a release would send a second one."""
    await believed_absent(books)
    await books.attempt("key_mismatch")
    assert await books.state() == "blocked"
    await books.reply(outcome, attempt=1)
    row = await books.row()
    assert (row["state"], row["contradicted"]) == (outcome, True)


async def test_a_late_reply_that_proves_no_effect_leaves_a_scheduled_repeat_alone(books: Books) -> None:
    for outcome in (*NO_EFFECT, *NO_PROOF):
        await believed_absent(books, outcome)
        before = await books.row(outcome)
        step = await books.reply(outcome, outcome, attempt=1)
        after = await books.row(outcome)
        assert step.refused == "kept as evidence: the operation is scheduled"
        for name in ("state", "wake_at", "open_attempts", "attempts"):
            assert after[name] == before[name]
        assert after["evidence"][-1]["finding"] == outcome
        assert not after["contradicted"]


async def test_while_a_newer_attempt_is_in_flight_a_late_reply_is_evidence(books: Books) -> None:
    for outcome in (*EFFECT, *NO_EFFECT, *NO_PROOF):
        await believed_absent(books, outcome)
        await books.granted(outcome)
        step = await books.reply(outcome, outcome, attempt=1)
        row = await books.row(outcome)
        assert step.refused == "kept as evidence: the operation is calling"
        assert (row["state"], row["attempt"][1]["outcome"]) == ("calling", None)
        assert row["attempt"][0]["outcome"] == outcome
        assert row["contradicted"] == (outcome in EFFECT), "the repeat was sent on a wrong belief"
        assert row["open_attempts"] == (2 if outcome == "accepted" else 1)


async def test_what_the_provider_works_on_is_not_demoted_by_the_reply_to_an_older_attempt(books: Books) -> None:
    for outcome in (*EFFECT, *NO_EFFECT):
        await believed_absent(books, outcome)
        await books.attempt("accepted", outcome)
        await books.reply(outcome, outcome, attempt=1)
        row = await books.row(outcome)
        assert (row["state"], row["contradicted"]) == ("accepted", outcome in EFFECT)


@pytest.mark.parametrize("second", NO_EFFECT)
async def test_a_delivered_attempt_is_not_followed_by_a_third_one(books: Books, second: str) -> None:
    """The first was delivered, as became known while the second was in flight; the second had no effect."""
    await books.configure(max_attempts=MAX_ATTEMPTS + 1)
    await believed_absent(books)
    await books.granted()
    await books.reply("delivered", attempt=1, reference="ref")
    step = await books.reply(second, attempt=2)
    row = await books.row()
    assert (step.act, row["state"], row["settled_by"], row["provider_reference"]) == (
        "ended", "delivered", "reply", "ref",
    )  # fmt: skip


async def test_nor_is_it_when_a_person_says_that_the_second_was_not_delivered(books: Books) -> None:
    await books.configure(max_attempts=MAX_ATTEMPTS + 1)
    await believed_absent(books)
    await books.granted()
    await books.reply("delivered", attempt=1)
    await books.reply("unknown", attempt=2)
    assert await books.state() == "unknown", "whether the second had an effect too is open"
    await books.not_delivered()
    assert await books.state() == "delivered"


async def test_an_accepted_attempt_is_not_forgotten_over_the_failure_of_a_newer_one(books: Books) -> None:
    await books.configure(max_attempts=MAX_ATTEMPTS + 1)
    await believed_absent(books)
    await books.granted()
    await books.reply("accepted", attempt=1)
    await books.reply("not_processed", attempt=2)
    row = await books.row()
    assert (row["state"], row["open_attempts"]) == ("unknown", 1)


@pytest.mark.parametrize(
    ("first", "second", "contradicted"),
    [("one", "two", True), ("one", None, True), (None, None, True), ("one", "one", False)],
)
async def test_a_second_effect_is_shown_and_the_same_one_told_twice_is_not(
    books: Books, first: str | None, second: str | None, contradicted: bool
) -> None:
    await books.bring_to("unknown")
    await books.sql("UPDATE duly.attempt SET sent = NULL")  # as after a lease
    await books.repeat()
    await books.reply("delivered", attempt=2, reference=second)
    await books.reply("delivered", attempt=1, reference=first)
    row = await books.row()
    assert (row["state"], row["contradicted"]) == ("delivered", contradicted)


async def late_after(books: Books, ending: str, key: str) -> None:
    """An operation that ended so, and whose first attempt was only taken for unknown."""
    subject: dict[str, Any] = {"subject": f"s-{key}", "version": 1} if ending == "superseded" else {}
    await books.schedule(key, deadline=500, **subject)
    await lease_over(books, key)
    if ending == "abandoned":
        await books.decide("abandon", key)
        return
    await books.not_delivered(key)
    match ending:
        case "exhausted":
            await books.attempt("not_processed", key)
        case "rejected":
            await books.attempt("rejected", key)
        case "cancelled":
            await books.sql("SELECT duly.cancel(:key, 'not wanted')", key=key)
        case "superseded":
            await books.schedule(f"{key}-newer", subject=f"s-{key}", version=2)
        case "expired":
            await books.move_time(500)
            await books.claim(key)


@pytest.mark.parametrize("ending", ["exhausted", "expired", "cancelled", "superseded", "abandoned", "rejected"])
async def test_after_an_ending_a_late_reply_is_evidence_and_an_effect_contradicts(books: Books, ending: str) -> None:
    for outcome in (*EFFECT, "not_processed", "duplicate"):
        key = outcome
        await late_after(books, ending, key)
        before = await books.row(key)
        assert before["state"] == ending
        step = await books.reply(outcome, key, attempt=1)
        after = await books.row(key)
        assert (step.act, step.refused) == ("ended", f"kept as evidence: the operation is {ending}")
        for name in ("state", "ended_at", "history", "wake_at"):
            assert after[name] == before[name]
        assert after["evidence"][-1]["finding"] == outcome
        assert after["contradicted"] == (outcome in EFFECT)
        alerts = [row["alert"] for row in await books.sql("SELECT alert FROM duly.alerts WHERE name = :key", key=key)]
        assert ("contradicted" in alerts) == (outcome in EFFECT)


@pytest.mark.parametrize(("outcome", "contradicted"), [("delivered", False), ("rejected", True), ("unknown", False)])
async def test_a_persons_word_is_contradicted_by_proof_that_nothing_had_an_effect(
    books: Books, outcome: str, contradicted: bool
) -> None:
    await books.schedule()
    await lease_over(books)
    await books.decide("delivered")
    await books.reply(outcome)
    row = await books.row()
    assert (row["state"], row["settled_by"], row["contradicted"]) == ("delivered", "person", contradicted)
