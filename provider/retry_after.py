"""When a provider asks us to come back: the Retry-After header (RFC 9110 10.2.3), as it occurs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

# Seconds. A month is the longest quota period in use; more is somebody's epoch time or a joke, and obeying
# it would stop a connection for years.
HINT_MAX = 31 * 86400.0
_SECONDS = re.compile(r"\d{1,15}(?:\.\d{1,9})?", re.ASCII)


def retry_after(values: Sequence[str], dates: Sequence[str], now: float) -> float | None:
    """Seconds to wait, or None when there is no usable hint.

    ``values`` are all Retry-After headers, ``dates`` the answer's Date headers: an HTTP date is meant by
    the provider's clock, so it counts from there, and from ``now`` (epoch seconds) only without one.
    A date in the past gives 0. Empty, negative, unreadable and absurd hints are none. Of several the
    longest holds: waiting too long is the smaller harm.
    """
    if not values:
        return None
    base = next((when for when in map(_instant, dates) if when is not None), now)
    waits = [wait for wait in (_seconds(value.strip(), base) for value in values) if wait is not None]
    return max(waits, default=None)


def _seconds(value: str, base: float) -> float | None:
    if _SECONDS.fullmatch(value):
        wait = float(value)
    else:
        when = _instant(value)
        if when is None:
            return None
        wait = max(0.0, when - base)
    return wait if wait <= HINT_MAX else None


def _instant(value: str) -> float | None:
    """Epoch seconds of an HTTP date in any of its three forms, always GMT."""
    try:
        when = parsedate_to_datetime(value)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def http_date(epoch: float) -> str:
    """The preferred form of an HTTP date."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
