"""Servers for the tests: one stack per session, one fresh migrated database per test that asks for one."""

import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stack import database as databases
from stack import temporal
from stack.local import DATABASE, Stack
from stack.place import temporary_home
from stack.process import Process
from stack.state import Ports
from stack.temporal import HEADLESS, QUICK_TIMERS
from tests.harness import Site, make_namespace

TEMPLATE = "duly_template"

# What the person's own shell points at is none of the tests' business.
for _name in [name for name in os.environ if name.startswith(("DULY_", "TEMPORAL_"))]:
    del os.environ[_name]


@pytest.fixture(scope="session")
def stack_env() -> Iterator[Stack]:
    """A running stack without a worker: real Postgres, Temporal (timers to 10 ms, no web UI) and sandbox."""
    with temporary_home() as home:
        stack = Stack(
            home,
            ports=Ports.free(),
            with_worker=False,
            external=False,
            quick=True,
            temporal_arguments=(*HEADLESS, *QUICK_TIMERS),
        )
        with stack:
            # A template can be copied only while nobody is connected to it, so it is not the stack's own database.
            databases.create(stack.database_url("postgres"), TEMPLATE, template=DATABASE)
            yield stack


@pytest.fixture
def database(stack_env: Stack) -> Iterator[str]:
    """URL, with all rights, of a fresh database with the schema in it."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    databases.create(stack_env.database_url("postgres"), name, template=TEMPLATE)
    yield stack_env.database_url(name)
    databases.drop(stack_env.database_url("postgres"), name)


@pytest.fixture
def worker_database(database: str) -> str:
    """URL of the same database with a worker's rights."""
    return databases.as_user(database, databases.WORKER_LOGIN)


@pytest.fixture
def site(stack_env: Stack, database: str, worker_database: str, tmp_path: Path) -> Iterator[Site]:
    """A whole Duly on the shared servers: own database, own Temporal namespace, workers to be started by the test."""
    made = Site(stack_env, database, worker_database, tmp_path, make_namespace(stack_env))
    made.configure()
    yield made
    made.stop()


@pytest.fixture
def namespace(stack_env: Stack) -> str:
    """A Temporal namespace of the test's own: no other test's workflows, search attributes registered."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    temporal.create_namespace(f"127.0.0.1:{stack_env.ports.temporal}", name)
    return name


@pytest.fixture
def start_worker(stack_env: Stack, worker_database: str, namespace: str) -> Iterator[Callable[..., Process]]:
    """Starts worker.py processes on this test's database and namespace; what still runs at the end is killed.

    Arguments: environment variables to add, and `wait=False` for one that is to die before it is ready.
    """
    started: list[Process] = []

    def start(*, wait: bool = True, **environment: str) -> Process:
        where = {"DULY_DATABASE_URL": worker_database, "TEMPORAL_NAMESPACE": namespace}
        started.append(stack_env.start_worker({**where, **environment}, wait=wait))
        return started[-1]

    yield start
    for worker in started:
        stack_env.stop_worker(worker, kill=True)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """The SDK aborts a process that ends within milliseconds of its last RPC (temporalio/sdk-python#300)."""
    if "temporalio" in sys.modules:
        time.sleep(0.05)  # seconds; 10 ms sufficed in 320 of 320 trials
