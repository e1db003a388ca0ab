"""What a claim checks before it sends, in the order of the design; how long it waits, and by which clock."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from ledger import decisions
from ledger.answers import Claimed
from tests.integration.ledger_steps import BOUND, CALL_LIMIT, GRACE, LEASE, MAX_ATTEMPTS, Books, session, together

ROUNDS = 60
"""With the connection read before its lock only, a release was missed within twenty."""

CLAIM = "SELECT granted, act, state, reason, delay_ms FROM duly.claim('k', 1, 2, gen_random_uuid(), 'w', 'r', 'a', NULL)"

# Each makes one check say no for ``k``; then the claim's reason and the state it leaves. In the order of the design.
CHECKS: list[tuple[str, str, str, str]] = [
    ("ended", "UPDATE duly.operation SET state = 'cancelled', ended_at = duly.now(), wake_at = NULL WHERE key = 'k'",
     "cancelled", "cancelled"),
    ("quarantine", "UPDATE duly.ledger SET quarantine = 'restored', quarantined_at = duly.now()",
     "quarantine", "scheduled"),
    ("superseded", "UPDATE duly.subject SET newest_version = 3, newest_key = 'k3'", "superseded", "superseded"),
    ("deadline", "UPDATE duly.operation SET due_at = duly.now() - interval '1 hour', "
     f"deadline = duly.now() + interval '{CALL_LIMIT - 1} seconds' WHERE key = 'k'", "expired", "expired"),
    ("not due", "UPDATE duly.operation SET retry_at = duly.now() + interval '20 seconds' WHERE key = 'k'",
     "due", "scheduled"),
    ("held", "UPDATE duly.connection SET held = 'denied', held_at = duly.now()",
     "connection main is held", "scheduled"),
    ("throttled", "UPDATE duly.connection SET not_before = duly.now() + interval '50 seconds'",
     "connection main is throttled", "scheduled"),
    ("predecessor", "UPDATE duly.operation SET state = 'calling', lease_until = duly.now(), attempts = 1, "
     "open_attempts = 1, ended_at = NULL, wake_at = duly.now() WHERE key = 'before'", "predecessor", "scheduled"),
    ("attempts spent", "UPDATE duly.kind SET max_attempts = 1", "exhausted", "exhausted"),
]  # fmt: skip


@pytest.mark.parametrize("first", range(len(CHECKS)), ids=[check[0] for check in CHECKS])
async def test_of_all_checks_that_say_no_the_first_in_the_order_of_the_design_answers(books: Books, first: int) -> None:
    await books.schedule("before", subject="s", version=1)
    await books.granted("before")
    await books.schedule(subject="s", version=2)
    async with session(books.url) as connection, connection.transaction(force_rollback=True):
        # The predecessor comes back from an ending in the eighth check, and one attempt was spent before: by hand.
        await connection.execute("ALTER TABLE duly.operation DISABLE TRIGGER guard")
        await connection.execute(
            "UPDATE duly.operation SET state = 'rejected', open_attempts = 0, ended_at = duly.now(), wake_at = NULL "
            "WHERE key = 'before'"
        )
        await connection.execute("UPDATE duly.operation SET attempts = 1, spent = 1 WHERE key = 'k'")
        for _, fault, _, _ in CHECKS[first:]:
            await connection.execute(fault.encode())
        answer = await (await connection.execute(CLAIM.encode())).fetchone()
        found = await (await connection.execute("SELECT state FROM duly.operation WHERE key = 'k'")).fetchone()
    assert answer is not None
    assert found is not None
    _, _, reason, state = CHECKS[first]
    assert (answer[0], answer[3], found[0]) == (False, reason, state)
    assert answer[1] == ("attempt" if state == "scheduled" else "ended")


def waits(claimed: Claimed, reason: str) -> int:
    """The milliseconds that a claim which was not granted must wait, for this reason."""
    assert (claimed.granted, claimed.act, claimed.reason) == (False, "attempt", reason), claimed
    assert claimed.delay_ms is not None
    assert claimed.delay_ms >= 1000, "a workflow must not spin on a fraction"
    return claimed.delay_ms


async def alarm_follows(books: Books, delay_ms: int) -> None:
    """The sweep looks a grace after the moment at which the workflow should act."""
    row = await books.row()
    expected = await books.now() + timedelta(milliseconds=delay_ms, seconds=GRACE)
    assert abs(row["wake_at"] - expected) < timedelta(seconds=2)
    assert not row["in_hand"]


HOLD = "UPDATE duly.connection SET held = 'denied', held_at = duly.now()"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (HOLD, "connection main is held"),
        ("UPDATE duly.connection SET not_before = duly.now() + interval '10 days'", "connection main is throttled"),
        ("UPDATE duly.operation SET retry_at = duly.now() + interval '10 days'", "due"),
    ],
)
async def test_no_wait_goes_past_the_deadline_and_then_it_expires(books: Books, change: str, reason: str) -> None:
    await books.schedule(deadline=300)
    await books.sql(change)
    delay = waits(await books.claim(), reason)
    assert 295_000 < delay <= 300_000
    await alarm_follows(books, delay)
    await books.move_time(300)
    assert (await books.claim()).state == "expired"
    assert ("connection main" in (await books.row())["history"][-1]["why"]) == ("connection" in reason)


async def test_a_fraction_of_a_second_before_its_time_it_waits_a_second(books: Books) -> None:
    await books.schedule()
    await books.sql("UPDATE duly.operation SET retry_at = duly.now() + interval '500 milliseconds'")
    assert waits(await books.claim(), "due") == 1000
    await books.sql("UPDATE duly.operation SET retry_at = duly.now() + interval '1500 milliseconds'")
    assert 1000 <= waits(await books.claim(), "due") <= 1500


async def test_before_its_time_it_waits_and_at_its_time_it_goes(books: Books) -> None:
    await books.schedule(due=100)
    delay = waits(await books.claim(), "due")
    assert 95_000 < delay <= 100_000
    await alarm_follows(books, delay)
    await books.move_time(95)
    waits(await books.claim(), "due")
    await books.move_time(5)
    await books.granted()


async def test_a_call_that_just_fits_before_the_deadline_goes_and_one_that_does_not_expires(books: Books) -> None:
    await books.schedule("fits", deadline=CALL_LIMIT + 2)
    await books.granted("fits")
    await books.schedule("late", deadline=CALL_LIMIT - 0.5)
    assert (await books.claim("late")).state == "expired"


async def test_in_quarantine_nothing_is_sent_and_nothing_spins(books: Books) -> None:
    await books.schedule(deadline=300)
    await books.sql("UPDATE duly.ledger SET quarantine = 'restored', quarantined_at = duly.now()")
    assert waits(await books.claim(), "quarantine") == GRACE * 1000
    await books.move_time(1000)
    assert waits(await books.claim(), "quarantine") == GRACE * 1000
    await books.sql("UPDATE duly.ledger SET quarantine = NULL, quarantined_at = NULL")
    assert (await books.claim()).state == "expired"


async def test_due_lease_deadline_bound_and_settle_time_go_by_the_ledgers_clock_alone(books: Books) -> None:
    """The test moves that clock only; every machine's own clock stays where it is."""
    await books.schedule("due", due=4 * 3600, deadline=5 * 3600)
    await books.schedule("lease")
    await books.granted("lease")
    await books.schedule("deadline", deadline=3600)
    await books.schedule("bound")
    await books.attempt("accepted", "bound")
    await books.schedule("settle", deadline=5 * 3600)
    await books.attempt("unknown", "settle")
    await books.decide("not delivered", "settle")
    assert not (await books.claim("due")).granted
    await books.move_time(4 * 3600)
    assert BOUND < 4 * 3600
    assert (await books.claim("due")).granted
    assert (await books.claim("lease", 1)).state == "unknown"
    assert (await books.claim("deadline")).state == "expired"
    assert (await books.instruct("bound")).state == "unknown"
    assert (await books.instruct("settle")).act == "attempt"


