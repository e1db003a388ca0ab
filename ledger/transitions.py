"""Every write of the ledger, one function each. The guards live in the database (migrations/sql): a refused write is a
normal answer with a name (``refused``), never an exception and never ignored.

Errors: SQLAlchemy's ``DBAPIError`` when the database is away or refuses bad input (SQLSTATE 22023, 23505, P0002).
After a cut COMMIT an error carries no truth: the holder of the token claims again and learns which it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.sql import bindparam
from sqlalchemy.sql.elements import TextClause

from ledger.answers import Answer, Claimed, Decided, Dispatch, Reply, Scheduled, Step


def _statement(name: str, arguments: str, json: Sequence[str]) -> TextClause:
    # Both come from the constants below, never from input.
    statement = text(f"SELECT * FROM duly.{name}({arguments})")  # noqa: S608
    # None is SQL's NULL; without none_as_null it would be JSON's null, which is something.
    return statement.bindparams(*(bindparam(parameter, type_=JSONB(none_as_null=True)) for parameter in json))


def _function(name: str, *parameters: str, json: Sequence[str] = ()) -> TextClause:
    arguments = ", ".join(f":{parameter}" for parameter in parameters)
    return _statement(name, arguments, json)


def _named(name: str, *parameters: str, json: Sequence[str] = ()) -> TextClause:
    arguments = ", ".join(f"{parameter} => :{parameter}" for parameter in parameters)
    return _statement(name, arguments, json)


_SCHEDULE = _named(
    "schedule", "key", "kind", "payload", "due_at", "deadline", "subject", "version", "tenant", "trace_context",
    json=("payload", "trace_context"),
)  # fmt: skip
_CANCEL = _named("cancel", "key", "reason")
_RESCHEDULE = _named("reschedule", "key", "due_at", "deadline", "reason")
_DISPATCH = _function("dispatch", "limit", "in_hand_limit", "who")
_GIVE_BACK = _function("give_back", "key", "wake_at", "fresh", "untried")
_DISPATCH_FAILED = _function("dispatch_failed", "key", "wake_at", "error")
_FORGOTTEN = _function("forgotten", "key", "marked_at", "who", "run_id", "cause")
_CLAIM = _function("claim", "key", "generation", "attempt", "token", "worker", "run_id", "activity_id")
_INSTRUCT = _function("instruct", "key", "generation", "worker")
_RECORD = _function(
    "record", "key", "attempt", "token", "outcome", "sent", "status", "reference", "detail", "digest", "call_ms",
    "delay_ms", "who",
)  # fmt: skip
_DECIDE = _named(
    "decide", "key", "choice", "reason", "reference", "evidence", "expected_state", "expected_attempt", "label",
    json=("evidence",),
)  # fmt: skip
_DECIDE_BY_TEMPORAL = _function(
    "decide_by_temporal", "key", "choice", "reason", "reference", "raw", "label", "who", json=("raw",)
)
_RELEASE_CONNECTION = _named("release_connection", "name", "reason")
_CONFIGURE = _function("configure", "kinds", "connections", json=("kinds", "connections"))


def _nothing() -> None:
    """The crash point of a process in which none is armed."""


async def _one(
    engine: AsyncEngine,
    statement: TextClause,
    parameters: Mapping[str, Any],
    before_commit: Callable[[], None] = _nothing,
    *,
    dry_run: bool = False,
) -> dict[str, Any]:
    """One statement, one transaction, one row; its column names are the fields of the dataclass it becomes."""
    async with engine.connect() as connection, connection.begin() as transaction:
        row = dict((await connection.execute(statement, parameters)).mappings().one())
        before_commit()
        if dry_run:
            await transaction.rollback()
        return row


async def schedule(
    connection: AsyncConnection,
    *,
    key: str,
    kind: str,
    payload: Mapping[str, Any],
    due_at: datetime,
    deadline: datetime,
    subject: str | None = None,
    version: int | None = None,
    tenant: str | None = None,
    trace_context: Mapping[str, str] | None = None,
) -> Scheduled:
    """Schedule inside the caller's transaction; the caller commits. Naive times raise ``ValueError``."""
    for name, value in (("due_at", due_at), ("deadline", deadline)):
        if value.tzinfo is None:
            raise ValueError(f"{name} of {key} has no time zone: {value}; add one, for example +00:00")
    row = await connection.execute(
        _SCHEDULE,
        {"key": key, "kind": kind, "payload": payload, "due_at": due_at, "deadline": deadline, "subject": subject,
         "version": version, "tenant": tenant, "trace_context": trace_context},
    )  # fmt: skip
    return Scheduled(**row.mappings().one())


async def cancel(engine: AsyncEngine, key: str, reason: str) -> Answer:
    """Withdraw an operation; during a call it is kept as ``stop_requested``."""
    return Answer(**await _one(engine, _CANCEL, {"key": key, "reason": reason}))


async def reschedule(engine: AsyncEngine, key: str, due_at: datetime, deadline: datetime, reason: str) -> Answer:
    """Move a scheduled operation to other times."""
    parameters = {"key": key, "due_at": due_at, "deadline": deadline, "reason": reason}
    return Answer(**await _one(engine, _RESCHEDULE, parameters))


