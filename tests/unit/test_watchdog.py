"""The watchdog kills a process whose loop stands still, and nothing else. Real processes, with short limits."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from reconcile import watchdog
from tests.harness import wait_for

LIMIT = 1.5
"""Seconds without a tick. Above the watchdog's own period, so that a late look is not what kills."""

LATEST = LIMIT + watchdog.PERIOD + watchdog.OWN_GAP
"""Seconds after which the kill must have come, on a machine as busy as the watchdog forgives."""

PROGRAM = f"""
import asyncio, sys
from reconcile import watchdog
async def main():
    dog = watchdog.Watchdog({LIMIT})
    print(dog.pid, flush=True)
    last = dog.pid
    while True:
        dog.tick()
        if dog.pid != last:
            last = dog.pid
            print(last, flush=True)
        await asyncio.sleep(0.05)  # seconds: ten ticks in a limit
asyncio.run(main())
"""
"""A worker in so far as it concerns its watchdog. Prints the watchdog's process id, and the next one's."""

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ticking() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        yield process
        with suppress(ProcessLookupError):
            process.kill()


def watchdog_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def state(pid: int) -> str:
    """As the kernel says; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_a_stopped_process_is_killed_within_the_limit_and_says_why(ticking: subprocess.Popen[str]) -> None:
    pid = watchdog_of(ticking)
    begin = time.monotonic()
    os.kill(ticking.pid, signal.SIGSTOP)
    assert ticking.wait(60) == -signal.SIGKILL  # seconds
    lasted = time.monotonic() - begin
    assert LIMIT - 0.2 < lasted < LATEST, lasted  # the last tick was up to two ticks before
    assert ticking.stderr is not None
    assert f"worker {ticking.pid} stood still" in ticking.stderr.readline()
    wait_for(lambda: not state(pid), "the watchdog to end as well")


def test_a_loop_that_is_blocked_by_our_own_code_is_killed_too() -> None:
    program = PROGRAM.replace("dog.tick()\n", "dog.tick(); time.sleep(600)\n", 1).replace(
        "import asyncio", "import time, asyncio"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        assert process.wait(60) == -signal.SIGKILL


def test_a_process_that_ticks_lives_while_the_machine_is_busy(ticking: subprocess.Popen[str]) -> None:
    watchdog_of(ticking)
    busy = [
        subprocess.Popen([sys.executable, "-IS", "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            ticking.wait(5 * LIMIT)
    finally:
        for one in busy:
            one.kill()
            one.wait()


def test_it_ends_with_the_process_however_that_ends(ticking: subprocess.Popen[str]) -> None:
    pid = watchdog_of(ticking)
    os.kill(ticking.pid, signal.SIGKILL)
    ticking.wait()
    wait_for(lambda: not state(pid), "the watchdog to end")


def test_another_takes_its_place_when_it_is_gone(ticking: subprocess.Popen[str]) -> None:
    first = watchdog_of(ticking)
    os.kill(first, signal.SIGKILL)
    second = watchdog_of(ticking)
    assert second != first
    os.kill(ticking.pid, signal.SIGSTOP)  # and it does the same work
    assert ticking.wait(60) == -signal.SIGKILL


def test_what_stops_a_terminals_job_does_not_stop_it(ticking: subprocess.Popen[str]) -> None:
    pid = watchdog_of(ticking)
    assert os.getsid(pid) == pid  # a session of its own
    assert os.getpgid(pid) != os.getpgid(ticking.pid)


def test_when_it_was_frozen_too_it_leaves_the_judgement_to_the_process(ticking: subprocess.Popen[str]) -> None:
    pid = watchdog_of(ticking)
    for one in (ticking.pid, pid):
        os.kill(one, signal.SIGSTOP)
    wait_for(lambda: state(pid) == state(ticking.pid) == "T", "both to stand still")
    select.select([], [], [], LATEST + 1)  # the freeze; nobody is there to be waited for
    for one in (pid, ticking.pid):  # the watchdog first: it sees the whole gap
        os.kill(one, signal.SIGCONT)
    with pytest.raises(subprocess.TimeoutExpired):
        ticking.wait(2 * LIMIT)


def test_a_full_pipe_stops_no_loop_and_gets_another_watchdog() -> None:
    dog = watchdog.Watchdog(60)
    first = dog.pid
    try:
        os.kill(first, signal.SIGSTOP)
        wait_for(lambda: state(first) == "T", "it to stand still")
        for _ in range(2**20):  # bytes: a pipe holds 64 KiB
            dog.tick()
            if dog.pid != first:
                break
        assert dog.pid != first
        assert not state(first)
    finally:
        dog.stop()
