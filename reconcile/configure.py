"""Copies duly.toml's kinds and connections into the ledger, so that SQL can validate and claims need no file."""

from __future__ import annotations

import asyncio

from sqlalchemy.ext.asyncio import AsyncEngine

from config.settings import Settings
from ledger import database, queries, transitions


async def configure(url: str, settings: Settings) -> None:
    """Safe to repeat. Kinds that are gone from the file stay for their operations, but accept no new ones."""
    engine = database.connect(url, pool_size=1)
    try:
        await transitions.configure(engine, *settings.ledger_rows())
    finally:
        await engine.dispose()


async def differing(engine: AsyncEngine, settings: Settings) -> list[str]:
    """Names of the kinds and connections that the ledger does not hold as duly.toml says; what to do is to migrate."""
    kinds, connections = await queries.configuration(engine)
    wanted_kinds, wanted_connections = settings.ledger_rows()
    there, wanted = ({row["name"]: row for row in rows} for rows in (kinds, wanted_kinds))
    providers = {row["name"]: row["provider"] for row in connections}
    return [
        *sorted(name for name in there.keys() | wanted.keys() if there.get(name) != wanted.get(name)),
        *(row["name"] for row in wanted_connections if providers.get(row["name"]) != row["provider"]),
    ]


def configure_now(url: str, settings: Settings) -> None:
    """The same from synchronous code."""
    asyncio.run(configure(url, settings))
