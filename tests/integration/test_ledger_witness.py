"""The restore guard inside the ledger: what a witness says, what a claim makes of it, and what is put in doubt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy.exc import DBAPIError

from ledger import decisions, transitions
from ledger.answers import Claimed, Witness
from tests.integration.ledger_steps import GRACE, LEASE, SETTLE, Books, sqlstate

CAUSE = "restored, says the test"


async def taken(books: Books) -> Witness:
    return await transitions.witness_now(books.engine)


async def verdict(books: Books, witness: Witness) -> str:
    return await transitions.check_witness(books.engine, witness)


def lost(witness: Witness) -> Witness:
    """The same place in history, another row: what the witness of a later history looks like to a restored copy."""
    return replace(witness, row_id=uuid4())


def server(witness: Witness, timeline: str) -> str:
    """The same server on another timeline."""
    return f"{witness.timeline.partition('/')[0]}/{timeline}"


async def claim(books: Books, witness: Witness, key: str = "k", attempt: int = 1) -> Claimed:
    return await transitions.claim(
        books.engine, key=key, generation=1, attempt=attempt, token=uuid4(), worker="worker", run_id="run",
        activity_id="1", witness=witness,
    )  # fmt: skip


async def quarantined(books: Books) -> str | None:
    (row,) = await books.sql("SELECT quarantine FROM duly.ledger")
    return None if row["quarantine"] is None else str(row["quarantine"])


async def doubt_all(books: Books) -> int:
    count = 0
    while batch := await transitions.doubt_gap(books.engine, CAUSE, "worker", 2):
        count += batch
    return count


async def test_a_witness_is_the_same_while_history_only_grows(books: Books) -> None:
    empty = await taken(books)
    assert (empty.seq, empty.row_id) == (None, None)
    await books.schedule("a")
    witness = await taken(books)
    await books.schedule("b")
    assert [await verdict(books, one) for one in (empty, witness, await taken(books))] == ["same"] * 3


async def test_each_way_in_which_a_ledger_can_differ_from_its_witness_has_a_verdict(books: Books) -> None:
    await books.schedule()
    witness = await taken(books)
    assert witness.seq
    for changed, expected in (
        ({"ledger_id": uuid4()}, "other ledger"),
        ({"seq": witness.seq + 1}, "lost"),  # F85, F86: restored to a copy that is older than the row
        ({"row_id": uuid4()}, "lost"),  # the number was used again since
        ({"timeline": server(witness, "00000000")}, "newer timeline"),  # F83: promoted, and the row survived
        ({"timeline": "1/00000001"}, "newer timeline"),  # another server with the same rows: pg_upgrade
        ({"timeline": server(witness, "FFFFFFFF")}, "lost"),  # F84: the old primary came back
    ):
        assert await verdict(books, replace(witness, **changed)) == expected, changed


async def test_a_witness_is_not_taken_before_its_row_is_on_the_disk(books: Books) -> None:
    for number in range(5):  # the log writer comes by every 200 ms; it cannot have been there five times just before
        await books.sql("SELECT set_config('synchronous_commit', 'off', true), duly.cancel('k', 'not wanted') FROM ("
                        "SELECT duly.schedule('k', 'mail', '{\"n\": 1}', duly.now(), duly.now() + interval '1 day')) s"
                        if number == 0 else
                        f"SELECT set_config('synchronous_commit', 'off', true), duly.schedule('k{number}', 'mail', "
                        "'{\"n\": 1}', duly.now(), duly.now() + interval '1 day')")  # fmt: skip
        await taken(books)
        # Nothing is behind: what was committed before the witness is flushed.
        (row,) = await books.sql("SELECT pg_current_wal_flush_lsn() = pg_current_wal_insert_lsn() AS flushed")
        assert row["flushed"], number


async def test_a_claim_with_a_lost_witness_grants_nothing_and_quarantines_the_ledger(books: Books) -> None:
    await books.schedule()
    witness = await taken(books)
    answer = await claim(books, lost(witness))
    assert (answer.granted, answer.act, answer.reason, answer.delay_ms) == (
        False,
        "attempt",
        "quarantine",
        GRACE * 1000,
    )
    assert f"history row {witness.seq}" in (await quarantined(books) or "")
    (alert,) = await books.sql("SELECT why FROM duly.alerts WHERE alert = 'quarantine'")
    assert "went back in time" in alert["why"]
    # From then on for every worker, whatever it remembers.
    assert not (await claim(books, witness)).granted
    assert not (await books.claim()).granted
    assert (await books.row())["attempt"] == []


async def test_a_claim_of_another_ledgers_worker_is_refused_and_leaves_no_trace(books: Books) -> None:
    await books.schedule()
    before = await books.row()
    with pytest.raises(DBAPIError, match="another ledger") as caught:
        await claim(books, replace(await taken(books), ledger_id=uuid4()))
    assert sqlstate(caught.value) == "55000"
    assert (await books.row(), await quarantined(books)) == (before, None)


async def test_a_witness_that_holds_changes_nothing_about_a_claim(books: Books) -> None:
    await books.schedule()
    await transitions.serve(books.engine)
    answer = await claim(books, await taken(books))
    assert answer.granted


async def test_after_a_promotion_nothing_is_claimed_until_what_was_in_hand_is_in_doubt(books: Books) -> None:
    """F83: a claim that was committed and never reached the replica was the last thing that an operation did."""
    for key in ("in-hand", "called-again", "waits"):
        await books.schedule(key)
    await books.schedule("later", due=10 * GRACE)
    await books.dispatch()
    await books.attempt("not_processed", "called-again", delay_ms=1000)
    await books.attempt("not_processed", "waits", delay_ms=5 * GRACE * 1000)
    await books.move_time(GRACE)
    await books.schedule("fresh")  # no workflow was asked for; if one was, Temporal has it, and the start is refused
    await transitions.serve(books.engine)
    witness = await taken(books)
    await books.sql("UPDATE duly.ledger SET timeline = '1/00000001'")  # what it remembers; the server's is another

    before = await books.row("in-hand")
    answer = await claim(books, witness, "in-hand")
    assert (answer.granted, answer.reason, answer.delay_ms) == (False, "newer timeline", 1000)
    assert await books.row("in-hand") == before  # a hold of the usual kind would say that it was not in hand

    watched = await transitions.watch(books.engine, witness, "worker")
    assert (watched.verdict, watched.moved, watched.quarantine) == ("same", True, None)
    counts = [await transitions.doubt_moved(books.engine, "worker", 1) for _ in range(3)]
    assert counts == [1, 1, 0]
    states = {key: await books.state(key) for key in ("in-hand", "called-again", "waits", "later", "fresh")}
    assert states == {
        "in-hand": "unknown", "called-again": "unknown", "waits": "scheduled", "later": "scheduled",
        "fresh": "scheduled",
    }  # fmt: skip
    assert "moved from timeline 1/00000001" in (await books.row("in-hand"))["history"][-1]["why"]
    assert (await claim(books, witness, "fresh")).granted
    assert not (await transitions.watch(books.engine, witness, "worker")).moved


async def test_what_could_have_run_in_the_gap_is_in_doubt_and_nothing_else(books: Books) -> None:
    await books.schedule("due")
    await books.schedule("retried")
    await books.attempt("not_processed", "retried", delay_ms=5 * GRACE * 1000)
    await books.schedule("later", due=GRACE)
    await books.bring_to("delivered", "done")
    await transitions.quarantine(books.engine, CAUSE, "worker")
    # Scheduled in quarantine, by an application whose clock is behind: it cannot have run before.
    await books.schedule("since", due=-GRACE)
    assert await doubt_all(books) == 2
    states = {key: await books.state(key) for key in ("due", "retried", "later", "done", "since")}
    assert states == {
        "due": "unknown", "retried": "unknown", "later": "scheduled", "done": "delivered", "since": "scheduled",
    }  # fmt: skip
    row = await books.row("due")
    assert (row["history"][-1]["why"], row["attempt"][0]["sent"], row["open_attempts"]) == (CAUSE, None, 1)


async def test_a_doubt_of_the_gap_that_was_settled_is_not_raised_again(books: Books) -> None:
    await books.schedule()
    await transitions.quarantine(books.engine, CAUSE, "worker")
    assert await doubt_all(books) == 1
    await books.not_delivered()
    assert await books.state() == "scheduled"
    assert await doubt_all(books) == 0
    assert (await decisions.adopt(books.engine, "restored on purpose")).done
    assert await books.state() == "scheduled"
    assert (await books.claim()).granted


async def test_a_decision_of_before_the_gap_does_not_take_effect_after_it(books: Books) -> None:
    """In the gap it took effect and what it allowed was sent: the copy knows of neither."""
    for key in ("old", "new"):
        await books.schedule(key)
        await books.attempt("unknown", key)
    assert (await books.decide("not delivered", "old")).accepted
    await books.move_time(1)
    await transitions.quarantine(books.engine, CAUSE, "worker")
    await books.move_time(1)
    assert (await books.decide("not delivered", "new")).accepted  # by somebody who knows of the restore
    assert await doubt_all(books) == 2
    await books.move_time(SETTLE + LEASE)
    for key, state in (("old", "unknown"), ("new", "scheduled")):
        await books.instruct(key)
        row = await books.row(key)
        assert (key, row["state"], row["pending_decision"]) == (key, state, None)
    assert "withdrawn" in (await books.row("old"))["history"][-1]["why"]
    assert (await books.row("old"))["no_repeat"] == CAUSE


async def test_absence_is_believed_only_when_no_request_of_the_gap_can_still_be_under_way(books: Books) -> None:
    await books.schedule()
    await books.attempt("unknown")
    await books.move_time(10 * SETTLE)
    await transitions.quarantine(books.engine, CAUSE, "worker")
    decided = await books.decide("not delivered")
    assert decided.accepted
    (row,) = await books.sql(
        "SELECT o.pending_at - l.quarantined_at = k.settle AS counted_from_the_quarantine "
        "FROM duly.operation o JOIN duly.kind k ON k.name = o.kind, duly.ledger l"
    )
    assert row["counted_from_the_quarantine"]


async def test_the_reply_to_an_attempt_that_is_not_in_the_ledger_quarantines_it(books: Books) -> None:
    await books.schedule()
    step = await books.reply("delivered", attempt=1, reference="ref")
    assert step.refused == "the ledger has no attempt 1 of this key"
    assert "attempt 1 of k" in (await quarantined(books) or "")
    assert not (await books.claim()).granted


@pytest.mark.parametrize(
    ("outcome", "state"), [("delivered", "delivered"), ("not_processed", "unknown"), ("rejected", "unknown")]
)
async def test_of_replies_to_a_lost_attempt_only_delivered_settles_the_doubt_that_stands_for_it(
    books: Books, outcome: str, state: str
) -> None:
    """The stand-in may stand for more attempts than the one that this reply is about."""
    await books.schedule()
    await transitions.quarantine(books.engine, CAUSE, "worker")
    assert await doubt_all(books) == 1
    step = await books.reply(outcome, attempt=1, token=uuid4(), reference="ref")
    row = await books.row()
    assert (row["state"], bool(step.refused)) == (state, state == "unknown")
    assert row["evidence"][0]["finding"] == outcome
    # The loss is known: when an owner has adopted the ledger, a straggler does not stop everything again.
    assert (await decisions.adopt(books.engine, "restored on purpose")).done
    await books.reply(outcome, attempt=2, token=uuid4(), reference="ref")
    assert await quarantined(books) is None


async def test_adoption_settles_what_was_lost_before_it_and_nothing_after_it(books: Books) -> None:
    await books.schedule()
    old = lost(await taken(books))
    await transitions.watch(books.engine, old, "worker")
    watched = await transitions.watch(books.engine, old, "worker")
    assert (watched.verdict, watched.witness) == ("lost", None)  # in quarantine what is remembered stays as it is
    answer = await decisions.adopt(books.engine, "restored on purpose")
    assert answer.done
    watched = await transitions.watch(books.engine, old, "worker")
    assert (watched.verdict, watched.quarantine) == ("adopted", None)
    assert watched.witness is not None
    assert watched.witness.seq == (await taken(books)).seq
    assert await verdict(books, watched.witness) == "same"
    assert await verdict(books, lost(watched.witness)) == "lost"


async def test_a_worker_without_a_witness_learns_whether_one_was_ever_kept(books: Books) -> None:
    assert not (await transitions.watch(books.engine, None, "worker")).served
    await transitions.serve(books.engine)
    watched = await transitions.watch(books.engine, None, "worker")
    assert (watched.verdict, watched.served, watched.moved) == ("none", True, False)


async def test_only_an_owner_adopts_and_only_a_quarantined_ledger(books: Books) -> None:
    answer = await decisions.adopt(books.engine, "just in case")
    assert not answer.done
    with pytest.raises(DBAPIError, match="too short"):
        await decisions.adopt(books.engine, "ok")


async def test_an_exposed_attempt_is_evidence(books: Books) -> None:
    await books.bring_to("calling")
    await transitions.exposed(books.engine, "k", 1, 612.34, "worker")
    (found,) = (await books.row())["evidence"]
    assert (found["source"], found["finding"], found["detail"]) == ("worker", "exposed", {"still_s": 612.3})


def test_a_witness_survives_being_written_down() -> None:
    from datetime import UTC, datetime

    from reconcile.remembered import _decoded, _encoded

    whole = Witness(uuid4(), 7, uuid4(), "1/00000001", datetime.now(UTC))
    for witness in (whole, replace(whole, seq=None, row_id=None)):
        assert _decoded(_encoded(witness), "here") == witness
    broken: Any
    for broken in ("", "[]", "{}", '{"ledger_id": 1}', "null"):
        assert _decoded(broken, "here") is None
    assert isinstance(whole.ledger_id, UUID)
