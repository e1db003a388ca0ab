"""Copies duly.toml's kinds and connections into the ledger, so that SQL can validate and claims need no file."""

from __future__ import annotations

import asyncio

from config.settings import Settings
from ledger import database, transitions


async def configure(url: str, settings: Settings) -> None:
    """Safe to repeat. Kinds that are gone from the file stay for their operations, but accept no new ones."""
    engine = database.connect(url, pool_size=1)
    try:
        await transitions.configure(engine, *settings.ledger_rows())
    finally:
        await engine.dispose()


def configure_now(url: str, settings: Settings) -> None:
    """The same from synchronous code."""
    asyncio.run(configure(url, settings))