async def test_nothing_in_the_ledger_but_one_function_asks_for_the_time(books: Books) -> None:
    rows = await books.sql(
        "SELECT p.proname AS name FROM pg_proc p WHERE p.pronamespace = 'duly'::regnamespace AND p.proname <> 'now' "
        "AND pg_get_functiondef(p.oid) ~* "
        r"'(clock_timestamp|statement_timestamp|transaction_timestamp|current_timestamp|localtime|pg_catalog\.now|"
        r"(^|[^.a-z_])now\(\))'"
    )
    assert rows == []
    defaults = await books.sql(
        "SELECT table_name AS name FROM information_schema.columns WHERE table_schema = 'duly' "
        "AND column_default ~* 'now|timestamp' AND table_name <> 'ledger'"
    )
    assert defaults == []


@pytest.mark.parametrize("lax", ["off", "local"])
async def test_a_claim_waits_for_its_commit_to_be_durable_whatever_the_session_says(books: Books, lax: str) -> None:
    await books.schedule()
    async with session(books.url) as connection:
        await connection.execute(f"SET synchronous_commit = {lax}".encode())
        async with connection.transaction():
            await connection.execute("SELECT duly.claim('k', 1, 1, gen_random_uuid(), 'w', 'r', 'a', NULL)")
            assert await (await connection.execute("SHOW synchronous_commit")).fetchone() == ("on",)
        assert await (await connection.execute("SHOW synchronous_commit")).fetchone() == (lax,)


