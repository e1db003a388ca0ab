"""The workflows that people write without Duly."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from bench.plain_activities import Activities, Order, Recorded

LIMIT = timedelta(seconds=15)
"""For one activity; longer than the HTTP client's own limit."""


@workflow.defn
class Floor:
    """(b): one activity that calls."""

    @workflow.run
    async def run(self, order: Order) -> str:
        """The provider's reference."""
        return await workflow.execute_activity_method(Activities.call_only, order, start_to_close_timeout=LIMIT)


@workflow.defn
class Usual:
    """(c): claim, call and record, an activity each."""

    @workflow.run
    async def run(self, order: Order) -> str:
        """The provider's reference."""
        claimed = await workflow.execute_activity_method(Activities.claim, order.key, start_to_close_timeout=LIMIT)
        reference = await workflow.execute_activity_method(Activities.call, claimed, start_to_close_timeout=LIMIT)
        await workflow.execute_activity_method(
            Activities.record, Recorded(order.key, reference), start_to_close_timeout=LIMIT
        )
        return reference
