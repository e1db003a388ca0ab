"""Versions of one subject: the newest stands, the older ones give way, and none overtakes one that is in doubt."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from ledger import transitions
from tests.integration.ledger_steps import LEASE, Books, session, sqlstate, tally, together

ROUNDS = 40
"""Enough that a predecessor check without the subject's lock was caught in each of five trials."""


async def version(books: Books, number: int, key: str | None = None, **more: Any) -> str:
    """Schedule a version of subject ``s`` and return its key."""
    key = key or f"v{number}"
    await books.schedule(key, subject=more.pop("subject", "s"), version=number, **more)
    return key


async def test_a_newer_version_ends_a_scheduled_older_one_in_the_same_transaction(books: Books) -> None:
    await version(books, 1)
    async with session(books.url) as application, application.transaction(force_rollback=True):
        await application.execute(
            "SELECT duly.schedule('v2', 'mail', '{\"n\": 1}', duly.now(), duly.now() + interval '1 hour', 's', 2)"
        )
        found = await application.execute("SELECT state FROM duly.operation WHERE key = 'v1'")
        assert await found.fetchone() == ("superseded",)
    assert await books.state("v1") == "scheduled"
    await version(books, 2)
    row = await books.row("v1")
    assert row["state"] == "superseded"
    assert row["history"][-1]["why"] == "version 2 (v2) took its place"


async def test_a_newer_version_ends_a_blocked_older_one(books: Books) -> None:
    await version(books, 1)
    await books.attempt("key_mismatch", "v1")
    await version(books, 2)
    assert await books.state("v1") == "superseded"


async def test_versions_may_leave_gaps_and_all_older_ones_end(books: Books) -> None:
    for number in (1, 5, 9):
        await version(books, number)
    assert [await books.state(f"v{number}") for number in (1, 5, 9)] == ["superseded", "superseded", "scheduled"]


async def test_a_superseded_version_never_revives(books: Books) -> None:
    await version(books, 1)
    await version(books, 2)
    assert (await books.claim("v1", 1)).act == "ended"
    again = await books.schedule("v1", subject="s", version=1)
    assert (again.created, again.state) == (False, "superseded")
    for answer in (
        await transitions.cancel(books.engine, "v1", "not wanted"),
        await transitions.reschedule(
            books.engine, "v1", await books.now(), (await books.row("v1"))["deadline"], "later"
        ),
    ):
        assert (answer.done, answer.state) == (False, "superseded")
    await transitions.cancel(books.engine, "v2", "not wanted")
    assert await books.state("v1") == "superseded"


@pytest.mark.parametrize("newest_ends", [False, True])
async def test_an_older_version_than_the_newest_is_refused(books: Books, newest_ends: bool) -> None:
    await version(books, 2)
    if newest_ends:
        await transitions.cancel(books.engine, "v2", "not wanted")
    with pytest.raises(DBAPIError, match="is older than the newest") as caught:
        await version(books, 1)
    assert sqlstate(caught.value) == "23505"


async def test_a_version_that_another_key_has_is_refused(books: Books) -> None:
    await version(books, 1)
    with pytest.raises(DBAPIError, match="has the key v1 already") as caught:
        await version(books, 1, "other")
    assert sqlstate(caught.value) == "23505"


async def test_two_keys_that_want_one_version_at_once_are_one_row_and_one_refusal(books: Books) -> None:
    for number in range(ROUNDS):
        answers = await together(*(version(books, 1, f"{name}{number}", subject=f"s{number}") for name in "ab"))
        assert tally([type(answer) is str for answer in answers]) == {True: 1, False: 1}, answers


async def test_two_versions_at_once_leave_the_newer_one_standing(books: Books) -> None:
    for number in range(ROUNDS):
        subject = f"s{number}"
        await together(*(version(books, n, f"k{number}-{n}", subject=subject) for n in (1, 2)))
        rows = await books.sql("SELECT version, state FROM duly.operation WHERE subject = :s", s=subject)
        assert {row["version"]: row["state"] for row in rows} in (
            {2: "scheduled"},  # 1 came later and was refused
            {1: "superseded", 2: "scheduled"},
        )


@pytest.mark.parametrize("state", ["calling", "accepted", "unknown"])
async def test_a_version_waits_while_an_older_one_is_in_doubt_and_is_woken_when_that_is_settled(
    books: Books, state: str
) -> None:
    await version(books, 1)
    await books.granted("v1")
    if state != "calling":
        await books.reply(state, "v1")
    await version(books, 2)
    assert await books.state("v1") == state
    held = await books.claim("v2")
    assert (held.granted, held.act, held.reason) == (False, "attempt", "predecessor")
    assert (await books.row("v2"))["wake_at"] > (await books.row("v2"))["deadline"]
    if state == "calling":
        await books.reply("rejected", "v1")
    else:
        assert (await books.decide("delivered", "v1")).accepted
    assert (await books.row("v2"))["wake_at"] <= await books.now()
    assert (await books.claim("v2")).granted


async def test_a_predecessor_that_only_changes_its_kind_of_doubt_wakes_nobody(books: Books) -> None:
    await version(books, 1)
    await books.granted("v1")
    await version(books, 2)
    await books.claim("v2")
    await books.move_time(LEASE + 1)
    await books.instruct("v1")
    assert await books.state("v1") == "unknown"
    assert (await books.row("v2"))["wake_at"] > await books.now()


async def test_a_chain_of_versions_never_has_two_in_flight(books: Books) -> None:
    """v1 and v2 are claimed at the same moment at which v2 is scheduled: never both."""
    for number in range(ROUNDS):
        subject, one, two = f"s{number}", f"a{number}", f"b{number}"
        await version(books, 1, one, subject=subject)

        async def newer(key: str = two, subject: str = subject) -> bool:
            await version(books, 2, key, subject=subject)
            return (await books.claim(key)).granted

        claimed, granted = await together(books.claim(one, 1), newer())
        assert not (claimed.granted and granted), (claimed, granted)
        assert await books.state(one) == ("calling" if claimed.granted else "superseded")
        if not granted:
            assert (await books.row(two))["waiting_for"] == "predecessor"


async def test_a_settled_predecessor_and_a_successor_about_to_wait_never_miss_each_other(books: Books) -> None:
    for number in range(ROUNDS):
        subject, one, two = f"s{number}", f"a{number}", f"b{number}"
        await version(books, 1, one, subject=subject)
        await books.granted(one)
        await version(books, 2, two, subject=subject)
        claimed, _ = await together(books.claim(two, 1), books.reply("rejected", one, 1))
        assert claimed.granted or (await books.row(two))["wake_at"] <= await books.now()


@pytest.mark.parametrize(
    ("outcome", "ending"),
    [("not_processed", "superseded"), ("not_sent", "superseded"), ("throttled", "superseded"),
     ("key_mismatch", "superseded"), ("defect", "superseded"), ("rejected", "rejected"), ("delivered", "delivered"),
     ("unknown", "unknown"), ("accepted", "accepted")],
)  # fmt: skip
async def test_a_version_in_flight_gives_way_only_when_it_had_no_effect(
    books: Books, outcome: str, ending: str
) -> None:
    await version(books, 1)
    await books.granted("v1")
    await version(books, 2)
    await books.reply(outcome, "v1")
    assert await books.state("v1") == ending


async def test_an_unknown_version_said_not_delivered_gives_way(books: Books) -> None:
    await version(books, 1)
    await books.attempt("unknown", "v1")
    await version(books, 2)
    await books.not_delivered("v1")
    assert await books.state("v1") == "superseded"
