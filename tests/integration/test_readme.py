"""The README's snippets are run as they stand there."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from config.environment import REPOSITORY
from config.settings import load
from ledger.database import driver_url
from reconcile.configure import configure_now

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def shop(database: str) -> str:
    """An application's database with the kinds of the repository's duly.toml."""
    configure_now(database, load(REPOSITORY / "duly.toml"))
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, customer text NOT NULL)")
    return database


def keys(database: str) -> list[Any]:
    with psycopg.connect(database) as connection:
        return connection.execute("SELECT key, state FROM duly.operation ORDER BY key").fetchall()


def test_the_sql_schedules_in_the_transaction_of_the_order(shop: str) -> None:
    (sql,) = blocks("sql")
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute(sql.replace("COMMIT", "ROLLBACK"))
        assert keys(shop) == []
        connection.execute(sql)
    assert keys(shop) == [("order-17:confirmation:1", "scheduled")]


def test_the_sqlalchemy_snippet_schedules_in_the_sessions_transaction(
    shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (snippet,) = [block for block in blocks("python") if "sqlalchemy" in block]
    monkeypatch.setattr(Session, "add", lambda *_: None)  # which model it is does not matter here
    engine = create_engine(driver_url(shop))
    exec(snippet, {"engine": engine, "order": SimpleNamespace(id=18)})
    with engine.connect() as connection:
        assert connection.execute(text("SELECT key FROM duly.operation")).scalars().all() == ["order-18:confirmation:1"]
    engine.dispose()


def test_djangos_statement_is_the_same_one() -> None:
    sqlalchemy, django = ("".join(re.findall(r'"((?:SELECT| due_at).*?)"', block)) for block in blocks("python"))
    assert sqlalchemy.startswith("SELECT duly.schedule(key => :key")
    assert re.sub(r"CAST\((:\w+) AS jsonb\)|:\w+", "%s", sqlalchemy) == django
