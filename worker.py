"""The deployable Temporal worker: reads settings, checks, wires everything, runs, drains.

    DULY_DATABASE_URL=postgresql://… TEMPORAL_ADDRESS=… python worker.py

One task queue per provider, so that a slow provider does not hold up the others; the dispatcher's loop beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

import workflows
from activities.attempt import ATTEMPT_MARGIN, RECORD_PATIENCE, Attempts
from activities.look_up import LookUps
from activities.settle import Settling
from cli.exit import OK, UNAVAILABLE, USAGE, leave
from config import crash, health, logs, search_attributes
from config import temporal as temporal_client
from config.environment import Environment
from config.kinds import STALL_BOUND, WATCHDOG_LIMIT
from config.problems import ConfigError, UnavailableError
from config.settings import Settings, load
from ledger import database, migrate, transitions
from provider import clock, registry
from provider.port import Adapter
from reconcile import watchdog
from reconcile.configure import differing
from reconcile.dispatcher import Dispatcher
from reconcile.policy import Backoff
from reconcile.remembered import InFile, InTemporal
from reconcile.sweep import Sweep
from reconcile.witness import Guard
from workflows.contract import task_queue
from workflows.operation import Operation

STICKY_TIMEOUT = timedelta(seconds=2)
"""How long a workflow task waits for the worker with its cache. The default, 10 s, is what each lost worker costs."""

WORKFLOW_TASKS = 16
"""Workflow tasks at once. They are bound by the processor; 16 measured best on two cores (default 100)."""

RUNNER = SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_all_modules())
"""Checks determinism; nothing is imported anew for each run (two thirds of the sandbox's cost, measured)."""

EXPOSED_LIMIT = 5.0
"""Seconds to record which attempts were in flight while this process stood still; the log has them at once."""

_log = logging.getLogger("duly.worker")


def check_imports() -> None:
    """Another distribution that ships a top-level package ``workflows`` must not shadow ours."""
    found = Path(workflows.__file__ or "").resolve().parent
    if found != Path(__file__).resolve().parent / "workflows":
        raise UnavailableError(
            f"another package named workflows is imported, from {found}",
            "Run in an environment of its own, without what brings it (llama-index-workflows, for example)",
        )


async def check_ledger(engine: AsyncEngine, settings: Settings, url: str) -> None:
    """The schema is this version's and the kinds are those of duly.toml."""
    current, head = await asyncio.to_thread(migrate.current, url), migrate.head()
    if current != head:
        raise UnavailableError(
            f"the ledger's schema is {current or 'missing'}, this code needs {head}", 'Run "./duly migrate"'
        )
    if names := await differing(engine, settings):
        raise UnavailableError(f"the ledger differs from duly.toml: {', '.join(names)}", 'Run "./duly migrate"')


async def registered_attributes(client: Client) -> list[str]:
    """Those of our search attributes that this namespace has; the others are never touched."""
    try:
        there = await search_attributes.registered(client)
    except RPCError as error:
        _log.warning("search attributes cannot be listed; none is used", extra={"error": error.message})
        return []
    if lacking := search_attributes.wrong(there):
        _log.warning("search attributes are not as wanted; run ./duly doctor", extra={"lacking": lacking})
    return search_attributes.usable(there)


def make_workers(
    client: Client, settings: Settings, attempts: Attempts, look_ups: LookUps, settling: Settling, grace: timedelta
) -> list[Worker]:
    """One worker per provider that a connection uses."""
    return [
        Worker(
            client,
            task_queue=task_queue(provider),
            workflows=[Operation],
            activities=[attempts.attempt, attempts.record, look_ups.look_up, settling.instruct, settling.settle],
            workflow_runner=RUNNER,
            graceful_shutdown_timeout=grace,
            sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
            max_concurrent_workflow_tasks=WORKFLOW_TASKS,
            max_concurrent_activities=settings.providers[provider].concurrency,
        )
        for provider in settings.used_providers()
    ]


@dataclass
class Life:
    """What the parts of this process tell each other about its end."""

    health: health.Health
    dog: watchdog.Watchdog | None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    in_flight: Mapping[tuple[str, int], None] = field(default_factory=dict)
    """Key and number of each attempt that is claimed and not recorded."""
    stood_still: float = 0.0
    """Seconds, if longer than settle times allow for."""
    exposed: list[tuple[str, int]] = field(default_factory=list)
    """What was in flight then: nobody bounded the stall."""

    async def beat(self) -> None:
        """Tell the health endpoint and the watchdog that the loop turns; stop if it did not for longer than allowed.

        The watchdog does not let that happen. Where it does, the watchdog stood still too: the whole machine did.
        """
        last = clock.boottime()
        while True:
            now = clock.boottime()
            if now - last > STALL_BOUND:
                self._exposed(now - last)
            last = now
            self.health.tick()
            if self.dog is not None:
                self.dog.tick()
            await asyncio.sleep(watchdog.TICK)

    def _exposed(self, seconds: float) -> None:
        """Name what is in flight, before a reply that is there already makes it look harmless; then end."""
        self.stood_still = max(self.stood_still, seconds)
        self.exposed = [*self.in_flight]
        _log.critical("this process stood still", extra={"seconds": round(seconds, 1)})
        for key, number in self.exposed:
            _log.critical("exposed: in flight while this process stood still", extra={"key": key, "attempt": number})
        self.stop.set()


async def show(state: health.Health, dispatcher: Dispatcher) -> None:
    """Tell the health endpoint what the dispatcher cannot do."""
    while not dispatcher.stop.is_set():
        state.why_not = dispatcher.held or dispatcher.trouble
        await asyncio.sleep(watchdog.TICK)


async def record_exposed(engine: AsyncEngine, life: Life, who: str) -> None:
    """As evidence, if the ledger can be reached; the log has them."""
    try:
        async with asyncio.timeout(EXPOSED_LIMIT):
            for key, number in life.exposed:
                await transitions.exposed(engine, key, number, life.stood_still, who)
    except (SQLAlchemyError, OSError) as error:
        _log.error("exposed attempts are in this log only", extra={"error": type(error).__name__})


async def run(environment: Environment) -> None:
    """Until SIGTERM or SIGINT: then stop dispatching, let calls in flight finish, and end.

    Raises UnavailableError as well when it stood still, or when it finds another ledger than it began with.
    """
    check_imports()
    settings = load(environment.config_path, environment.variables)
    logs.configure(environment.log_level, secrets=settings.secrets)
    life = Life(health.Health(), watchdog.Watchdog(WATCHDOG_LIMIT) if environment.watchdog else None)
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, life.stop.set)
    beating = asyncio.create_task(life.beat())
    beating.add_done_callback(lambda _: life.stop.set())  # without its watchdog it ends
    server = None
    try:
        server = health.serve(life.health, "127.0.0.1", environment.health_port)
        life.health.facts["health_port"] = server.server_port
        await serve(environment, settings, life)
        if beating.done():
            beating.result()
    finally:
        beating.cancel()
        if server is not None:
            server.shutdown()
        if life.dog is not None:
            life.dog.stop()
    if life.stood_still:
        raise UnavailableError(
            f"this process stood still for {life.stood_still:.0f} s, longer than {STALL_BOUND:g} s, which settle times "
            "allow for",
            "What was in flight is in the log as exposed. Start the worker again",
        )
    _log.info("stopped")


