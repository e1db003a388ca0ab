"""What the stack needs done inside Postgres: a database, its schema, and a login for the worker."""

from typing import Final
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from stack.process import StackError

WORKER_LOGIN: Final = "duly_stack_worker"


def create(url: str, name: str, *, template: str = "template1") -> None:
    """Creates the database when there is none of that name. `url` names any other database of the server."""
    with psycopg.connect(url, autocommit=True) as connection:
        if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone():
            return
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        connection.execute(statement)


def drop(url: str, name: str) -> None:
    """Drops the database and ends whatever is connected to it."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def migrate(url: str) -> None:
    """Brings the schema `duly` up to date. Raises StackError."""
    # SQLAlchemy and Alembic: only when a stack starts.
    from sqlalchemy.exc import SQLAlchemyError

    from ledger.migrate import migrate as migrate_ledger

    try:
        migrate_ledger(url)
    except SQLAlchemyError as error:
        raise StackError(f"the schema could not be brought up to date: {error}") from error


def configure(url: str) -> None:
    """Copies the kinds and connections of duly.toml in. Raises ConfigError for a file that cannot be used."""
    from config.environment import Environment
    from config.settings import load
    from reconcile.configure import configure_now

    configure_now(url, load(Environment.read().config_path))


def allow_worker(url: str) -> None:
    """Gives the worker's login the rights of the role duly_worker, which the migration has made."""
    login, role = sql.Identifier(WORKER_LOGIN), sql.Identifier("duly_worker")
    with psycopg.connect(url, autocommit=True) as connection:
        if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [WORKER_LOGIN]).fetchone():
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(login))
        connection.execute(sql.SQL("GRANT {} TO {}").format(role, login))


def as_user(url: str, user: str) -> str:
    """The same URL with another login and no password (the embedded server trusts whoever can reach its socket)."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{user}@{host}"))


def require(url: str) -> None:
    """Raises StackError when a database that the user named cannot be reached."""
    try:
        psycopg.connect(url, connect_timeout=5).close()  # seconds; a server on the way to us answers in one
    except psycopg.Error as error:
        raise StackError(f"the database named by DULY_DATABASE_URL cannot be reached: {error}") from error
