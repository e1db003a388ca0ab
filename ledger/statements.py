"""How a function of the ledger is called: one statement, one transaction, its columns the fields of a dataclass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.sql import bindparam
from sqlalchemy.sql.elements import TextClause


def _statement(name: str, arguments: str, json: Sequence[str]) -> TextClause:
    # Both come from constants of the two modules that write, never from input.
    statement = text(f"SELECT * FROM duly.{name}({arguments})")  # noqa: S608
    # None is SQL's NULL; without none_as_null it would be JSON's null, which is something.
    return statement.bindparams(*(bindparam(parameter, type_=JSONB(none_as_null=True)) for parameter in json))


def function(name: str, *parameters: str, json: Sequence[str] = ()) -> TextClause:
    arguments = ", ".join(f":{parameter}" for parameter in parameters)
    return _statement(name, arguments, json)


def named(name: str, *parameters: str, json: Sequence[str] = ()) -> TextClause:
    arguments = ", ".join(f"{parameter} => :{parameter}" for parameter in parameters)
    return _statement(name, arguments, json)


def nothing() -> None:
    """The crash point of a process in which none is armed."""


async def one(
    engine: AsyncEngine,
    statement: TextClause,
    parameters: Mapping[str, Any],
    before_commit: Callable[[], None] = nothing,
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


async def many(engine: AsyncEngine, statement: TextClause, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The same for a function that answers with rows."""
    async with engine.begin() as connection:
        return [dict(row) for row in (await connection.execute(statement, parameters)).mappings()]
