"""Settings, an adapter and a call for the tests of the HTTP adapter."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from provider.clock import boottime
from provider.http_adapter import HttpAdapter
from provider.port import Call, Outcome
from provider.registry import build, parse_provider
from provider.settings import ConnectionSettings, HttpProviderSettings
from tests.unit.raw_server import LIMIT, Handler, Seen, replying, serving

PROVIDER = """
adapter = "http"
url = "${SANDBOX}/effects"
[idempotency]
header = "Idempotency-Key"
retention = "24h"
[headers]
Operation-Key = "{key}"
[answers]
"409" = "in_flight"
[reference]
json = "id"
"""
CONNECTION = {"Authorization": "Bearer ${TOKEN}"}
TOKEN = "tok-9f8e7d"
PAYLOAD: dict[str, Any] = {"order_id": 17, "name": "Zoë Łuczak 愛", "b": [1, 2.5, None], "a": True}


def settings(text: str = PROVIDER, **more: Any) -> HttpProviderSettings:
    parsed = parse_provider({**tomllib.loads(text), **more})
    assert isinstance(parsed, HttpProviderSettings)
    return parsed


def adapter(base: str = "http://127.0.0.1:9", *, text: str = PROVIDER, **more: Any) -> HttpAdapter:
    environ = {"SANDBOX": base, "TOKEN": TOKEN}
    connection = ConnectionSettings(provider="sandbox", headers=CONNECTION)
    built = build({"sandbox": settings(text, **more)}, {"main": connection}, environ)["main"]
    assert isinstance(built, HttpAdapter)
    return built


def a_call(payload: Mapping[str, Any] = PAYLOAD, **more: Any) -> Call:
    values: dict[str, Any] = {
        "key": "order-17:confirmation:1",
        "kind": "order.confirmation",
        "attempt": 1,
        "connection": "main",
        "idempotency_key": "idem-1",
        "payload": payload,
        "time_limit": LIMIT,
        "send_before": boottime() + 60,
    }
    return Call(**{**values, **more})


async def perform(handler: Handler, call: Call | None = None, **more: Any) -> tuple[Outcome, Seen]:
    async with serving(handler) as seen:
        used = adapter(f"http://127.0.0.1:{seen.port}", **more)
        outcome = await used.perform(call or a_call())
        await used.close()
        return outcome, seen


def answering(status: int, body: bytes = b"", headers: str = "") -> Handler:
    return replying(f"HTTP/1.1 {status} X\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body)
