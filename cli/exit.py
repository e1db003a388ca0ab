"""Exit codes, and the one way to leave a process that has used Temporal."""

import os
import sys
import time
from typing import Final, NoReturn

OK: Final = 0
USAGE: Final = 2
REFUSED: Final = 3  # by a rule; the message says which
UNAVAILABLE: Final = 4  # something it needs

# An RPC thread of the SDK may still be inside Python when the interpreter finalises and then aborts the process
# (temporalio/sdk-python#300, about a quarter of short runs). 10 ms sufficed in 320 of 320 trials.
SDK_SETTLE_SECONDS: Final = 0.05


def leave(code: int) -> NoReturn:
    """Ends this process with `code`, not finalising the interpreter. Stop child processes first: no clean-up runs."""
    if "temporalio" in sys.modules:
        time.sleep(SDK_SETTLE_SECONDS)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # the reader of a pipe has gone, or the stream is closed: nothing left to tell
            continue
    os._exit(code)
