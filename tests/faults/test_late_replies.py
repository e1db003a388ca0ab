"""A worker is frozen past its lease. Before its first byte it sends nothing more; after it, its reply still counts."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.faults.checks import check
from tests.harness import Site, wait_for

FAR = timedelta(days=2)  # a deadline beyond every moved clock here
SLOW = 120.0
"""Seconds for what a frozen worker holds up: its open polls take tasks with them, ten seconds each."""


def wait_frozen(pid: int) -> None:
    """Until the process stands still: T is the system's letter for it."""
    wait_for(lambda: letter(pid) == "T", "the worker to freeze")


def letter(pid: int) -> str:
    """The state of a process, from Linux's /proc, or from ``ps`` where there is none."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists():
        return stat.read_text().rpartition(")")[2].split()[0]
    return subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=True).stdout[:1]


@pytest.fixture(scope="module")
def frozen(make_site: Callable[[], Site]) -> dict[str, tuple[Site, str]]:
    """A site and a key for each place of the freeze; a second worker runs. All at once: the doubt takes a while."""
    sites = {place: make_site() for place in ("before_send", "the call", "after_reply")}
    keys = {}
    for place, site in sites.items():
        (keys[place],) = site.schedule("op", deadline=FAR)
        if place == "the call":
            site.sandbox.tell("slow:1", key=keys[place])  # seconds: below the call limit, time enough to freeze
        site.worker(crash=None if place == "the call" else f"{place}=stop", wait=False)
    for place, site in sites.items():
        if place == "the call":
            site.wait_request(keys[place])
            os.kill(site.workers[0].pid, signal.SIGSTOP)
    for site in sites.values():
        wait_frozen(site.workers[0].pid)
        site.worker(wait=False)
    return {place: (site, keys[place]) for place, site in sites.items()}


def wait_passed(site: Site, key: str, moment: str) -> None:
    """Until this moment of the last attempt (``send_before``, ``lease_until``) has passed, by the real clock."""
    passed = f"SELECT 1 FROM duly.attempt WHERE key = %s AND {moment} < clock_timestamp()"
    wait_for(lambda: site.sql(passed, key), f"{moment} of {key} to pass")


def settled_late(site: Site, key: str) -> None:
    """The unknown became delivered by the reply to its own attempt, and nothing was sent again."""
    site.wait_state(key, "delivered")
    site.wait_event(key, "WORKFLOW_EXECUTION_COMPLETED", limit=SLOW)
    site.much_later()
    assert site.history(key) == ["scheduled", "calling", "unknown", "delivered"]
    evidence = site.sql("SELECT attempt, source, finding FROM duly.evidence WHERE key = %s", key)
    assert evidence == [{"attempt": 1, "source": "late reply", "finding": "delivered"}]
    row = site.operation(key)
    assert (row["settled_by"], row["attempts"], row["contradicted"]) == ("reply", 1, False)
    assert row["provider_reference"] == site.sandbox.effects(key=key)[key][0]["id"]
    assert len(site.sandbox.requests(key=key)) == site.sandbox.count(key) == 1
    check(site)
    site.stop()  # leaves the processors to the others


def test_a_reply_that_was_read_but_not_recorded_before_the_freeze_settles_its_attempt(
    frozen: dict[str, tuple[Site, str]],
) -> None:
    site, key = frozen["after_reply"]
    site.wait_state(key, "unknown", limit=SLOW)
    # C02 (a): the activity hangs past its own limit, with the effect done. Temporal will not hear of it again.
    site.wait_event(key, "ACTIVITY_TASK_TIMED_OUT", limit=SLOW)
    assert site.state(key) == "unknown"
    os.kill(site.workers[0].pid, signal.SIGCONT)
    settled_late(site, key)


def test_a_reply_that_arrives_during_the_freeze_settles_its_attempt(frozen: dict[str, tuple[Site, str]]) -> None:
    site, key = frozen["the call"]
    site.wait_state(key, "unknown", limit=SLOW)
    assert site.sandbox.count(key) == 1
    os.kill(site.workers[0].pid, signal.SIGCONT)
    settled_late(site, key)


@pytest.mark.parametrize("point", ["after_claim", "before_send"])
def test_a_worker_frozen_before_its_first_byte_sends_nothing_when_it_wakes_too_late(site: Site, point: str) -> None:
    (key,) = site.schedule("op")
    worker = site.worker(crash=f"{point}=stop")
    wait_frozen(worker.pid)
    wait_passed(site, key, "send_before")
    site.move_clock(timedelta(hours=3))  # past the deadline: no other attempt may follow, so no request at all
    os.kill(worker.pid, signal.SIGCONT)
    site.wait_state(key, "expired")
    (attempt,) = site.attempts(key)
    assert (attempt["outcome"], attempt["sent"]) == ("not_sent", False)
    assert site.sandbox.requests(key=key) == []
    check(site)


def test_proof_that_a_frozen_attempt_sent_nothing_resolves_the_doubt_and_the_next_attempt_goes(
    frozen: dict[str, tuple[Site, str]],
) -> None:
    site, key = frozen["before_send"]
    site.wait_state(key, "unknown", limit=SLOW)
    assert site.sandbox.requests(key=key) == []
    os.kill(site.workers[0].pid, signal.SIGCONT)
    site.wait_state(key, "delivered", limit=SLOW)
    site.much_later()
    assert site.history(key) == ["scheduled", "calling", "unknown", "scheduled", "calling", "delivered"]
    assert [attempt["outcome"] for attempt in site.attempts(key)] == ["not_sent", "delivered"]
    assert len(site.sandbox.requests(key=key)) == site.sandbox.count(key) == 1
    check(site)
    site.stop()  # leaves the processors to the others


def test_a_short_freeze_before_the_first_byte_costs_nothing(site: Site) -> None:
    (key,) = site.schedule("op")
    worker = site.worker(crash="before_send=stop")
    wait_frozen(worker.pid)
    os.kill(worker.pid, signal.SIGCONT)
    site.wait_state(key, "delivered")
    assert site.history(key) == ["scheduled", "calling", "delivered"]
    check(site)
