"""Bring a database's schema ``duly`` to this version, or say which version it has."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import NullPool

from ledger.database import driver_url

LOCK = 7_246_891_002
"""Advisory lock: two migrations of one database take turns. An arbitrary number, ours alone."""


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    config.attributes["connection"] = connection
    return config


def head() -> str:
    """The revision that this code needs."""
    return ScriptDirectory.from_config(_config()).get_current_head() or ""


def current(url: str) -> str | None:
    """The revision that the database has; None when the schema is not there."""
    engine = create_engine(driver_url(url), poolclass=NullPool, connect_args={"connect_timeout": 5})
    with engine.connect() as connection:
        return MigrationContext.configure(connection, opts={"version_table_schema": "duly"}).get_current_revision()


def migrate(url: str) -> str:
    """Migrate to ``head`` and return it. Safe to repeat and to run twice at once."""
    engine = create_engine(driver_url(url), poolclass=NullPool, connect_args={"connect_timeout": 5})
    with engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
        connection.execute(text("CREATE SCHEMA IF NOT EXISTS duly"))
        command.upgrade(_config(connection), "head")
    return head()
