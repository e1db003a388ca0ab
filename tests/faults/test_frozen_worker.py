"""A worker stands still between its claim and its send, or after it: for longer than its lease, then for longer still.

The lease is 7 seconds here, the watchdog's limit is the real one. All cases stand still at the same time.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from config.kinds import STALL_BOUND, WATCHDOG_LIMIT
from stack.process import Process
from tests.faults.checks import check
from tests.harness import Site, wait_for

FAR = timedelta(days=2)
KILLED = 128 + signal.SIGKILL
ENDED = 4  # exit code of a worker that ends because it stood still


@dataclass
class Frozen:
    """One site: its first worker froze itself at ``point`` with one operation in hand; a second one runs."""

    point: str
    watchdog: str
    site: Site
    key: str = ""
    since: float = field(default_factory=time.monotonic)

    @property
    def worker(self) -> Process:
        return self.site.workers[0]

    def thaw(self, after: float = 0.0) -> None:
        """Let it go on, once it stood still for so many seconds."""
        wait_for(lambda: time.monotonic() - self.since > after, "the freeze to be long enough")
        os.kill(self.worker.pid, signal.SIGCONT)

    def said(self, event: str) -> list[dict[str, object]]:
        """Lines with this event about its operation. All first workers write into one log."""
        lines = [json.loads(line) for line in self.worker.output().splitlines() if line.startswith("{")]
        return [line for line in lines if event in str(line["event"]) and line.get("key") == self.key]


CASES = (
    ("after_claim", "off"), ("before_send", "off"), ("after_reply", "off"),
    ("after_claim", "on"), ("before_send", "on"),
)  # fmt: skip


@pytest.fixture(scope="module")
def frozen(make_site: Callable[[], Site]) -> dict[tuple[str, str], Frozen]:
    found = {}
    for point, watchdog in CASES:
        case = found[point, watchdog] = Frozen(point, watchdog, make_site())
        (case.key,) = case.site.schedule("op", deadline=FAR)
        case.site.worker(crash=f"{point}=stop", wait=False, DULY_WATCHDOG=watchdog)
    for case in found.values():
        wait_for((case.site.folder / "fuse").exists, "the freeze")
        case.since = time.monotonic()
    for case in found.values():
        case.site.worker(wait=False)
    return found


def not_delivered(case: Frozen) -> None:
    """A person says so, and the settle time passes: the same key is sent again, by the other worker."""
    site, key = case.site, case.key
    site.wait_state(key, "unknown")
    site.sql("SELECT duly.decide(%s, 'not delivered', 'the provider has nothing')", key)
    site.temporal("workflow", "signal", "--workflow-id", key, "--name", "nudge")
    assert site.state(key) == "unknown"  # said so soon after the send it is not believed yet
    site.much_later()
    site.wait_state(key, "delivered")


def one_effect(case: Frozen, attempts: int) -> None:
    assert len(case.site.sandbox.requests(key=case.key)) == case.site.sandbox.count(case.key) == 1
    assert len(case.site.attempts(case.key)) == attempts
    check(case.site)


@pytest.mark.parametrize("point", ["after_claim", "before_send"])
def test_with_the_watchdog_it_is_killed_and_another_worker_goes_on(
    frozen: dict[tuple[str, str], Frozen], point: str
) -> None:
    """F34."""
    case = frozen[point, "on"]
    assert case.worker.wait(60) == KILLED  # seconds
    assert time.monotonic() - case.since > WATCHDOG_LIMIT - 1
    assert f"watchdog: worker {case.worker.pid} stood still" in case.worker.output()
    not_delivered(case)
    one_effect(case, 2)


def test_without_it_a_thawed_worker_sends_nothing_even_where_others_were_allowed_to_send_meanwhile(
    frozen: dict[tuple[str, str], Frozen],
) -> None:
    """F31 to F33: lease and settle time have passed, and the effect is there by another attempt. Then it wakes up."""
    case = frozen["after_claim", "off"]
    not_delivered(case)
    case.thaw()
    wait_for(
        lambda: case.site.sql("SELECT 1 FROM duly.evidence WHERE key = %s AND source = 'late reply'", case.key),
        "its outcome",
    )
    (late,) = case.site.sql("SELECT finding FROM duly.evidence WHERE key = %s AND source = 'late reply'", case.key)
    assert late["finding"] == "not_sent"
    assert case.site.state(case.key) == "delivered"
    one_effect(case, 2)


def test_a_worker_that_stood_still_beyond_every_bound_sends_nothing_ends_itself_and_names_what_was_in_flight(
    frozen: dict[tuple[str, str], Frozen],
) -> None:
    """F119: as after a suspended machine, where no watchdog ran either."""
    case = frozen["before_send", "off"]
    case.site.wait_state(case.key, "unknown")
    case.thaw(after=STALL_BOUND + 2)
    assert case.worker.wait(60) == ENDED  # seconds
    assert f"longer than {STALL_BOUND:g} s" in case.worker.output()
    (exposed,) = case.said("exposed")
    assert (exposed["key"], exposed["attempt"]) == (case.key, 1)
    (evidence,) = case.site.sql("SELECT * FROM duly.evidence WHERE key = %s AND source = 'worker'", case.key)
    assert (evidence["finding"], evidence["attempt"]) == ("exposed", 1)
    assert STALL_BOUND < evidence["detail"]["still_s"] < 600
    # It proved that nothing left, so the other one sends the same key again.
    case.site.wait_state(case.key, "delivered")
    assert [attempt["outcome"] for attempt in case.site.attempts(case.key)] == ["not_sent", "delivered"]
    one_effect(case, 2)


def test_a_reply_that_a_frozen_worker_held_settles_the_unknown(frozen: dict[tuple[str, str], Frozen]) -> None:
    case = frozen["after_reply", "off"]
    case.site.wait_state(case.key, "unknown")
    case.thaw()
    row = case.site.wait_state(case.key, "delivered")
    assert row["settled_by"] == "reply"
    (late,) = case.site.sql(
        "SELECT source, finding FROM duly.evidence WHERE key = %s AND attempt = 1 AND source <> 'worker'", case.key
    )
    assert late == {"source": "late reply", "finding": "delivered"}
    one_effect(case, 1)


def test_a_worker_on_a_busy_machine_is_not_killed_and_replaces_a_watchdog_that_is(site: Site) -> None:
    worker = site.worker()
    busy = [
        subprocess.Popen([sys.executable, "-IS", "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        until = time.monotonic() + WATCHDOG_LIMIT + 5
        while time.monotonic() < until:
            (key,) = site.schedule(f"op-{time.monotonic_ns()}")
            site.wait_state(key, "delivered")
        assert worker.running
    finally:
        for one in busy:
            one.kill()
            one.wait()
    (pid,) = re.findall(r'"watchdog": (\d+)', worker.output())
    os.kill(int(pid), signal.SIGKILL)
    wait_for(lambda: "the watchdog is gone; starting another" in worker.output(), "the worker to notice")
    (key,) = site.schedule("after")
    site.wait_state(key, "delivered")
    os.kill(worker.pid, signal.SIGSTOP)  # the new one does the same work
    assert worker.wait(60) == KILLED  # seconds
