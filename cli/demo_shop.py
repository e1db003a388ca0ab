"""The demo's application: a shop that stores an order and schedules its confirmation in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from cli.demo_account import Operation
from cli.demo_orders import Order

KIND: Final = "order.confirmation"

_STORE = (
    "INSERT INTO public.shop_order (order_id, content) VALUES (%(order_id)s, %(content)s) "
    "ON CONFLICT (order_id) DO NOTHING"
)
_SCHEDULE = (
    "SELECT created FROM duly.schedule(key => %(key)s, kind => %(kind)s, payload => %(content)s, "
    "due_at => duly.now(), deadline => duly.now() + %(allowed)s)"
)


class Shop:
    """One application on one database. Raises psycopg's errors."""

    def __init__(self, url: str) -> None:
        self._db: psycopg.Connection[dict[str, Any]] = psycopg.connect(url, autocommit=True, row_factory=dict_row)
        self._db.execute("CREATE TABLE IF NOT EXISTS public.shop_order (order_id text PRIMARY KEY, content jsonb)")

    def close(self) -> None:
        """Ends the connection."""
        self._db.close()

    def take(self, order: Order, *, change_of_mind: bool = False) -> bool:
        """The order and its operation, together or not at all. Whether the operation is new.

        ``change_of_mind`` rolls back at the end: neither was ever there.
        """
        with self._db.transaction(force_rollback=change_of_mind):
            values = {
                "order_id": order.order_id,
                "content": Jsonb(dict(order.payload)),
                "key": order.key,
                "kind": KIND,
                "allowed": order.time_allowed,
            }
            self._db.execute(_STORE, values)
            row = self._db.execute(_SCHEDULE, values).fetchone()
        return bool(row and row["created"])

    def states(self) -> dict[str, int]:
        """How many operations stand in each state."""
        rows = self._db.execute("SELECT state, count(*) AS n FROM duly.operation GROUP BY state")
        return {row["state"]: row["n"] for row in rows}

    def ledger(self) -> dict[str, Operation]:
        """Every operation as the ledger has it."""
        rows = self._db.execute(
            "SELECT o.key, o.state, o.due_at, o.deadline, o.ended_at IS NOT NULL AS ended, o.wake_at IS NOT NULL "
            "OR EXISTS (SELECT FROM duly.alerts a WHERE a.name = o.key) AS visible FROM duly.operation o"
        )
        return {
            row["key"]: Operation(row["state"], row["due_at"], row["deadline"], row["ended"], row["visible"])
            for row in rows
        }

    def unknown_keys(self) -> Sequence[str]:
        """Operations that wait for somebody who knows what happened."""
        rows = self._db.execute("SELECT key FROM duly.operation WHERE state = 'unknown' ORDER BY key")
        return [row["key"] for row in rows]


def one_more(number: int) -> Order:
    """An order that somebody has just placed."""
    order_id = f"walk-in-{number}"
    payload = {"order_id": order_id, "ship_name": "Laufkundschaft"}
    return Order(f"order-{order_id}:confirmation:1", order_id, timedelta(hours=1), payload)
