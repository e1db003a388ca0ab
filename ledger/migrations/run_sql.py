"""Runs the SQL files of one revision: SQL is kept as SQL, readable and lintable."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from alembic import op

SQL = Path(__file__).with_name("sql")


def run_files(revision: str, names: Iterable[str]) -> None:
    """Run ``sql/<revision>_<name>.sql`` for each name, as written (no parameters, so that % needs no escape)."""
    connection = op.get_bind().execution_options(no_parameters=True)
    for name in names:
        connection.exec_driver_sql((SQL / f"{revision}_{name}.sql").read_text(encoding="utf-8"))
