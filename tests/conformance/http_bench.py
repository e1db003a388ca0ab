"""The HTTP adapter against a provider of the suite's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from provider.port import Adapter
from provider.registry import build, parse_provider
from provider.settings import ConnectionSettings
from tests.conformance.bench import Bench, Do, Effect, Profile, Say, Wrap
from tests.conformance.http_server import Charges
from tests.unit.exchanges import free_port

# Every status class, and the codes that gateways add. 421 and 425 are vouched for by their RFCs, 503 by the settings.
CODES = (400, 404, 408, 409, 410, 418, 422, 429, 499, 500, 501, 502, 503, 504, 520, 521, 522, 524, 529)

TABLE: Mapping[str, Any] = {
    "adapter": "http",
    "url": "${BASE}/v1/charges",
    "max_processing": "3s",
    "headers": {"Operation-Key": "{key}"},
    "idempotency": {"header": "X-Idem", "retention": "24h", "stores_errors": True, "compares_body": True},
    "answers": {"409": "in_flight", "422": "key_mismatch", "503": "not_processed"},
    "reference": {"json": "id"},
    "look_up": {
        "url": "${BASE}/v1/charges?operation={key}",
        "by": "key",
        "lag": "90s",
        "conclusive": True,
        "items": "data",
        "page_size": 2,
        "match": {"metadata.key": "{idempotency_key}", "amount": "{payload.amount}"},
        "reference": "id",
        "status": {"path": "state", "applied": ["succeeded"], "working": ["pending"], "refused": ["failed"]},
        "next": {"path": "cursor", "parameter": "after"},
    },
}


class HttpBench:
    """See ``Bench``."""

    secret = "sk-charges-1"
    codes: tuple[int, ...] = CODES

    def __init__(self, charges: Charges, wrap: Wrap, settings: Mapping[str, Any]) -> None:
        self.charges = charges
        self._wrap = wrap
        self._table = {**TABLE, **settings}
        self.adapter = self.other()

    def other(self, *, secret: str | None = None, reachable: bool = True) -> Adapter:
        port = self.charges.port if reachable else free_port()
        connection = ConnectionSettings(provider="charges", headers={"Authorization": "Bearer ${KEY}"})
        environ = {"BASE": f"http://127.0.0.1:{port}", "KEY": secret or self.secret}
        return self._wrap(build({"charges": parse_provider(self._table)}, {"main": connection}, environ)["main"])

    async def tell(self, key: str, do: Do, value: float = 0) -> None:
        self.charges.plans[key] = (do, value)

    async def tell_look_up(self, key: str, say: Say) -> None:
        self.charges.says[key] = say

    async def effects(self, key: str) -> list[Effect]:
        return self.charges.effects(key)

    async def requests(self, key: str) -> int:
        return self.charges.requests.count(key)

    async def forget(self, key: str) -> None:
        self.charges.replies = {idem: known for idem, known in self.charges.replies.items() if known[0] != key}

    async def pass_time(self, seconds: float) -> None:
        self.charges.moved += seconds


@asynccontextmanager
async def opened(wrap: Wrap, settings: Mapping[str, Any]) -> AsyncIterator[Bench]:
    """The provider and its adapter."""
    charges = Charges()
    server = await charges.start()
    bench = HttpBench(charges, wrap, settings)
    try:
        yield bench
    finally:
        await bench.adapter.close()
        await charges.stop(server)


PROFILE = Profile("http", opened)
