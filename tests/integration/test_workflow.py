"""The workflow's logic against a ledger that says what the test wants, on a server that skips time.

The worker caches no workflow, so each task replays the whole history: what is not deterministic fails here.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.service import RPCError
from temporalio.testing import TimeSkippingConfig, WorkflowEnvironment
from temporalio.worker import Worker

from stack.temporal import HEADLESS, QUICK_TIMERS, program
from tests.workbench import eventually
from worker import RUNNER
from workflows import contract
from workflows.contract import Act, AttemptReport, Instruction, Unrecorded
from workflows.operation import Operation

STATE = SearchAttributeKey.for_keyword(contract.STATE_ATTRIBUTE)

SUGGESTED_EVENTS = 150
"""Events after which this server suggests to continue as new (by default 4,096)."""

ENDED = Instruction(Act.ENDED, state="delivered", reason="delivered")
CALLING = Instruction(Act.WAIT, 1, 60.0, "calling", "lease")
UNKNOWN = Instruction(Act.WAIT, 1, None, "unknown", "person")
REPLY = Unrecorded("f0f0", "delivered", True, 201, "ref-1", "", None, 5.0, 0)


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[WorkflowEnvironment]:
    """A real dev server on which each workflow's clock can be put forward."""
    environment = await WorkflowEnvironment.start_time_skipping_v2(
        ts_config=TimeSkippingConfig(enabled=False),  # only when a test says so
        search_attributes=[STATE],
        dev_server_existing_path=str(program()),
        dev_server_log_level="error",
        dev_server_extra_args=[
            *HEADLESS, *QUICK_TIMERS, "--dynamic-config-value", "frontend.WorkflowTimeSkippingEnabled=true",
            "--dynamic-config-value", f"limit.historyCount.suggestContinueAsNew={SUGGESTED_EVENTS}",
        ],
    )  # fmt: skip
    yield environment
    await environment.shutdown()


@dataclass
class Ledger:
    """Says what the test wants, and notes what it was asked."""

    server: WorkflowEnvironment
    attempt_does: Callable[[int], Awaitable[AttemptReport]]
    says: Callable[[], Instruction]
    attempted: list[contract.AttemptOrder] = field(default_factory=list)
    asked: list[contract.Question] = field(default_factory=list)
    recorded: list[contract.RecordOrder] = field(default_factory=list)
    received: list[contract.Received] = field(default_factory=list)
    may_settle: asyncio.Event = field(default_factory=asyncio.Event)
    queue: str = field(default_factory=lambda: f"q-{uuid.uuid4().hex[:8]}")

    @activity.defn(name="attempt")
    async def attempt(self, order: contract.AttemptOrder) -> AttemptReport:
        self.attempted.append(order)
        return await self.attempt_does(len(self.attempted))

    @activity.defn(name="instruct")
    async def instruct(self, question: contract.Question) -> Instruction:
        self.asked.append(question)
        return self.says()

    @activity.defn(name="record")
    async def record(self, order: contract.RecordOrder) -> Instruction:
        self.recorded.append(order)
        return self.says()

    @activity.defn(name="settle")
    async def settle(self, received: contract.Received) -> str:
        await self.may_settle.wait()
        self.received.append(received)
        return "kept"

    async def start(
        self, act: Act = Act.ATTEMPT, attempt: int = 1, delay: float | None = 0.0, *, attributes: tuple[str, ...] = ()
    ) -> WorkflowHandle[Any, Any]:
        """Start the workflow with this first instruction."""
        key = f"w-{uuid.uuid4().hex[:8]}"
        first = Instruction(act, attempt, delay, "scheduled", "due")
        start = contract.Start(key, 3, first, 30.0, list(attributes))
        memo = {contract.GENERATION: 3}
        return await self.server.client.start_workflow(
            contract.WORKFLOW, start, id=key, task_queue=self.queue, memo=memo
        )

    def was_asked(self, times: int) -> bool:
        """So often or more."""
        return len(self.asked) >= times


async def delivered(_number: int) -> AttemptReport:
    return AttemptReport(ENDED)


