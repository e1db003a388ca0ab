"""The watchdog: a process of the worker's own that kills it when its event loop stands still.

    python -IS watchdog.py PID LIMIT_SECONDS

No code of the worker can bound how long the worker is frozen between its last look at the clock and the first byte on
the wire; somebody else can. Standard input is a pipe into which the loop writes at every tick; its end means that the
worker has ended. In a session of its own: a terminal that stops the worker does not stop this. Standard library only.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import time

TICK = 0.5
"""Seconds between two ticks of a worker's event loop."""

PERIOD = 1.0
"""Seconds between two looks at a pipe that stays silent."""

OWN_GAP = 5.0
"""Seconds by which a look may come late before it says: not the worker stood still, the machine did and this with it.
Then the worker gets its limit anew, and sees for itself (worker.py). More than a busy machine delays a process here."""

_log = logging.getLogger("duly.watchdog")


class Watchdog:
    """The worker's side. Starts the process, and another one should it be gone."""

    def __init__(self, limit: float) -> None:
        """``limit``: seconds without a tick that the worker may live. Raises OSError if it cannot be started."""
        self.limit = limit
        if os.getpid() == 1:
            # The kernel keeps the first process of a container from signals of its own children.
            _log.error("as process 1 this worker cannot be killed by its watchdog: run it under an init (docker run --init)")
        self._start()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def tick(self) -> None:
        """The loop turns. Raises OSError if the watchdog is gone and no other can be started: then end."""
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), b".")
        except OSError as error:  # it is gone, or it has not read for hours
            _log.error("the watchdog is gone; starting another", extra={"pid": self.pid, "error": str(error)})
            self.stop()
            self._start()

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-IS", __file__, str(os.getpid()), str(self.limit)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd="/",
            env={},
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)  # a full pipe must not stop the loop


def watch(worker: int, limit: float) -> int:
    """Until the pipe ends (0), or the worker had to be killed (1)."""
    ticked = looked = time.monotonic()
    while True:
        ready, _, _ = select.select([0], [], [], PERIOD)
        now = time.monotonic()
        if now - looked > PERIOD + OWN_GAP:
            ticked = now
        looked = now
        if ready:
            if not os.read(0, 65536):
                return 0
            ticked = now
        elif now - ticked > limit:
            if os.getppid() == worker:  # else it has ended, and its number may be somebody else's
                os.kill(worker, signal.SIGKILL)
                os.write(2, f"watchdog: worker {worker} stood still for {now - ticked:.0f} s and was killed\n".encode())
            return 1


if __name__ == "__main__":
    sys.exit(watch(int(sys.argv[1]), float(sys.argv[2])))
