"""Every write of the ledger but people's decisions (``ledger.decisions``), one function each. The guards live in the
database (migrations/sql): a refused write is a normal answer with a name (``refused``), never an exception and never ignored.

Errors: SQLAlchemy's ``DBAPIError`` when the database is away or refuses bad input (SQLSTATE 22023, 23505, P0002).
After a cut COMMIT an error carries no truth: the holder of the token claims again and learns which it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from ledger.answers import Answer, Claimed, Dispatch, Question, Reply, Scheduled, Step, Watched, Witness
from ledger.statements import function, named, nothing, one

_SCHEDULE = named(
    "schedule", "key", "kind", "payload", "due_at", "deadline", "subject", "version", "tenant", "trace_context",
    json=("payload", "trace_context"),
)  # fmt: skip
_CANCEL = named("cancel", "key", "reason")
_RESCHEDULE = named("reschedule", "key", "due_at", "deadline", "reason")
_DISPATCH = function("dispatch", "limit", "in_hand_limit", "who")
_GIVE_BACK = function("give_back", "key", "wake_at", "fresh", "untried")
_DISPATCH_FAILED = function("dispatch_failed", "key", "wake_at", "error")
_FORGOTTEN = function("forgotten", "key", "marked_at", "who", "run_id", "cause")
_CLAIM = function(
    "claim", "key", "generation", "attempt", "token", "worker", "run_id", "activity_id", "connections", "witness",
    json=("connections", "witness"),
)  # fmt: skip
_INSTRUCT = function("instruct", "key", "generation", "worker")
_LOOK_UP = function("look_up", "key", "generation", "worker")
_FOUND = function(
    "found", "key", "generation", "attempt", "finding", "reference", "detail", "counts", "why", "who", json=("detail",)
)
_WITNESS_NOW = function("witness_now")
_CHECK_WITNESS = function("check_witness", "witness", json=("witness",))
_WATCH = function("watch", "witness", "who", json=("witness",))
_SERVE = function("serve")
_DOUBT_MOVED = function("doubt_moved", "who", "limit")
_EXPOSED = function("exposed", "key", "attempt", "still_s", "who")
_QUARANTINE = function("quarantine", "cause", "who")
_DOUBT_GAP = function("doubt_gap", "cause", "who", "limit")
_RECORD = function(
    "record", "key", "attempt", "token", "outcome", "sent", "status", "reference", "detail", "digest", "call_ms",
    "delay_ms", "who",
)  # fmt: skip
_CONFIGURE = function("configure", "kinds", "connections", json=("kinds", "connections"))


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
    return Answer(**await one(engine, _CANCEL, {"key": key, "reason": reason}))


async def reschedule(engine: AsyncEngine, key: str, due_at: datetime, deadline: datetime, reason: str) -> Answer:
    """Move a scheduled operation to other times."""
    parameters = {"key": key, "due_at": due_at, "deadline": deadline, "reason": reason}
    return Answer(**await one(engine, _RESCHEDULE, parameters))


async def dispatch(engine: AsyncEngine, limit: int, in_hand_limit: int, who: str) -> list[Dispatch]:
    """Mark one bounded batch of rows that need a workflow now. Committed before it returns, so before any start."""
    async with engine.begin() as connection:
        rows = await connection.execute(_DISPATCH, {"limit": limit, "in_hand_limit": in_hand_limit, "who": who})
        return [Dispatch(**row) for row in rows.mappings()]


async def give_back(engine: AsyncEngine, row: Dispatch, *, untried: bool) -> bool:
    """Return a row that was not started; False: somebody moved it since."""
    parameters = {"key": row.key, "wake_at": row.wake_at, "fresh": row.fresh, "untried": untried}
    return bool((await one(engine, _GIVE_BACK, parameters))["give_back"])


async def dispatch_failed(engine: AsyncEngine, row: Dispatch, error: str) -> bool:
    """Record a start error that concerns this row only; its alarm backs it off."""
    return bool(
        (await one(engine, _DISPATCH_FAILED, {"key": row.key, "wake_at": row.wake_at, "error": error}))[
            "dispatch_failed"
        ]
    )


async def forgotten(engine: AsyncEngine, row: Dispatch, who: str, run_id: str | None, cause: str) -> bool:
    """Temporal knows a run that the ledger does not: ``unknown`` with that cause. False: it moved on meanwhile."""
    parameters = {"key": row.key, "marked_at": row.marked_at, "who": who, "run_id": run_id, "cause": cause}
    return bool((await one(engine, _FORGOTTEN, parameters))["forgotten"])


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
    connections: Mapping[str, Mapping[str, str]] | None = None,
    witness: Witness | None = None,
    before_commit: Callable[[], None] = nothing,
) -> Claimed:
    """Claim exactly this attempt, or learn what to do instead. Safe to repeat with the same token.

    ``connections``: scope and rendering of each connection that this worker has an adapter for. ``witness``: what this
    worker remembers; a ledger that has forgotten it grants nothing.
    """
    return Claimed(
        **await one(
            engine,
            _CLAIM,
            {"key": key, "generation": generation, "attempt": attempt, "token": token, "worker": worker,
             "run_id": run_id, "activity_id": activity_id, "connections": connections,
             "witness": as_json(witness)},
            before_commit,
        )
    )  # fmt: skip


async def instruct(engine: AsyncEngine, key: str, generation: int, worker: str) -> Step:
    """What the workflow of this generation should do now."""
    return Step(**await one(engine, _INSTRUCT, {"key": key, "generation": generation, "worker": worker}))


async def record(
    engine: AsyncEngine, *, key: str, attempt: int, token: UUID, reply: Reply, who: str,
    before_commit: Callable[[], None] = nothing,
) -> Step:  # fmt: skip
    """Settle one attempt by its reply, guarded by attempt and token. ``Step.refused`` names a write not made."""
    return Step(
        **await one(
            engine,
            _RECORD,
            {"key": key, "attempt": attempt, "token": token, "outcome": reply.outcome, "sent": reply.sent,
             "status": reply.status_code, "reference": reply.reference, "detail": reply.detail,
             "digest": reply.request_digest, "call_ms": reply.call_ms, "delay_ms": reply.delay_ms, "who": who},
            before_commit,
        )
    )  # fmt: skip


async def look_up(engine: AsyncEngine, key: str, generation: int, worker: str) -> Question:
    """What to ask the provider about this doubt now, or the step to follow instead."""
    return Question(**await one(engine, _LOOK_UP, {"key": key, "generation": generation, "worker": worker}))


async def found(
    engine: AsyncEngine, *, key: str, generation: int, attempt: int, finding: str, reference: str | None,
    detail: Mapping[str, Any], counts: bool, why: str, who: str,
) -> Step:  # fmt: skip
    """Record what a look-up found and take the step that it permits. ``counts``: an absence that meets every rule."""
    return Step(
        **await one(
            engine,
            _FOUND,
            {"key": key, "generation": generation, "attempt": attempt, "finding": finding, "reference": reference,
             "detail": detail, "counts": counts, "why": why, "who": who},
        )
    )  # fmt: skip


async def witness_now(engine: AsyncEngine) -> Witness:
    """The newest history row, to be remembered outside the database."""
    return Witness(**await one(engine, _WITNESS_NOW, {}))


async def check_witness(engine: AsyncEngine, witness: Witness) -> str:
    """``same``, ``lost`` (the ledger went back in time), ``other ledger``, ``newer timeline`` or ``adopted`` since."""
    return str((await one(engine, _CHECK_WITNESS, {"witness": as_json(witness)}))["check_witness"])


def as_json(witness: Witness | None) -> dict[str, Any] | None:
    """As it is kept outside and compared inside."""
    if witness is None:
        return None
    return {
        name: value if value is None or isinstance(value, int) else str(value)
        for name, value in asdict(witness).items()
    }


async def watch(engine: AsyncEngine, witness: Witness | None, who: str) -> Watched:
    """Compare, quarantine a ledger that went back in time, and take the witness to remember from now on."""
    row = await one(engine, _WATCH, {"witness": as_json(witness), "who": who})
    taken = {field.name: row.pop(field.name) for field in fields(Witness)}
    return Watched(**row, witness=None if taken["ledger_id"] is None else Witness(**taken))


async def serve(engine: AsyncEngine) -> None:
    """A worker serves this ledger from now on, and its witness is kept outside."""
    await one(engine, _SERVE, {})


async def doubt_moved(engine: AsyncEngine, who: str, limit: int) -> int:
    """Put what was in hand when the server moved in doubt; how many. Call it until it returns 0."""
    return int((await one(engine, _DOUBT_MOVED, {"who": who, "limit": limit}))["doubt_moved"])


async def exposed(engine: AsyncEngine, key: str, attempt: int, still_s: float, who: str) -> None:
    """Keep as evidence that this worker stood still for too long while the attempt was in flight."""
    await one(engine, _EXPOSED, {"key": key, "attempt": attempt, "still_s": still_s, "who": who})


async def quarantine(engine: AsyncEngine, cause: str, who: str) -> bool:
    """Nothing is sent from now on. False: it was quarantined already."""
    return bool((await one(engine, _QUARANTINE, {"cause": cause, "who": who}))["quarantine"])


async def doubt_gap(engine: AsyncEngine, cause: str, who: str, limit: int) -> int:
    """Put operations that could have run in the gap in doubt; how many. Call it until it returns 0."""
    return int((await one(engine, _DOUBT_GAP, {"cause": cause, "who": who, "limit": limit}))["doubt_gap"])


async def configure(
    engine: AsyncEngine, kinds: Sequence[Mapping[str, Any]], connections: Sequence[Mapping[str, Any]]
) -> None:
    """Copy kinds and connections of duly.toml in. Durations in seconds."""
    await one(engine, _CONFIGURE, {"kinds": list(kinds), "connections": list(connections)})
