"""The same attempt is asked for again: by a reset, by a workflow of somebody's own. Only the claim row decides."""

from __future__ import annotations

import json
import os
import signal
from datetime import timedelta

import pytest

from tests.faults.checks import check, slowly
from tests.harness import Site, wait_for

FAR = timedelta(days=2)  # a deadline beyond every moved clock here
LIMIT = 22.0  # seconds for an attempt activity: lease 7, patience 10, margin 5


def reset(site: Site, key: str) -> None:
    """Run the workflow again from its beginning, as an operator can from the command line or the web page."""
    site.temporal(
        "workflow", "reset", "--workflow-id", key, "--type", "FirstWorkflowTask", "--reason", "a test of second runs"
    )


def start_by_hand(site: Site, workflow_id: str, key: str) -> None:
    """What anybody with a Temporal client can do: a workflow for this key under another id."""
    first = {"act": "attempt", "attempt": 1, "delay": 0, "state": "scheduled", "reason": "by hand"}
    start = {"key": key, "generation": 1, "first": first, "attempt_limit": LIMIT, "attributes": []}
    site.temporal(
        "workflow", "start", "--type", "Operation", "--task-queue", "duly-sandbox", "--workflow-id", workflow_id,
        "--input", json.dumps(start),
    )  # fmt: skip


def wait_run(site: Site, workflow_id: str) -> None:
    """Until an attempt activity has reported in the latest run of this workflow: the others are not meant."""

    def reported() -> bool:
        shown = json.loads(site.temporal("workflow", "show", "--workflow-id", workflow_id, "--output", "json"))
        attempts = {
            event["eventId"]
            for event in shown["events"]
            if event.get("activityTaskScheduledEventAttributes", {}).get("activityType", {}).get("name") == "attempt"
        }
        completed = [event.get("activityTaskCompletedEventAttributes", {}) for event in shown["events"]]
        return any(one.get("scheduledEventId") in attempts for one in completed)

    wait_for(reported, f"an attempt in the latest run of {workflow_id} to report")


def test_a_workflow_reset_during_the_call_waits_and_finds_the_reply_on_record(site: Site) -> None:
    site.configure(call_limit="4s")
    (key,) = site.schedule("op", deadline=FAR)
    site.sandbox.tell("slow:3", key=key)  # seconds: time enough for the second run to come and be turned away
    site.worker()
    site.wait_request(key)
    reset(site, key)
    wait_run(site, key)  # its claim is refused
    assert site.state(key) == "calling"  # while the first run's call is still out
    site.wait_state(key, "delivered")
    site.wait_event(key, "WORKFLOW_EXECUTION_COMPLETED")
    site.much_later()
    assert site.history(key) == ["scheduled", "calling", "delivered"]
    assert len(site.sandbox.requests(key=key)) == site.sandbox.count(key) == 1
    check(site)


@pytest.mark.parametrize("behaviour", ["ok", "commit_then_close"])
def test_a_workflow_reset_afterwards_runs_the_attempt_again_and_sends_nothing(site: Site, behaviour: str) -> None:
    state = "delivered" if behaviour == "ok" else "unknown"
    (key,) = site.schedule("op", deadline=FAR)
    site.sandbox.tell(behaviour, key=key)
    site.worker()
    site.wait_state(key, state)
    for _ in range(2):
        reset(site, key)
        wait_run(site, key)
    if state == "delivered":
        site.wait_event(key, "WORKFLOW_EXECUTION_COMPLETED")
    site.much_later()
    assert site.history(key) == ["scheduled", "calling", state]
    assert len(site.sandbox.requests(key=key)) == site.sandbox.count(key) == 1
    check(site)


def test_a_second_run_after_a_lost_worker_waits_for_the_lease_and_then_says_unknown(site: Site) -> None:
    (key,) = site.schedule("op", deadline=FAR)
    assert site.worker(crash="after_claim=kill", wait=False).wait(60) == 128 + signal.SIGKILL  # seconds
    reset(site, key)
    site.worker()
    site.wait_state(key, "unknown")
    (attempt,) = site.attempts(key)
    (doubt,) = site.sql("SELECT at FROM duly.history WHERE key = %s AND after = 'unknown'", key)
    assert doubt["at"] >= attempt["lease_until"]
    site.much_later()
    assert site.history(key) == ["scheduled", "calling", "unknown"]
    assert site.sandbox.requests(key=key) == []
    check(site)


def test_an_attempt_that_somebody_gave_more_tries_is_run_again_and_sends_nothing(site: Site) -> None:
    (key,) = site.schedule("op", deadline=FAR)
    slowly(site, key)
    worker = site.worker()
    site.wait_request(key)
    os.kill(worker.pid, signal.SIGKILL)
    activity = ("--workflow-id", key, "--activity-id", "1")
    site.temporal("activity", "update-options", *activity, "--retry-maximum-attempts", "3")
    site.temporal("activity", "reset", *activity)
    site.worker()
    wait_run(site, key)  # Temporal has run it a second time, after the first had timed out
    site.wait_state(key, "unknown")
    site.much_later()
    assert site.history(key) == ["scheduled", "calling", "unknown"]
    assert len(site.sandbox.requests(key=key)) == site.sandbox.count(key) == 1
    check(site)


def test_many_workflows_for_one_key_make_one_call(site: Site) -> None:
    (key,) = site.schedule("op", deadline=FAR)
    slowly(site, key)
    others = [f"{site.prefix}:by-hand-{n}" for n in range(4)]
    for other in others:
        start_by_hand(site, other, key)
    site.worker()
    site.worker()
    site.wait_state(key, "delivered")
    for workflow_id in (key, *others):
        site.wait_event(workflow_id, "WORKFLOW_EXECUTION_COMPLETED")
    site.much_later()
    assert site.history(key) == ["scheduled", "calling", "delivered"]
    assert len(site.sandbox.requests(key=key)) == site.sandbox.count(key) == 1
    check(site)


def test_a_workflow_started_by_hand_before_the_time_sends_nothing_early(site: Site) -> None:
    (key,) = site.schedule("op", due=timedelta(hours=1), deadline=FAR)
    other = f"{site.prefix}:by-hand"
    start_by_hand(site, other, key)
    site.worker()
    wait_run(site, other)
    assert site.state(key) == "scheduled"
    assert site.sandbox.requests(key=key) == []
    site.move_clock(timedelta(hours=1, minutes=2))  # the sweep gives a workflow a minute to act by itself
    site.wait_state(key, "delivered")
    site.much_later()
    assert len(site.sandbox.requests(key=key)) == site.sandbox.count(key) == 1
    check(site)
