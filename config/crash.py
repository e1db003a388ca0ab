"""Named crash points in the real path. Inert unless ``DULY_CRASH_POINT`` names one, as in ``after_claim=kill``.

Actions: ``kill`` (SIGKILL to this process), ``stop`` (SIGSTOP), ``raise`` (an exception of ours), ``exit``.
With ``DULY_CRASH_FUSE=FILE`` a point fires once, for all processes that share the file.
"""

from __future__ import annotations

import os
import signal
import time

POINTS = (
    "before_claim",  # nothing is claimed
    "in_claim_transaction",  # the claim is written and not committed
    "after_claim",  # committed; no byte has left
    "before_send",  # connected; the last check of send_before follows
    "after_reply",  # the provider answered; nothing is recorded
    "in_record_transaction",  # the outcome is written and not committed
    "after_record",  # committed; Temporal has not been told
    "dispatch_marked",  # a batch is marked and committed; nothing is started
    "dispatch_started",  # some rows of a batch are started, others are not
)

_NAME, _, _ACTION = os.environ.get("DULY_CRASH_POINT", "").partition("=")
_FUSE = os.environ.get("DULY_CRASH_FUSE")

if _NAME and (_NAME not in POINTS or _ACTION not in ("kill", "stop", "raise", "exit")):
    raise SystemExit(
        f"DULY_CRASH_POINT={_NAME}={_ACTION} is not known; "
        f"points: {', '.join(POINTS)}; actions: kill, stop, raise, exit"
    )


class CrashPointError(Exception):
    """Raised at an armed crash point: stands for a programmer error at that place."""


def _fuse_is_burnt() -> bool:
    if _FUSE is None:
        return False
    try:
        os.close(os.open(_FUSE, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return True
    return False


def point(name: str) -> None:
    """Crash here if this point is armed."""
    if name != _NAME or _fuse_is_burnt():
        return
    if _ACTION == "raise":
        raise CrashPointError(f"crash point {name}")
    if _ACTION == "exit":
        os._exit(70)
    os.kill(os.getpid(), signal.SIGKILL if _ACTION == "kill" else signal.SIGSTOP)
    # A stop lands a moment after the call returns; without this the process would run on past the point.
    time.sleep(0.3)
