"""What an HTTP answer proves: one pure table from status to outcome, and the rules for changing it.

The default is ``UNKNOWN``. A provider's own table (``[providers.X.answers]``) may say more than the
default does, but never something that an HTTP answer cannot prove.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from provider.port import OutcomeName as O

DEFAULTS: Mapping[int, O] = MappingProxyType(
    {
        202: O.ACCEPTED,  # RFC 9110 15.3.3: "intentionally noncommittal"
        207: O.UNKNOWN,  # mixed results: one status cannot say which part happened
        400: O.REJECTED,
        401: O.DENIED,
        403: O.DENIED,
        404: O.REJECTED,
        405: O.REJECTED,
        410: O.REJECTED,
        413: O.REJECTED,
        415: O.REJECTED,
        421: O.NOT_PROCESSED,  # RFC 9110 15.5.20: may be retried whatever the method
        422: O.REJECTED,
        425: O.NOT_PROCESSED,  # RFC 8470: refused before processing
        429: O.THROTTLED,
        501: O.REJECTED,
        505: O.REJECTED,
    }
)
"""Exact statuses. Any other 2xx is delivered and everything else unknown, in particular:

- every 3xx. We follow none. 301 and 302 are also how old applications say "done, see there". 307 and
  308 most likely mean "not done here", but a redirect is a fault of configuration and sending again
  would meet it again; who knows the provider can write ``"307" = "not_processed"``.
- 408 (gateways misuse it), 409 (four meanings among providers), every other 5xx.
"""

# What one status may be declared to mean. A reply proves that our request left, so never NOT_SENT;
# INVALID and DEFECT are about ourselves.
_SAFE = frozenset({O.UNKNOWN, O.DUPLICATE})  # neither permits another send without a look
_SUCCESS = _SAFE | {O.DELIVERED, O.ACCEPTED}
_REFUSAL = _SAFE | {
    O.REJECTED, O.DENIED, O.KEY_MISMATCH, O.THROTTLED, O.NOT_PROCESSED, O.IN_FLIGHT,
}  # fmt: skip
# 5xx that can come from a place that never passed the request on (RFC 9110 15.6; Cloudflare's 521 and
# 523; 529 "overloaded"). All others may follow an effect: Stripe, Twilio and Mailgun are known for it.
_VOUCHABLE_5XX = frozenset({501, 503, 505, 521, 523, 529})
_CLASSES = MappingProxyType(
    {
        "2xx": frozenset({O.DELIVERED, O.ACCEPTED, O.UNKNOWN}),
        "3xx": _SAFE,
        "4xx": frozenset({O.REJECTED, O.UNKNOWN}),
        "5xx": frozenset({O.UNKNOWN}),
    }
)
_STATUS = re.compile(r"[2-5][0-9][0-9]")


def _permitted(status: int) -> frozenset[O]:
    if status < 300:
        return _SUCCESS
    if status < 400:
        return _SUCCESS | {O.NOT_PROCESSED, O.REJECTED, O.DENIED}
    if status == 409:  # some providers answer a repeat with it and with the first result
        return _SUCCESS | _REFUSAL
    if status == 499:  # a proxy's word for "the client went away": says nothing about the origin
        return _SAFE
    if status < 500 or status in _VOUCHABLE_5XX:
        return _REFUSAL
    return _SAFE


def check_overrides(overrides: Mapping[str, str]) -> dict[str, O]:
    """The overrides as outcomes. Raises ValueError, naming entry and remedy, for one that cannot hold."""
    checked: dict[str, O] = {}
    for status, word in overrides.items():
        if status in _CLASSES:
            allowed = _CLASSES[status]
        elif _STATUS.fullmatch(status):
            allowed = _permitted(int(status))
        else:
            raise ValueError(f'"{status}" is no status; write "409" or a class such as "4xx"')
        if word not in {name.value for name in allowed}:
            choices = ", ".join(sorted(allowed))
            raise ValueError(f'"{status}" = "{word}" would claim what such an answer cannot prove; possible: {choices}')
        checked[status] = O(word)
    return checked


class AnswerTable:
    """Status to outcome for one provider: exact override, default, class override, class default."""

    def __init__(self, overrides: Mapping[str, str] | None = None) -> None:
        """Raises ValueError as ``check_overrides`` does."""
        self._overrides = check_overrides(overrides or {})

    def outcome(self, status: int) -> O:
        """What this status proves. Total: a status nobody thought of is UNKNOWN."""
        exact = self._overrides.get(str(status))
        if exact is not None:
            return exact
        by_class = self._overrides.get(f"{status // 100}xx")
        # A class speaks for the statuses that have no meaning of their own: "4xx" = "rejected" must not
        # turn a 429 into a refusal for ever.
        default = DEFAULTS.get(status)
        if default is not None:
            return default
        if by_class is not None:
            return by_class
        return O.DELIVERED if 200 <= status < 300 else O.UNKNOWN
