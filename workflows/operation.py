"""One operation as a durable workflow. It holds no policy: it obeys the ledger's instructions and never fails.

A bug parks it visibly (its workflow task fails and is retried), and a deploy resumes it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy, SearchAttributeKey, SearchAttributeUpdate
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.workflow import ActivityCancellationType

from workflows import contract
from workflows.contract import Act, Instruction

LEDGER_LIMIT = timedelta(seconds=30)
"""For one try at a ledger statement; the ledger's own statement limit is 15 s."""

LEDGER_RETRY = RetryPolicy(maximum_interval=timedelta(seconds=30))
"""While the ledger is away there is nothing better to do than to ask again; half a minute bounds the delay after it."""

SPIN_CAP = 60.0
"""Longest pause, in seconds, between attempt activities that failed without a claim: a task lost each time must
neither spin nor be forgotten."""

ARGUMENTS = 10
"""Arguments of a signal that are handed over. A choice has one."""

ARGUMENT_LENGTH = 8_000
"""Characters of each. A reason and a reference have 2,000 at most; all of it stays far below the 2 MB that one activity
may be given, also when each character takes twelve bytes."""

_STATE = SearchAttributeKey.for_keyword(contract.STATE_ATTRIBUTE)
_WAITING_SINCE = SearchAttributeKey.for_datetime(contract.WAITING_ATTRIBUTE)
_SHOWN = ("unknown", "blocked")


