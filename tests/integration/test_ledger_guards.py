"""What the database refuses by itself, whoever asks: the owner of its tables and a superuser included."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import AsyncConnection, errors

from ledger.migrate import migrate
from ledger.states import State
from tests.integration.ledger_steps import Books, login, session

TABLES = ("ledger", "move", "rule", "connection", "kind", "subject", "operation", "attempt", "history",
                 "evidence", "decision", "approval", "choice", "adoption", "plan", "plan_item",
                 "plan_result")  # fmt: skip
ROLES = ("duly_app", "duly_worker", "duly_operator", "duly_owner", "duly_reader")

# Every function that a role may call, and who may. A function that is missing here may be called by nobody.
MAY_CALL: dict[str, set[str]] = {
    "now": set(ROLES),
    "_utc": set(ROLES),
    "outlook": set(ROLES) - {"duly_app"},
    "schedule": {"duly_app", "duly_operator", "duly_owner"},
    "cancel": {"duly_app", "duly_operator", "duly_owner"},
    "reschedule": {"duly_app", "duly_operator", "duly_owner"},
    **{name: {"duly_operator", "duly_owner"} for name in ("decide", "approve", "release_connection", "preview_plan",
                                                          "make_plan", "apply_plan")},
    **{name: {"duly_owner"} for name in ("configure", "adopt")},
    **{name: {"duly_worker"} for name in ("dispatch", "give_back", "dispatch_failed", "forgotten", "next_wake", "claim",
                                          "instruct", "record", "look_up", "found", "decide_by_temporal",
                                          "witness_now", "check_witness", "watch", "serve", "quarantine", "doubt_gap",
                                          "doubt_moved", "exposed")},
}  # fmt: skip


APPEND_ONLY = {"history": "key", "evidence": "key", "decision": "key", "approval": "reason", "adoption": "reason",
               "plan": "reason", "plan_item": "key", "plan_result": "key"}  # fmt: skip
"""Tables that only grow, each with one of its columns."""


@pytest.fixture
async def with_rows(books: Books) -> Books:
    """At least one row in every table."""
    await books.bring_to("superseded", "old")
    await books.bring_to("unknown")
    await books.decide("not delivered")
    await books.decide("not delivered")  # refused: kept as evidence
    return books


@pytest.fixture
async def as_owner_of_tables(with_rows: Books) -> AsyncIterator[AsyncConnection[Any]]:
    """The role that owns every table, with which nobody logs in."""
    async with session(with_rows.url) as connection:
        await connection.execute("SET ROLE duly_ledger")
        yield connection


async def test_what_is_written_down_stays(as_owner_of_tables: AsyncConnection[Any]) -> None:
    for table, column in APPEND_ONLY.items():
        for change in ("UPDATE {} SET " + f"{column} = {column}", "UPDATE {} SET " + f"{column} = {column} WHERE false", "DELETE FROM {}",
                       "DELETE FROM {} WHERE false", "TRUNCATE {} CASCADE"):  # fmt: skip
            with pytest.raises(errors.InsufficientPrivilege, match="append-only"):
                await as_owner_of_tables.execute(change.format(f"duly.{table}").encode())


async def test_no_operation_and_no_attempt_is_removed(as_owner_of_tables: AsyncConnection[Any]) -> None:
    for table in ("operation", "attempt"):
        for change in ("DELETE FROM {}", "TRUNCATE {} CASCADE"):
            with pytest.raises(errors.InsufficientPrivilege, match="append-only"):
                await as_owner_of_tables.execute(change.format(f"duly.{table}").encode())


async def test_a_superuser_is_refused_too(with_rows: Books) -> None:
    async with session(with_rows.url) as connection:
        for change in ("UPDATE duly.history SET why = 'x'", "DELETE FROM duly.decision", "DELETE FROM duly.operation"):
            with pytest.raises(errors.InsufficientPrivilege, match="append-only"):
                await connection.execute(change.encode())


async def test_what_an_operation_is_never_changes(as_owner_of_tables: AsyncConnection[Any]) -> None:
    for change in ("key = 'other'", "kind = 'second'", "payload = '{}'", "payload_digest = 'x'", "tenant = 'other'",
                   "subject = 's-old', version = 9", "created_at = duly.now()", "created_by = 'other'"):  # fmt: skip
        with pytest.raises(errors.InsufficientPrivilege, match="are frozen"):
            await as_owner_of_tables.execute(f"UPDATE duly.operation SET {change} WHERE key = 'k'".encode())


async def test_counters_only_grow(as_owner_of_tables: AsyncConnection[Any]) -> None:
    for change in ("attempts = attempts - 1", "attempts = attempts + 2", "epoch = 0", "generation = 0"):
        with pytest.raises(errors.CheckViolation, match="only grow"):
            await as_owner_of_tables.execute(f"UPDATE duly.operation SET {change} WHERE key = 'k'".encode())


async def test_a_claim_never_changes(as_owner_of_tables: AsyncConnection[Any]) -> None:
    for change in ("number = 2", "token = gen_random_uuid()", "idempotency_key = 'x'", "claimed_at = duly.now()",
                   "send_before = duly.now()", "lease_until = duly.now()"):  # fmt: skip
        with pytest.raises(errors.InsufficientPrivilege, match="on record already"):
            await as_owner_of_tables.execute(f"UPDATE duly.attempt SET {change} WHERE key = 'k'".encode())


async def test_an_outcome_that_proved_something_is_final_and_an_unknown_one_is_not(books: Books) -> None:
    await books.bring_to("delivered")
    await books.bring_to("unknown", "u")
    async with session(books.url) as connection:
        with pytest.raises(errors.InsufficientPrivilege, match="on record already"):
            await connection.execute("UPDATE duly.attempt SET outcome = 'rejected' WHERE key = 'k'")
        async with connection.transaction(force_rollback=True):
            await connection.execute("UPDATE duly.attempt SET outcome = 'rejected' WHERE key = 'u'")


async def test_a_settled_attempt_opens_again_only_for_the_provider_saying_that_it_works_on_it(books: Books) -> None:
    await books.bring_to("unknown")
    await books.not_delivered()
    async with session(books.url) as connection:
        reopen = "UPDATE duly.attempt SET resolved_at = NULL, resolved_by = NULL, effect = NULL"
        with pytest.raises(errors.InsufficientPrivilege, match="on record already"):
            await connection.execute(reopen.encode())
        async with connection.transaction(force_rollback=True):
            await connection.execute(f"{reopen}, outcome = 'accepted'".encode())


@pytest.mark.parametrize("role", ROLES)
async def test_no_role_writes_a_table(with_rows: Books, role: str) -> None:
    keys = {"rule": "outcome", "move": "before", "ledger": "one", "kind": "name", "connection": "name",
            "subject": "subject", "choice": "name", "approval": "reason", "adoption": "reason",
            "plan": "reason"}  # fmt: skip
    async with login(with_rows, role) as connection:
        for table in TABLES:
            for change in ("INSERT INTO duly.{} DEFAULT VALUES", "DELETE FROM duly.{}", "TRUNCATE duly.{}",
                           f"UPDATE duly.{{0}} SET {keys.get(table, 'key')} = {keys.get(table, 'key')}"):  # fmt: skip
                with pytest.raises(errors.InsufficientPrivilege, match="permission denied"):
                    await connection.execute(change.format(table).encode())


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_calls_exactly_its_own_functions(books: Books, role: str) -> None:
    rows = await books.sql(
        "SELECT p.proname AS name, has_function_privilege(:role, p.oid, 'EXECUTE') AS may "
        "FROM pg_proc p WHERE p.pronamespace = 'duly'::regnamespace",
        role=role,
    )
    assert {row["name"] for row in rows if row["may"]} == {name for name, roles in MAY_CALL.items() if role in roles}


@pytest.mark.parametrize("role", ROLES)
async def test_a_role_reads_what_its_work_needs_and_makes_nothing_of_its_own(books: Books, role: str) -> None:
    async with login(books, role) as connection:
        if role == "duly_app":
            with pytest.raises(errors.InsufficientPrivilege):
                await connection.execute("SELECT * FROM duly.operation")
        else:
            for name in (*TABLES, "alerts", "alembic_version"):
                await connection.execute(f"SELECT * FROM duly.{name}".encode())
        for change in ("CREATE TABLE duly.x (y int)", "CREATE FUNCTION duly.f() RETURNS int LANGUAGE sql RETURN 1",
                       "SET ROLE duly_ledger", "ALTER TABLE duly.history DISABLE TRIGGER ALL",
                       "SET session_replication_role = replica"):  # fmt: skip
            with pytest.raises(errors.InsufficientPrivilege):
                await connection.execute(change.encode())


async def test_what_a_role_may_call_works_with_its_rights_and_bears_its_name(books: Books) -> None:
    async with login(books, "duly_app") as connection:
        await connection.execute(
            "SELECT duly.schedule('k', 'mail', '{\"n\": 1}', duly.now(), duly.now() + interval '1 hour')"
        )
        name = (await (await connection.execute("SELECT session_user")).fetchone() or [None])[0]
    async with login(books, "duly_worker") as connection:
        await connection.execute("SELECT duly.claim('k', 1, 1, %s, 'w', 'r', 'a', NULL)", [uuid4()])
        await connection.execute("SELECT * FROM duly.dispatch(10, 10, 'w')")
    await books.move_time(timedelta(hours=1).total_seconds())
    await books.instruct()
    async with login(books, "duly_operator") as connection:
        await connection.execute("SELECT duly.decide('k', 'delivered', 'seen there', 'ref', label => 'duly_owner')")
    row = await books.row()
    assert row["state"] == State.DELIVERED
    assert row["created_by"] == row["history"][0]["who"] == name
    assert row["decision"][0]["by_right"] == "operator"
    assert row["decision"][0]["decided_by"].startswith("test_duly_operator")
    async with login(books, "duly_owner") as connection:
        await books.bring_to("unknown", "u")
        await connection.execute("SELECT duly.decide('u', 'abandon', 'left for ever')")
    assert (await books.row("u"))["decision"][0]["by_right"] == "owner"


async def test_a_user_who_is_no_superuser_migrates_when_he_may_create_roles(books: Books) -> None:
    # What Postgres 16 and later give to whoever creates a role: to administer it, and no more.
    name = f"plain_{uuid4().hex[:12]}"
    options = "WITH ADMIN TRUE, INHERIT FALSE, SET FALSE"
    async with session(books.url) as connection:
        await connection.execute(f"CREATE ROLE {name} LOGIN CREATEROLE".encode())
        await connection.execute(f"GRANT duly_ledger TO {name} {options}".encode())
        await connection.execute(f"CREATE DATABASE {name} OWNER {name}".encode())
    try:
        info = psycopg.conninfo.conninfo_to_dict(books.url)
        assert migrate(f"postgresql://{name}@/{name}?host={info['host']}") == "0001"
    finally:
        async with session(books.url) as connection:
            await connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
            await connection.execute(f"DROP OWNED BY {name}".encode())
            await connection.execute(f"REVOKE duly_ledger FROM {name} CASCADE".encode())
            await connection.execute(f"DROP ROLE {name}".encode())
