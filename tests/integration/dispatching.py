"""What the tests of dispatch share."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio.client import Interceptor, OutboundInterceptor, StartWorkflowInput, WorkflowExecution, WorkflowHandle

from tests.harness import Site
from tests.workbench import Bench, eventually

MINUTES = timedelta(minutes=2)
"""Past the first redispatch alarm, which is a minute."""


class Starts(Interceptor):
    """Sees every start. ``do`` is awaited in place of it, with the start as a callable and its number, from 1."""

    def __init__(self, do: Any) -> None:
        self.do = do
        self.seen: list[str] = []

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 (the SDK's name)
        starts = self

        class Outbound(OutboundInterceptor):
            async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:  # noqa: A002
                starts.seen.append(input.id)
                number = len(starts.seen)
                handle: WorkflowHandle[Any, Any] = await starts.do(number, lambda: self.next.start_workflow(input))
                return handle

        return Outbound(next)


def requests(site: Site, *keys: str) -> dict[str, int]:
    """Requests that the provider saw, by key."""
    seen = [request["key"] for request in site.sandbox.requests(prefix=site.prefix)]
    return {key: seen.count(key) for key in keys}


def alerts(site: Site, key: str) -> dict[str, str]:
    return {row["alert"]: row["why"] for row in site.sql("SELECT * FROM duly.alerts WHERE name = %s", key)}


async def eventually_runs(bench: Bench, count: int, key: str | None = None) -> list[WorkflowExecution]:
    """The runs (of one key), once the listing (which follows the starts by a moment) shows as many."""

    async def listed() -> list[WorkflowExecution] | None:
        runs = await bench.runs(key)
        return runs if len(runs) >= count else None

    runs: list[WorkflowExecution] = await eventually(listed, f"{count} runs in the listing")
    return runs


async def all_delivered_once(bench: Bench, keys: list[str]) -> None:
    """A worker on the site delivers them: one attempt that was sent, one request, one effect each."""
    site = bench.site
    async with bench.working():
        for key in keys:
            await bench.wait_state(key, "delivered")
    assert requests(site, *keys) == dict.fromkeys(keys, 1)
    assert {key: site.sandbox.count(key) for key in keys} == dict.fromkeys(keys, 1)
    # A claim that came too late to send, on a machine short of processor time, is an attempt too; it sends nothing.
    assert {sum(attempt["sent"] for attempt in site.attempts(key)) for key in keys} == {1}
