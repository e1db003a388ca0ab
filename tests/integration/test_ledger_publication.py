"""When scheduled work becomes visible to the dispatcher: at its commit, all of it, and never before."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection

from tests.integration.ledger_steps import Books, session

pytestmark = pytest.mark.publication


async def schedule(connection: AsyncConnection[Any], key: str) -> None:
    """As an application does it: inside whatever transaction is open."""
    await connection.execute(
        "SELECT duly.schedule(%s, 'mail', '{\"n\": 1}', duly.now(), duly.now() + interval '1 hour')", [key]
    )


async def swept(books: Books) -> set[str]:
    """The keys that one sweep takes."""
    return {row.key for row in await books.dispatch()}


async def test_nothing_is_visible_before_the_commit_and_all_after_it(books: Books) -> None:
    async with session(books.url) as application, session(books.url) as other:
        async with application.transaction():
            for key in ("a", "b", "c"):
                await schedule(application, key)
                assert await swept(books) == set()
                found = await other.execute("SELECT count(*) FROM duly.operation")
                assert await found.fetchone() == (0,)
        assert await swept(books) == {"a", "b", "c"}


async def test_a_rollback_leaves_nothing(books: Books) -> None:
    async with session(books.url) as application:
        async with application.transaction(force_rollback=True):
            await schedule(application, "a")
        assert await swept(books) == set()
        assert not await books.sql("SELECT FROM duly.operation UNION ALL SELECT FROM duly.history")


async def test_a_connection_that_dies_before_its_commit_leaves_nothing(books: Books) -> None:
    application = await psycopg.AsyncConnection.connect(books.url)
    await schedule(application, "a")
    (row,) = await books.sql("SELECT pg_terminate_backend(:pid, 10000) AS gone", pid=application.info.backend_pid)
    assert row["gone"]
    await application.close()
    assert await swept(books) == set()
    assert not await books.sql("SELECT FROM duly.operation")


async def test_a_rolled_back_savepoint_takes_only_its_own_with_it(books: Books) -> None:
    async with session(books.url) as application:
        async with application.transaction():
            await schedule(application, "before")
            async with application.transaction(force_rollback=True):
                await schedule(application, "inside")
            await schedule(application, "after")
        assert await swept(books) == {"before", "after"}
        assert {row["key"] for row in await books.sql("SELECT key FROM duly.history")} == {"before", "after"}


async def test_released_nested_savepoints_are_published_by_the_outer_commit_only(books: Books) -> None:
    async with session(books.url) as application:
        async with application.transaction():
            await schedule(application, "outer")
            async with application.transaction():
                await schedule(application, "middle")
                async with application.transaction():
                    await schedule(application, "inner")
                async with application.transaction(force_rollback=True):
                    await schedule(application, "dropped")
            assert await swept(books) == set()
        assert await swept(books) == {"outer", "middle", "inner"}


async def test_a_released_savepoint_inside_a_rolled_back_one_is_gone(books: Books) -> None:
    async with session(books.url) as application:
        async with application.transaction():
            await schedule(application, "outer")
            async with application.transaction(force_rollback=True), application.transaction():
                await schedule(application, "released")
        assert await swept(books) == {"outer"}


async def test_a_refused_schedule_in_a_savepoint_leaves_the_transaction_usable(books: Books) -> None:
    async with session(books.url) as application:
        async with application.transaction():
            await schedule(application, "a")
            with pytest.raises(psycopg.errors.InvalidParameterValue):
                async with application.transaction():
                    await schedule(application, "not a key")
            await schedule(application, "b")
        assert await swept(books) == {"a", "b"}


async def test_a_slow_commit_is_found_by_a_later_sweep(books: Books) -> None:
    async with session(books.url) as slow:
        async with slow.transaction():
            await schedule(slow, "slow")
            for number in range(3):
                await books.schedule(f"fast{number}")
                assert await swept(books) == {f"fast{number}"}
        assert await swept(books) == {"slow"}


async def test_commits_out_of_order_lose_nothing(books: Books) -> None:
    """Rows become visible in another order than that of their numbers, due times and insertion."""
    sessions = [await psycopg.AsyncConnection.connect(books.url) for _ in range(5)]
    try:
        for number, connection in enumerate(sessions):
            await schedule(connection, f"k{number}")
        for number in (3, 0, 4, 1, 2):
            await sessions[number].commit()
            assert await swept(books) == {f"k{number}"}
            await books.schedule(f"between{number}")
            assert await swept(books) == {f"between{number}"}
    finally:
        for connection in sessions:
            await connection.close()


async def test_a_sweep_does_not_wait_for_an_application_that_holds_a_row(books: Books) -> None:
    await books.schedule("held")
    await books.schedule("free")
    async with session(books.url) as application, application.transaction():
        await application.execute("SELECT duly.reschedule('held', duly.now(), duly.now() + interval '1 hour', 'later')")
        assert await swept(books) == {"free"}
    assert await swept(books) == {"held"}


async def test_a_claim_before_the_commit_finds_nothing_to_send(books: Books) -> None:
    async with session(books.url) as application, application.transaction():
        await schedule(application, "a")
        claimed = await books.claim("a", 1)
        assert (claimed.granted, claimed.act, claimed.reason) == (False, "ended", "the ledger does not know this key")
    assert (await books.claim("a", 1)).granted


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_an_application_may_schedule_at_a_stricter_isolation_level(books: Books, level: str) -> None:
    """It then learns of a key that it cannot see by 40001, as of any other conflict at that level."""
    async with session(books.url) as application:
        await application.execute(f"BEGIN ISOLATION LEVEL {level}".encode())
        await application.execute("SELECT count(*) FROM duly.operation")
        await books.schedule("a")
        with pytest.raises(psycopg.errors.SerializationFailure):
            await schedule(application, "a")
        await application.execute("ROLLBACK")
        async with application.transaction():
            await application.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
            await schedule(application, "b")
    assert await swept(books) == {"a", "b"}


async def test_the_clock_of_a_row_is_not_that_of_its_transactions_begin(books: Books) -> None:
    async with session(books.url) as application, application.transaction():
        await application.execute("SELECT 1")
        between = datetime.now(UTC)
        await schedule(application, "a")
    assert (await books.row("a"))["created_at"] >= between
