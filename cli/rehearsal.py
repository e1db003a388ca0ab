"""A decision made and taken back: the exact answer, and nothing changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import JSONB

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from ledger.answers import Decided

_NAMES = ("key", "choice", "reason", "reference", "evidence", "expected_state", "expected_attempt", "label")
_DECIDE = text(
    f"SELECT * FROM duly.decide({', '.join(f'{name} => :{name}' for name in _NAMES)})"  # noqa: S608 (constants)
).bindparams(bindparam("evidence", type_=JSONB))


async def decide_and_roll_back(engine: AsyncEngine, arguments: Mapping[str, Any]) -> Decided:
    """What ``transitions.decide`` would answer now. A refusal leaves no evidence either."""
    from ledger.answers import Decided

    async with engine.connect() as connection, connection.begin() as transaction:
        row = (await connection.execute(_DECIDE, dict(arguments))).mappings().one()
        await transaction.rollback()
    return Decided(**row)
