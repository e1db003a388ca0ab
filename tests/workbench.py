"""A worker inside the test's own process: quicker than a process, and its parts can be replaced.

Whoever wants to kill a worker takes ``Site.worker``. Here the loop is the test's, so wait with ``eventually``.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client, Interceptor, WorkflowExecution

from activities.attempt import ATTEMPT_MARGIN, RECORD_PATIENCE, Attempts
from activities.settle import Settling
from config.environment import Environment
from config.settings import Settings, load
from config.temporal import connect
from ledger import database
from provider import registry
from provider.port import Adapter, Call, Descriptor, Finding, FindingName, Outcome, Query
from reconcile.dispatcher import Dispatcher
from reconcile.policy import Backoff
from reconcile.sweep import Sweep
from tests.harness import LIMIT, Site
from worker import make_workers

GRACE = timedelta(seconds=10)
"""For calls in flight when a worker of a test ends; the longest call limit of a test is below."""


async def eventually(condition: Callable[[], Any], what: str, limit: float = LIMIT) -> Any:
    """The first true answer of ``condition``, awaited if need be; an AssertionError naming ``what`` after ``limit``."""
    end = time.monotonic() + limit
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit:g} s: {what}")
        await asyncio.sleep(0.03)  # between two looks


@dataclass(frozen=True)
class Bench:
    """A site with a client, an engine and a sweep of this process. Nothing runs by itself until ``working``."""

    site: Site
    client: Client
    engine: AsyncEngine
    sweep: Sweep

    @property
    def settings(self) -> Settings:
        """The site's duly.toml."""
        return load(Path(self.site.environment["DULY_CONFIG"]))

    async def with_interceptor(self, interceptor: Interceptor, **sweep: Any) -> Sweep:
        """A sweep whose client has this interceptor."""
        environment = Environment.read(self.site.environment)
        return replace(self.sweep, client=await connect(environment, interceptors=[interceptor]), **sweep)

    async def runs(self, key: str | None = None) -> list[WorkflowExecution]:
        """What the site's namespace has, by run; all of one key when it is given."""
        query = None if key is None else f"WorkflowId = '{key}'"
        return [run async for run in self.client.list_workflows(query)]

    @asynccontextmanager
    async def working(
        self, *, adapters: Mapping[str, Adapter] | None = None, dispatching: bool = True
    ) -> AsyncIterator[Dispatcher]:
        """The worker as worker.py wires it, until the block ends. ``adapters`` replace the real ones."""
        settings = self.settings
        built = registry.build(settings.providers, settings.connections, self.site.environment)
        policies = {kind: settings.policy(kind) for kind in settings.kinds}
        attempts = Attempts(
            self.engine,
            {**built, **(adapters or {})},
            {kind: Backoff(policy.backoff_base, policy.backoff_cap) for kind, policy in policies.items()},
            "bench",
            random.Random(),
        )
        dispatcher = Dispatcher(self.sweep)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(close_all, list(built.values()))
            for worker in make_workers(
                self.client, settings, attempts, Settling(self.engine, self.client, "bench"), GRACE
            ):
                await stack.enter_async_context(worker)
            dispatching_task = asyncio.create_task(dispatcher.run()) if dispatching else None
            try:
                yield dispatcher
            finally:
                dispatcher.stop.set()
                if dispatching_task:
                    await dispatching_task

    async def wait_state(self, key: str, *states: str, limit: float = LIMIT) -> dict[str, Any]:
        """The row, once it stands in one of ``states``."""
        await eventually(lambda: self.site.state(key) in states, f"{key} to be {' or '.join(states)}", limit)
        return self.site.operation(key)

    async def wait_asked(self, key: str) -> None:
        """Until the key's workflow waits for a person: its row has no alarm left."""
        await eventually(lambda: self.site.operation(key)["wake_at"] is None, f"{key} to wait for a person")


async def close_all(adapters: Sequence[Adapter]) -> None:
    """Give their connections back."""
    for adapter in adapters:
        await adapter.close()


@asynccontextmanager
async def bench_of(site: Site, **sweep: Any) -> AsyncIterator[Bench]:
    """A bench on this site."""
    client = await connect(Environment.read(site.environment), identity="bench")
    engine = database.connect(site.worker_database, pool_size=5)
    try:
        yield Bench(site, client, engine, Sweep(engine, client, "bench", RECORD_PATIENCE + ATTEMPT_MARGIN, **sweep))
    finally:
        await engine.dispose()


class FakeAdapter:
    """What the adapters that tests make have in common: the cautious descriptor, and no look-up."""

    descriptor = Descriptor()
    scope = "test"
    rendering = "test"

    async def perform(self, call: Call) -> Outcome:
        """Each test's own."""
        raise NotImplementedError

    async def look_up(self, query: Query) -> Finding:
        """It cannot be asked."""
        return Finding(FindingName.CANNOT_TELL)

    async def close(self) -> None:
        """Nothing is open."""
