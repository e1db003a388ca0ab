"""Durations as people write them in duly.toml: ``500ms``, ``10s``, ``5m``, ``1h``, ``1d``."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# Ten digits are three centuries of seconds: more is a slip of the keyboard, not a wish.
_FORM = re.compile(r"(\d{1,10}(?:\.\d{1,6})?)(ms|s|m|h|d)", re.ASCII)


def parse_duration(text: Any) -> float:
    """Seconds of one duration such as ``"10s"``.

    Raises ValueError for anything else, bare numbers included: nobody can tell their unit.
    """
    form = _FORM.fullmatch(text) if isinstance(text, str) else None
    if form is None:
        raise ValueError(f'{text!r} is not a duration; write for example "500ms", "10s", "5m", "1h" or "1d"')
    return float(form[1]) * _SECONDS[form[2]]


def _positive(text: Any) -> float:
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError(f"{text!r} must be more than nothing")
    return seconds


Duration = Annotated[float, BeforeValidator(parse_duration)]
"""A pydantic field: a duration string in, seconds out. May be zero."""

PositiveDuration = Annotated[float, BeforeValidator(_positive)]
"""The same, more than zero."""