async def dispatch(engine: AsyncEngine, limit: int, in_hand_limit: int, who: str) -> list[Dispatch]:
    """Mark one bounded batch of rows that need a workflow now. Committed before it returns, so before any start."""
    async with engine.begin() as connection:
        rows = await connection.execute(_DISPATCH, {"limit": limit, "in_hand_limit": in_hand_limit, "who": who})
        return [Dispatch(**row) for row in rows.mappings()]


async def give_back(engine: AsyncEngine, row: Dispatch, *, untried: bool) -> bool:
    """Return a row that was not started; False: somebody moved it since."""
    parameters = {"key": row.key, "wake_at": row.wake_at, "fresh": row.fresh, "untried": untried}
    return bool((await _one(engine, _GIVE_BACK, parameters))["give_back"])


async def dispatch_failed(engine: AsyncEngine, row: Dispatch, error: str) -> bool:
    """Record a start error that concerns this row only; its alarm backs it off."""
    return bool(
        (await _one(engine, _DISPATCH_FAILED, {"key": row.key, "wake_at": row.wake_at, "error": error}))[
            "dispatch_failed"
        ]
    )


async def forgotten(engine: AsyncEngine, row: Dispatch, who: str, run_id: str | None, cause: str) -> bool:
    """Temporal knows a run that the ledger does not: ``unknown`` with that cause. False: it moved on meanwhile."""
    parameters = {"key": row.key, "marked_at": row.marked_at, "who": who, "run_id": run_id, "cause": cause}
    return bool((await _one(engine, _FORGOTTEN, parameters))["forgotten"])


async def claim(
    engine: AsyncEngine,
    *,
    key: str,
    generation: int,
    attempt: int,
    token: UUID,
    worker: str,
    run_id: str,
    activity_id: str,
    before_commit: Callable[[], None] = _nothing,
) -> Claimed:
    """Claim exactly this attempt, or learn what to do instead. Safe to repeat with the same token."""
    return Claimed(
        **await _one(
            engine,
            _CLAIM,
            {"key": key, "generation": generation, "attempt": attempt, "token": token, "worker": worker,
             "run_id": run_id, "activity_id": activity_id},
            before_commit,
        )
    )  # fmt: skip


async def instruct(engine: AsyncEngine, key: str, generation: int, worker: str) -> Step:
    """What the workflow of this generation should do now."""
    return Step(**await _one(engine, _INSTRUCT, {"key": key, "generation": generation, "worker": worker}))


async def record(
    engine: AsyncEngine, *, key: str, attempt: int, token: UUID, reply: Reply, who: str,
    before_commit: Callable[[], None] = _nothing,
) -> Step:  # fmt: skip
    """Settle one attempt by its reply, guarded by attempt and token. ``Step.refused`` names a write not made."""
    return Step(
        **await _one(
            engine,
            _RECORD,
            {"key": key, "attempt": attempt, "token": token, "outcome": reply.outcome, "sent": reply.sent,
             "status": reply.status_code, "reference": reply.reference, "detail": reply.detail,
             "digest": reply.request_digest, "call_ms": reply.call_ms, "delay_ms": reply.delay_ms, "who": who},
            before_commit,
        )
    )  # fmt: skip


async def decide(
    engine: AsyncEngine,
    *,
    key: str,
    choice: str,
    reason: str,
    reference: str | None = None,
    evidence: Mapping[str, Any] | None = None,
    expected_state: str | None = None,
    expected_attempt: int | None = None,
    label: str | None = None,
    dry_run: bool = False,
) -> Decided:
    """A person's choice: ``delivered``, ``not delivered`` or ``abandon``; the right is the database login's.

    A dry run gives the answer of this moment and leaves nothing, no evidence of a refusal either.
    """
    return Decided(
        **await _one(
            engine,
            _DECIDE,
            {"key": key, "choice": choice, "reason": reason, "reference": reference, "evidence": evidence,
             "expected_state": expected_state, "expected_attempt": expected_attempt, "label": label},
            dry_run=dry_run,
        )
    )  # fmt: skip


async def decide_by_temporal(
    engine: AsyncEngine, *, key: str, choice: str | None, reason: str | None, reference: str | None, raw: Any,
    label: str | None, who: str,
) -> Decided:  # fmt: skip
    """What a bare signal asked for: a decision if nothing is sent by it, else kept as evidence or proposal."""
    parameters = {
        "key": key,
        "choice": choice,
        "reason": reason,
        "reference": reference,
        "raw": raw,
        "label": label,
        "who": who,
    }
    return Decided(**await _one(engine, _DECIDE_BY_TEMPORAL, parameters))


async def release_connection(engine: AsyncEngine, name: str, reason: str) -> Answer:
    """Let a held connection work again."""
    return Answer(**await _one(engine, _RELEASE_CONNECTION, {"name": name, "reason": reason}))


async def configure(
    engine: AsyncEngine, kinds: Sequence[Mapping[str, Any]], connections: Sequence[Mapping[str, Any]]
) -> None:
    """Copy kinds and connections of duly.toml in. Durations in seconds."""
    await _one(engine, _CONFIGURE, {"kinds": list(kinds), "connections": list(connections)})
