"""The demo's orders: a CSV as a shop exports it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cli.errors import usage
from cli.importing import KEY_RULE
from cli.output import say
from cli.rows import Bad, csv_records, decode


@dataclass(frozen=True, slots=True)
class Order:
    """One row. The payload of its operation is the row, with ``order_id`` as its kind requires."""

    key: str
    order_id: str
    time_allowed: timedelta
    """From the order to the date by which the customer wants it."""
    payload: Mapping[str, str | None]


def read_orders(path: Path) -> list[Order]:
    """Every order of the file. ``NULL`` is null. Raises CommandError, after naming each bad row."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise usage(f"{path} cannot be read: {error.strerror}") from None
    bad: list[Bad] = []
    orders: dict[str, Order] = {}
    for line, record in csv_records(decode(content, bad), bad):
        row: dict[str, str | None] = {name: None if cell == "NULL" else cell for name, cell in record.items()}
        order = _order(line, row, bad)
        if order is not None and orders.setdefault(order.key, order) is not order:
            bad.append(Bad(line, f"order {order.order_id} stands in the file twice"))
    for fault in bad:
        say(f"{path}:{fault.line}: {fault.what}")
    if bad or not orders:
        raise usage(f"{path}: {len(bad)} bad rows, {len(orders)} good ones; nothing was scheduled")
    return list(orders.values())


def _order(line: int, row: Mapping[str, str | None], bad: list[Bad]) -> Order | None:
    # orderID, order_id and "Order ID" are one name.
    plain = {"".join(filter(str.isalnum, name)).lower(): value for name, value in row.items()}
    order_id, ordered, required = (plain.get(name) for name in ("orderid", "orderdate", "requireddate"))
    if not order_id or not ordered or not required:
        bad.append(Bad(line, "the row needs orderID, orderDate and requiredDate"))
        return None
    key = f"order-{order_id}:confirmation:1"
    try:
        allowed = datetime.fromisoformat(required) - datetime.fromisoformat(ordered)
    except (ValueError, TypeError):  # TypeError: one with a zone, the other without
        bad.append(Bad(line, f"orderDate {ordered!r} or requiredDate {required!r} is no date, or they do not compare"))
        return None
    if allowed <= timedelta():
        bad.append(Bad(line, "requiredDate is not after orderDate"))
    elif not KEY_RULE.fullmatch(key):
        bad.append(Bad(line, f"orderID {order_id!r} cannot be part of a key"))
    else:
        return Order(key, order_id, allowed, {"order_id": order_id, **row})
    return None
