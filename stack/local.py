"""The local stack: Postgres, Temporal, the sandbox provider and a worker, started and stopped together.

Plain blocking code, for commands and for fixtures. Every program runs under a guard, so none outlives this process.
"""

import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from stack import database, place, postgres, state, temporal
from stack.process import Process, StackError, answers_ok, require_free
from stack.state import REPOSITORY, Addresses, Ports

if TYPE_CHECKING:
    from temporalio.envconfig import ClientConnectConfig

DATABASE = "duly"
SANDBOX_LIMIT = 30.0  # seconds to get ready; under 1 s when idle
WORKER_LIMIT = 60.0  # seconds to get ready; 2 s when idle: imports, the database, Temporal
SANDBOX_GRACE = 5.0  # seconds; it has nothing to finish
WORKER_GRACE = 45.0  # seconds; above the worker's own shutdown grace, so that calls in flight are recorded

Progress = Callable[[str], None]


def silent(_: str) -> None:
    """No progress wanted."""


class Stack:
    """One stack on one home. `postgres` and `temporal` are None when not started, or when the user's own is used."""

    def __init__(
        self,
        home: Path | None = None,
        *,
        ports: Ports | None = None,
        with_worker: bool = True,
        external: bool = True,
        temporal_arguments: Sequence[str] = (),
        temporal_environment: Mapping[str, str] | None = None,
        quick: bool = False,
        progress: Progress = silent,
    ) -> None:
        """Nothing is started yet.

        `external`: use a database or Temporal server that the environment names. `quick`: the data is thrown away, so
        new folders need not reach the disk and Temporal is killed instead of stopped.
        """
        self.home = (home or state.default_home()).absolute()
        self.ports = ports or Ports()
        self.with_worker = with_worker
        self.external = external
        self.temporal_arguments = tuple(temporal_arguments)
        self.temporal_environment = dict(temporal_environment or {})
        self.quick = quick
        self.progress = progress
        self.postgres: Process | None = None
        self.temporal: Process | None = None
        self.sandbox: Process | None = None
        self.workers: list[Process] = []
        self.addresses: Addresses | None = None
        self.namespace = "default"
        self._config: ClientConnectConfig | None = None  # of the user's own Temporal server
        self._place: place.Place | None = None
        self._lock: int | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Addresses:
        """Starts what is not there and waits until each part is ready. Raises StackError, with nothing left running."""
        self.home.mkdir(mode=0o711, parents=True, exist_ok=True)  # Postgres may run as another user: see place.py
        (self.home / "logs").mkdir(mode=0o700, exist_ok=True)
        self._lock = state.lock_home(self.home, self.progress)
        try:
            return self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> Addresses:
        database_url = os.environ.get("DULY_DATABASE_URL", "") if self.external else ""
        config = self._config = temporal.configured() if self.external else None
        self.namespace = (config or {}).get("namespace") or "default"
        self._require_ports(temporal_too=config is None)

        # The quick ones first, so that they get ready while Postgres does.
        if config is None:
            self.launch_temporal()
        self.launch_sandbox()
        if database_url:
            database.require(database_url)
            worker_url = database_url
            self.progress("postgres: using the one that DULY_DATABASE_URL names")
        else:
            self.start_postgres()
            database_url = self.database_url()
            worker_url = database.as_user(database_url, database.WORKER_LOGIN)
            database.create(self.database_url("postgres"), DATABASE)
            self.progress(f"postgres: ready at {database_url}")
        database.migrate(database_url)
        database.configure(database_url)
        if self.postgres:
            database.allow_worker(database_url)
        self.progress("schema: up to date")

        self.addresses = Addresses(
            database_url=database_url,
            worker_database_url=worker_url,
            temporal_address=config["target_host"] if config else f"127.0.0.1:{self.ports.temporal}",
            temporal_namespace=self.namespace,
            ui_url="" if config or "--headless" in self.temporal_arguments else f"http://127.0.0.1:{self.ports.ui}",
            sandbox_url=f"http://127.0.0.1:{self.ports.sandbox}",
            health_url=f"http://127.0.0.1:{self.ports.health}",
        )
        if self.temporal:
            temporal.wait_until_ready(self.temporal, self.addresses.temporal_address, self.namespace)
            self.progress(
                f"temporal: ready at {self.addresses.temporal_address}, web UI {self.addresses.ui_url or 'off'}"
            )
        else:
            self.progress(f"temporal: using the one at {self.addresses.temporal_address}, namespace {self.namespace}")
        self.wait_sandbox()
        self.progress(f"sandbox: ready at {self.addresses.sandbox_url}")
        if self.with_worker:
            self.progress("worker: starting")
            self.start_worker(health_port=self.ports.health)
            self.progress(f"worker: ready, health at {self.addresses.health_url}")
        self.write_state()
        return self.addresses

    def stop(self) -> None:
        """Stops everything in the order that loses nothing: those that write before those that are written to."""
        for worker in self.workers:
            self.progress("worker: stopping")
            worker.stop()
        self.workers.clear()
        for name in ("sandbox", "temporal", "postgres"):
            self._end(name, kill=self.quick and name == "temporal")
        if self._lock is not None:
            state.remove(self.home)
            os.close(self._lock)
            self._lock = None
        self.addresses = None

    # Part by part, for tests that kill them.

    def database_url(self, name: str = DATABASE, user: str = "postgres") -> str:
        """URL of a database of the embedded server."""
        assert self._place is not None, "start the stack first"
        return self._place.url(name, user)

    def start_postgres(self) -> Process:
        """Starts the embedded server, and waits until it answers."""
        self._place = place.place(self.home)
        if self._place.note:
            self.progress(f"postgres: {self._place.note}")
        if not self._place.data.exists():
            self.progress("postgres: making its data folder")
        self.postgres = postgres.start(
            self._place, self._log("postgres"), keep_open=self._descriptors(), quick=self.quick
        )
        return self.postgres

    def stop_postgres(self, *, kill: bool = False) -> None:
        """Stops it; `start_postgres` brings it back with its data."""
        self._end("postgres", kill=kill)

    def launch_temporal(self) -> Process:
        """Starts the server, without waiting."""
        self.temporal = temporal.start(
            self.home,
            port=self.ports.temporal,
            ui_port=self.ports.ui,
            log=self._log("temporal"),
            namespace=self.namespace,
            arguments=self.temporal_arguments,
            extra_environment=self.temporal_environment,
            keep_open=self._descriptors(),
        )
        return self.temporal

    def start_temporal(self) -> Process:
        """Starts the server and waits until it answers."""
        server = self.launch_temporal()
        temporal.wait_until_ready(server, f"127.0.0.1:{self.ports.temporal}", self.namespace)
        return server

    def stop_temporal(self, *, kill: bool = False) -> None:
        """Stops it; `start_temporal` brings it back with its data."""
        self._end("temporal", kill=kill)

    def launch_sandbox(self) -> Process:
        """Starts the sandbox provider, without waiting."""
        command = [sys.executable, "-m", "provider.sandbox", "--port", str(self.ports.sandbox)]
        self.sandbox = Process(
            "sandbox",
            [*command, "--data", str(self.home / "sandbox.db")],
            log=self._log("sandbox"),
            grace=SANDBOX_GRACE,
            folder=REPOSITORY,
            keep_open=self._descriptors(),
        )
        return self.sandbox

    def wait_sandbox(self) -> None:
        """Until the sandbox answers."""
        assert self.sandbox is not None
        self.sandbox.wait_until(lambda: answers_ok(self.ports.sandbox, "/healthz"), limit=SANDBOX_LIMIT)

    def start_sandbox(self) -> Process:
        """Starts the sandbox provider and waits until it answers."""
        sandbox = self.launch_sandbox()
        self.wait_sandbox()
        return sandbox

    def stop_sandbox(self, *, kill: bool = False) -> None:
        """Stops it; `start_sandbox` brings it back with its record of effects."""
        self._end("sandbox", kill=kill)

    def start_worker(
        self, environment: Mapping[str, str] | None = None, *, health_port: int | None = None, wait: bool = True
    ) -> Process:
        """One more worker.py on this stack, ready unless `wait` is false. `environment` is added to what it gets."""
        port = health_port or state.free_ports(1)[0]
        taken = {one.name for one in self.workers}
        number = next(number for number in itertools.count(1) if f"worker {number}" not in taken)
        worker = Process(
            f"worker {number}",
            [sys.executable, str(REPOSITORY / "worker.py")],
            log=self._log("worker" if number == 1 else f"worker-{number}"),
            grace=WORKER_GRACE,
            environment={**self.environment(), "DULY_HEALTH_PORT": str(port), **(environment or {})},
            folder=REPOSITORY,
            keep_open=self._descriptors(),
        )
        self.workers.append(worker)
        if wait:
            worker.wait_until(lambda: answers_ok(port, "/ready"), limit=WORKER_LIMIT)
        return worker

    def stop_worker(self, worker: Process, *, kill: bool = False) -> None:
        """Stops one, running or not, and forgets it."""
        worker.kill() if kill else worker.stop()
        self.workers.remove(worker)

    def environment(self) -> dict[str, str]:
        """What a worker or a command needs in its environment to use this stack. Raises StackError before `start`."""
        if self.addresses is None:
            raise StackError("the stack is not running")
        base = dict(os.environ) if self._config else temporal.environment(os.environ)
        base.update(
            DULY_HOME=str(self.home),
            DULY_DATABASE_URL=self.addresses.worker_database_url,
            DULY_SANDBOX_URL=self.addresses.sandbox_url,
        )
        if not self._config:
            base.update(TEMPORAL_ADDRESS=self.addresses.temporal_address, TEMPORAL_NAMESPACE=self.namespace)
        return base

    def _end(self, name: str, *, kill: bool) -> None:
        part: Process | None = getattr(self, name)
        if part:
            self.progress(f"{name}: stopping")
            part.kill() if kill else part.stop()
        setattr(self, name, None)

    def _require_ports(self, *, temporal_too: bool) -> None:
        if temporal_too:
            require_free(self.ports.temporal, "Temporal", "--temporal-port")
            if "--headless" not in self.temporal_arguments:
                require_free(self.ports.ui, "the Temporal web UI", "--ui-port")
        require_free(self.ports.sandbox, "the sandbox", "--sandbox-port")
        if self.with_worker:
            require_free(self.ports.health, "the worker's health", "--health-port")

    def write_state(self) -> None:
        """Tells other commands where everything is, with the process ids as they are now."""
        assert self.addresses is not None
        parts = {"postgres": self.postgres, "temporal": self.temporal, "sandbox": self.sandbox}
        pids = {name: part.pid for name, part in parts.items() if part}
        pids.update({one.name: one.pid for one in self.workers}, up=os.getpid())
        self.addresses.pids.clear()
        self.addresses.pids.update(pids)
        state.write(self.home, self.addresses)

    def _log(self, name: str) -> Path:
        return self.home / "logs" / f"{name}.log"

    def _descriptors(self) -> tuple[int, ...]:
        return () if self._lock is None else (self._lock,)