@pytest.fixture
async def ledger(server: WorkflowEnvironment) -> AsyncIterator[Ledger]:
    made = Ledger(server, delivered, lambda: ENDED)
    made.may_settle.set()
    async with Worker(
        server.client, task_queue=made.queue, workflows=[Operation], workflow_runner=RUNNER,
        activities=[made.attempt, made.instruct, made.record, made.settle],
        max_cached_workflows=0, workflow_failure_exception_types=[Exception],  # a bug fails instead of waiting
    ):  # fmt: skip
        yield made


async def running(handle: WorkflowHandle[Any, Any]) -> bool:
    return (await handle.describe()).status == WorkflowExecutionStatus.RUNNING


async def test_an_attempt_is_made_after_the_delay_of_its_instruction_and_not_before(ledger: Ledger) -> None:
    handle = await ledger.start(delay=6 * 3600.0)
    assert await ledger.server.fast_forward(handle, timedelta(hours=5, minutes=59))
    assert ledger.attempted == []
    await ledger.server.fast_forward(handle, timedelta(minutes=2))
    assert await handle.result() == "delivered"
    assert ledger.attempted == [contract.AttemptOrder(handle.id, 3, 1)]
    assert ledger.asked == []


async def test_a_nudge_ends_a_wait_and_the_ledger_is_asked(ledger: Ledger) -> None:
    ledger.says = lambda: Instruction(Act.ENDED, state="cancelled")
    handle = await ledger.start(delay=86400.0)
    await handle.signal(contract.NUDGE)
    assert await handle.result() == "cancelled"
    assert ledger.asked == [contract.Question(handle.id, 3)]
    assert ledger.attempted == []


async def test_a_wait_without_a_delay_lasts_until_a_nudge(ledger: Ledger) -> None:
    handle = await ledger.start(Act.WAIT, delay=None)
    assert await ledger.server.fast_forward(handle, timedelta(days=365))
    assert ledger.asked == []
    await handle.signal(contract.NUDGE)
    assert await handle.result() == "delivered"


async def test_after_a_wait_the_ledger_is_asked_and_each_instruction_is_followed(ledger: Ledger) -> None:
    reports = [
        AttemptReport(Instruction(Act.ATTEMPT, 2, 5.0, "scheduled", "not_sent")),
        AttemptReport(Instruction(Act.WAIT, 2, 3600.0, "unknown", "settle time")),
        AttemptReport(ENDED),
    ]
    ledger.says = lambda: Instruction(Act.ATTEMPT, 3, 0.0, "scheduled", "not delivered")

    async def attempt(number: int) -> AttemptReport:
        return reports[number - 1]

    ledger.attempt_does = attempt
    handle = await ledger.start()
    assert not await ledger.server.fast_forward(handle, timedelta(hours=2))
    assert await handle.result() == "delivered"
    assert [order.attempt for order in ledger.attempted] == [1, 2, 3]
    assert len(ledger.asked) == 1


@pytest.mark.parametrize("error", ["raised", "timed out"])
async def test_an_error_of_the_attempt_activity_means_ask_and_never_failed(ledger: Ledger, error: str) -> None:
    release = asyncio.Event()

    async def attempt(_number: int) -> AttemptReport:
        if error == "raised":
            raise ApplicationError("made by the test", non_retryable=True)
        await release.wait()
        return AttemptReport(ENDED)

    ledger.attempt_does = attempt
    ledger.says = lambda: Instruction(Act.ENDED, state="abandoned")
    handle = await ledger.start()
    if error == "timed out":
        # An activity that runs holds skipped time back, so its limit (30 s) is taken from the real clock: shortened.
        await handle.terminate()
        start = contract.Start(handle.id, 3, Instruction(Act.ATTEMPT, 1), 1.0)
        handle = await ledger.server.client.start_workflow(
            contract.WORKFLOW, start, id=handle.id, task_queue=ledger.queue
        )
    assert await handle.result() == "abandoned"
    release.set()
    assert len(ledger.asked) == 1


