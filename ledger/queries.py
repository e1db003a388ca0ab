"""Every read of the ledger, one function each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from ledger.states import State

Record = dict[str, Any]


async def _all(engine: AsyncEngine, statement: str, **parameters: Any) -> list[Record]:
    async with engine.begin() as connection:
        return [dict(row) for row in (await connection.execute(text(statement), parameters)).mappings()]


@dataclass(frozen=True, slots=True)
class NextWake:
    """Milliseconds until the next row wants attention (None: no row does) and the age of the oldest due one."""

    wait_ms: int | None
    oldest_eligible_s: float | None


async def next_wake(engine: AsyncEngine) -> NextWake:
    """When the dispatcher should look again."""
    (row,) = await _all(engine, "SELECT * FROM duly.next_wake()")
    return NextWake(**row)


async def operations(
    engine: AsyncEngine,
    *,
    states: Sequence[State] = (),
    kind: str | None = None,
    prefix: str | None = None,
    limit: int = 100,
) -> list[Record]:
    """Operations, the latest change first."""
    return await _all(
        engine,
        """
        SELECT o.key, o.kind, o.state, o.due_at, o.deadline, o.attempts, o.open_attempts, o.settled_by,
               o.provider_reference, o.waiting_for, o.wake_at, o.state_since, o.ended_at, o.contradicted,
               o.dispatch_error, o.stop_requested
        FROM duly.operation o
        WHERE (cardinality(CAST(:states AS text[])) = 0 OR o.state = ANY (CAST(:states AS text[])))
          AND (CAST(:kind AS text) IS NULL OR o.kind = :kind)
          AND (CAST(:prefix AS text) IS NULL OR starts_with(o.key, :prefix))
        ORDER BY o.state_since DESC, o.key LIMIT :limit
        """,
        states=[str(state) for state in states], kind=kind, prefix=prefix, limit=limit,
    )  # fmt: skip


async def counts(engine: AsyncEngine, prefix: str | None = None) -> dict[str, int]:
    """How many operations stand in each state."""
    rows = await _all(
        engine,
        "SELECT o.state, count(*) AS n FROM duly.operation o "
        "WHERE (CAST(:prefix AS text) IS NULL OR starts_with(o.key, :prefix)) GROUP BY o.state",
        prefix=prefix,
    )
    return {row["state"]: row["n"] for row in rows}


async def operation(engine: AsyncEngine, key: str) -> Record | None:
    """One operation as it stands, with everything recorded about it; None: no such key. The payload is not in it."""
    rows = await _all(engine, "SELECT * FROM duly.operation o WHERE o.key = :key", key=key)
    if not rows:
        return None
    record = rows[0]
    del record["payload"]
    for name, order in (("attempt", "number"), ("history", "seq"), ("evidence", "id"), ("decision", "id")):
        statement = f"SELECT * FROM duly.{name} x WHERE x.key = :key ORDER BY x.{order}"  # noqa: S608 (constants)
        record[name] = await _all(engine, statement, key=key)
    return record


async def alerts(engine: AsyncEngine, limit: int = 1000) -> list[Record]:
    """What needs somebody, oldest first."""
    return await _all(
        engine,
        "SELECT a.*, extract(epoch FROM duly.now() - a.since)::float AS age_s "
        "FROM duly.alerts a ORDER BY a.since, a.name LIMIT :limit",
        limit=limit,
    )


async def configuration(engine: AsyncEngine) -> tuple[list[Record], list[Record]]:
    """Active kinds (durations in seconds) and all connections, as the ledger holds them."""
    kinds = await _all(
        engine,
        """
        SELECT k.name, k.connection, k.owner, k.required, k.max_attempts,
               extract(epoch FROM k.call_limit)::float AS call_limit, extract(epoch FROM k.lease)::float AS lease,
               extract(epoch FROM k.settle)::float AS settle,
               extract(epoch FROM k.accepted_bound)::float AS accepted_bound,
               extract(epoch FROM k.start_lead)::float AS start_lead,
               ARRAY(SELECT extract(epoch FROM u.i)::float FROM unnest(k.look_ups) WITH ORDINALITY u(i, n) ORDER BY u.n) AS look_ups,
               extract(epoch FROM k.look_up_lag)::float AS look_up_lag, k.look_up_conclusive,
               extract(epoch FROM k.repeat_within)::float AS repeat_within, k.stores_errors, k.second_person
        FROM duly.kind k WHERE k.active ORDER BY k.name
        """,
    )
    return kinds, await _all(engine, "SELECT c.* FROM duly.connection c ORDER BY c.name")


async def ledger(engine: AsyncEngine) -> Record:
    """The ledger's identity, its clock and whether it may send."""
    (row,) = await _all(
        engine,
        "SELECT l.*, duly.now() AS now, current_setting('server_version') AS server_version, "
        "current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes, "
        "session_user AS session_user, pg_is_in_recovery() AS read_only FROM duly.ledger l",
    )
    return row
