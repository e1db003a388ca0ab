"""Runs one scenario: makes calls and queries, and holds every answer against the provider's own record."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from typing import Any

from provider.clock import boottime
from provider.port import Adapter, Call, Descriptor, Finding, FindingName, Outcome, OutcomeName, Query
from provider.text import LIMIT as DETAIL_LIMIT
from tests.conformance.bench import Bench, Do

LIMIT = 10.0
"""Seconds for what takes milliseconds."""

MARGIN = 2.0
"""Seconds by which a call may outlast its time limit on a busy machine."""

WITHOUT_EFFECT = frozenset(
    {
        OutcomeName.NOT_SENT,
        OutcomeName.NOT_PROCESSED,
        OutcomeName.THROTTLED,
        OutcomeName.REJECTED,
        OutcomeName.DENIED,
        OutcomeName.KEY_MISMATCH,
        OutcomeName.INVALID,
        OutcomeName.DEFECT,
    }
)
"""Outcomes after which nobody looks for an effect any more, so there must be none."""

NEVER_SENT = frozenset({OutcomeName.NOT_SENT, OutcomeName.INVALID, OutcomeName.DEFECT})


class Stage:
    """One scenario's view of a bench: a key of its own."""

    def __init__(self, bench: Bench, scenario: str) -> None:
        self.bench = bench
        self.key = f"order-17:{scenario[:60]}:1"
        self.shown: set[str] = set()
        self._digests: dict[tuple[Adapter, str, str], str] = {}

    @property
    def declared(self) -> Descriptor:
        return self.bench.adapter.descriptor

    def show(self, *capabilities: str) -> None:
        """These capabilities have been seen at work."""
        self.shown.update(capabilities)

    def payload(self, **more: Any) -> dict[str, Any]:
        token = hashlib.sha256(self.key.encode()).hexdigest()[:16]
        return {"order_id": 17, "name": "Zoë Łuczak 愛", "email": f"{token}@example.org", "amount": 5, **more}

    def call(self, *, attempt: int = 1, epoch: int = 1, time_limit: float = LIMIT, **more: Any) -> Call:
        values: dict[str, Any] = {
            "key": self.key,
            "kind": "order.confirmation",
            "attempt": attempt,
            "connection": "main",
            # As the ledger makes them.
            "idempotency_key": hashlib.sha256(f"{self.key}|{epoch}".encode()).hexdigest()[:25],
            "payload": self.payload(),
            "time_limit": time_limit,
            "send_before": boottime() + 60,
        }
        return Call(**{**values, **more})

    async def perform(self, call: Call | None = None, *, adapter: Adapter | None = None) -> Outcome:
        """One call; what must hold for every outcome is checked here."""
        call = call or self.call()
        used = adapter or self.bench.adapter
        before, requests = len(await self.bench.effects(self.key)), await self.bench.requests(self.key)
        begin = boottime()
        outcome = await used.perform(call)
        assert isinstance(outcome, Outcome)
        effects = len(await self.bench.effects(self.key)) - before
        arrived = await self.bench.requests(self.key) - requests
        assert arrived <= 1, f"{arrived} requests for one call"
        assert boottime() - begin <= call.time_limit + MARGIN, "longer than its time limit"
        if outcome.name in WITHOUT_EFFECT:
            assert effects == 0, f"{outcome.name}, and the provider has an effect"
        if outcome.name in NEVER_SENT:
            assert not outcome.sent, f"{outcome.name}, and sent"
        if not outcome.sent:
            assert effects == 0, "not sent, and the provider has an effect"
        if outcome.name is OutcomeName.DELIVERED:
            assert before + effects >= 1, "delivered, and the provider has no effect"
        self._presentable(outcome.detail, call.payload)
        self._same_bytes(used, call, outcome)
        return outcome

    def query(self, call: Call | None = None, *, time_limit: float = LIMIT, **more: Any) -> Query:
        call = call or self.call()
        values: dict[str, Any] = {
            "key": call.key,
            "kind": call.kind,
            "connection": call.connection,
            "idempotency_keys": (call.idempotency_key,),
            "reference": None,
            "payload": call.payload,
            "time_limit": time_limit,
        }
        return Query(**{**values, **more})

    async def look_up(
        self, query: Query | None = None, *, adapter: Adapter | None = None, pending: bool = False
    ) -> Finding:
        """One look-up; what must hold for every finding is checked here. ``pending``: an effect may come meanwhile."""
        query = query or self.query()
        requests, effects = await self.bench.requests(self.key), len(await self.bench.effects(self.key))
        begin = boottime()
        finding = await (adapter or self.bench.adapter).look_up(query)
        assert isinstance(finding, Finding)
        assert boottime() - begin <= query.time_limit + MARGIN, "longer than its time limit"
        assert await self.bench.requests(self.key) == requests, "a look-up asked for an effect"
        assert pending or len(await self.bench.effects(self.key)) == effects, "a look-up had an effect"
        if self.declared.look_up_by is None:
            assert finding.name is FindingName.CANNOT_TELL, f"{finding.name}, and no look-up is declared"
        self._presentable(finding.detail, query.payload)
        return finding

    async def look_up_in_time(self, query: Query | None = None) -> Finding:
        """A look-up when everything must be visible."""
        await self.bench.pass_time(self.declared.look_up_lag or 0.0)
        return await self.look_up(query)

    async def effects_are(self, count: int, limit: float = LIMIT) -> None:
        """Wait for the provider's record to say so."""
        end = boottime() + limit
        while len(await self.bench.effects(self.key)) != count:
            assert boottime() < end, f"not {count} effects within {limit:g} s"
            await asyncio.sleep(0.02)  # between two looks

    async def commit_without_reply(self, call: Call | None = None) -> Call:
        """An effect whose reply is lost: where look-ups begin."""
        call = call or self.call()
        await self.bench.tell(self.key, Do.HANG_UP)
        outcome = await self.perform(call)
        assert outcome.name is OutcomeName.UNKNOWN
        return call

    def _presentable(self, detail: str, payload: Any) -> None:
        assert len(detail) <= DETAIL_LIMIT
        assert "\x00" not in detail
        assert self.bench.secret not in detail, "the detail shows the credential"
        for text in (value for value in payload.values() if isinstance(value, str)):
            assert text not in detail, "the detail shows the payload"

    def _same_bytes(self, adapter: Adapter, call: Call, outcome: Outcome) -> None:
        if outcome.request_digest is None:
            assert not outcome.sent, "sent, and no digest of what"
            return
        what = (adapter, call.idempotency_key, repr(sorted(call.payload.items())))
        known = self._digests.setdefault(what, outcome.request_digest)
        assert outcome.request_digest == known, "the same operation became other bytes"

    def with_payload(self, call: Call, **more: Any) -> Call:
        """The same key with other content."""
        return replace(call, payload=self.payload(**more))
