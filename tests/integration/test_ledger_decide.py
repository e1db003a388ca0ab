"""A person's decision: what is accepted when, from when it holds, and what becomes of one that is refused."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from ledger import decisions
from ledger.answers import Decided
from ledger.states import State
from tests.integration.ledger_audit import moment
from tests.integration.ledger_steps import CALL_LIMIT, LEASE, SETTLE, Books, sqlstate, tally, together

# For every state: the state after each accepted choice. What is missing is refused.
ACCEPTED: dict[State, dict[str, State]] = {
    State.UNKNOWN: {
        "delivered": State.DELIVERED,
        "not delivered": State.UNKNOWN,  # until the settle time has passed
        "abandon": State.ABANDONED,
    },
    State.ACCEPTED: {"delivered": State.DELIVERED, "abandon": State.ABANDONED},
    State.BLOCKED: {"abandon": State.ABANDONED},
}
CHOICES = ("delivered", "not delivered", "abandon")


@pytest.mark.parametrize("state", sorted(State))
async def test_each_choice_is_accepted_in_its_states_and_else_kept_as_evidence(books: Books, state: State) -> None:
    for choice in CHOICES:
        key = choice.replace(" ", "-")
        await books.bring_to(state, key)
        before = await books.row(key)
        answer = await books.decide(choice, key)
        after = await books.row(key)
        accepted = ACCEPTED.get(state, {}).get(choice)
        assert answer.accepted == (accepted is not None), answer
        assert answer.state == after["state"] == (accepted or state)
        if accepted is None:
            (evidence,) = after["evidence"]
            assert (evidence["source"], evidence["finding"]) == ("refused decision", choice)
            assert evidence["detail"]["refusal"] in answer.answer
            assert {**after, "evidence": []} == before
        else:
            (decision,) = after["decision"]
            assert decision["id"] == answer.decision
            assert (decision["choice"], decision["reason"]) == (choice, "seen with own eyes")
            assert (decision["state_seen"], decision["attempt_seen"]) == (state, 1)
            assert (decision["decided_by"], decision["by_right"]) == ("postgres", "owner")


async def test_delivered_by_a_person_settles_every_open_attempt_and_keeps_the_reference(books: Books) -> None:
    await books.bring_to("unknown")
    await books.decide("delivered", reference="re_17", evidence={"screen": "orders"}, label="anna")
    row = await books.row()
    assert (row["settled_by"], row["provider_reference"], row["open_attempts"]) == ("person", "re_17", 0)
    assert row["attempt"][0]["effect"] is True
    assert row["decision"][0]["evidence"] == {"screen": "orders"}
    assert (row["decision"][0]["label"], row["history"][-1]["who"]) == ("anna", "postgres (anna)")


async def test_which_of_several_attempts_had_the_effect_nobody_says(books: Books) -> None:
    await books.bring_to("unknown")
    await books.repeat()
    await books.reply("unknown", attempt=2)
    await books.decide("delivered")
    assert [attempt["effect"] for attempt in (await books.row())["attempt"]] == [None, None]


async def test_an_abandoned_operation_keeps_its_open_attempt_on_record(books: Books) -> None:
    await books.bring_to("unknown")
    await books.decide("abandon")
    row = await books.row()
    assert (row["state"], row["open_attempts"], row["attempt"][0]["resolved_at"]) == ("abandoned", 1, None)


def effective(answer: Decided) -> datetime:
    assert answer.effective_utc is not None
    return moment(answer.effective_utc)


async def test_not_delivered_holds_only_when_no_request_can_be_under_way_any_more(books: Books) -> None:
    await books.bring_to("unknown")
    answer = await books.decide("not delivered")
    (attempt,) = (await books.row())["attempt"]
    assert effective(answer) == attempt["send_before"] + timedelta(seconds=SETTLE)
    assert "when no request can still be under way" in answer.answer
    row = await books.row()
    assert (row["state"], row["open_attempts"], row["pending_decision"]) == ("unknown", 1, answer.decision)
    assert [row.key for row in await books.dispatch()] == ["k"], "its workflow must learn of it"
    step = await books.instruct()
    assert (step.act, step.reason) == ("wait", "settle time")
    assert step.delay_ms is not None
    # Counted from send_before, which is a lease less a call after the claim.
    assert abs(step.delay_ms - (SETTLE + LEASE - CALL_LIMIT) * 1000) < 5000
    await books.move_time(step.delay_ms / 1000 - 5)
    assert (await books.instruct()).reason == "settle time"
    await books.move_time(5)
    assert (await books.instruct()).act == "attempt"
    row = await books.row()
    assert (row["state"], row["open_attempts"], row["pending_decision"]) == ("scheduled", 0, None)
    assert (row["attempt"][0]["effect"], row["attempt"][0]["resolved_by"]) == (False, f"decision {answer.decision}")
    assert row["history"][-1]["detail"] == {"decision": answer.decision, "attempts": [1]}
    assert (await books.claim()).granted


async def test_not_delivered_long_after_the_attempt_holds_at_once(books: Books) -> None:
    await books.bring_to("unknown")
    await books.move_time(SETTLE + LEASE)
    answer = await books.decide("not delivered")
    assert (answer.accepted, answer.state, answer.answer) == (True, "scheduled", "recorded; it is now scheduled")
    assert (await books.claim()).granted


async def test_the_settle_time_counts_from_the_last_attempt_that_is_open(books: Books) -> None:
    await books.bring_to("unknown")
    await books.move_time(SETTLE + LEASE)
    await books.repeat()
    await books.reply("unknown", attempt=2)
    second = (await books.row())["attempt"][1]
    assert effective(await books.decide("not delivered")) == second["send_before"] + timedelta(seconds=SETTLE)


@pytest.mark.parametrize("outcome", ["delivered", "accepted", "rejected"])
async def test_a_reply_before_the_decision_takes_effect_wins(books: Books, outcome: str) -> None:
    await books.schedule()
    await books.granted()
    await books.move_time(LEASE)
    await books.instruct()
    await books.decide("not delivered")
    step = await books.reply(outcome)
    row = await books.row()
    assert (row["state"], row["pending_decision"], row["contradicted"], step.refused) == (outcome, None, False, None)
    await books.move_time(SETTLE + LEASE)
    await books.instruct()
    assert await books.state() == outcome


async def test_a_second_thought_replaces_a_decision_that_is_not_in_effect_yet(books: Books) -> None:
    await books.bring_to("unknown")
    await books.decide("not delivered")
    again = await books.decide("not delivered")
    assert (again.accepted, "says so already" in again.answer) == (False, True)
    assert (await books.decide("delivered")).state == "delivered"
    row = await books.row()
    assert (row["pending_decision"], len(row["decision"])) == (None, 2)


async def test_not_delivered_too_late_for_the_deadline_expires(books: Books) -> None:
    await books.schedule(deadline=SETTLE)
    await books.attempt("unknown")
    await books.not_delivered()
    assert await books.state() == "expired"


@pytest.mark.parametrize(
    ("expected", "accepted"),
    [
        ({"expected_state": "unknown", "expected_attempt": 1}, True),
        ({"expected_state": "unknown"}, True),
        ({"expected_attempt": 1}, True),
        ({"expected_state": "scheduled", "expected_attempt": 1}, False),
        ({"expected_state": "unknown", "expected_attempt": 2}, False),
        ({"expected_attempt": 0}, False),
    ],
)
async def test_a_decision_on_what_has_moved_on_since_is_refused(
    books: Books, expected: dict[str, Any], accepted: bool
) -> None:
    await books.bring_to("unknown")
    answer = await books.decide("delivered", **expected)
    assert answer.accepted == accepted
    if not accepted:
        assert "it moved on since you read it: now unknown, attempt 1" in answer.answer
        assert len((await books.row())["evidence"]) == 1


@pytest.mark.parametrize(
    ("choice", "change", "words"),
    [
        ("delivered", {"reason": None}, "reason for deciding on k is missing"),
        ("abandon", {"reason": "  ok  "}, "reason for deciding on k is missing or too short"),
        ("delivered", {"reference": None}, "reference for k is missing"),
        ("delivered", {"reference": "  "}, "reference for k is missing"),
        ("send again", {}, "choice 'send again' is not known"),
        (None, {}, "choice NULL is not known"),
    ],
)
async def test_a_decision_that_lacks_something_is_refused_and_says_what(
    books: Books, choice: Any, change: dict[str, Any], words: str
) -> None:
    await books.bring_to("unknown")
    before = await books.row()
    with pytest.raises(DBAPIError, match=words) as caught:
        await books.decide(choice, **change)
    assert sqlstate(caught.value) == "22023"
    assert await books.row() == before


async def test_evidence_stands_in_for_a_reference(books: Books) -> None:
    await books.bring_to("unknown")
    assert (await books.decide("delivered", reference=None, evidence={"mail": "customer thanked us"})).accepted


async def test_a_decision_on_a_key_that_is_not_there_is_refused(books: Books) -> None:
    with pytest.raises(DBAPIError, match="'nowhere' is not in the ledger") as caught:
        await books.decide("abandon", "nowhere")
    assert sqlstate(caught.value) == "P0002"


async def test_of_two_who_decide_at_once_one_is_heard_and_the_other_is_told(books: Books) -> None:
    for number in range(30):  # rounds of a race for one row lock
        key = f"k{number}"
        await books.bring_to("unknown", key)
        answers = await together(books.decide("delivered", key), books.decide("abandon", key))
        assert tally([answer.accepted for answer in answers]) == {True: 1, False: 1}
        row = await books.row(key)
        assert (len(row["decision"]), len(row["evidence"])) == (1, 1)
        assert all(answer.state == row["state"] for answer in answers)


async def test_of_a_decision_and_a_late_reply_at_once_none_is_lost(books: Books) -> None:
    for number in range(30):  # rounds of a race for one row lock
        key = f"k{number}"
        await books.schedule(key)
        await books.granted(key)
        await books.move_time(LEASE)
        await books.instruct(key)
        answer, step = await together(books.decide("abandon", key), books.reply("delivered", key, 1))
        row = await books.row(key)
        assert row["state"] == ("abandoned" if answer.accepted else "delivered")
        assert row["contradicted"] == answer.accepted
        assert (step.refused is None) != answer.accepted


async def by_temporal(books: Books, key: str = "k", **request: Any) -> Decided:
    request = {"choice": None, "reason": None, "reference": None, **request}
    return await decisions.decide_by_temporal(
        books.engine, key=key, raw={"sent": request["choice"]}, label="identity@host", who="worker", **request
    )


@pytest.mark.parametrize(
    ("choice", "reference", "state"), [("delivered", "ref", "delivered"), ("abandon", None, "abandoned")]
)
async def test_a_bare_signal_that_sends_nothing_is_a_decision_by_the_right_of_temporal(
    books: Books, choice: str, reference: str | None, state: str
) -> None:
    await books.bring_to("unknown")
    answer = await by_temporal(books, choice=choice, reason="seen there", reference=reference)
    row = await books.row()
    assert (answer.accepted, row["state"]) == (True, state)
    assert (row["decision"][0]["by_right"], row["decision"][0]["label"]) == ("temporal", "identity@host")


async def test_a_bare_signal_that_would_send_again_is_a_proposal_and_changes_nothing(books: Books) -> None:
    await books.bring_to("unknown")
    answer = await by_temporal(books, choice="not delivered", reason="seen there")
    row = await books.row()
    assert (answer.accepted, row["state"], row["pending_decision"], row["open_attempts"]) == (True, "unknown", None, 1)
    (proposal,) = row["decision"]
    assert (proposal["by_right"], proposal["needs_approval"], proposal["label"]) == ("proposal", True, "identity@host")
    assert f"kept as proposal {proposal['id']}" in answer.answer
    await books.move_time(SETTLE + LEASE)
    await books.instruct()
    assert await books.state() == "unknown"


@pytest.mark.parametrize(
    ("request_", "finding", "problem"),
    [
        ({"choice": None}, "unreadable", None),
        ({"choice": "yes please"}, "yes please", None),
        ({"choice": "delivered", "reason": "seen there"}, "delivered", "reference for k is missing"),
        ({"choice": "abandon", "reason": "x"}, "abandon", "reason for deciding on k"),
    ],
)
async def test_a_bare_signal_that_cannot_be_obeyed_is_kept_as_evidence(
    books: Books, request_: dict[str, Any], finding: str, problem: str | None
) -> None:
    await books.bring_to("unknown")
    answer = await by_temporal(books, **request_)
    row = await books.row()
    assert (answer.accepted, row["state"], row["decision"]) == (False, "unknown", [])
    (evidence,) = row["evidence"]
    assert (evidence["source"], evidence["finding"]) == ("signal", finding)
    assert (problem or "") in evidence["detail"].get("problem", "")
    assert evidence["detail"]["received"] == {"sent": request_["choice"]}
    assert "kept as evidence, nothing decided" in answer.answer


async def test_a_bare_signal_for_a_key_that_is_not_there_is_answered(books: Books) -> None:
    for choice in ("not delivered", "nonsense", "abandon"):
        answer = await by_temporal(books, "nowhere", choice=choice, reason="seen there")
        assert (answer.accepted, "does not know this key" in answer.answer) == (False, True)
