"""Records what tests/unit/test_replay.py replays: ``python -m tests.record_histories [NAME ...]``.

To be run once for a new path or after a change that is meant (a patched one, then: old histories stay). Real servers,
a real worker; no history of a release is ever recorded again, because running workflows of that release are still out.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from activities import attempt as attempts
from config import crash
from config.search_attributes import SEARCH_ATTRIBUTES
from stack import database as databases
from stack.local import DATABASE, Stack
from stack.place import temporary_home
from stack.state import Ports, free_ports
from stack.temporal import HEADLESS, QUICK_TIMERS
from tests.harness import TEMPLATE, Site, fresh_site
from tests.workbench import Bench, bench_of, eventually
from workflows import contract

FOLDER = Path(__file__).with_name("histories")
REASON = "seen in the provider's list"


async def happy(bench: Bench) -> str:
    """Claimed, called, recorded."""
    (key,) = bench.site.schedule("op")
    async with bench.working():
        await bench.wait_state(key, "delivered")
    return key


async def unknown_then_resolved_by_signal(bench: Bench) -> str:
    """A lost reply; signals that decide nothing; then one that does."""
    (key,) = bench.site.schedule("op")
    bench.site.sandbox.tell("commit_then_close", key=key)
    async with bench.working():
        await bench.wait_state(key, "unknown")
        await bench.wait_asked(key)
        handle = bench.client.get_workflow_handle(key)
        await handle.signal(contract.RESOLVE, args=[1, "two"])
        await handle.signal("whatever", {"a": 1})
        await handle.signal(contract.NUDGE)
        await handle.signal(contract.RESOLVE, {"choice": "delivered", "reason": REASON, "reference": "ref-1"})
        await bench.wait_state(key, "delivered")
        await handle.result()
    return key


async def unknown_shown_in_the_search_attributes(bench: Bench) -> str:
    """Into unknown and out of it, where the attributes are registered."""
    bench.site.duly("migrate")
    (key,) = bench.site.schedule("op")
    bench.site.sandbox.tell("status:500", key=key)
    async with replace(bench, sweep=replace(bench.sweep, attributes=list(SEARCH_ATTRIBUTES))).working():
        await bench.wait_state(key, "unknown")
        await bench.wait_asked(key)
        bench.site.sql("SELECT duly.decide(%s, 'abandon', %s)", key, REASON)
        await bench.client.get_workflow_handle(key).signal(contract.NUDGE)
        await bench.client.get_workflow_handle(key).result()
    return key


async def unknown_then_sent_again_by_decision(bench: Bench) -> str:
    """Not delivered, effective after the settle time; then a second attempt."""
    (key,) = bench.site.schedule("op", deadline=timedelta(hours=9))
    bench.site.sandbox.tell("close_before_commit", "ok", key=key)
    async with bench.working():
        await bench.wait_state(key, "unknown")
        await bench.wait_asked(key)
        bench.site.sql("SELECT duly.decide(%s, 'not delivered', %s)", key, REASON)
        await eventually(lambda: bench.site.operation(key)["pending_at"], "the decision")
        bench.site.move_clock(timedelta(hours=1))
        await bench.wait_state(key, "delivered")
    return key


async def again_after_not_sent(bench: Bench) -> str:
    """Nothing listens, twice; then it does."""
    (key,) = bench.site.schedule("op")
    there = bench.site.environment["DULY_SANDBOX_URL"]
    bench.site.environment["DULY_SANDBOX_URL"] = f"http://127.0.0.1:{free_ports(1)[0]}"
    async with bench.working():
        await eventually(lambda: len(bench.site.attempts(key)) == 2, "two attempts")
    bench.site.environment["DULY_SANDBOX_URL"] = there
    async with bench.working():
        await bench.wait_state(key, "delivered")
    return key


async def throttled(bench: Bench) -> str:
    """429, a wait of a second, then well."""
    (key,) = bench.site.schedule("op")
    bench.site.sandbox.tell("throttle:1", "ok", key=key)
    async with bench.working():
        await bench.wait_state(key, "delivered")
    return key


async def cancelled_while_waiting(bench: Bench) -> str:
    """Started ahead of its time, withdrawn, nudged."""
    await asyncio.to_thread(bench.site.configure, more='start_lead = "2h"')
    (key,) = bench.site.schedule("op", due=timedelta(hours=1), deadline=timedelta(hours=2))
    async with bench.working():
        await eventually(lambda: bench.site.operation(key)["dispatched_at"], "the start")
        bench.site.sql("SELECT duly.cancel(%s, %s)", key, REASON)
        handle = bench.client.get_workflow_handle(key)
        await bench.sweep.once()
        await eventually(lambda: _started(bench, key), "the workflow to be there")
        await handle.signal(contract.NUDGE)
        await handle.result()
    return key


async def attempts_that_fail_without_a_claim(bench: Bench) -> str:
    """Three lost activities with their pauses, then well."""
    (key,) = bench.site.schedule("op")
    with _patched(crash, _NAME="before_claim", _ACTION="raise"):
        async with bench.working():
            await eventually(lambda: _failed(bench, key, 3), "three failures")
    async with bench.working():
        await bench.wait_state(key, "delivered")
    return key


async def reply_kept_by_the_workflow(bench: Bench) -> str:
    """The ledger refuses the record for a while: the reply waits in the history."""
    (key,) = bench.site.schedule("op")
    bench.site.sql("ALTER TABLE duly.operation ADD CONSTRAINT bug CHECK (state <> 'delivered') NOT VALID")
    with _patched(attempts, RECORD_PATIENCE=0.2):
        async with bench.working():
            await eventually(lambda: bench.site.sandbox.requests(key=key), "the request")
            await eventually(lambda: _pending(bench, key, "record"), "the record activity")
            bench.site.sql("ALTER TABLE duly.operation DROP CONSTRAINT bug")
            await bench.wait_state(key, "delivered")
    return key


async def nudged_during_a_call(bench: Bench) -> str:
    """The workflow asks while its call is out, and goes on waiting for it."""
    await asyncio.to_thread(bench.site.configure, call_limit="8s")
    (key,) = bench.site.schedule("op")
    bench.site.sandbox.tell("slow:2", key=key)
    async with bench.working():
        await eventually(lambda: bench.site.sandbox.requests(key=key), "the request")
        await bench.client.get_workflow_handle(key).signal(contract.NUDGE)
        await bench.wait_state(key, "delivered")
    return key


SCENARIOS: dict[str, Callable[[Bench], Awaitable[str]]] = {
    scenario.__name__: scenario
    for scenario in (
        happy, unknown_then_resolved_by_signal, unknown_shown_in_the_search_attributes,
        unknown_then_sent_again_by_decision, again_after_not_sent, throttled, cancelled_while_waiting,
        attempts_that_fail_without_a_claim, reply_kept_by_the_workflow, nudged_during_a_call,
    )
}  # fmt: skip


async def _started(bench: Bench, key: str) -> bool:
    return bool(await bench.runs(key))


async def _failed(bench: Bench, key: str, times: int) -> bool:
    if not await bench.runs(key):
        return False
    events = (await bench.client.get_workflow_handle(key).fetch_history()).events
    return sum(event.HasField("activity_task_failed_event_attributes") for event in events) >= times


async def _pending(bench: Bench, key: str, name: str) -> bool:
    pending = (await bench.client.get_workflow_handle(key).describe()).raw_description.pending_activities
    return any(one.activity_type.name == name for one in pending)


@contextmanager
def _patched(module: object, **values: object) -> Iterator[None]:
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


async def record(site: Site, name: str) -> None:
    """Play one scenario and write its history."""
    async with bench_of(site) as bench:
        key = await SCENARIOS[name](bench)
        handle = bench.client.get_workflow_handle(key)
        await handle.result()
        text = (await handle.fetch_history()).to_json()
    document = json.loads(text, object_hook=_without_paths)
    (FOLDER / f"{name}.json").write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def _without_paths(part: dict[str, Any]) -> dict[str, Any]:
    """Stack traces name folders of the machine, and no replay looks at them."""
    return {name: value for name, value in part.items() if name != "stackTrace"}


def main(names: list[str]) -> None:
    """Record these, or all."""
    with temporary_home() as home, Stack(
        home, ports=Ports.free(), with_worker=False, external=False, quick=True,
        temporal_arguments=(*HEADLESS, *QUICK_TIMERS),
    ) as stack:  # fmt: skip
        databases.create(stack.database_url("postgres"), TEMPLATE, template=DATABASE)
        for name in names or list(SCENARIOS):
            with TemporaryDirectory() as folder, fresh_site(stack, Path(folder)) as site:
                asyncio.run(record(site, name))
            sys.stdout.write(f"{name}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
