"""People's choices: ledger rows first, with the right of the database login that made them. See migrations/sql.

Refusals by rule are answers (``accepted`` False); bad input raises ``DBAPIError`` with SQLSTATE 22023 or P0002.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from ledger.answers import Answer, Decided, PlanApplied, Planned
from ledger.statements import function, many, named, one

_DECIDE = named(
    "decide", "key", "choice", "reason", "reference", "evidence", "expected_state", "expected_attempt", "label",
    "deadline", "ending",
    json=("evidence",),
)  # fmt: skip
_DECIDE_BY_TEMPORAL = function(
    "decide_by_temporal", "key", "choice", "reason", "reference", "raw", "label", "who", json=("raw",)
)
_RELEASE_CONNECTION = named("release_connection", "name", "reason")
_APPROVE = named("approve", "decision", "reason")
_PREVIEW_PLAN = named("preview_plan", "keys", "states", "kind", "older_than", "limit_to", "deadline")
_MAKE_PLAN = named("make_plan", "keys", "states", "kind", "older_than", "limit_to", "reason", "deadline")
_APPLY_PLAN = named("apply_plan", "plan", "limit_to")
_ADOPT = named("adopt", "reason")


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
    deadline: datetime | None = None,
    ending: str | None = None,
    dry_run: bool = False,
) -> Decided:
    """A person's choice: ``delivered``, ``not delivered`` or ``abandon``; the right is the database login's.

    A dry run gives the answer of this moment and leaves nothing, no evidence of a refusal either.
    """
    return Decided(
        **await one(
            engine,
            _DECIDE,
            {"key": key, "choice": choice, "reason": reason, "reference": reference, "evidence": evidence,
             "expected_state": expected_state, "expected_attempt": expected_attempt, "label": label,
             "deadline": deadline, "ending": ending},
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
    return Decided(**await one(engine, _DECIDE_BY_TEMPORAL, parameters))


async def release_connection(engine: AsyncEngine, name: str, reason: str) -> Answer:
    """Let a held connection work again."""
    return Answer(**await one(engine, _RELEASE_CONNECTION, {"name": name, "reason": reason}))


async def approve(engine: AsyncEngine, decision: int, reason: str, *, dry_run: bool = False) -> Decided:
    """A second person's word on a decision that waits for one, or an operator's on a proposal."""
    return Decided(**await one(engine, _APPROVE, {"decision": decision, "reason": reason}, dry_run=dry_run))


async def preview_plan(
    engine: AsyncEngine, *, keys: Sequence[str] | None, states: Sequence[str] | None, kind: str | None,
    older_than: timedelta | None, limit: int, deadline: datetime | None = None,
) -> list[Planned]:  # fmt: skip
    """Exactly what a replay would do; nothing is written."""
    parameters = {"keys": keys, "states": states, "kind": kind, "older_than": older_than, "limit_to": limit}
    return [Planned(**row) for row in await many(engine, _PREVIEW_PLAN, {**parameters, "deadline": deadline})]


async def make_plan(
    engine: AsyncEngine, *, keys: Sequence[str] | None, states: Sequence[str] | None, kind: str | None,
    older_than: timedelta | None, limit: int, reason: str, deadline: datetime | None = None,
) -> list[Planned]:  # fmt: skip
    """The same, frozen under a number."""
    parameters = {"keys": keys, "states": states, "kind": kind, "older_than": older_than, "limit_to": limit}
    more = {"reason": reason, "deadline": deadline}
    return [Planned(**row) for row in await many(engine, _MAKE_PLAN, {**parameters, **more})]


async def apply_plan(engine: AsyncEngine, plan: int, limit: int) -> list[PlanApplied]:
    """The next items of a plan; none left: an empty list. Safe to repeat and to interrupt."""
    return [PlanApplied(**row) for row in await many(engine, _APPLY_PLAN, {"plan": plan, "limit_to": limit})]


async def adopt(engine: AsyncEngine, reason: str) -> Answer:
    """An owner's word that a restored ledger is the one to go on with."""
    return Answer(**await one(engine, _ADOPT, {"reason": reason}))