async def serve(environment: Environment, settings: Settings, life: Life) -> None:
    """Everything between the first sign of life and the last."""
    state = life.health
    url = environment.database(worker=True)
    engine = database.connect(url)
    adapters: Mapping[str, Adapter] = {}
    try:
        await check_ledger(engine, settings, url)
        client = await temporal_client.connect(environment)
        guard = Guard(engine, InFile(environment.witness_file), InTemporal(client), environment.identity)
        await guard.start()
        adapters = registry.build(
            settings.providers, settings.connections, environment.variables,
            before_first_byte=lambda: crash.point("before_send"),
        )  # fmt: skip
        policies = {kind: settings.policy(kind) for kind in settings.kinds}
        margin = RECORD_PATIENCE + ATTEMPT_MARGIN
        # Longer than the longest attempt: a call that is cut by a shutdown becomes an unknown.
        grace = timedelta(seconds=max(policy.lease for policy in policies.values()) + margin + 5)
        attempts = Attempts(
            engine, adapters,
            {kind: Backoff(policy.backoff_base, policy.backoff_cap) for kind, policy in policies.items()},
            environment.identity, random.Random(),  # noqa: S311 (jitter, not a secret)
            {name: {"scope": adapter.scope, "rendering": adapter.rendering} for name, adapter in adapters.items()},
            witness=lambda: guard.witness,
        )  # fmt: skip
        life.in_flight = attempts.in_flight
        sweep = Sweep(
            engine, client, environment.identity, margin, await registered_attributes(client), crash_point=crash.point
        )
        dispatcher = Dispatcher(sweep, guard)
        async with contextlib.AsyncExitStack() as stack:
            for worker in make_workers(
                client,
                settings,
                attempts,
                LookUps(engine, adapters, environment.identity),
                Settling(engine, client, environment.identity),
                grace,
            ):
                await stack.enter_async_context(worker)
            dispatching = asyncio.create_task(dispatcher.run())
            state.facts["task_queues"] = [task_queue(provider) for provider in settings.used_providers()]
            state.facts["watchdog"] = "off" if life.dog is None else life.dog.pid
            showing = asyncio.create_task(show(state, dispatcher))
            _log.info("ready", extra=state.facts)
            stopping = asyncio.create_task(life.stop.wait())
            await asyncio.wait({stopping, dispatching}, return_when=asyncio.FIRST_COMPLETED)
            dispatcher.stop.set()
            await showing
            state.why_not = "draining"
            _log.info("draining: no new starts, calls in flight finish")
            await record_exposed(engine, life, environment.identity)
            await dispatching
        await guard.stop()
    finally:
        for adapter in adapters.values():
            await adapter.close()
        await engine.dispose()


def main() -> int:
    """The exit code: 0 after a drain, 2 for settings that cannot be used, 4 when something needed is away."""
    try:
        environment = Environment.read()
        logs.configure(environment.log_level)
        asyncio.run(run(environment))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return USAGE
    except UnavailableError as error:
        print(error, file=sys.stderr)
        return UNAVAILABLE
    return OK


if __name__ == "__main__":
    leave(main())