async def test_attempts_that_fail_without_a_claim_neither_spin_nor_stop(ledger: Ledger) -> None:
    async def attempt(_number: int) -> AttemptReport:
        raise ApplicationError("lost each time", non_retryable=True)

    ledger.attempt_does = attempt
    ledger.says = lambda: Instruction(Act.ATTEMPT, 1, 0.0, "scheduled", "due")
    handle = await ledger.start()
    assert await ledger.server.fast_forward(handle, timedelta(minutes=30))
    # 0 + 2 + 4 + … + 60 s and then one a minute: 36, and some more where continuing as new begins that again.
    assert 15 <= len(ledger.attempted) <= 60
    before = len(ledger.attempted)
    await handle.signal(contract.NUDGE)
    await eventually(lambda: len(ledger.attempted) > before, "the nudge to end the pause")
    assert await running(handle)
    await handle.terminate()


async def test_a_nudge_during_a_call_asks_and_goes_on_waiting_for_the_call(ledger: Ledger) -> None:
    release = asyncio.Event()

    async def attempt(_number: int) -> AttemptReport:
        await release.wait()
        return AttemptReport(Instruction(Act.ENDED, state="rejected"))

    ledger.attempt_does = attempt
    ledger.says = lambda: CALLING
    handle = await ledger.start()
    for asked in (1, 2, 3):
        await eventually(lambda: ledger.attempted, "the attempt to begin")
        await handle.signal(contract.NUDGE)
        await eventually(partial(ledger.was_asked, asked), "the ledger to be asked")
    release.set()
    assert await handle.result() == "rejected"
    assert [order.attempt for order in ledger.attempted] == [1]


async def test_when_the_ledger_moved_on_during_a_call_the_workflow_follows_and_the_reply_is_still_recorded(
    ledger: Ledger,
) -> None:
    release = asyncio.Event()

    async def attempt(_number: int) -> AttemptReport:
        await release.wait()
        return AttemptReport(unrecorded=REPLY)

    ledger.attempt_does = attempt
    ledger.says = lambda: UNKNOWN
    handle = await ledger.start()
    await eventually(lambda: ledger.attempted, "the attempt to begin")
    await handle.signal(contract.NUDGE)
    await eventually(lambda: len(ledger.asked) == 1, "the ledger to be asked")
    # Settled by a person meanwhile: the run would be over, but for the reply that only it may come to hold.
    ledger.says = lambda: Instruction(Act.ENDED, state="abandoned")
    await handle.signal(contract.NUDGE)
    await eventually(lambda: len(ledger.asked) == 2, "the ledger to be asked again")
    assert await running(handle)
    release.set()
    assert await handle.result() == "abandoned"
    assert ledger.recorded == [contract.RecordOrder(handle.id, 3, 1, REPLY)]
    assert len(ledger.attempted) == 1


async def test_the_reply_of_an_abandoned_call_wakes_the_workflow(ledger: Ledger) -> None:
    release = asyncio.Event()

    async def attempt(_number: int) -> AttemptReport:
        await release.wait()
        return AttemptReport(ENDED)

    ledger.attempt_does = attempt
    ledger.says = lambda: UNKNOWN
    handle = await ledger.start()
    await eventually(lambda: ledger.attempted, "the attempt to begin")
    await handle.signal(contract.NUDGE)
    await eventually(lambda: len(ledger.asked) == 1, "the ledger to be asked")
    ledger.says = lambda: ENDED
    release.set()
    assert await handle.result() == "delivered"


async def test_a_reply_that_the_activity_could_not_record_is_recorded_from_history(ledger: Ledger) -> None:
    async def attempt(_number: int) -> AttemptReport:
        return AttemptReport(unrecorded=REPLY)

    ledger.attempt_does = attempt
    handle = await ledger.start()
    assert await handle.result() == "delivered"
    assert ledger.recorded == [contract.RecordOrder(handle.id, 3, 1, REPLY)]


async def test_a_run_ends_as_the_ledger_says_when_its_generation_is_over(ledger: Ledger) -> None:
    async def attempt(_number: int) -> AttemptReport:
        return AttemptReport(Instruction(Act.ENDED, state="ended", reason="another generation: 4"))

    ledger.attempt_does = attempt
    assert await (await ledger.start()).result() == "ended"
    assert (len(ledger.attempted), ledger.asked) == (1, [])


