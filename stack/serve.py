"""Runs a stack in the foreground until somebody stops it."""

import signal
import time
from types import FrameType
from typing import NoReturn

from stack.local import Stack
from stack.process import StackError

SHORTEST_LIFE = 5.0  # seconds; a worker that ends sooner would only end again
LOOK_SECONDS = 0.2  # between looks at programs that may have ended


def serve(stack: Stack) -> None:
    """Starts the stack and returns when Ctrl-C or SIGTERM has stopped it. A worker that ends is started again.

    Raises StackError, with everything stopped, when a part cannot start or ends, or a worker ends as soon as it starts.
    Call it from the main thread.
    """
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, _interrupt) for number in signals}
    try:
        stack.start()
        stack.progress("ready; Ctrl-C stops everything")
        while True:
            _look(stack)
            time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        return
    finally:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not cut the stopping short
        stack.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


def _look(stack: Stack) -> None:
    for part in (stack.postgres, stack.temporal, stack.sandbox):
        if part and not part.running:
            raise StackError(f"{part.name} ended (code {part.exit_code}); {part.log} says:\n{part.log_tail()}")
    for worker in [one for one in stack.workers if not one.running]:
        stack.workers.remove(worker)
        text = f"the worker ended (code {worker.exit_code}); {worker.log} says:\n{worker.log_tail()}"
        if time.monotonic() - worker.started_at < SHORTEST_LIFE:
            raise StackError(text)
        stack.progress(f"{text}\nstarting it again")
        stack.start_worker(health_port=stack.ports.health)
        stack.write_state()


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
