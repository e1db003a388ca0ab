"""Helpers for the tests of the transport: one call, and what may be said of its exchange."""

from __future__ import annotations

import socket
from typing import Any

from provider.clock import boottime
from provider.transport import Exchange, Phase, Transport
from tests.unit.raw_server import LIMIT, Seen

BODY = b'{"order_id":17}'


async def call(transport: Transport, url: str, *, body: bytes = BODY, seconds: float = LIMIT, **more: Any) -> Exchange:
    more.setdefault("send_before", boottime() + 60)
    more.setdefault("headers", [(b"Idempotency-Key", b"k-1")])
    return await transport.send("POST", url, body=body, time_limit=seconds, **more)


def assert_not_sent(exchange: Exchange) -> None:
    assert exchange.phase is Phase.NOT_SENT, exchange
    assert not exchange.sent
    assert exchange.status is None


def assert_unknown(exchange: Exchange, seen: Seen) -> None:
    assert exchange.phase is Phase.UNKNOWN, exchange
    assert exchange.sent
    assert exchange.detail
    assert seen.connections == 1, "sent again"


def assert_answered(exchange: Exchange, status: int, seen: Seen) -> None:
    assert (exchange.phase, exchange.status) == (Phase.ANSWERED, status), exchange
    assert exchange.sent
    assert seen.connections == 1, "sent again"
    assert len(seen.requests) == 1


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
