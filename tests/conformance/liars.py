"""Adapters that lie, each in one way, to show that the suite sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from provider.port import Adapter, Call, Descriptor, Finding, FindingName, Outcome, OutcomeName, Query

Perform = Callable[[Adapter, Call], Awaitable[Outcome]]
LookUp = Callable[[Adapter, Query], Awaitable[Finding]]


async def _perform(adapter: Adapter, call: Call) -> Outcome:
    return await adapter.perform(call)


async def _look_up(adapter: Adapter, query: Query) -> Finding:
    return await adapter.look_up(query)


class Liar:
    """An adapter with something between it and whoever believes it."""

    def __init__(
        self, inner: Adapter, perform: Perform = _perform, look_up: LookUp = _look_up, **declared: Any
    ) -> None:
        self._inner = inner
        self._perform = perform
        self._look_up = look_up
        self.descriptor: Descriptor = replace(inner.descriptor, **declared)
        self.scope = inner.scope
        self.rendering = inner.rendering

    async def perform(self, call: Call) -> Outcome:
        return await self._perform(self._inner, call)

    async def look_up(self, query: Query) -> Finding:
        return await self._look_up(self._inner, query)

    async def close(self) -> None:
        await self._inner.close()


def declaring(**declared: Any) -> Callable[[Adapter], Adapter]:
    """Says that it can do what it cannot."""
    return lambda adapter: Liar(adapter, **declared)


def calling(perform: Perform) -> Callable[[Adapter], Adapter]:
    """Does something else when called."""
    return lambda adapter: Liar(adapter, perform=perform)


def asking(look_up: LookUp) -> Callable[[Adapter], Adapter]:
    """Says something else when asked."""
    return lambda adapter: Liar(adapter, look_up=look_up)


async def sends_again(adapter: Adapter, call: Call) -> Outcome:
    """Takes a lost reply for a lost request."""
    outcome = await adapter.perform(call)
    return await adapter.perform(call) if outcome.name is OutcomeName.UNKNOWN else outcome


async def takes_silence_for_success(adapter: Adapter, call: Call) -> Outcome:
    outcome = await adapter.perform(call)
    return replace(outcome, name=OutcomeName.DELIVERED) if outcome.name is OutcomeName.UNKNOWN else outcome


async def takes_silence_for_failure(adapter: Adapter, call: Call) -> Outcome:
    outcome = await adapter.perform(call)
    return replace(outcome, name=OutcomeName.NOT_PROCESSED) if outcome.name is OutcomeName.UNKNOWN else outcome


async def says_not_sent(adapter: Adapter, call: Call) -> Outcome:
    outcome = await adapter.perform(call)
    return replace(outcome, sent=False) if outcome.name is OutcomeName.UNKNOWN else outcome


async def ignores_the_time_to_send(adapter: Adapter, call: Call) -> Outcome:
    return await adapter.perform(replace(call, send_before=call.send_before + 3600))


async def ignores_the_time_limit(adapter: Adapter, call: Call) -> Outcome:
    return await adapter.perform(replace(call, time_limit=call.time_limit + 4))


async def changes_bytes(adapter: Adapter, call: Call) -> Outcome:
    return await adapter.perform(
        replace(call, payload={**call.payload, "attempt": call.attempt, "amount": call.attempt})
    )


async def mints_keys(adapter: Adapter, call: Call) -> Outcome:
    return await adapter.perform(replace(call, idempotency_key=f"{call.idempotency_key[:20]}a{call.attempt}"))


async def shows_the_payload(adapter: Adapter, call: Call) -> Outcome:
    outcome = await adapter.perform(call)
    return replace(outcome, detail=f"{outcome.detail} for {call.payload['email']}")


async def raises(adapter: Adapter, call: Call) -> Outcome:
    outcome = await adapter.perform(call)
    if outcome.name is OutcomeName.REJECTED:
        raise ValueError(outcome.detail)
    return outcome


async def takes_any_error_for_absence(adapter: Adapter, query: Query) -> Finding:
    finding = await adapter.look_up(query)
    return replace(finding, name=FindingName.ABSENT) if finding.name is FindingName.CANNOT_TELL else finding


async def takes_no_access_for_absence(adapter: Adapter, query: Query) -> Finding:
    finding = await adapter.look_up(query)
    return replace(finding, name=FindingName.ABSENT) if finding.status_code == 401 else finding


async def finds_always(adapter: Adapter, query: Query) -> Finding:
    finding = await adapter.look_up(query)
    return replace(finding, name=FindingName.APPLIED, reference="x") if finding.name is FindingName.ABSENT else finding


async def takes_two_for_one(adapter: Adapter, query: Query) -> Finding:
    finding = await adapter.look_up(query)
    return replace(finding, name=FindingName.APPLIED) if finding.name is FindingName.SEVERAL else finding


async def takes_working_for_applied(adapter: Adapter, query: Query) -> Finding:
    finding = await adapter.look_up(query)
    return replace(finding, name=FindingName.APPLIED) if finding.name is FindingName.WORKING else finding


async def acts_to_find_out(adapter: Adapter, query: Query) -> Finding:
    """Sends again and looks whether it was a repeat."""
    for key in query.idempotency_keys:
        call = Call(query.key, query.kind, 1, query.connection, key, query.payload, query.time_limit, float("inf"))
        await adapter.perform(call)
    return await adapter.look_up(query)