async def test_a_stronger_durability_is_left_as_it_is(books: Books) -> None:
    await books.schedule()
    async with session(books.url) as connection, connection.transaction():
        await connection.execute("SET LOCAL synchronous_commit = remote_apply")
        await connection.execute("SELECT duly.claim('k', 1, 1, gen_random_uuid(), 'w', 'r', 'a', NULL)")
        assert await (await connection.execute("SHOW synchronous_commit")).fetchone() == ("remote_apply",)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_a_claim_that_could_not_see_what_was_committed_meanwhile_is_refused(books: Books, level: str) -> None:
    await books.schedule()
    async with session(books.url) as connection:
        await connection.execute(f"BEGIN ISOLATION LEVEL {level}".encode())
        with pytest.raises(psycopg.errors.ActiveSqlTransaction, match="READ COMMITTED"):
            await connection.execute("SELECT duly.claim('k', 1, 1, gen_random_uuid(), 'w', 'r', 'a', NULL)")
        await connection.execute("ROLLBACK")


async def test_a_stricter_default_of_the_database_does_not_reach_the_ledgers_own_transactions(books: Books) -> None:
    (row,) = await books.sql("SELECT current_database() AS name")
    await books.sql(f"ALTER DATABASE \"{row['name']}\" SET default_transaction_isolation = 'serializable'")
    await books.engine.dispose()
    await books.schedule()
    await books.granted()


async def release(books: Books, name: str = "main") -> Any:
    return await decisions.release_connection(books.engine, name, "the credential was renewed")


@pytest.mark.parametrize("change", [HOLD, "UPDATE duly.connection SET not_before = duly.now() + interval '1 hour'"])
async def test_a_release_wakes_what_waits_for_that_connection_and_says_so_in_its_history(
    books: Books, change: str
) -> None:
    await books.schedule()
    await books.sql(change)
    await books.claim()
    assert (await release(books, "spare")).done
    assert await books.dispatch() == []
    assert (await release(books)).done
    assert "released: the credential was renewed" in (await books.row())["history"][-1]["why"]
    assert [row.key for row in await books.dispatch()] == ["k"]
    await books.granted()
    again = await release(books)
    assert (again.done, again.answer) == (False, "it was neither held nor throttled")


async def test_a_release_and_a_claim_that_is_about_to_wait_never_miss_each_other(books: Books) -> None:
    for number in range(ROUNDS):
        key = f"k{number}"
        await books.schedule(key)
        await books.sql(HOLD)
        if number % 2:  # it waits already, and asks again in the moment of the release
            await books.claim(key)
        claimed, released = await together(books.claim(key, 1), release(books))
        assert released.done, released
        assert claimed.granted or (await books.row(key))["wake_at"] <= await books.now(), (number, claimed)


async def test_attempts_are_spent_by_those_that_were_processed_or_may_have_been(books: Books) -> None:
    await books.schedule()
    for outcome in ("not_sent", "throttled", "not_sent"):
        await books.attempt(outcome)
        await books.sql("UPDATE duly.connection SET not_before = NULL")
    assert (await books.row())["spent"] == 0
    for _ in range(MAX_ATTEMPTS):
        assert await books.state() == "scheduled"
        await books.attempt("not_processed")
    row = await books.row()
    assert (row["state"], row["attempts"], row["spent"]) == ("exhausted", 3 + MAX_ATTEMPTS, MAX_ATTEMPTS)


async def test_a_payload_that_kills_its_worker_is_not_tried_for_ever(books: Books) -> None:
    await books.schedule()
    for _ in range(MAX_ATTEMPTS):
        await books.granted()
        await books.move_time(LEASE)
        await books.instruct()
        assert await books.state() == "unknown"
        await books.not_delivered()
    assert await books.state() == "exhausted"
