"""Servers for the tests: one stack per session, one fresh migrated database per test that asks for one."""

import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack import database as databases
from stack.local import DATABASE, Stack
from stack.place import temporary_home
from stack.state import Ports
from stack.temporal import HEADLESS, QUICK_TIMERS
from tests.harness import TEMPLATE, Site, fresh_database, fresh_site

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
    with fresh_database(stack_env) as url:
        yield url


@pytest.fixture
def site(stack_env: Stack, tmp_path: Path) -> Iterator[Site]:
    """A whole Duly on the shared servers: own database, own Temporal namespace, workers to be started by the test."""
    with fresh_site(stack_env, tmp_path) as made:
        yield made


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command run in this process sends its logs to the stream of its own test: the next must not write there."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """The SDK aborts a process that ends within milliseconds of its last RPC (temporalio/sdk-python#300)."""
    if "temporalio" in sys.modules:
        time.sleep(0.05)  # seconds; 10 ms sufficed in 320 of 320 trials
