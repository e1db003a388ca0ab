"""A worker is lost at each step of an attempt. What follows is decided by the claim row and by nothing else."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import pytest

from tests.faults.checks import check
from tests.harness import Site

FAR = timedelta(days=2)  # a deadline beyond every moved clock here: nothing but the protocol keeps a call back
KILLED = 128 + signal.SIGKILL  # exit code, as shells report it


@dataclass(frozen=True)
class Loss:
    """Where the worker dies, and what must follow. ``point`` None: while the provider works on the call."""

    point: str | None
    state: str
    requests: int

    def __str__(self) -> str:
        return self.point or "during_the_call"


LOSSES = (
    Loss("before_claim", "delivered", 1),  # C16 (a): nothing is claimed, so it runs again
    Loss("in_claim_transaction", "delivered", 1),  # the claim never was
    Loss("after_claim", "unknown", 0),  # C16 (b), X02: no byte left, and nobody can prove it
    Loss("before_send", "unknown", 0),
    Loss(None, "unknown", 1),  # the effect comes after the death of who asked for it (F125)
    Loss("after_reply", "unknown", 1),  # C02 (c), C16 (c): the effect is there, the record is not
    Loss("in_record_transaction", "unknown", 1),
    Loss("after_record", "delivered", 1),  # Temporal was not told; the ledger knows
)


@pytest.fixture(scope="module")
def lost(make_site: Callable[[], Site]) -> dict[Loss, tuple[Site, str]]:
    """A site and a key for each loss: its worker is dead, another one runs. All at once, because each takes a while."""
    sites = {loss: make_site() for loss in LOSSES}
    keys = {}
    for loss, site in sites.items():
        (keys[loss],) = site.schedule("op", deadline=FAR)
        if loss.point is None:
            site.sandbox.tell("slow:1.5", key=keys[loss])  # seconds: below the call limit, time enough to kill
        site.worker(crash=loss.point and f"{loss.point}=kill", wait=False)
    for loss, site in sites.items():
        if loss.point is None:
            site.wait_request(keys[loss])
            os.kill(site.workers[0].pid, signal.SIGKILL)
    for site in sites.values():
        assert site.workers[0].wait(60) == KILLED  # seconds; eight workers start at once on two cores
        site.worker(wait=False)
    return {loss: (site, keys[loss]) for loss, site in sites.items()}


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_a_worker_killed_at_this_step_leaves_one_effect_or_an_honest_unknown(
    loss: Loss, lost: dict[Loss, tuple[Site, str]]
) -> None:
    site, key = lost[loss]
    site.wait_state(key, loss.state)
    site.wait_event(key, "ACTIVITY_TASK_TIMED_OUT")  # 22 s after the start: lease 7, patience 10, margin 5
    site.much_later()
    assert site.history(key) == ["scheduled", "calling", loss.state]
    assert len(site.sandbox.requests(key=key)) == site.sandbox.count(key) == loss.requests
    assert len(site.attempts(key)) == 1
    check(site)
    if loss.state == "unknown":
        (attempt,) = site.attempts(key)
        assert (attempt["outcome"], attempt["sent"]) == ("unknown", None)
        assert "WORKFLOW_EXECUTION_COMPLETED" not in site.events(key)
    else:
        site.wait_event(key, "WORKFLOW_EXECUTION_COMPLETED")
    site.stop()  # leaves the processors to the others


def test_a_hanging_and_a_reset_connection_after_the_effect_end_like_a_killed_worker(site: Site) -> None:
    hanging, reset = site.schedule("hanging", "reset", deadline=FAR)  # C02 (a) and (b); (c) is after_reply above
    site.sandbox.tell("commit_then_stall", key=hanging)
    site.sandbox.tell({"do": "reset", "commit": True}, key=reset)
    site.worker()
    for key in (hanging, reset):
        site.wait_state(key, "unknown")
    site.much_later()
    for key in (hanging, reset):
        assert site.history(key) == ["scheduled", "calling", "unknown"]
        assert [(attempt["outcome"], attempt["sent"]) for attempt in site.attempts(key)] == [("unknown", True)]
        assert len(site.sandbox.requests(key=key)) == site.sandbox.count(key) == 1
    check(site)