@workflow.defn(name=contract.WORKFLOW)
class Operation:
    """Follows instructions until the ledger says that the operation has ended."""

    @workflow.init
    def __init__(self, start: contract.Start) -> None:
        self._start = start
        self._nudged = False
        self._running: dict[int, asyncio.Task[Instruction]] = {}
        self._failures = 0
        self._received: dict[str, int] = {}
        self._shown = "scheduled"

    @workflow.run
    async def run(self, start: contract.Start) -> str:
        """Returns the state in which the ledger ended the operation."""
        try:
            return await self._obey(start)
        except asyncio.CancelledError:
            # Somebody cancelled the run, which withdraws no operation. The reply of a call that is out is recorded.
            await self._finish()
            raise

    async def _obey(self, start: contract.Start) -> str:
        instruction = start.first
        while instruction.act != Act.ENDED:
            self._show(instruction)
            if workflow.info().is_continue_as_new_suggested() and not self._running:
                await workflow.wait_condition(workflow.all_handlers_finished)
                workflow.continue_as_new(replace(start, first=Instruction(Act.ASK, state=self._shown)))
            instruction = await self._follow(instruction)
        await self._finish()
        self._show(instruction)
        return instruction.state

    async def _finish(self) -> None:
        """A call still under way may bring a reply that only this history keeps; nothing that was said is left."""
        await asyncio.gather(*self._running.values())
        await workflow.wait_condition(workflow.all_handlers_finished)

    async def _follow(self, instruction: Instruction) -> Instruction:
        if instruction.act == Act.LOOK_UP:
            return await self._look_up()
        if instruction.delay != 0 and await self._nudged_within(instruction.delay):
            return await self._ask()
        if instruction.act == Act.ATTEMPT:
            return await self._attempt(instruction.attempt)
        return await self._ask()

    async def _nudged_within(self, delay: float | None) -> bool:
        try:
            await workflow.wait_condition(
                lambda: self._nudged, timeout=None if delay is None else timedelta(seconds=delay)
            )
        except TimeoutError:
            return False
        return True

    async def _ask(self) -> Instruction:
        self._nudged = False
        return await workflow.execute_activity(
            contract.instruct,
            contract.Question(self._start.key, self._start.generation),
            start_to_close_timeout=LEDGER_LIMIT,
            retry_policy=LEDGER_RETRY,
        )

    async def _attempt(self, number: int) -> Instruction:
        task = self._running.get(number)
        if task is None:
            task = self._running[number] = asyncio.create_task(self._perform(number))
        while True:
            await workflow.wait_condition(lambda: task.done() or self._nudged)
            if task.done():
                del self._running[number]
                return task.result()
            instruction = await self._ask()
            in_hand = instruction.attempt == number and (
                instruction.act == Act.ATTEMPT or instruction.state == "calling"
            )
            if not in_hand and not task.done():
                # The ledger moved on (the lease is over, say). The call goes on by itself: its reply may still settle.
                task.add_done_callback(lambda _: self._forget(number))
                return instruction

    async def _look_up(self) -> Instruction:
        """One activity that Temporal retries when the ledger's plan says: weeks of asking cost five events, and the
        pending activity shows what the provider said last. It ends when there is something else to do."""
        asking = workflow.start_activity(
            contract.look_up,
            contract.Question(self._start.key, self._start.generation),
            start_to_close_timeout=timedelta(seconds=self._start.attempt_limit),
            retry_policy=LEDGER_RETRY,
        )
        await workflow.wait_condition(lambda: asking.done() or self._nudged)
        if not asking.done():
            asking.cancel()
            return await self._ask()
        try:
            return await asking
        except ActivityError:
            return await self._ask()

    def _forget(self, number: int) -> None:
        self._running.pop(number, None)
        self._nudged = True

    async def _perform(self, number: int) -> Instruction:
        try:
            # One try per schedule event: whether a second one may be made is for the ledger to say, never for a
            # retry policy. Waits for cancellation to complete, because a cancelled call is still out.
            report = await workflow.execute_activity(
                contract.attempt,
                contract.AttemptOrder(self._start.key, self._start.generation, number),
                start_to_close_timeout=timedelta(seconds=self._start.attempt_limit),
                retry_policy=RetryPolicy(maximum_attempts=1),
                cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            )
        except ActivityError:
            # Never "failed" and never "not sent": ask the ledger. The pause keeps a task that is lost every time
            # from spinning; a nudge ends it.
            self._failures += 1
            await self._nudged_within(min(SPIN_CAP, 2.0 ** (self._failures - 1)) if self._failures > 1 else 0.0)
            return await self._ask()
        self._failures = 0
        if report.unrecorded is not None:
            return await workflow.execute_activity(
                contract.record,
                contract.RecordOrder(self._start.key, self._start.generation, number, report.unrecorded),
                start_to_close_timeout=LEDGER_LIMIT,
                retry_policy=LEDGER_RETRY,
            )
        return report.instruction or await self._ask()

    def _show(self, instruction: Instruction) -> None:
        key, state = self._start.key, instruction.state or self._shown
        hint = f" Settle it with `./duly resolve {key} …`." if state in _SHOWN else ""
        workflow.set_current_details(f"**{state}**: {instruction.reason or instruction.act}.{hint}")
        if state != self._shown and (state in _SHOWN or self._shown in _SHOWN):
            self._touch_attributes(state)
        self._shown = state

    def _touch_attributes(self, state: str) -> None:
        updates: list[SearchAttributeUpdate[Any]] = []
        if contract.STATE_ATTRIBUTE in self._start.attributes:
            updates.append(_STATE.value_set(state))
        if contract.WAITING_ATTRIBUTE in self._start.attributes:
            if state not in _SHOWN:
                updates.append(_WAITING_SINCE.value_unset())
            elif workflow.info().typed_search_attributes.get(_WAITING_SINCE) is None:  # a continued run has it already
                updates.append(_WAITING_SINCE.value_set(workflow.now()))
        if updates:
            workflow.upsert_search_attributes(updates)

    @workflow.signal(name=contract.NUDGE, description="Look at the ledger again. Carries nothing.")
    def nudge(self, *_anything: Any) -> None:
        """Wake up."""
        self._nudged = True

    @workflow.signal(
        name=contract.RESOLVE,
        description='Settle an unknown: {"choice": "delivered" | "abandon", "reason": "…", "reference": "…"}',
    )
    async def resolve(self, first: Any = None, *more: Any) -> None:
        """Accepts anything: what cannot be read is kept as evidence, so that nothing wedges or vanishes."""
        await self._hand_over(contract.RESOLVE, [] if first is None and not more else [first, *more])

    @workflow.update(
        name=contract.RESOLVE,
        description='Settle an unknown: {"choice": …, "reason": "…", "reference": "…"}. Answers what came of it.',
    )
    async def resolve_and_answer(self, *arguments: Any) -> str:
        """A refusal by rule is the update's failure; it changes nothing and is kept as evidence."""
        update = workflow.current_update_info()
        settled = await self._hand_over(contract.RESOLVE, arguments, None if update is None else update.id)
        if not settled.accepted:
            raise ApplicationError(settled.answer, type="Refused")
        return settled.answer

    @resolve_and_answer.validator
    def check_resolve(self, *arguments: Any) -> None:
        """Bad shapes are refused before they leave an event."""
        said = arguments[0] if len(arguments) == 1 else None
        if isinstance(said, str):
            said = _object(said)
        if not isinstance(said, dict):
            raise ValueError('give one object: {"choice": "delivered" or "abandon", "reason": "…", "reference": "…"}')
        for name in ("choice", "reason"):
            if not isinstance(said.get(name), str) or not said[name].strip():
                raise ValueError(f'"{name}" is missing or is not a text')

    @workflow.signal(dynamic=True)
    async def anything_else(self, name: str, arguments: Sequence[RawValue]) -> None:
        """A signal that nobody defined: kept as evidence."""
        await self._hand_over(name, list(arguments))

    async def _hand_over(self, name: str, arguments: Sequence[Any], update_id: str | None = None) -> contract.Settled:
        number = 0
        if update_id is None:
            number = self._received[name] = self._received.get(name, 0) + 1
        texts = [_text(value) for value in arguments[:ARGUMENTS]]
        settled = await workflow.execute_activity(
            contract.settle,
            contract.Received(self._start.key, name, number, texts, update_id),
            start_to_close_timeout=LEDGER_LIMIT,
            retry_policy=LEDGER_RETRY,
        )
        self._nudged = True
        return settled


def _object(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _text(value: Any) -> str:
    """JSON for what could be read, the bytes as text for what could not. Never raises: the workflow would be stuck."""
    if isinstance(value, RawValue):
        value = value.payload.data
    if isinstance(value, bytes):
        text = value.decode("utf-8", "replace")
    else:
        try:
            text = json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            text = type(value).__name__
    return text[:ARGUMENT_LENGTH]
