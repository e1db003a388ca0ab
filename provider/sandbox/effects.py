"""The sandbox's effects and the keys that it remembers, in SQLite.

What happens later is written down at once with its time, so it happens although this process was killed meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SCHEMA = """
CREATE TABLE IF NOT EXISTS effect (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, key TEXT, idempotency_key TEXT, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS effect_key ON effect (key);
CREATE INDEX IF NOT EXISTS effect_idempotency_key ON effect (idempotency_key);
CREATE TABLE IF NOT EXISTS reply (
    idempotency_key TEXT PRIMARY KEY, at REAL NOT NULL, body_sha256 TEXT NOT NULL, effect INTEGER NOT NULL,
    answer BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cancelled (idempotency_key TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
"""

ADDED: Mapping[str, Mapping[str, str]] = {
    "effect": {
        "ready_at": "REAL",  # when it takes place; NULL: at once
        "fails": "INTEGER NOT NULL DEFAULT 0",
        "cancelled_at": "REAL",
    },
    "reply": {"status": "INTEGER NOT NULL DEFAULT 201", "key": "TEXT"},
}
"""Columns that records made by the first version lack."""

_DONE = "cancelled_at IS NULL AND NOT fails AND coalesce(ready_at, 0) <= :now"


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
class Wish:
    """What is to become of a request, unless its key says otherwise."""

    status: int = 201
    effect: bool = True
    after: float | None = None
    """Seconds until the effect takes place; None: at once."""
    fails: bool = False
    honour_key: bool = True


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of it. ``effect`` is None when there is none by this request or an earlier one with its key."""

    effect: int | None
    status: int
    answer: bytes
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """An effect as a look-up may see it, also one that is not there yet or never will be."""

    number: int
    at: float
    """When the request was taken."""
    key: str | None
    idempotency_key: str | None
    body: bytes
    status: str
    """queued, done, failed or cancelled."""

    def shown(self) -> dict[str, Any]:
        """For a client."""
        return {
            "id": effect_id(self.number),
            "status": self.status,
            "operation_key": self.key,
            "idempotency_key": self.idempotency_key,
            "at": self.at,
            "payload": shown(self.body),
        }


class Effects:
    """Effects and keys of one open record. Every write is one statement, or belongs to its caller's transaction."""

    def __init__(self, db: sqlite3.Connection, retention: float) -> None:
        """``retention``: seconds for which a key is remembered."""
        self._db = db
        self._retention = retention

    def commit(self, request: Request, at: float, wish: Wish = Wish()) -> Committed:
        """What is wished, once per key within the retention. ``at`` is now, in epoch seconds."""
        key = request.idempotency_key if wish.honour_key else None
        if key is not None:
            if self._db.execute("SELECT 1 FROM cancelled WHERE idempotency_key = ?", (key,)).fetchone():
                return Committed(None, 410, error("cancelled", "this key was cancelled and takes no effect"))
            known = self._db.execute(
                "SELECT body_sha256, effect, status, answer FROM reply WHERE idempotency_key = ? AND at > ?",
                (key, at - self._retention),
            ).fetchone()
            if known is not None:
                if known[0] != request.sha256:
                    return Committed(None, 422, error("key_mismatch", "this key came with another body"))
                return Committed(known[1] or None, known[2], known[3], replayed=True)
        effect = self._take(request, at, wish) if wish.effect else None
        done: dict[str, Any] = {"key": request.key, "at": at}
        if effect is not None:
            done = {"id": effect_id(effect), **done}
        if wish.status == 202:
            done["status"] = "queued"
        answer = error("stored", "this answer is kept under its key") if wish.status >= 400 else _json(done)
        if key is not None:
            self._db.execute(
                "INSERT OR REPLACE INTO reply (idempotency_key, at, body_sha256, effect, answer, status, key)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (key, at, request.sha256, effect or 0, answer, wish.status, request.key),
            )
        return Committed(effect, wish.status, answer)

    def _take(self, request: Request, at: float, wish: Wish) -> int:
        row = self._db.execute(
            "INSERT INTO effect (at, key, idempotency_key, body, ready_at, fails) VALUES (?, ?, ?, ?, ?, ?)",
            (
                at,
                request.key,
                request.idempotency_key,
                request.body,
                None if wish.after is None else at + wish.after,
                wish.fails,
            ),
        )
        assert row.lastrowid is not None
        return row.lastrowid

    def cancel(self, idempotency_key: str, at: float) -> str:
        """Nothing will come of this key any more, known or not: ``cancelled``; or ``done``, when it is too late."""
        statuses = {found.status for found in self.found(idempotency_key=idempotency_key, now=at)}
        if "done" in statuses:
            return "done"
        self._db.execute("INSERT OR IGNORE INTO cancelled VALUES (?, ?)", (idempotency_key, at))
        self._db.execute(
            "UPDATE effect SET cancelled_at = ? WHERE idempotency_key = ? AND NOT fails AND cancelled_at IS NULL",
            (at, idempotency_key),
        )
        return "cancelled"

    def expire(self, key: str | None = None, prefix: str = "") -> int:
        """Forget the keys of these operations, as if their retention were over. Returns how many."""
        where, values = by_key(key, prefix)
        return self._db.execute(f"DELETE FROM reply {where}", values).rowcount  # noqa: S608 - fixed texts

    def effects(self, key: str | None = None, prefix: str = "") -> dict[str, list[dict[str, Any]]]:
        """What has taken place, by business key, keys in order of their first effect."""
        effects: dict[str, list[dict[str, Any]]] = {}
        where, values = by_key(key, prefix, "AND")
        rows = self._db.execute(
            "SELECT id, coalesce(ready_at, at), key, idempotency_key, body FROM effect"  # noqa: S608 - fixed texts
            f" WHERE {_DONE} {where} ORDER BY id",
            {"now": time.time(), **values},
        )
        for number, at, business, idempotency_key, body in rows:
            effects.setdefault(business or "", []).append(
                {"id": effect_id(number), "at": at, "idempotency_key": idempotency_key, "body": shown(body)}
            )
        return effects

    def accepted(self, key: str | None = None, prefix: str = "") -> list[dict[str, Any]]:
        """What was answered 202 (or cancelled), oldest first, with what has become of it."""
        where, values = by_key(key, prefix, "AND")
        rows = self._db.execute(
            f"SELECT * FROM effect WHERE (ready_at IS NOT NULL OR cancelled_at IS NOT NULL) {where} ORDER BY id",  # noqa: S608
            values,
        )
        return [_found(row, time.time()).shown() for row in rows]

    def found(
        self,
        *,
        now: float,
        key: str | None = None,
        idempotency_key: str | None = None,
        lag: float = 0.0,
        before: int | None = None,
        limit: int = -1,
    ) -> list[Found]:
        """Effects in any status that were taken ``lag`` seconds ago, newest first, numbers below ``before``."""
        rows = self._db.execute(
            "SELECT * FROM effect WHERE (:key IS NULL OR key = :key) AND (:idem IS NULL OR idempotency_key = :idem)"
            " AND at <= :until AND (:before IS NULL OR id < :before) ORDER BY id DESC LIMIT :limit",
            {"key": key, "idem": idempotency_key, "until": now - lag, "before": before, "limit": limit},
        )
        return [_found(row, now) for row in rows]

    def key_of(self, idempotency_key: str) -> str | None:
        """The operation that this idempotency key came with, effect or not."""
        row = self._db.execute(
            "SELECT key FROM request WHERE idempotency_key = ? ORDER BY id DESC LIMIT 1", (idempotency_key,)
        ).fetchone()
        return row[0] if row else None

    def totals(self) -> dict[str, int]:
        """Requests, effects, keys, and keys that have more than one effect."""
        keys, effects, repeated = self._db.execute(
            "SELECT count(*), coalesce(sum(n), 0), count(*) FILTER (WHERE n > 1)"  # noqa: S608 - fixed texts
            f" FROM (SELECT count(*) AS n FROM effect WHERE {_DONE} GROUP BY key)",
            {"now": time.time()},
        ).fetchone()
        (requests,) = self._db.execute("SELECT count(*) FROM request").fetchone()
        return {"requests": requests, "effects": effects, "keys": keys, "keys_with_more_than_one": repeated}


def effect_id(number: int) -> str:
    """The id under which a client gets to know an effect."""
    return f"eff_{number:06d}"


def by_key(key: str | None, prefix: str, word: str = "WHERE") -> tuple[str, dict[str, str]]:
    """A condition on ``key``, and its values."""
    if key is not None:
        return f"{word} key = :key", {"key": key}
    if prefix:
        return f"{word} substr(key, 1, length(:prefix)) = :prefix", {"prefix": prefix}
    return "", {}


def shown(body: bytes) -> Any:
    """JSON as JSON, anything else as text."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")


def error(code: str, message: str) -> bytes:
    """The body of an answer that is no success."""
    return _json({"error": code, "message": message})


def _found(row: tuple[Any, ...], now: float) -> Found:
    number, at, key, idempotency_key, body, ready_at, fails, cancelled_at = row
    if cancelled_at is not None:
        status = "cancelled"
    elif ready_at is not None and ready_at > now:
        status = "queued"
    else:
        status = "failed" if fails else "done"
    return Found(number, at, key, idempotency_key, body, status)


def _json(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")
