"""What the look-up tests share: settings, one question, providers that answer it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from provider.port import Finding, Query
from tests.unit.http_provider import PAYLOAD, adapter
from tests.unit.raw_server import LIMIT, Handler, Peer, Seen, serving

ONE: dict[str, Any] = {"url": "${SANDBOX}/effects/{idempotency_key}", "by": "key", "reference": "id"}
LIST: dict[str, Any] = {
    "url": "${SANDBOX}/effects?key={key}",
    "by": "key",
    "items": "data",
    "page_size": 3,
    "match": {"meta.key": "{idempotency_key}", "amount": "{payload.amount}"},
    "reference": "id",
    "next": {"path": "next", "pages": 3},
}
STATUS = {"path": "status", "applied": ["done"], "working": ["queued"], "refused": ["failed"]}
OWN = {"id": "e1", "meta": {"key": "idem-1"}, "amount": 5}
OTHER = {"id": "e9", "meta": {"key": "idem-9"}, "amount": 5}


def a_query(**more: Any) -> Query:
    values: dict[str, Any] = {
        "key": "order-17:confirmation:1",
        "kind": "order.confirmation",
        "connection": "main",
        "idempotency_keys": ("idem-1",),
        "reference": None,
        "payload": {**PAYLOAD, "amount": 5},
        "time_limit": LIMIT,
    }
    return Query(**{**values, **more})


def answer(status: int, document: Any = None, headers: str = "") -> bytes:
    body = b"" if document is None else document if isinstance(document, bytes) else json.dumps(document).encode()
    return f"HTTP/1.1 {status} X\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def by_path(answers: Mapping[str, bytes]) -> Handler:
    """Answers by the end of the request's target; one that is not there is a fault of the test."""

    async def handler(peer: Peer) -> None:
        target = (await peer.request()).split(b" ")[1].decode()
        await peer.say(next(said for end, said in answers.items() if target.endswith(end)))

    return handler


async def ask(
    handler: Handler, look_up: dict[str, Any], query: Query | None = None, **more: Any
) -> tuple[Finding, Seen]:
    async with serving(handler) as seen:
        used = adapter(f"http://127.0.0.1:{seen.port}", look_up=look_up, **more)
        finding = await used.look_up(query or a_query())
        await used.close()
        return finding, seen
