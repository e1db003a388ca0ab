"""The table of states in Python and in the database, and what the database makes of every move."""

from __future__ import annotations

import re
from typing import Any

import pytest
from psycopg import AsyncConnection, errors

from ledger.states import ENDINGS, ENDINGS_DESPITE_DOUBT, MOVES, UNCERTAIN, State
from tests.integration.ledger_steps import Books, session

STATES = sorted(State)

# Sets everything that the CHECKs want of the new state, so that only the move itself can be refused.
MOVE = """
UPDATE duly.operation SET state = %(after)s::text, state_since = duly.now(),
  ended_at = CASE WHEN %(ends)s THEN duly.now() END, wake_at = CASE WHEN %(ends)s THEN NULL ELSE duly.now() END,
  settled_by = CASE WHEN %(after)s::text = 'delivered' THEN 'reply' END, lease_until = duly.now(), in_hand = false,
  attempts = greatest(attempts, 1), open_attempts = %(open)s, look_at = NULL,
  generation = generation + (ended_at IS NOT NULL AND NOT %(ends)s)::int
WHERE key = %(key)s
"""


async def names_in(books: Books, constraint: str) -> set[str]:
    """The state names in a constraint's text."""
    (row,) = await books.sql(
        "SELECT pg_get_constraintdef(oid) AS text FROM pg_constraint WHERE conname = :name", name=constraint
    )
    return set(re.findall(r"'(\w+)'", row["text"]))


async def refusal(
    connection: AsyncConnection[Any], key: str, after: State, open_attempts: int
) -> errors.CheckViolation | None:
    """Why the database refuses to move ``key`` there; None: it would not. Nothing is changed."""
    parameters = {"key": key, "after": str(after), "ends": after in ENDINGS, "open": open_attempts}
    try:
        async with connection.transaction(force_rollback=True):
            await connection.execute(MOVE, parameters)
    except errors.CheckViolation as error:
        return error
    return None


async def test_the_states_of_python_are_those_of_the_database(books: Books) -> None:
    assert await names_in(books, "state_name_check") == set(State)


async def test_the_moves_of_python_are_those_of_the_database(books: Books) -> None:
    rows = await books.sql("SELECT before, after FROM duly.move")
    assert {(row["before"], row["after"]) for row in rows} == {
        (str(before), str(after)) for before, afters in MOVES.items() for after in afters
    }


async def test_the_endings_of_python_are_those_of_the_database(books: Books) -> None:
    assert await names_in(books, "ended_iff_ending") == ENDINGS


async def test_the_doubtful_states_of_python_are_those_of_the_database(books: Books) -> None:
    assert await names_in(books, "in_doubt_has_an_open_attempt") == UNCERTAIN
    assert await names_in(books, "doubt_hides_nothing") == UNCERTAIN | ENDINGS_DESPITE_DOUBT | {State.BLOCKED}


@pytest.mark.parametrize("before", STATES)
async def test_the_database_accepts_exactly_the_moves_of_the_table(books: Books, before: State) -> None:
    await books.bring_to(before)
    assert await books.state() == before
    async with session(books.url) as connection:
        for after in STATES:
            if after == before:
                continue
            error = await refusal(connection, "k", after, open_attempts=int(after in UNCERTAIN))
            if after in MOVES[before]:
                assert error is None, f"{before} to {after}: {error}"
            else:
                assert error is not None, f"{before} to {after} was accepted"
                assert "illegal move" in str(error)


@pytest.mark.parametrize("before", sorted(UNCERTAIN | {State.BLOCKED}))
async def test_an_open_attempt_forbids_whatever_would_hide_it(books: Books, before: State) -> None:
    await books.bring_to(before)
    async with session(books.url) as connection:
        for after in sorted(MOVES[before]):
            error = await refusal(connection, "k", after, open_attempts=1)
            if after in UNCERTAIN | ENDINGS_DESPITE_DOUBT | {State.BLOCKED}:
                assert error is None, error
            else:
                assert error is not None, after
                assert error.diag.constraint_name == "doubt_hides_nothing"


async def test_a_state_of_doubt_without_an_open_attempt_is_refused(books: Books) -> None:
    await books.bring_to("scheduled")
    async with session(books.url) as connection:
        for state in sorted(UNCERTAIN):
            error = await refusal(connection, "k", state, open_attempts=0)
            assert error is not None, state
            assert error.diag.constraint_name == "in_doubt_has_an_open_attempt"


CONTRADICTIONS = [
    ("scheduled", "ended_at = duly.now()", "ended_iff_ending"),
    ("delivered", "ended_at = NULL, generation = 2", "ended_iff_ending"),
    ("delivered", "wake_at = duly.now()", "ended_never_wakes"),
    ("delivered", "in_hand = true", "ended_never_wakes"),
    ("delivered", "settled_by = NULL", "delivered_is_settled"),
    ("scheduled", "settled_by = 'person'", "delivered_is_settled"),
    ("scheduled", "wake_at = NULL", "nothing_is_forgotten"),
    ("calling", "wake_at = NULL", "nothing_is_forgotten"),
    ("accepted", "wake_at = NULL", "nothing_is_forgotten"),
    ("calling", "lease_until = NULL", "in_flight_has_a_bound"),
    ("unknown", "pending_at = duly.now(), wake_at = duly.now()", "pending_has_time"),
    ("scheduled", "deadline = due_at", "operation_check1"),
    ("scheduled", "due_at = '-infinity'", "operation_check1"),
    ("calling", "spent = 2", "operation_check2"),
    ("calling", "open_attempts = 2", "operation_check2"),
    ("scheduled", "look_at = duly.now()", "looked_at_in_doubt"),
]


async def test_only_the_next_generation_opens_what_has_ended(books: Books) -> None:
    await books.bring_to("expired")
    reopen = "UPDATE duly.operation SET state = 'scheduled', ended_at = NULL, wake_at = duly.now(), generation = {}"
    async with session(books.url) as connection:
        for generation in (1, 3):
            with pytest.raises(errors.CheckViolation, match="only the next generation"):
                await connection.execute(reopen.format(generation).encode())
        async with connection.transaction(force_rollback=True):
            await connection.execute(reopen.format(2).encode())


async def test_the_database_refuses_a_contradiction(books: Books) -> None:
    async with session(books.url) as connection:
        for state in {state for state, _, _ in CONTRADICTIONS}:
            await books.bring_to(state, state)
        for state, change, constraint in CONTRADICTIONS:
            with pytest.raises(errors.CheckViolation) as caught:
                await connection.execute(f"UPDATE duly.operation SET {change} WHERE key = '{state}'".encode())
            assert caught.value.diag.constraint_name == constraint, change
