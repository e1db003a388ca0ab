"""Where everything is measured: a local stack of its own, thrown away afterwards, with a fresh server for each run."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg.rows import dict_row
from temporalio.client import Client

from bench import cpu
from config import temporal as temporal_client
from provider.sandbox.client import SandboxClient
from stack.local import Stack, silent
from stack.place import temporary_home
from stack.process import Process, StackError
from stack.state import Ports

CONFIG = Path(__file__).with_name("duly.toml")
LIMIT = 300.0
"""Seconds for one run; a run of 300 takes about ten. Only a failure waits that long."""

TABLE = """
CREATE SCHEMA bench
CREATE TABLE operation (
  key text PRIMARY KEY, order_id int NOT NULL, state text NOT NULL DEFAULT 'scheduled',
  claimed_at timestamptz, recorded_at timestamptz, reference text);
GRANT USAGE ON SCHEMA bench TO PUBLIC;
GRANT SELECT, UPDATE ON bench.operation TO PUBLIC;
"""


class Site:
    """Made for one command. ``progress`` is told what is being started."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._home = temporary_home()
        self._progress = progress
        self._loop = asyncio.Runner()
        self._client: Client | None = None
        self._database: psycopg.Connection[dict[str, Any]] | None = None
        self.stack: Stack

    def __enter__(self) -> Self:
        for name in [name for name in os.environ if name.startswith(("DULY_", "TEMPORAL_"))]:
            del os.environ[name]  # what the caller's shell points at is not measured
        os.environ["DULY_CONFIG"] = str(CONFIG)
        self.stack = Stack(
            self._home.__enter__(), ports=Ports.free(), with_worker=False, external=False, quick=True,
            temporal_arguments=("--headless",), progress=self._progress,
        )  # fmt: skip
        try:
            self.stack.start()
            self.stack.progress = silent  # a server stopped and started for each run is no news
            self.sql(TABLE)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._database:
            self._database.close()
        self.stack.stop()
        self._loop.close()
        self._home.__exit__(None, None, None)

    @property
    def sandbox(self) -> SandboxClient:
        """The provider's own record."""
        return SandboxClient(self.addresses["sandbox_url"])

    @property
    def addresses(self) -> dict[str, str]:
        """Where things are."""
        assert self.stack.addresses
        found = self.stack.addresses
        return {
            "temporal_address": found.temporal_address,
            "sandbox_url": found.sandbox_url,
            "database_url": found.database_url,
        }

    def sql(self, statement: str, *parameters: Any) -> list[dict[str, Any]]:
        """Rows of one statement, with all rights, in a transaction of its own."""
        if self._database is None:  # kept open: a connection costs more than all that is measured
            self._database = psycopg.connect(self.addresses["database_url"], autocommit=True, row_factory=dict_row)
        cursor = self._database.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []

    def fresh_temporal(self) -> None:
        """A new server without history, as every run gets it: the old one's size and leftovers slow nobody."""
        self._client = None
        self.stack.stop_temporal(kill=True)
        for path in self.stack.home.glob("temporal.db*"):
            path.unlink()
        self.stack.start_temporal()

    def closed(self) -> int:
        """Workflows that have ended, as the server counts them."""
        return self._loop.run(self._closed())

    async def _closed(self) -> int:
        query = "ExecutionStatus != 'Running'"
        return (await (await self._connected()).count_workflows(query)).count

    async def _connected(self) -> Client:
        if self._client is None:
            address = self.addresses["temporal_address"]
            self._client = await Client.connect(address, runtime=temporal_client.runtime())
        return self._client

    def eager_starts(self, prefix: str, count: int) -> int:
        """How many of these workflows were started eagerly: their first task came with the answer, without a poll."""
        return self._loop.run(self._eager_starts(prefix, count))

    async def _eager_starts(self, prefix: str, count: int) -> int:
        client = await self._connected()
        eager = 0
        for number in range(count):
            events = client.get_workflow_handle(f"{prefix}:{number}").fetch_history_events(page_size=1)
            async for event in events:
                eager += event.workflow_execution_started_event_attributes.eager_execution_accepted
                break
        return eager

    def wait(self, condition: Callable[[], bool], what: str, process: Process | None = None) -> None:
        """Until ``condition()``. Raises StackError when ``process`` ends first, or after ``LIMIT``."""
        end = time.monotonic() + LIMIT
        while not condition():
            if process and not process.running:
                raise StackError(f"{process.name} ended (code {process.exit_code}):\n{process.log_tail()}")
            if time.monotonic() > end:
                raise StackError(f"not within {LIMIT:g} s: {what}")
            time.sleep(0.05)  # between two looks, so that looking costs the measured nothing

    def processor_seconds(self, worker: int) -> dict[str, float]:
        """Of the worker and of the servers, so far."""
        parts = {"temporal": self.stack.temporal, "postgres": self.stack.postgres, "sandbox": self.stack.sandbox}
        used = {name: cpu.seconds(part.pid, family=name == "postgres") for name, part in parts.items() if part}
        return {"worker": cpu.seconds(worker), **used}
