"""The HTTP adapter against the sandbox in a process of its own, as users rehearse with it."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from provider.port import Adapter
from provider.registry import build, parse_provider
from provider.settings import ConnectionSettings
from tests.conformance.bench import Bench, Do, Effect, NotPossibleError, Profile, Say, Wrap
from tests.conformance.calls import LONG
from tests.conformance.http_bench import CODES
from tests.unit.exchanges import free_port
from tests.unit.sandbox_process import Running, start

RETENTION = 3.0
"""Seconds: short, because its clock cannot be moved."""

LAG = 0.3
"""Seconds."""

TABLE: Mapping[str, Any] = {
    "adapter": "http",
    "url": "${DULY_SANDBOX_URL}/effects",
    "max_processing": "3s",
    "headers": {"Operation-Key": "{key}"},
    "idempotency": {"header": "Idempotency-Key", "retention": "3s", "compares_body": True},
    "answers": {"409": "in_flight", "422": "key_mismatch"},
    "reference": {"json": "id"},
    "look_up": {
        "url": "${DULY_SANDBOX_URL}/effects/{idempotency_key}",
        "by": "key",
        "lag": "300ms",
        "conclusive": True,
        "match": {"idempotency_key": "{idempotency_key}", "operation_key": "{key}"},
        "reference": "id",
        "status": {"path": "status", "applied": ["done"], "working": ["queued"], "refused": ["failed", "cancelled"]},
    },
}

TOLD: Mapping[Do, str] = {
    Do.APPLY: "ok",
    Do.DENY: "deny",
    Do.HANG_UP: "commit_then_close",
    Do.HANG_UP_BEFORE: "close_before_commit",
    Do.CUT: "cut_body",
    Do.STALL: "commit_then_stall",
}
TIMED: Mapping[Do, str] = {
    Do.LATE: "slow",
    Do.SLOW: "slow",
    Do.ACCEPT: "accept",
    Do.ACCEPT_THEN_FAIL: "accept_then_fail",
}
SAID: Mapping[Say, str] = {
    Say.TRUTH: f"lag:{LAG}",
    Say.SEVERAL: "several",
    Say.WRONG: "wrong",
    Say.FULL: "full_page",
    Say.ERROR: "outage",
    Say.DENIED: "deny",
    Say.STALL: "stall",
    Say.CUT: "cut_body",
}


class SandboxBench:
    """See ``Bench``."""

    secret = "sandbox-token-1"
    codes: tuple[int, ...] = CODES

    def __init__(self, running: Running, wrap: Wrap, settings: Mapping[str, Any]) -> None:
        self._running = running
        self._wrap = wrap
        self._table = {**TABLE, **settings}
        self.adapter = self.other()

    def other(self, *, secret: str | None = None, reachable: bool = True) -> Adapter:
        url = self._running.url if reachable else f"http://127.0.0.1:{free_port()}"
        connection = ConnectionSettings(provider="sandbox", headers={"Authorization": "Bearer ${TOKEN}"})
        environ = {"DULY_SANDBOX_URL": url, "TOKEN": secret or self.secret}
        return self._wrap(build({"sandbox": parse_provider(self._table)}, {"main": connection}, environ)["main"])

    async def tell(self, key: str, do: Do, value: float = 0) -> None:
        await asyncio.to_thread(self._running.client.tell, self._behaviour(do, value), "ok", key=key)

    def _behaviour(self, do: Do, value: float) -> str | dict[str, Any]:
        match do:
            case Do.REFUSE:
                return "status:400"
            case Do.THROTTLE:
                return "throttle:1"
            case Do.CODE:
                return f"status:{int(value)}"
            case Do.ECHO:
                text = f"Zoë Łuczak 愛 may not: Bearer {self.secret} \x00"
                return {"do": "status", "status": 400, "body": json.dumps({"message": text})}
            case Do.STORED_ERROR:
                return "stored_error:500"
        if do in TIMED:
            return f"{TIMED[do]}:{value}"
        return TOLD[do]

    async def tell_look_up(self, key: str, say: Say) -> None:
        await asyncio.to_thread(self._running.client.tell, SAID[say], key=key, look_up=True)

    async def effects(self, key: str) -> list[Effect]:
        found = (await asyncio.to_thread(self._running.client.effects, key)).get(key, [])
        return [Effect(one["idempotency_key"], json.dumps(one["body"]).encode()) for one in found]

    async def requests(self, key: str) -> int:
        return len(await asyncio.to_thread(self._running.client.requests, key))

    async def forget(self, key: str) -> None:
        await asyncio.to_thread(self._running.client.expire, key)

    async def pass_time(self, seconds: float) -> None:
        if seconds > LONG:
            raise NotPossibleError(f"the sandbox's clock cannot be moved by {seconds:g} s")
        await asyncio.sleep(seconds)  # time itself


@asynccontextmanager
async def opened(wrap: Wrap, settings: Mapping[str, Any]) -> AsyncIterator[Bench]:
    """A sandbox and its adapter."""
    with tempfile.TemporaryDirectory() as folder:
        running = await asyncio.to_thread(start, Path(folder) / "record.db", "--retention", str(RETENTION))
        try:
            running.client.tell(SAID[Say.TRUTH], look_up=True)
            bench = SandboxBench(running, wrap, settings)
            yield bench
            await bench.adapter.close()
        finally:
            running.stop()


PROFILE = Profile("http", opened)
