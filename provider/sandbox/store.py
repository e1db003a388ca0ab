"""The sandbox's own record: requests, look-ups, effects, replies, script. SQLite; survives SIGKILL of this process.

``synchronous=OFF`` because what is written reaches the operating system at commit, which is all that a
killed process needs; a power cut is not rehearsed here. ``locking_mode=EXCLUSIVE`` so that nobody else
can write effects.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from provider.sandbox.effects import ADDED, SCHEMA, Effects, Request, by_key
from provider.sandbox.script import Script, parse_rule

_SCHEMA = """
CREATE TABLE IF NOT EXISTS request (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, method TEXT NOT NULL, path TEXT NOT NULL,
    key TEXT, idempotency_key TEXT, traceparent TEXT, body_sha256 TEXT, complete INTEGER NOT NULL,
    rule INTEGER, behaviour TEXT, answer TEXT, effect INTEGER);
CREATE INDEX IF NOT EXISTS request_key ON request (key);
CREATE INDEX IF NOT EXISTS request_idempotency_key ON request (idempotency_key);
CREATE INDEX IF NOT EXISTS request_rule ON request (rule, key) WHERE rule IS NOT NULL;
CREATE TABLE IF NOT EXISTS look_up (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, path TEXT NOT NULL, key TEXT NOT NULL, rule INTEGER,
    behaviour TEXT NOT NULL, answer TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS look_up_key ON look_up (key);
CREATE TABLE IF NOT EXISTS rule (id INTEGER PRIMARY KEY AUTOINCREMENT, target TEXT UNIQUE NOT NULL, told TEXT NOT NULL);
"""


class Store(Effects):
    """One open file. Every public write is one transaction, or joins the one of ``together``."""

    def __init__(self, path: Path, retention: float) -> None:
        """``retention``: seconds for which a key is remembered.

        Raises sqlite3.OperationalError if the file is in use or cannot be opened.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(sqlite3.connect(path, isolation_level=None, timeout=1), retention)
        for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=OFF"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.executescript(SCHEMA + _SCHEMA)
        for table, columns in ADDED.items():
            there = {row[1] for row in self._db.execute(f"PRAGMA table_info({table})")}
            for name, kind in columns.items():
                if name not in there:
                    self._db.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")

    def close(self) -> None:
        """Checkpoint and close."""
        self._db.close()

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is written inside is one commit."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def note(
        self, request: Request, *, answer: str, behaviour: str, rule: int | None = None, effect: int | None = None
    ) -> int:
        """Write a request down and return its number."""
        row = self._db.execute(
            "INSERT INTO request (at, method, path, key, idempotency_key, traceparent, body_sha256, complete, rule,"
            " behaviour, answer, effect) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                request.at, request.method, request.path, request.key, request.idempotency_key, request.traceparent,
                request.sha256, request.complete, rule, behaviour, answer, effect,
            ),
        )  # fmt: skip
        assert row.lastrowid is not None
        return row.lastrowid

    def amend(self, number: int, *, answer: str, effect: int | None) -> None:
        """Say how a request ended that was noted before it had."""
        self._db.execute("UPDATE request SET answer = ?, effect = ? WHERE id = ?", (answer, effect, number))

    def note_look_up(self, at: float, path: str, key: str, *, rule: int | None, behaviour: str, answer: str) -> None:
        """Write a look-up (or a cancellation) down. They are no requests: those are counted as attempts."""
        self._db.execute(
            "INSERT INTO look_up (at, path, key, rule, behaviour, answer) VALUES (?, ?, ?, ?, ?, ?)",
            (at, path, key, rule, behaviour, answer),
        )

    def requests(self, key: str | None = None, prefix: str = "") -> list[dict[str, Any]]:
        """Requests in the order in which they were complete."""
        return [{**row, "complete": bool(row["complete"])} for row in self._listed("request", key, prefix)]

    def look_ups(self, key: str | None = None, prefix: str = "") -> list[dict[str, Any]]:
        """Look-ups and cancellations in the order in which they were answered."""
        return self._listed("look_up", key, prefix)

    def _listed(self, table: str, key: str | None, prefix: str) -> list[dict[str, Any]]:
        where, values = by_key(key, prefix)
        rows = self._db.execute(f"SELECT * FROM {table} {where} ORDER BY id", values)  # noqa: S608 - fixed texts
        names = [column[0] for column in rows.description]
        return [dict(zip(names, row, strict=True)) for row in rows]

    def tell(self, told: Mapping[str, Any]) -> None:
        """Keep an instruction in place of an earlier one with the same target. Raises ValueError."""
        rule = parse_rule(told)
        with self.together():
            self._db.execute("DELETE FROM rule WHERE target = ?", (rule.target,))
            if rule.behaviours:
                self._db.execute("INSERT INTO rule (target, told) VALUES (?, ?)", (rule.target, json.dumps(told)))

    def forget(self) -> None:
        """Remove all instructions."""
        self._db.execute("DELETE FROM rule")

    def told(self) -> list[dict[str, Any]]:
        """The instructions in force, oldest first."""
        return [json.loads(row[0]) for row in self._db.execute("SELECT told FROM rule ORDER BY id")]

    def script(self, *, look_ups: bool = False) -> Script:
        """The instructions for requests, or for look-ups, as they stand, with what each key has used up."""
        rules = [(row[0], parse_rule(json.loads(row[1]))) for row in self._db.execute("SELECT id, told FROM rule")]
        table = "look_up" if look_ups else "request"
        used = self._db.execute(
            f"SELECT rule, key, count(*) FROM {table} WHERE rule IN (SELECT id FROM rule) GROUP BY rule, key"  # noqa: S608
        )
        return Script(
            [rule for rule in rules if rule[1].look_up is look_ups],
            {(row[0], row[1] or ""): row[2] for row in used},
        )
