"""One attempt in one activity: claim, call, record. At most one request leaves, whatever happens to the process."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from uuid import UUID, uuid4

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.instructions import instruction
from config import crash
from ledger import transitions
from ledger.answers import Claimed, Reply, Witness
from provider import clock
from provider.port import Adapter, Call, Outcome, OutcomeName
from reconcile.policy import Backoff, delay_ms
from workflows.contract import AttemptOrder, AttemptReport, Instruction, RecordOrder, Unrecorded

LEDGER_AWAY = (DBAPIError, PoolTimeoutError, OSError)
"""What the ledger's absence looks like. None of them says whether a COMMIT was applied."""

CLAIM_TRIES = 3
"""With the same token, on new connections: a cut COMMIT is then known. More would outlast the send limit (5 s)."""

LEDGER_TRY = 5.0
"""Seconds for one try at the ledger, as much as its client takes to connect; claims and records take milliseconds. A
host that is gone sends no error, and a server that is stopped heeds no statement limit."""

RECORD_PATIENCE = 10.0
"""Seconds to keep trying to record before the reply is handed to the workflow's history: longer than a restart of
Postgres (0.1 to 2.7 s measured), short enough to free the slot."""

ATTEMPT_MARGIN = 5.0
"""Seconds on top of lease and patience before the activity itself times out."""

HAND_OVER = 2.0
"""Seconds before that time-out at which the reply goes to Temporal at the latest; an RPC takes milliseconds."""

