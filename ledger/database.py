"""Connections: one engine per process, one way to open a transaction, time limits on every statement."""

from __future__ import annotations

from sqlalchemy import Connection, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

LOCK_TIMEOUT_MS = 2_000
"""Longest wait for a row lock. Claims and records hold theirs for milliseconds; two seconds is somebody's psql."""

STATEMENT_TIMEOUT_MS = 15_000
"""Longest statement. Above any batch seen (a sweep of 1,000 rows takes well under a second)."""

_NOTICE_LOSS = {
    "keepalives_idle": 10,  # seconds of silence before the first probe; the system's default is two hours
    "keepalives_interval": 5,
    "keepalives_count": 2,  # so a host that is gone is noticed in 20 s on a connection that waits
    "tcp_user_timeout": 20_000,  # ms, and as fast on one that has sent something
}


def driver_url(url: str) -> URL:
    """``postgresql://...`` as users write it, with psycopg 3 as the driver."""
    return make_url(url).set(drivername="postgresql+psycopg")


def connect(url: str, pool_size: int = 10, statement_timeout_ms: int = STATEMENT_TIMEOUT_MS) -> AsyncEngine:
    """An engine without session state: limits are set per transaction and nothing is prepared.

    So PgBouncer in transaction mode works. Raises ``sqlalchemy.exc.ArgumentError`` for a malformed URL.
    """
    engine = create_async_engine(
        driver_url(url),
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=10,  # seconds; a claim that cannot get a connection must not be sent
        # Named in every BEGIN: under a stricter default the checks after a lock would read what was true before it.
        isolation_level="READ COMMITTED",
        pool_pre_ping=False,  # a cut connection is an answer that every caller handles
        connect_args={"prepare_threshold": None, "connect_timeout": 5, "application_name": "duly", **_NOTICE_LOSS},
    )
    limits = f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}; SET LOCAL statement_timeout = {statement_timeout_ms}"

    @event.listens_for(engine.sync_engine, "begin")
    def set_limits(connection: Connection) -> None:
        connection.exec_driver_sql(limits, execution_options={"no_parameters": True})

    return engine
