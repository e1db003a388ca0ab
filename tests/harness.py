"""A whole Duly for one test: its own database, its own Temporal namespace, real workers as processes of their own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from config.environment import REPOSITORY
from config.settings import load
from provider.sandbox.client import SandboxClient
from reconcile.configure import configure_now
from stack import database as databases
from stack.local import Stack
from stack.process import Process

LIMIT = 60.0
"""Seconds to wait for anything; generous, because both cores may be busy. Only a failure waits that long."""

TEMPLATE = "duly_template"
"""The database with the schema that each test's own is copied from."""

TOML = """
[providers.sandbox]
adapter = "http"
url = "${{DULY_SANDBOX_URL}}/effects"
call_limit = "{call_limit}"
concurrency = {concurrency}
[providers.sandbox.headers]
Operation-Key = "{{key}}"
[providers.sandbox.idempotency]
header = "Idempotency-Key"
retention = "24h"
[providers.sandbox.reference]
json = "id"
[connections.main]
provider = "sandbox"
[kinds.note]
connection = "main"
owner = "tests"
required = ["n"]
max_attempts = {max_attempts}
backoff = {{ base = "1s", cap = "2s" }}
{more}
"""


def wait_for(condition: Callable[[], Any], what: str, limit: float = LIMIT) -> Any:
    """The first true answer of ``condition``; an AssertionError naming ``what`` after ``limit`` seconds."""
    end = time.monotonic() + limit
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit:g} s: {what}")
        time.sleep(0.05)  # between two looks


@dataclass
class Site:
    """Made by the ``site`` fixture. Keys are prefixed, so that effects at the shared sandbox are this test's own."""

    stack: Stack
    database: str
    worker_database: str
    folder: Path
    namespace: str
    prefix: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:10]}")
    environment: dict[str, str] = field(default_factory=dict)
    workers: list[Process] = field(default_factory=list)

    def configure(
        self, *, call_limit: str = "2s", concurrency: int = 20, max_attempts: int = 3, more: str = ""
    ) -> None:
        """Write this site's duly.toml and copy it into its ledger. ``more`` goes on in the table of kind ``note``."""
        path = self.folder / "duly.toml"
        numbers = {"call_limit": call_limit, "concurrency": concurrency, "max_attempts": max_attempts}
        path.write_text(TOML.format(**numbers, more=more))
        assert self.stack.addresses
        self.environment = {
            "DULY_CONFIG": str(path),
            "DULY_DATABASE_URL": self.worker_database,
            "TEMPORAL_ADDRESS": self.stack.addresses.temporal_address,
            "TEMPORAL_NAMESPACE": self.namespace,
            "DULY_SANDBOX_URL": self.stack.addresses.sandbox_url,
            "DULY_WITNESS_FILE": str(self.folder / "witness.json"),
        }
        configure_now(self.database, load(path))

    @property
    def sandbox(self) -> SandboxClient:
        """The provider's own record, which nobody else can write."""
        assert self.stack.addresses
        return SandboxClient(self.stack.addresses.sandbox_url)

    def key(self, name: str) -> str:
        """This test's key for ``name``."""
        return f"{self.prefix}:{name}"

    def worker(self, *, crash: str | None = None, wait: bool = True, **environment: str) -> Process:
        """One more worker process; ``crash`` arms a crash point, once."""
        extra = {**self.environment, **environment}
        if crash:
            extra |= {"DULY_CRASH_POINT": crash, "DULY_CRASH_FUSE": str(self.folder / "fuse")}
        worker = self.stack.start_worker(extra, wait=wait)
        self.stack.workers.remove(worker)
        self.workers.append(worker)
        return worker

    def sql(self, statement: str, *parameters: Any) -> list[dict[str, Any]]:
        """Rows of one statement, with all rights."""
        with psycopg.connect(self.database, autocommit=True, row_factory=dict_row) as connection:
            cursor = connection.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    def schedule(
        self,
        *names: str,
        due: timedelta = timedelta(0),
        deadline: timedelta = timedelta(hours=1),
        payload: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Schedule one ``note`` for each name, in one transaction; the keys."""
        now = datetime.now(UTC)
        keys = [self.key(name) for name in names]
        with psycopg.connect(self.database) as connection:
            for key in keys:
                connection.execute(
                    "SELECT duly.schedule(key => %s, kind => 'note', payload => %s, due_at => %s, deadline => %s)",
                    (key, json.dumps(payload or {"n": 1}), now + due, now + deadline),
                )
        return keys

    def operation(self, key: str) -> dict[str, Any]:
        """The row as it stands."""
        (row,) = self.sql("SELECT * FROM duly.operation WHERE key = %s", key)
        return row

    def state(self, key: str) -> str:
        """The operation's state."""
        return str(self.operation(key)["state"])

    def wait_state(self, key: str, *states: str, limit: float = LIMIT) -> dict[str, Any]:
        """The row, once it stands in one of ``states``."""
        wait_for(lambda: self.state(key) in states, f"{key} to be {' or '.join(states)}", limit)
        return self.operation(key)

    def attempts(self, key: str) -> list[dict[str, Any]]:
        """Its attempts, in order."""
        return self.sql("SELECT * FROM duly.attempt WHERE key = %s ORDER BY number", key)

    def history(self, key: str) -> list[str]:
        """The states it went through, in order."""
        return [row["after"] for row in self.sql("SELECT after FROM duly.history WHERE key = %s ORDER BY seq", key)]

    def events(self, key: str) -> list[str]:
        """The types of the events in the latest run of this key's workflow, in order."""
        shown = self.temporal("workflow", "show", "--workflow-id", key, "--output", "json")
        return [event["eventType"].removeprefix("EVENT_TYPE_") for event in json.loads(shown)["events"]]

    def wait_event(self, key: str, name: str, limit: float = LIMIT) -> None:
        """Until Temporal's history of this key has an event of this type, such as ``ACTIVITY_TASK_TIMED_OUT``."""
        wait_for(lambda: name in self.events(key), f"{name} in the history of {key}", limit)

    def wait_request(self, key: str) -> None:
        """Until the provider has read a request of this key."""
        wait_for(lambda: self.sandbox.requests(key=key), f"a request of {key} at the provider")

    def much_later(self, hours: int = 3) -> None:
        """Past every lease, alarm and redispatch, twice, with proof that sweeps ran there and still deliver."""
        for turn in range(2):
            self.move_clock(by := timedelta(hours=hours * (turn + 1)))
            (bystander,) = self.schedule(f"bystander-{uuid.uuid4().hex[:6]}", due=by, deadline=by + timedelta(hours=1))
            self.wait_state(bystander, "delivered")

    def move_clock(self, by: timedelta) -> None:
        """The ledger's clock from now on: the real one plus ``by``. Worker, Temporal and provider keep the real one."""
        self.sql(
            "CREATE OR REPLACE FUNCTION duly.now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL RESTRICTED "
            f"RETURN clock_timestamp() + interval '{by.total_seconds()} seconds'"
        )

    def temporal(self, *arguments: str) -> str:
        """What the ``temporal`` command prints about this namespace."""
        assert self.stack.addresses
        address = ["--address", self.stack.addresses.temporal_address, "--namespace", self.namespace]
        command = [str(Path(sys.executable).with_name("temporal")), *arguments, *address]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT).stdout

    def duly(self, *arguments: str, code: int = 0) -> str:
        """What ``./duly`` prints to standard output, on this site; asserts its exit code."""
        done = subprocess.run(  # noqa: PLW1510 (the code is asserted below)
            [sys.executable, "-m", "cli", *arguments],
            cwd=REPOSITORY,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(self.folder),
                **self.environment,
                "DULY_DATABASE_URL": self.database,
            },
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done.stdout

    def stop(self) -> None:
        """End this site's workers, at once."""
        for worker in self.workers:
            with suppress(Exception):
                worker.kill()


