"""Looking up a doubt at the provider: one activity that Temporal retries by the ledger's plan."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.attempt import LEDGER_AWAY, place
from activities.instructions import instruction
from ledger import transitions
from ledger.answers import Question
from provider.port import Adapter, Finding, FindingName, Query
from reconcile.unknown import Facts, judge
from workflows import contract

_log = logging.getLogger("duly.look_up")


@dataclass(frozen=True, slots=True)
class LookUps:
    """The look-up activity, with what it needs."""

    engine: AsyncEngine
    adapters: Mapping[str, Adapter]
    worker: str

    @activity.defn(name="look_up")
    async def look_up(self, question: contract.Question) -> contract.Instruction:
        """See ``workflows.contract.look_up``. Raises benign errors that say what the provider said last."""
        try:
            asked = await transitions.look_up(self.engine, question.key, question.generation, self.worker)
            if asked.act != contract.Act.LOOK_UP:
                return instruction(asked.step())
            if asked.delay_ms:
                raise _later(f"next look-up of attempt {asked.attempt}", asked.delay_ms)
            finding = await self._ask(asked.connection, _query(question.key, asked))
            canary = await self._canary(asked, finding)
            facts = Facts(asked.conclusive, asked.settled, canary, asked.absent_since_s is not None)
            judgement = judge(finding, facts)
            step = await transitions.found(
                self.engine, key=question.key, generation=question.generation, attempt=asked.attempt,
                finding=finding.name.value, reference=finding.reference,
                detail={"said": finding.detail, "status": finding.status_code, "canary": canary and canary.value},
                counts=judgement.counts, why=judgement.why, who=self.worker,
            )  # fmt: skip
        except LEDGER_AWAY as error:
            raise _later(f"the ledger is away: {type(error).__name__}") from None
        if step.act == contract.Act.LOOK_UP:
            raise _later(judgement.why, step.delay_ms)
        return instruction(step)

    async def _canary(self, asked: Question, finding: Finding) -> FindingName | None:
        """What the same query finds of an operation that is known to be delivered; only an absence needs it."""
        if finding.name != FindingName.ABSENT or asked.canary_key is None:
            return None
        query = Query(
            asked.canary_key, asked.kind, asked.connection, tuple(asked.canary_idempotency_keys or ()),
            asked.canary_reference, asked.canary_payload or {}, asked.call_limit_ms / 1000,
        )  # fmt: skip
        return (await self._ask(asked.connection, query)).name

    async def _ask(self, connection: str, query: Query) -> Finding:
        adapter = self.adapters.get(connection)
        if adapter is None:
            return Finding(FindingName.CANNOT_TELL, detail=f"no adapter for connection {connection} here")
        try:
            return await adapter.look_up(query)
        except Exception as error:  # noqa: BLE001 (an adapter never raises; a look-up that failed says nothing)
            _log.error("defect in a look-up", extra={"key": query.key, "at": place(error)})
            return Finding(FindingName.CANNOT_TELL, detail=f"{type(error).__name__} at {place(error)}")


def _query(key: str, asked: Question) -> Query:
    return Query(
        key, asked.kind, asked.connection, tuple(asked.idempotency_keys), asked.reference, asked.payload,
        asked.call_limit_ms / 1000,
    )  # fmt: skip


def _later(why: str, delay_ms: int | None = None) -> ApplicationError:
    """Ask again: no failure, and no metric of one. Without a delay the retry policy's."""
    return ApplicationError(
        why, type="NotSettled", category=ApplicationErrorCategory.BENIGN,
        next_retry_delay=None if delay_ms is None else timedelta(milliseconds=delay_ms),
    )  # fmt: skip
