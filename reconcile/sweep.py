"""The sweep: rows that need a workflow now get one. A bounded batch is marked and committed before any start.

The ledger is the only barrier against a second effect. A start here is a convenience: duplicate starts, two
dispatchers, and a dispatcher that dies between its steps are all harmless.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import (
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from ledger import queries, transitions
from ledger.answers import Dispatch
from workflows import contract
from workflows.contract import Act, Instruction

BATCH = 100
"""Rows per sweep: about two seconds of starts on two cores (48 a second measured), so that a batch never goes stale."""

IN_HAND_LIMIT = 1000
"""Rows with Temporal and not yet claimed, above which nothing fresh is started: ten batches."""

STARTS_AT_ONCE = 10
"""10 to 20 starts in flight are enough; more only wait in the server (temporal: 65 ms at 10, 273 ms at 50)."""

START_LIMIT = 2.0
"""Seconds for one start. The client's own retries would take ten; an absent server is to be noticed at once. Eager
start wants the workers' own client, so the limit is here and not in a client of the dispatcher's."""

BROKER_TROUBLE = (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.RESOURCE_EXHAUSTED)

_log = logging.getLogger("duly.sweep")


@dataclass(frozen=True, slots=True)
class SweepReport:
    """``starts_accepted`` counts starts that Temporal took, never effects done. Age in seconds; None: nothing due."""

    taken: int = 0
    starts_accepted: int = 0
    given_back: int = 0
    failed: int = 0
    forgotten: int = 0
    broker_trouble: str | None = None
    oldest_eligible_s: float | None = None


@dataclass
class _Batch:
    rows: deque[Dispatch]
    accepted: int = 0
    given_back: int = 0
    failed: int = 0
    forgotten: int = 0
    trouble: str | None = None


@dataclass(frozen=True)
class Sweep:
    """Starts workflows for due rows. ``attributes``: the search attributes registered in the namespace."""

    engine: AsyncEngine
    client: Client
    identity: str
    attempt_margin: float
    """Seconds that an attempt activity may take beyond its lease."""
    attributes: Sequence[str] = ()
    batch: int = BATCH
    in_hand_limit: int = IN_HAND_LIMIT
    crash_point: Callable[[str], None] = field(default=lambda _name: None)

    async def once(self) -> SweepReport:
        """One bounded sweep. Raises what the database raises; Temporal's trouble is in the report."""
        oldest = (await queries.next_wake(self.engine)).oldest_eligible_s
        rows = await transitions.dispatch(self.engine, self.batch, self.in_hand_limit, self.identity)
        if rows:
            self.crash_point("dispatch_marked")
        batch = _Batch(deque(rows))
        starters = (self._starter(batch) for _ in range(min(STARTS_AT_ONCE, len(rows))))
        # All of them end before the next sweep may begin, also when one meets a database that is away.
        ended = await asyncio.gather(*starters, return_exceptions=True)
        if batch.rows:
            await self._give_back(batch, list(batch.rows), untried=True)
        for error in ended:
            if error is not None:
                raise error
        return SweepReport(
            len(rows), batch.accepted, batch.given_back, batch.failed, batch.forgotten, batch.trouble, oldest
        )

    async def _starter(self, batch: _Batch) -> None:
        while batch.rows and batch.trouble is None:
            row = batch.rows.popleft()
            try:
                async with asyncio.timeout(START_LIMIT):
                    await self._start(row, batch)
            except TimeoutError:
                # It may have been started: harmless, the next sweep only nudges it.
                batch.trouble = f"no answer from Temporal within {START_LIMIT:g} s"
                await self._give_back(batch, [row], untried=False)
            except RPCError as error:
                if error.status in BROKER_TROUBLE:
                    batch.trouble = f"{error.status.name}: {error.message}"
                    await self._give_back(batch, [row], untried=False)
                else:
                    batch.failed += 1
                    _log.error("start refused", extra={"key": row.key, "error": error.message})
                    await transitions.dispatch_failed(self.engine, row, f"{error.status.name}: {error.message}"[:500])

    async def _give_back(self, batch: _Batch, rows: Sequence[Dispatch], *, untried: bool) -> None:
        for row in rows:
            batch.given_back += await transitions.give_back(self.engine, row, untried=untried)

    async def _start(self, row: Dispatch, batch: _Batch) -> None:
        try:
            if row.state not in ("scheduled", "calling"):
                # In doubt: it sends nothing that the ledger has not permitted, and somebody must look, over a closed run too.
                await self._start_workflow(row, WorkflowIDReusePolicy.ALLOW_DUPLICATE, nudge=True)
            elif row.fresh:
                await self._start_workflow(row, WorkflowIDReusePolicy.REJECT_DUPLICATE, WorkflowIDConflictPolicy.FAIL)
            else:
                await self._start_workflow(row, WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY, nudge=True)
        except WorkflowAlreadyStartedError as error:
            await self._stands_in_the_way(row, batch, error.run_id)
            return
        batch.accepted += 1
        if batch.accepted == 1:
            self.crash_point("dispatch_started")

    async def _stands_in_the_way(self, row: Dispatch, batch: _Batch, run_id: str | None) -> None:
        """Never read "already exists" as "fine": a run that the ledger does not know of may have sent."""
        cause = "Temporal has a run of this key that the ledger never asked for: an older ledger was restored"
        if not row.fresh:
            description = await self.client.get_workflow_handle(row.key).describe()
            served = (await description.memo()).get(contract.GENERATION, 0)
            if description.status == WorkflowExecutionStatus.COMPLETED and served < row.generation:
                await self._start_workflow(row, WorkflowIDReusePolicy.ALLOW_DUPLICATE, nudge=True)
                batch.accepted += 1
                return
            run_id = description.run_id
            cause = "the workflow of this generation has completed, and the ledger says that it has not ended"
        if await transitions.forgotten(self.engine, row, self.identity, run_id, cause):
            batch.forgotten += 1
            _log.error("not sent: %s", cause, extra={"key": row.key, "run_id": run_id})

    async def _start_workflow(
        self, row: Dispatch, reuse: WorkflowIDReusePolicy,
        conflict: WorkflowIDConflictPolicy = WorkflowIDConflictPolicy.USE_EXISTING, *, nudge: bool = False,
    ) -> None:  # fmt: skip
        first = (
            Instruction(Act.ATTEMPT, row.attempt, row.delay_ms / 1000, row.state, "due")
            if row.state == "scheduled"
            else Instruction(Act.ASK, state=row.state)
        )
        start = contract.Start(
            row.key, row.generation, first, row.lease_ms / 1000 + self.attempt_margin, list(self.attributes)
        )
        await self.client.start_workflow(
            contract.WORKFLOW,
            start,
            id=row.key,
            task_queue=contract.task_queue(row.provider),
            id_reuse_policy=reuse,
            id_conflict_policy=conflict,
            start_signal=contract.NUDGE if nudge else None,
            memo={contract.GENERATION: row.generation},
            static_summary=f"{row.kind}, due {row.due_at:%Y-%m-%d %H:%M:%S} UTC",
            search_attributes=self._search_attributes(row),
            request_eager_start=not nudge,  # saves a poll on the happy path; signal-with-start cannot
        )

    def _search_attributes(self, row: Dispatch) -> TypedSearchAttributes:
        texts = {
            "DulyKind": row.kind,
            contract.STATE_ATTRIBUTE: row.state,
            "DulyProvider": row.provider,
            "DulyTenant": row.tenant,
        }
        times = {"DulyDue": row.due_at, "DulyDeadline": row.deadline}
        pairs: list[SearchAttributePair[Any]] = [
            *(SearchAttributePair(SearchAttributeKey.for_keyword(name), text) for name, text in texts.items() if text),
            *(SearchAttributePair(SearchAttributeKey.for_datetime(name), time) for name, time in times.items()),
        ]
        return TypedSearchAttributes([pair for pair in pairs if pair.key.name in self.attributes])
