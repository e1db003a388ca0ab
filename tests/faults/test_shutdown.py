"""SIGTERM: the dispatcher stops, calls in flight finish and are recorded; what is cut off all the same is in doubt."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import pytest

from stack.process import Process
from tests.faults.checks import check, slowly
from tests.faults.tcp_proxy import TcpProxy
from tests.harness import Site, wait_for

FAR = timedelta(days=2)  # a deadline beyond every moved clock here
ENDS = 60.0  # seconds for a worker to end; its own grace is lease 7 + margin 15 + 5


def draining(worker: Process) -> None:
    """Tell it to stop, and wait until it says so."""
    os.kill(worker.pid, signal.SIGTERM)
    wait_for(lambda: "draining" in worker.output(), "the worker to drain")


def test_a_long_call_finishes_and_is_recorded_and_nothing_new_starts(site: Site) -> None:
    site.configure(call_limit="10s")
    (key,) = site.schedule("long", deadline=FAR)
    site.sandbox.tell("slow:5", key=key)  # seconds: longer than anything else in a shutdown
    worker = site.worker()
    site.wait_request(key)
    draining(worker)
    (later,) = site.schedule("later", deadline=FAR)
    assert site.sandbox.count(key) == 0  # the call is still out
    assert worker.wait(ENDS) == 0
    assert site.history(key) == ["scheduled", "calling", "delivered"]
    assert "ACTIVITY_TASK_COMPLETED" in site.events(key)  # Temporal was told, too
    assert site.operation(later)["dispatched_at"] is None
    site.worker()
    site.wait_state(later, "delivered")
    check(site)


def test_a_process_that_exits_before_temporal_is_told_leaves_the_outcome_in_the_ledger(site: Site) -> None:
    (key,) = site.schedule("op", deadline=FAR)  # C15
    slowly(site, key)
    worker = site.worker(crash="after_record=exit")
    site.wait_request(key)
    draining(worker)
    assert worker.wait(ENDS) == 70  # the crash point's own
    assert site.history(key) == ["scheduled", "calling", "delivered"]
    assert "ACTIVITY_TASK_COMPLETED" not in site.events(key)
    site.worker()
    site.wait_event(key, "WORKFLOW_EXECUTION_COMPLETED")
    site.much_later()
    assert site.history(key) == ["scheduled", "calling", "delivered"]
    assert len(site.sandbox.requests(key=key)) == site.sandbox.count(key) == 1
    check(site)


def test_a_supervisor_that_does_not_wait_leaves_an_unknown(site: Site) -> None:
    (key,) = site.schedule("op", deadline=FAR)  # F30
    slowly(site, key)
    worker = site.worker()
    site.wait_request(key)
    draining(worker)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(ENDS)
    site.worker()
    site.wait_state(key, "unknown")
    site.much_later()
    assert site.history(key) == ["scheduled", "calling", "unknown"]
    assert len(site.sandbox.requests(key=key)) == site.sandbox.count(key) == 1
    check(site)


@pytest.mark.parametrize("silent", [False, True], ids=["away", "silent"])
def test_a_shutdown_without_the_database_ends_and_leaves_the_reply_with_temporal(
    site: Site, line: TcpProxy, silent: bool
) -> None:
    (key,) = site.schedule("op", deadline=FAR)
    slowly(site, key)
    worker = site.worker()
    site.wait_request(key)
    if silent:
        line.go_silent()
        wait_for(lambda: line.held, "the dispatcher to ask in vain")
    else:
        line.go_away()
    draining(worker)
    assert worker.wait(ENDS) == 0
    assert site.state(key) == "calling"
    line.come_back()
    site.worker()
    site.wait_state(key, "delivered")
    assert len(site.sandbox.requests(key=key)) == site.sandbox.count(key) == 1
    check(site)
