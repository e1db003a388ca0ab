"""Every read of the ledger, one function each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ledger.states import DEAD, State

Record = dict[str, Any]


async def _rows(connection: AsyncConnection, statement: str, **parameters: Any) -> list[Record]:
    return [dict(row) for row in (await connection.execute(text(statement), parameters)).mappings()]


async def _all(engine: AsyncEngine, statement: str, **parameters: Any) -> list[Record]:
    async with engine.begin() as connection:
        return await _rows(connection, statement, **parameters)


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


_PARTS = {
    "attempt": "SELECT * FROM duly.attempt x WHERE x.key = :key ORDER BY x.number",
    "history": "SELECT * FROM duly.history x WHERE x.key = :key ORDER BY x.seq",
    "evidence": "SELECT * FROM duly.evidence x WHERE x.key = :key ORDER BY x.id",
    "decision": "SELECT * FROM duly.decision x WHERE x.key = :key ORDER BY x.id",
    "approval": "SELECT x.* FROM duly.approval x JOIN duly.decision d ON d.id = x.decision "
    "WHERE d.key = :key ORDER BY x.decision",
    "plan": "SELECT i.plan, p.made_by, p.reason, p.at, i.consequence, r.done, r.answer, r.decision, r.applied_by, "
    "r.at AS applied_at FROM duly.plan_item i JOIN duly.plan p ON p.id = i.plan "
    "LEFT JOIN duly.plan_result r ON r.plan = i.plan AND r.key = i.key WHERE i.key = :key ORDER BY i.plan",
    "policy": "SELECT k.*, c.provider, c.held, c.not_before FROM duly.operation o JOIN duly.kind k ON k.name = o.kind "
    "JOIN duly.connection c ON c.name = k.connection WHERE o.key = :key",
    "outlook": "SELECT * FROM duly.outlook(ARRAY[CAST(:key AS text)])",
}


async def operation(engine: AsyncEngine, key: str) -> Record | None:
    """One operation as it stands, with everything recorded about it; None: no such key. The payload is not in it.

    Lists: attempt, history, evidence, decision, approval, plan. Rows: policy (its kind, and the connection's hold) and
    outlook (what it waits for, and whether it may be repeated).
    """
    # One transaction and one snapshot, so that the parts fit each other.
    async with engine.connect() as plain:
        connection = await plain.execution_options(isolation_level="REPEATABLE READ")
        async with connection.begin():
            rows = await _rows(connection, "SELECT * FROM duly.operation o WHERE o.key = :key", key=key)
            if not rows:
                return None
            record = rows[0]
            del record["payload"]
            for name, statement in _PARTS.items():
                record[name] = await _rows(connection, statement, key=key)
    for name in ("policy", "outlook"):
        (record[name],) = record[name]
    return record


async def unknown(engine: AsyncEngine, *, kind: str | None = None, limit: int = 100) -> list[Record]:
    """Operations in doubt, the oldest doubt first: what was tried, what is next, and who is asked."""
    return await _all(
        engine,
        """
        WITH doubt AS (
          SELECT o.key, (SELECT min(a.claimed_at) FROM duly.attempt a WHERE a.key = o.key AND a.resolved_at IS NULL)
              AS since
          FROM duly.operation o WHERE o.state = 'unknown' AND (CAST(:kind AS text) IS NULL OR o.kind = :kind)
          ORDER BY 2, 1 LIMIT :limit)
        SELECT o.key, o.kind, k.owner, k.connection, d.since, extract(epoch FROM duly.now() - d.since)::float AS age_s,
               o.state_since, o.due_at, o.deadline, o.attempts, o.open_attempts, k.max_attempts, o.stop_requested,
               o.contradicted, o.waiting_for, o.look_at, o.pending_decision, o.pending_at,
               u.act AS next_act, u.reason AS next_reason, u.repeat_at, u.no_repeat,
               a.outcome AS last_outcome, a.status_code AS last_status, a.detail AS last_detail,
               a.recorded_at AS last_at,
               (SELECT count(*) FROM duly.evidence e WHERE e.key = o.key AND e.source = 'look-up') AS look_ups,
               e.id AS found_evidence, e.finding, e.detail->>'why' AS finding_why, e.at AS found_at
        FROM doubt d JOIN duly.operation o ON o.key = d.key JOIN duly.kind k ON k.name = o.kind
        LEFT JOIN duly.attempt a ON a.key = o.key AND a.number = o.attempts
        LEFT JOIN LATERAL (SELECT * FROM duly.evidence v WHERE v.key = o.key AND v.source = 'look-up'
                           ORDER BY v.id DESC LIMIT 1) e ON true
        LEFT JOIN LATERAL duly.outlook(ARRAY[o.key]) u ON true
        ORDER BY d.since, o.key
        """,
        kind=kind, limit=limit,
    )  # fmt: skip


async def waiting_decisions(engine: AsyncEngine, keys: Sequence[str] | None = None) -> list[Record]:
    """Decisions and proposals that wait for somebody's approval and still fit, the oldest first."""
    return await _all(
        engine,
        "SELECT d.id, d.key, d.choice, d.reason, d.decided_by, d.by_right, d.label, d.at FROM duly.decision d "
        "JOIN duly.operation o ON o.key = d.key WHERE d.needs_approval "
        "AND NOT EXISTS (SELECT FROM duly.approval a WHERE a.decision = d.id) "
        "AND o.state = d.state_seen AND o.attempts = d.attempt_seen AND o.state_since <= d.at "
        "AND (CAST(:keys AS text[]) IS NULL OR d.key = ANY (:keys)) ORDER BY d.id",
        keys=None if keys is None else list(keys),
    )


async def dead(
    engine: AsyncEngine,
    *,
    states: Sequence[State] = (),
    kind: str | None = None,
    older_than: timedelta | None = None,
    limit: int = 100,
) -> list[Record]:
    """The dead list, the oldest first: rejected, exhausted, expired and blocked, with the reason of each."""
    return await _all(
        engine,
        """
        SELECT o.key, o.state, o.kind, k.owner, o.state_since AS since,
               extract(epoch FROM duly.now() - o.state_since)::float AS age_s, o.attempts, o.generation, o.deadline,
               o.deadline <= duly.now() AS too_late, o.contradicted, h.why
        FROM duly.operation o JOIN duly.kind k ON k.name = o.kind
        LEFT JOIN LATERAL (SELECT x.why FROM duly.history x WHERE x.key = o.key AND x.before IS DISTINCT FROM x.after
                           ORDER BY x.seq DESC LIMIT 1) h ON true
        WHERE o.state = ANY (CAST(:states AS text[])) AND (CAST(:kind AS text) IS NULL OR o.kind = :kind)
          AND (CAST(:older_than AS interval) IS NULL OR o.state_since <= duly.now() - CAST(:older_than AS interval))
        ORDER BY o.state_since, o.key LIMIT :limit
        """,
        states=[str(state) for state in (states or sorted(DEAD))], kind=kind, older_than=older_than, limit=limit,
    )  # fmt: skip


_PLANS = """
SELECT p.id, p.choice, p.reason, p.deadline, p.selection, p.made_by, p.at,
       (SELECT count(*) FROM duly.plan_item i WHERE i.plan = p.id) AS items,
       (SELECT count(*) FROM duly.plan_result r WHERE r.plan = p.id AND r.done) AS done,
       (SELECT count(*) FROM duly.plan_result r WHERE r.plan = p.id AND NOT r.done) AS refused
FROM duly.plan p
"""


async def plans(engine: AsyncEngine, limit: int = 100) -> list[Record]:
    """Plans with how far each was applied, the newest first."""
    return await _all(engine, _PLANS + "ORDER BY p.id DESC LIMIT :limit", limit=limit)


async def plan(engine: AsyncEngine, number: int) -> Record | None:
    """One plan with its items, each as it was seen and what became of it (``done`` None: not applied yet)."""
    found = await _all(engine, _PLANS + "WHERE p.id = :number", number=number)
    if not found:
        return None
    found[0]["item"] = await _all(
        engine,
        "SELECT i.*, o.kind, o.state, o.attempts, r.done, r.answer, r.decision, r.applied_by, r.at "
        "FROM duly.plan_item i JOIN duly.operation o ON o.key = i.key "
        "LEFT JOIN duly.plan_result r ON r.plan = i.plan AND r.key = i.key WHERE i.plan = :number ORDER BY i.key",
        number=number,
    )
    return found[0]


async def adoptions(engine: AsyncEngine) -> list[Record]:
    """Every restore that an owner took on, in order."""
    return await _all(engine, "SELECT a.* FROM duly.adoption a ORDER BY a.id")


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
               ARRAY(SELECT extract(epoch FROM u.i)::float FROM unnest(k.look_ups) WITH ORDINALITY u(i, n)
                     ORDER BY u.n) AS look_ups,
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
