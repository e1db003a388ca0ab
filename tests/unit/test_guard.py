"""The guard: a program under it never outlives whoever started it."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stack.process import Process, StackError

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
)
WAITING = "import time; print('ready', flush=True); time.sleep(60)"


def start(script: str, folder: Path, *, grace: float = 20.0) -> Process:
    return Process("program", [sys.executable, "-IS", "-c", script], log=folder / "program.log", grace=grace)


def wait_for(condition: Callable[[], bool], limit: float = 20.0) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_program_is_stopped_when_its_starter_ends(tmp_path: Path) -> None:
    process = start(WAITING, tmp_path)
    wait_for(lambda: "ready" in process.output())
    process.stop()  # closes the pipe, as the kernel does for a starter that was killed
    assert not exists(process.pid)
    assert process.exit_code == 128 + signal.SIGTERM


def test_a_program_that_ignores_the_request_to_stop_is_killed_when_its_grace_is_over(tmp_path: Path) -> None:
    process = start(STUBBORN, tmp_path, grace=0.1)
    wait_for(lambda: "ready" in process.output())
    process.stop()
    assert not exists(process.pid)
    assert process.exit_code == 128 + signal.SIGKILL


def test_the_program_itself_can_be_killed_and_the_guard_says_how_it_ended(tmp_path: Path) -> None:
    process = start(WAITING, tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(20) == 128 + signal.SIGKILL


def test_the_exit_code_of_the_program_is_passed_on(tmp_path: Path) -> None:
    assert start("raise SystemExit(7)", tmp_path).wait(20) == 7


def test_a_guard_that_is_asked_to_stop_stops_its_program(tmp_path: Path) -> None:
    process = start(WAITING, tmp_path)
    wait_for(lambda: "ready" in process.output())
    process._guard.terminate()
    process.wait(20)
    assert not exists(process.pid)


def test_a_program_that_cannot_be_run_is_an_error_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="cannot run /no/such/program"):
        Process("program", ["/no/such/program"], log=tmp_path / "program.log", grace=1)


def test_a_program_that_ends_before_it_is_ready_is_reported_with_what_it_wrote(tmp_path: Path) -> None:
    process = start("print('no such table'); raise SystemExit(1)", tmp_path)
    with pytest.raises(StackError, match=r"code 1.*\n.*no such table"):
        process.wait_until(lambda: False, limit=20)


def test_only_what_this_run_wrote_counts_as_its_output(tmp_path: Path) -> None:
    start("print('first')", tmp_path).wait(20)
    second = start("print('second')", tmp_path)
    second.wait(20)
    assert second.output() == "second\n"
    assert (tmp_path / "program.log").read_text() == "first\nsecond\n"