@contextmanager
def fresh_database(stack: Stack) -> Iterator[str]:
    """URL, with all rights, of a new database with the schema in it; dropped at the end."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    admin = stack.database_url("postgres")
    databases.create(admin, name, template=TEMPLATE)
    try:
        yield stack.database_url(name)
    finally:
        databases.drop(admin, name)


@contextmanager
def fresh_site(stack: Stack, folder: Path) -> Iterator[Site]:
    """A whole Duly on the shared servers; a test may have several. Its database goes with it."""
    with fresh_database(stack) as url:
        site = Site(stack, url, databases.as_user(url, databases.WORKER_LOGIN), folder, make_namespace(stack))
        try:
            site.configure()
            yield site
        finally:
            site.stop()


def make_namespace(stack: Stack) -> str:
    """A namespace of its own on the stack's Temporal server, so that no other test's tasks come along."""
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, RegisterNamespaceRequest
    from temporalio.client import Client
    from temporalio.service import RPCError

    name = f"test-{uuid.uuid4().hex[:10]}"

    async def register() -> None:
        assert stack.addresses
        client = await Client.connect(stack.addresses.temporal_address)
        request = RegisterNamespaceRequest(namespace=name)
        request.workflow_execution_retention_period.FromTimedelta(timedelta(days=1))
        await client.workflow_service.register_namespace(request)
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            # Known to the frontend a moment after it is registered.
            with suppress(RPCError):
                await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=name))
                await client.count_workflows()
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"namespace {name} does not appear")

    asyncio.run(register())
    return name
