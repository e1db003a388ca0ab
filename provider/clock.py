"""The clock that no time server moves and that goes on while the machine sleeps."""

from __future__ import annotations

import time

# Linux has CLOCK_BOOTTIME. macOS has not: there time.monotonic() is mach_absolute_time, which stops
# during sleep; the ledger's own deadline is what guards against a laptop that was closed.
_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def boottime() -> float:
    """Seconds since boot, time asleep included where the system can tell."""
    if _BOOTTIME is None:
        return time.monotonic()
    return time.clock_gettime(_BOOTTIME)
