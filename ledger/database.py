"""Connections: one engine per process, one way to open a transaction, time limits on every statement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import psycopg
from psycopg.rows import dict_row
from sqlalchemy import Connection, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

LOCK_TIMEOUT_MS = 2_000
"""Longest wait for a row lock. Claims and records hold theirs for milliseconds; two seconds is somebody's psql."""

STATEMENT_TIMEOUT_MS = 15_000
"""Longest statement. Above any batch seen (a sweep of 1,000 rows takes well under a second)."""

BEGIN = (
    # Named: under a stricter default the checks after a lock would read what was true before it.
    "BEGIN ISOLATION LEVEL READ COMMITTED; "
    f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}; SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS}"
)
"""How every transaction begins, in one round trip."""

_NOTICE_LOSS = {
    "keepalives_idle": 10,  # seconds of silence before the first probe; the system's default is two hours
    "keepalives_interval": 5,
    "keepalives_count": 2,  # so a host that is gone is noticed in 20 s on a connection that waits
    "tcp_user_timeout": 20_000,  # ms, and as fast on one that has sent something
}


def driver_url(url: str) -> URL:
    """``postgresql://...`` as users write it, with psycopg 3 as the driver."""
    return make_url(url).set(drivername="postgresql+psycopg")


def connect(url: str, pool_size: int = 10) -> AsyncEngine:
    """An engine without session state: limits are set per transaction and nothing is prepared.

    So PgBouncer in transaction mode works. Raises ``sqlalchemy.exc.ArgumentError`` for a malformed URL.
    """
    engine = create_async_engine(
        driver_url(url),
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=10,  # seconds; a claim that cannot get a connection must not be sent
        isolation_level="AUTOCOMMIT",  # the driver begins nothing by itself: BEGIN is ours, and carries the limits
        pool_pre_ping=False,  # a cut connection is an answer that every caller handles
        connect_args={"prepare_threshold": None, "connect_timeout": 5, "application_name": "duly", **_NOTICE_LOSS},
    )

    @event.listens_for(engine.sync_engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(BEGIN, execution_options={"no_parameters": True})

    return engine


def nothing() -> None:
    """The crash point of a process in which none is armed."""


async def rows(
    engine: AsyncEngine, statement: str, parameters: Mapping[str, Any], before_commit: Callable[[], None] = nothing
) -> list[dict[str, Any]]:
    """What one statement returns, in a transaction of its own, by the driver alone, on a connection of the engine.

    For what every operation pays: 0.4 ms of CPU for each transaction, and 0.9 through SQLAlchemy (measured). The
    statement has the driver's placeholders. Raises what SQLAlchemy would raise.
    """
    async with engine.connect() as connection:
        driver = (await connection.get_raw_connection()).driver_connection
        assert isinstance(driver, psycopg.AsyncConnection)
        try:
            cursor = driver.cursor(row_factory=dict_row)
            await cursor.execute(BEGIN)
            await cursor.execute(statement.encode(), parameters)
            found = await cursor.fetchall()
            before_commit()
            await driver.commit()
        except BaseException as error:
            # Refused, cut or cancelled half way: whatever it was, nobody else gets this connection.
            await connection.invalidate()
            if isinstance(error, psycopg.Error):
                raise DBAPIError.instance(statement, None, error, psycopg.Error) from error
            raise
    return found
