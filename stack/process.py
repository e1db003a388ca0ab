"""One child process under its guard: start, wait until ready, stop, kill."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import ClassVar

GUARD = Path(__file__).with_name("guard.py")
POLL_SECONDS = 0.02  # between looks at something that gets ready within tenths of a second
LOG_TAIL_LINES = 15  # enough to see why a program ended


class StackError(Exception):
    """The local stack cannot do what was asked; the text says why and what to do."""

    exit_code: ClassVar[int] = 4  # UNAVAILABLE in cli/exit.py


class AlreadyRunningError(StackError):
    """Another process runs a stack on the same home."""

    exit_code: ClassVar[int] = 3  # REFUSED in cli/exit.py


class Process:
    """A running program. `pid` is the program's own, to be killed by tests; its output is in `log`."""

    def __init__(
        self,
        name: str,
        command: list[str],
        *,
        log: Path,
        grace: float,
        environment: Mapping[str, str] | None = None,
        folder: Path | str = "/",
        user: str | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        keep_open: tuple[int, ...] = (),
    ) -> None:
        """Starts it. After `stop_signal` it has `grace` seconds before SIGKILL. Raises StackError if it cannot be run.

        `keep_open` are file descriptors that the guard holds until the program has ended (the home's lock).
        """
        self.name = name
        self.log = log
        self.grace = grace
        self.started_at = time.monotonic()
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._log_start = os.fstat(descriptor).st_size
        try:
            # A session of its own, so that Ctrl-C reaches only us and we stop everything in order.
            self._guard = subprocess.Popen(
                [sys.executable, "-IS", str(GUARD), str(grace), stop_signal.name, user or "-", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=descriptor,
                cwd=folder,
                env=dict(os.environ if environment is None else environment),
                start_new_session=True,
                umask=0o077,  # what the programs store is their owner's business
                pass_fds=keep_open,
            )
        finally:
            os.close(descriptor)
        assert self._guard.stdout is not None
        with self._guard.stdout as pipe:
            answer = pipe.readline()
        if not answer:
            self._guard.wait()
            raise StackError(f"{name} could not be started:\n{self.log_tail()}")
        self.pid = int(answer)

    @property
    def running(self) -> bool:
        """Whether the program has not ended (and been reaped) yet."""
        return self._guard.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 + n when signal n ended it."""
        return self._guard.poll()

    def wait_until(self, ready: Callable[[], bool], *, limit: float) -> None:
        """Returns when `ready()` is true. Raises StackError when the program ends first or after `limit` seconds."""
        deadline = time.monotonic() + limit
        while not ready():
            if not self.running:
                raise StackError(
                    f"{self.name} ended at once (code {self.exit_code}); {self.log} says:\n{self.log_tail()}"
                )
            if time.monotonic() > deadline:
                raise StackError(f"{self.name} was not ready after {limit:.0f} s; {self.log} says:\n{self.log_tail()}")
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """Asks it to stop and waits; killed when its grace is over. Nothing happens if it has ended already."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()  # the guard sees the end of file and does the rest
        self._guard.wait()

    def kill(self) -> None:
        """SIGKILL, as by the kernel when memory is short. Returns when it is gone."""
        if self.running:
            os.kill(self.pid, signal.SIGKILL)
        self.stop()

    def wait(self, limit: float) -> int:
        """Exit code, once it ends by itself. Raises StackError after `limit` seconds."""
        try:
            return self._guard.wait(limit)
        except subprocess.TimeoutExpired:
            raise StackError(f"{self.name} was still running after {limit:.0f} s") from None

    def output(self) -> str:
        """What this run has written to its log so far."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def log_tail(self) -> str:
        """The last lines that this run wrote."""
        return "\n".join(self.output().splitlines()[-LOG_TAIL_LINES:]) or "(nothing)"


def answers_ok(port: int, path: str) -> bool:
    """Whether an HTTP server on this machine answers 200 to a GET."""
    connection = HTTPConnection("127.0.0.1", port, timeout=1)  # seconds; a healthy one answers in milliseconds
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def require_free(port: int, what: str, flag: str) -> None:
    """Raises StackError, naming the flag that changes it, when something else listens on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that are being forgotten do no harm
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise StackError(
                f"port {port} for {what} is taken ({error.strerror}); stop what uses it, or choose another with {flag}"
            ) from None
