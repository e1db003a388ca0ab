"""Times as people type them: ISO 8601 with a zone, ``now``, or ``+10m`` from now."""

from __future__ import annotations

from datetime import datetime, timedelta

HELP = "ISO 8601 with zone (2030-01-31T09:00+01:00), now, or +10m"

Moment = datetime | timedelta
"""Absolute, or relative to a now that is asked for later (the ledger's clock)."""


class TimeError(ValueError):
    """The text is no time that can be used; it says why and what to write."""


def parse(text: str, field: str) -> Moment:
    """Raises TimeError naming the field."""
    text = text.strip()
    if text == "now":
        return timedelta()
    if text.startswith("+"):
        from provider.durations import parse_duration

        try:
            return timedelta(seconds=parse_duration(text[1:]))
        except (ValueError, OverflowError):
            raise TimeError(f'{field} is {text!r}, which is no duration; write for example "+10m" or "+2h"') from None
    try:
        # A date alone would pass as midnight without a zone.
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise TimeError(f"{field} is {text!r}, which is no time; write {HELP}") from None
    if moment.tzinfo is None:
        raise TimeError(f"{field} is {text!r}, which has no time zone; add one, for example {_with_zone(text)}")
    return moment


def resolve(moment: Moment, now: datetime) -> datetime:
    """The absolute time. Raises TimeError when it lies beyond the calendar."""
    try:
        return moment if isinstance(moment, datetime) else now + moment
    except OverflowError:
        raise TimeError("the time lies beyond the year 9999") from None


def _with_zone(text: str) -> str:
    return f"{text}Z" if len(text) > len("2030-01-31") else f"{text}T09:00Z"