async def test_a_long_history_continues_as_new_and_keeps_what_it_shows(ledger: Ledger) -> None:
    first: list[str] = []

    def says() -> Instruction:
        run = activity.info().workflow_run_id or ""
        first.append(run)
        return UNKNOWN if run == first[0] else ENDED

    async def heard(handle: WorkflowHandle[Any, Any], asked: int) -> bool:
        return len(ledger.asked) > asked or not await running(handle)

    ledger.says = says
    handle = await ledger.start(Act.ASK, attributes=(contract.STATE_ATTRIBUTE,))
    while (await handle.describe()).status == WorkflowExecutionStatus.RUNNING:
        asked = len(ledger.asked)
        assert asked < SUGGESTED_EVENTS
        with suppress(RPCError):  # it has ended just now
            await handle.signal(contract.NUDGE)
        await eventually(partial(heard, handle, asked), "the ledger to be asked")
    description = await handle.describe()
    assert description.run_id != first[0]
    assert await description.memo() == {contract.GENERATION: 3}
    # The very first answer in the new run was that it is over: out of unknown all the same.
    assert description.typed_search_attributes.get(STATE) == "delivered"


async def test_the_search_attribute_is_touched_only_into_and_out_of_unknown(ledger: Ledger) -> None:
    steps = iter([CALLING, UNKNOWN, UNKNOWN, ENDED])
    ledger.says = lambda: next(steps)
    handle = await ledger.start(Act.ASK, attributes=(contract.STATE_ATTRIBUTE,))
    await ledger.server.fast_forward(handle, timedelta(minutes=2))
    await eventually(lambda: len(ledger.asked) == 2, "unknown")
    for asked in (3, 4):
        await handle.signal(contract.NUDGE)
        await eventually(partial(ledger.was_asked, asked), "the ledger to be asked")
    await handle.result()
    upserts = [
        event async for event in handle.fetch_history_events()
        if event.HasField("upsert_workflow_search_attributes_event_attributes")
    ]  # fmt: skip
    assert len(upserts) == 2


async def test_a_search_attribute_that_is_not_registered_is_never_touched(ledger: Ledger) -> None:
    ledger.says = lambda: UNKNOWN
    handle = await ledger.start(Act.ASK)
    await eventually(lambda: ledger.asked, "the ledger to be asked")
    ledger.says = lambda: ENDED
    await handle.signal(contract.NUDGE)
    await handle.result()
    kinds = {event.WhichOneof("attributes") async for event in handle.fetch_history_events()}
    assert "upsert_workflow_search_attributes_event_attributes" not in kinds


async def test_a_signal_of_any_name_is_handed_over_with_its_number_before_the_run_ends(ledger: Ledger) -> None:
    ledger.may_settle.clear()
    ledger.says = lambda: Instruction(Act.WAIT, 1, None, "unknown", "person")
    handle = await ledger.start(Act.WAIT, delay=None)
    await handle.signal("whatever", args=[{"a": 1}, "two"])
    await handle.signal("whatever")
    await handle.signal(contract.RESOLVE, {"choice": "abandon"})
    ledger.says = lambda: ENDED
    await handle.signal(contract.NUDGE)
    await eventually(lambda: ledger.asked, "the ledger to say that it is over")
    assert await running(handle)  # nothing that was said is left behind
    ledger.may_settle.set()
    await handle.result()
    assert sorted((one.name, one.number, len(one.arguments)) for one in ledger.received) == [
        (contract.RESOLVE, 1, 1), ("whatever", 1, 2), ("whatever", 2, 0),
    ]  # fmt: skip


async def test_a_cancelled_run_waits_for_the_call_that_is_out_and_records_its_reply(ledger: Ledger) -> None:
    release = asyncio.Event()

    async def attempt(_number: int) -> AttemptReport:
        await release.wait()
        return AttemptReport(unrecorded=REPLY)

    ledger.attempt_does = attempt
    handle = await ledger.start()
    await eventually(lambda: ledger.attempted, "the attempt to begin")
    await handle.cancel()
    await handle.signal("marker")
    await eventually(lambda: ledger.received, "the cancellation to be seen")
    assert await running(handle)
    release.set()
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    assert isinstance(caught.value.cause, CancelledError)
    assert [order.unrecorded for order in ledger.recorded] == [REPLY]
    assert len(ledger.attempted) == 1
