"""The sandbox's own record: requests, effects, replies, script. SQLite; survives SIGKILL of this process.

``synchronous=OFF`` because what is written reaches the operating system at commit, which is all that a
killed process needs; a power cut is not rehearsed here. ``locking_mode=EXCLUSIVE`` so that nobody else
can write effects.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provider.sandbox.script import Script, parse_rule

_SCHEMA = """
CREATE TABLE IF NOT EXISTS request (
    id INTEGER PRIMARY KEY, at REAL NOT NULL, method TEXT NOT NULL, path TEXT NOT NULL,
    key TEXT, idempotency_key TEXT, traceparent TEXT, body_sha256 TEXT, complete INTEGER NOT NULL,
    rule INTEGER, behaviour TEXT, answer TEXT, effect INTEGER);
CREATE INDEX IF NOT EXISTS request_key ON request (key);
CREATE INDEX IF NOT EXISTS request_rule ON request (rule, key) WHERE rule IS NOT NULL;
CREATE TABLE IF NOT EXISTS effect (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, key TEXT, idempotency_key TEXT, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS effect_key ON effect (key);
CREATE TABLE IF NOT EXISTS reply (
    idempotency_key TEXT PRIMARY KEY, at REAL NOT NULL, body_sha256 TEXT NOT NULL, effect INTEGER NOT NULL,
    answer BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rule (id INTEGER PRIMARY KEY AUTOINCREMENT, target TEXT UNIQUE NOT NULL, told TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came."""

    at: float
    """Epoch seconds at which its last byte was read."""
    method: str
    path: str
    key: str | None
    """The business key: header Operation-Key, else the idempotency key."""
    idempotency_key: str | None
    traceparent: str | None
    body: bytes
    complete: bool = True

    @property
    def sha256(self) -> str:
        """Digest of the body, hex."""
        return hashlib.sha256(self.body).hexdigest()


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a wish for an effect. ``effect`` is None when the key came with another body."""

    effect: int | None
    answer: bytes
    replayed: bool


class Store:
    """One open file. Every public write is one transaction, or joins the one of ``together``."""

    def __init__(self, path: Path, retention: float) -> None:
        """``retention``: seconds for which a key is remembered.

        Raises sqlite3.OperationalError if the file is in use or cannot be opened.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._retention = retention
        self._db = sqlite3.connect(path, isolation_level=None, timeout=1)
        for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=OFF"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.executescript(_SCHEMA)

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

    def commit(self, request: Request, at: float, *, honour_key: bool = True) -> Committed:
        """The effect, once per key within the retention. ``at`` is now, in epoch seconds."""
        key = request.idempotency_key if honour_key else None
        if key is not None:
            known = self._db.execute(
                "SELECT body_sha256, effect, answer FROM reply WHERE idempotency_key = ? AND at > ?",
                (key, at - self._retention),
            ).fetchone()
            if known is not None:
                if known[0] != request.sha256:
                    return Committed(None, b"", False)
                return Committed(known[1], known[2], True)
        effect = self._db.execute(
            "INSERT INTO effect (at, key, idempotency_key, body) VALUES (?, ?, ?, ?)",
            (at, request.key, request.idempotency_key, request.body),
        ).lastrowid
        assert effect is not None
        answer = json.dumps({"id": effect_id(effect), "key": request.key, "at": at}, ensure_ascii=False).encode()
        if key is not None:
            self._db.execute(
                "INSERT OR REPLACE INTO reply VALUES (?, ?, ?, ?, ?)", (key, at, request.sha256, effect, answer)
            )
        return Committed(effect, answer, False)

    def effects(self, key: str | None = None, prefix: str = "") -> dict[str, list[dict[str, Any]]]:
        """Effects by business key, keys in order of their first effect."""
        found: dict[str, list[dict[str, Any]]] = {}
        where, values = _filter(key, prefix)
        query = f"SELECT id, at, key, idempotency_key, body FROM effect {where} ORDER BY id"  # noqa: S608 - fixed texts
        for number, at, business, idempotency_key, body in self._db.execute(query, values):
            found.setdefault(business or "", []).append(
                {"id": effect_id(number), "at": at, "idempotency_key": idempotency_key, "body": _shown(body)}
            )
        return found

    def requests(self, key: str | None = None, prefix: str = "") -> list[dict[str, Any]]:
        """Requests in the order in which they were complete."""
        where, values = _filter(key, prefix)
        rows = self._db.execute(f"SELECT * FROM request {where} ORDER BY id", values)  # noqa: S608 - fixed texts
        names = [column[0] for column in rows.description]
        return [{**dict(zip(names, row, strict=True)), "complete": bool(row[names.index("complete")])} for row in rows]

    def totals(self) -> dict[str, int]:
        """Requests, effects, keys, and keys that have more than one effect."""
        keys, effects, repeated = self._db.execute(
            "SELECT count(*), coalesce(sum(n), 0), count(*) FILTER (WHERE n > 1)"
            " FROM (SELECT count(*) AS n FROM effect GROUP BY key)"
        ).fetchone()
        (requests,) = self._db.execute("SELECT count(*) FROM request").fetchone()
        return {"requests": requests, "effects": effects, "keys": keys, "keys_with_more_than_one": repeated}

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

    def script(self) -> Script:
        """The instructions as they stand, with what each key has used up."""
        rules = [(row[0], parse_rule(json.loads(row[1]))) for row in self._db.execute("SELECT id, told FROM rule")]
        used = self._db.execute(
            "SELECT rule, key, count(*) FROM request WHERE rule IN (SELECT id FROM rule) GROUP BY rule, key"
        )
        return Script(rules, {(row[0], row[1] or ""): row[2] for row in used})


def effect_id(number: int) -> str:
    """The id under which a client gets to know an effect."""
    return f"eff_{number:06d}"


def _filter(key: str | None, prefix: str) -> tuple[str, tuple[str, ...]]:
    if key is not None:
        return "WHERE key = ?", (key,)
    if prefix:
        return "WHERE substr(key, 1, length(?1)) = ?1", (prefix,)
    return "", ()


def _shown(body: bytes) -> Any:
    """JSON as JSON, anything else as text."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")