_log = logging.getLogger("duly.attempt")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Attempts:
    """The activities around one provider call, with what they need."""

    engine: AsyncEngine
    adapters: Mapping[str, Adapter]
    backoffs: Mapping[str, Backoff]
    worker: str
    rng: random.Random
    connections: Mapping[str, Mapping[str, str]]
    """Scope and rendering of each connection here: a change of either forbids a repeat."""
    witness: Callable[[], Witness | None] = lambda: None
    """What this worker remembers of the ledger: one that has forgotten it grants nothing."""
    in_flight: dict[tuple[str, int], None] = field(default_factory=dict)
    """Key and number of what was claimed here and is not recorded yet, oldest first."""

    @activity.defn(name="attempt")
    async def attempt(self, order: AttemptOrder) -> AttemptReport:
        """See ``workflows.contract.attempt``. Runs to its end even when cancelled: the call may be out."""
        try:
            return await _to_the_end(self._attempt(order))
        except Exception as error:
            if isinstance(error, ApplicationError):
                raise
            # Its text may quote the payload, and Temporal keeps what is raised: only the place goes there.
            _log.error("defect in an attempt", extra={"key": order.key, "attempt": order.attempt, "at": place(error)})
            raise ApplicationError(f"{type(error).__name__} at {place(error)}", type="Defect") from None

    @activity.defn(name="record")
    async def record(self, order: RecordOrder) -> Instruction:
        """See ``workflows.contract.record``."""
        kept = order.unrecorded
        reply = Reply(
            kept.outcome, kept.sent, kept.status_code, kept.reference, kept.detail, kept.request_digest, kept.call_ms,
            kept.delay_ms,
        )  # fmt: skip
        return instruction(
            await transitions.record(
                self.engine, key=order.key, attempt=order.attempt, token=UUID(kept.token), reply=reply, who=self.worker
            )
        )

    async def _attempt(self, order: AttemptOrder) -> AttemptReport:
        limit = activity.info().start_to_close_timeout
        hand_over = time.monotonic() + (limit.total_seconds() if limit else 0.0) - HAND_OVER
        crash.point("before_claim")
        token = uuid4()
        claimed, started = await self._claim(order, token)
        if not claimed.granted:
            return AttemptReport(instruction(claimed.step()))
        self.in_flight[order.key, order.attempt] = None
        try:
            crash.point("after_claim")
            reply = await self._call(order, claimed, started)
            crash.point("after_reply")
            report = await self._record(order, token, reply, hand_over)
        finally:
            self.in_flight.pop((order.key, order.attempt), None)
        crash.point("after_record")
        return report

    async def _claim(self, order: AttemptOrder, token: UUID) -> tuple[Claimed, float]:
        """The claim, and the boot clock from *before* it was asked for: send_before counts from there."""
        info = activity.info()
        for left in reversed(range(CLAIM_TRIES)):
            started = clock.boottime()
            try:
                claim = transitions.claim(
                    self.engine, key=order.key, generation=order.generation, attempt=order.attempt, token=token,
                    worker=self.worker, run_id=info.workflow_run_id or "", activity_id=info.activity_id,
                    connections=self.connections, witness=self.witness(),
                    before_commit=partial(crash.point, "in_claim_transaction"),
                )  # fmt: skip
                claimed = await _within(LEDGER_TRY, claim)
            except LEDGER_AWAY as error:
                if not left:
                    # Nothing was sent. If the claim was applied after all, its lease ends as unknown.
                    raise ApplicationError(
                        f"the ledger is away: {type(error).__name__}", type="LedgerAway",
                        category=ApplicationErrorCategory.BENIGN,
                    ) from None  # fmt: skip
            else:
                return claimed, started
        raise AssertionError("unreachable: the last try returns or raises")

    async def _call(self, order: AttemptOrder, claimed: Claimed, started: float) -> Reply:
        adapter = self.adapters.get(claimed.connection)
        begun = time.monotonic()
        if adapter is None:
            outcome = Outcome(OutcomeName.DEFECT, False, detail=f"no adapter for connection {claimed.connection} here")
        else:
            call = Call(
                order.key, claimed.kind, order.attempt, claimed.connection, claimed.idempotency_key, claimed.payload,
                time_limit=claimed.call_limit_ms / 1000, send_before=started + claimed.send_within_ms / 1000,
                trace_context=claimed.trace_context or {},
            )  # fmt: skip
            try:
                outcome = await adapter.perform(call)
            except Exception as error:  # noqa: BLE001 (an adapter never raises; nobody can say whether a byte left)
                _log.error(
                    "defect in an adapter", extra={"key": order.key, "attempt": order.attempt, "at": place(error)}
                )
                outcome = Outcome(OutcomeName.DEFECT, True, detail=f"{type(error).__name__} at {place(error)}")
        backoff = self.backoffs.get(claimed.kind) or Backoff(2.0, 300.0)
        elapsed = outcome.call_seconds if outcome.call_seconds is not None else time.monotonic() - begun
        return Reply(
            outcome.name.value, outcome.sent, outcome.status_code, outcome.reference, outcome.detail,
            outcome.request_digest, elapsed * 1000, delay_ms(outcome, order.attempt, backoff, self.rng),
        )  # fmt: skip

    async def _record(self, order: AttemptOrder, token: UUID, reply: Reply, hand_over: float) -> AttemptReport:
        # Once Temporal has stopped listening (a frozen worker, say) only the ledger can keep the reply.
        heard = time.monotonic() < hand_over
        give_up = min(time.monotonic() + RECORD_PATIENCE, hand_over) if heard else math.inf
        pause = 0.1
        while True:
            try:
                record = transitions.record(
                    self.engine, key=order.key, attempt=order.attempt, token=token, reply=reply, who=self.worker,
                    before_commit=partial(crash.point, "in_record_transaction"),
                )  # fmt: skip
                # A last try that begins just before the end may not take the hand-over's time as well.
                step = await _within(min(LEDGER_TRY, max(give_up - time.monotonic(), 1.0)), record)
            except LEDGER_AWAY as error:
                if time.monotonic() > give_up or (not heard and activity.is_worker_shutdown()):
                    _log.warning(
                        "reply kept in the workflow: ledger away" if heard else "reply lost with this worker",
                        extra={"key": order.key, "error": type(error).__name__},
                    )
                    kept = Unrecorded(
                        str(token), reply.outcome, reply.sent, reply.status_code, reply.reference, reply.detail,
                        reply.request_digest, reply.call_ms, reply.delay_ms,
                    )  # fmt: skip
                    return AttemptReport(unrecorded=kept)
                await asyncio.sleep(pause)
                pause = min(2.0, pause * 2)
            else:
                if step.refused:
                    _log.info(
                        "reply not applied", extra={"key": order.key, "attempt": order.attempt, "why": step.refused}
                    )
                return AttemptReport(instruction(step))


def place(error: BaseException) -> str:
    """File and line where it was raised: enough to find it, and it quotes no data."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return (
        "?"
        if traceback is None
        else f"{traceback.tb_frame.f_code.co_filename.rpartition('/')[2]}:{traceback.tb_lineno}"
    )


_abandoned: set[asyncio.Future[Any]] = set()
"""Held until they end: a loop keeps no strong reference to its tasks."""


async def _within(limit: float, work: Coroutine[Any, Any, T]) -> T:
    """Its result, or TimeoutError after ``limit`` seconds, without waiting for the cancelled work to end.

    Cancelled before its COMMIT it is rolled back; during it, nobody knows: as with every other error of the ledger.
    """
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({task}, timeout=limit)
    if not done:
        task.cancel()
        _abandoned.add(task)
        task.add_done_callback(_ended)
        raise TimeoutError
    return task.result()


def _ended(task: asyncio.Future[Any]) -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()  # looked at, so that the loop does not complain: the ledger is asked again anyway


async def _to_the_end(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    while True:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise
