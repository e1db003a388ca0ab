"""duly.schedule: one row per key, honest answers, clear refusals, nothing changed by what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from ledger import transitions
from tests.integration.ledger_steps import MAIL, Books, session, sqlstate, tally, together

ROUNDS = 40
"""Enough that a read-then-insert without a guard was caught in each of ten trials."""


async def everything(books: Books) -> list[Any]:
    """All that a refused call could have changed."""
    return [await books.sql(f"SELECT * FROM duly.{table} t ORDER BY t::text") for table in
            ("operation", "subject", "history", "evidence", "decision", "attempt")]  # fmt: skip


async def refused(books: Books, code: str, *words: str, key: str = "k", **arguments: Any) -> None:
    """Scheduling is refused with this SQLSTATE, the message names all the words, and nothing is changed."""
    before = await everything(books)
    with pytest.raises(DBAPIError) as caught:
        await books.schedule(key, **arguments)
    assert sqlstate(caught.value) == code, caught.value
    for word in words:
        assert word in str(caught.value.orig), caught.value
    assert await everything(books) == before


async def test_a_new_key_is_scheduled_and_the_answer_echoes_its_times_in_utc(books: Books) -> None:
    due = datetime(2030, 7, 1, 12, 0, 0, 250_000, tzinfo=UTC)
    async with session(books.url) as connection:
        await connection.execute("SET TIME ZONE 'Asia/Kathmandu'")
        query = "SELECT * FROM duly.schedule('k', 'mail', '{\"n\": 1}', %s, '2030-07-01 18:00')"
        row = await (await connection.execute(query, [due])).fetchone()
    assert row == ("k", "scheduled", True, "2030-07-01T12:00:00.250000Z", "2030-07-01T12:15:00.000000Z", "")
    found = await books.row()
    assert (found["wake_at"], found["dispatched_at"], found["attempts"]) == (due, None, 0)


async def test_the_same_key_and_content_again_returns_the_row_that_is_there(books: Books) -> None:
    first = await books.schedule(payload={"n": 1, "m": 2})
    again = await books.schedule(payload={"m": 2, "n": 1})
    assert (first.created, again.created) == (True, False)
    assert len(await books.sql("SELECT FROM duly.history")) == 1


async def test_the_same_content_again_is_no_conflict_in_any_state(books: Books) -> None:
    for state in ("calling", "unknown", "delivered", "cancelled"):
        await books.bring_to(state, state)
        again = await books.schedule(state)
        assert (again.created, again.state) == (False, state)


async def test_the_times_of_the_first_call_stand_and_the_answer_says_that_they_differ(books: Books) -> None:
    first = await books.schedule(due=100, deadline=500)
    assert first.note == ""
    again = await books.schedule(due=200, deadline=500)
    assert "times differ" in again.note
    assert (again.due_utc, again.deadline_utc) == (first.due_utc, first.deadline_utc)


async def test_a_repeat_is_answered_even_when_its_deadline_has_passed_since(books: Books) -> None:
    await books.schedule(deadline=60)
    await books.move_time(120)
    assert not (await books.schedule(due=-120, deadline=-60)).created


@pytest.mark.parametrize("subject", [None, "s"])
async def test_the_same_key_twice_at_once_is_one_row(books: Books, subject: str | None) -> None:
    more: dict[str, Any] = {"subject": subject, "version": 1} if subject else {}
    for number in range(ROUNDS):
        if subject:
            more["subject"] = f"s{number}"
        answers = await together(*(books.schedule(f"k{number}", **more) for _ in range(2)))
        assert tally([answer.created for answer in answers]) == {True: 1, False: 1}, answers
    assert len(await books.sql("SELECT FROM duly.history")) == ROUNDS


async def test_other_content_under_the_same_key_at_once_is_refused(books: Books) -> None:
    for number in range(ROUNDS):
        one, two = await together(*(books.schedule(f"k{number}", payload={"n": n}) for n in (1, 2)))
        loser = two if isinstance(two, DBAPIError) else one
        winner = one if loser is two else two
        assert winner.created
        assert isinstance(loser, DBAPIError)
        assert sqlstate(loser) == "23505"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kind": "second"}, "kind (mail is there)"),
        ({"payload": {"n": 2}}, "payload"),
        ({"payload": {"n": 1, "extra": None}}, "payload"),
        ({"subject": "other", "version": 1}, "subject"),
        ({"subject": None, "version": None}, "subject, version"),
        ({"version": 2}, "version"),
    ],
)
async def test_other_content_is_refused_and_what_differs_is_named(
    books: Books, change: dict[str, Any], named: str
) -> None:
    await transitions.configure(
        books.engine, [MAIL, {**MAIL, "name": "second"}], [{"name": "main", "provider": "sandbox"}]
    )
    await books.schedule(subject="s", version=1)
    await refused(books, "23505", "other content", named, **{"subject": "s", "version": 1, **change})


def keys() -> list[tuple[str, str]]:
    return [("empty", ""), ("201 bytes", "a" * 201), ("slash", "a/b"), ("space", "a b"), ("newline", "a\nb"),
            ("trailing newline", "a\n"), ("leading newline", "\na"), ("umlaut", "ä"), ("cyrillic o", "\u043e"),
            ("51 emoji, 204 bytes", "😀" * 51), ("one emoji", "😀"), ("percent", "a%b"), ("tab", "a\tb"),
            *(("leading " + c, c + "a") for c in "._:-"), *(("trailing " + c, "a" + c) for c in "._:-"),
            ("only a separator", ":")]  # fmt: skip


@pytest.mark.parametrize(("name", "key"), keys(), ids=[name for name, _ in keys()])
async def test_a_key_that_breaks_the_rule_is_refused(books: Books, name: str, key: str) -> None:
    await refused(books, "22023", "breaks the key rule", key=key)


async def test_no_key_at_all_is_refused(books: Books) -> None:
    async with session(books.url) as connection:
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="key NULL breaks the key rule"):
            await connection.execute(
                "SELECT duly.schedule(NULL, 'mail', '{}', duly.now(), duly.now() + interval '1 hour')"
            )


async def test_keys_that_keep_the_rule_are_taken(books: Books) -> None:
    for key in ("a", "7", "a" * 200, "order-17:confirmation:1", "A.b_c:d-e", "a..b", "a::b", "Order", "order"):
        assert (await books.schedule(key)).created, key
    assert len(await books.sql("SELECT FROM duly.operation")) == 9


@pytest.mark.parametrize(
    ("due", "deadline", "words"),
    [
        (100, 50, ["is not after due_at"]),
        (100, 100, ["is not after due_at"]),
        (-100, -50, ["is already past"]),
        (365.25 * 86_400 * 101, 365.25 * 86_400 * 102, ["more than a century ahead"]),
        (0, 365.25 * 86_400 * 201, ["more than a century ahead"]),
    ],
)
async def test_times_that_cannot_be_meant_are_refused(
    books: Books, due: float, deadline: float, words: list[str]
) -> None:
    await refused(books, "22023", *words, due=due, deadline=deadline)


async def test_a_century_ahead_is_taken(books: Books) -> None:
    assert (await books.schedule(due=365 * 86_400 * 99, deadline=365 * 86_400 * 150)).created


@pytest.mark.parametrize(
    ("due", "deadline", "words"),
    [
        ("9999-12-31", "9999-12-31 12:00", "more than a century ahead"),
        ("infinity", "infinity", "infinite"),
        ("-infinity", "2090-01-01", "infinite"),
        ("2030-01-01", "infinity", "infinite"),
        (None, "2030-01-01", "must be given"),
        ("2030-01-01", None, "must be given"),
    ],
)
async def test_times_that_only_sql_can_say_are_refused(
    books: Books, due: str | None, deadline: str | None, words: str
) -> None:
    async with session(books.url) as connection:
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=words):
            await connection.execute("SELECT duly.schedule('k', 'mail', '{\"n\": 1}', %s, %s)", [due, deadline])


async def test_python_refuses_naive_times(books: Books) -> None:
    aware, naive = datetime(2030, 1, 1, tzinfo=UTC), datetime(2030, 1, 2)  # noqa: DTZ001 (the point)
    async with books.engine.begin() as connection:
        for due, deadline in ((naive, aware + timedelta(days=9)), (aware, naive)):
            with pytest.raises(ValueError, match="no time zone"):
                await transitions.schedule(
                    connection, key="k", kind="mail", payload={"n": 1}, due_at=due, deadline=deadline
                )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "male"}, ["kind 'male' is not known", "Known: mail"]),
        ({"kind": None}, ["kind NULL is not known"]),
        ({"payload": {"m": 1}}, ["lacks n"]),
        ({"payload": [1]}, ["not a JSON object"]),
        ({"payload": "n"}, ["not a JSON object"]),
        ({"payload": None}, ["not a JSON object"]),
        ({"payload": {"n": "x" * 65_536}}, ["65536 are allowed"]),
        ({"subject": "s"}, ["subject and version", "go together"]),
        ({"version": 1}, ["subject and version", "go together"]),
        ({"subject": "", "version": 1}, ["1 to 200 are allowed"]),
        ({"subject": "ä" * 101, "version": 1}, ["has 202 bytes"]),
    ],
)
async def test_what_does_not_fit_is_refused_and_named(books: Books, change: dict[str, Any], words: list[str]) -> None:
    await refused(books, "22023", *words, **change)


async def test_a_payload_of_64_kib_is_taken_and_names_in_any_script_survive(books: Books) -> None:
    frame = len('{"n": ""}')
    payload = {"n": "é" * ((65_536 - frame) // 2)}
    assert (await books.schedule(payload=payload)).created
    assert (await books.granted()).payload == payload


async def test_a_nul_cannot_enter(books: Books) -> None:
    await refused(books, "22P05", payload={"n": "a\x00b"})


async def test_a_kind_that_left_the_configuration_takes_nothing_new_but_keeps_what_it_has(books: Books) -> None:
    await books.schedule()
    await transitions.configure(books.engine, [], [])
    await refused(books, "22023", "kind 'mail' is not known", "Known: none", key="other")
    assert (await books.claim()).granted
