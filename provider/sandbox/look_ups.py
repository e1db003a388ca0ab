"""How the sandbox answers a look-up, by key or in its list, truly or as told. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from provider.sandbox.behaviours import Behaviour
from provider.sandbox.effects import Found, error

PAGE = 20  # items of a page unless ``limit`` says otherwise
PAGE_MAX = 100  # as with most providers

_INVENTED = 900_000_000  # numbers from here on belong to no real effect
_OTHER = ("somebody-else", "somebody-else")
_LAG = 3.0  # seconds, when none are told


def lag_of(behaviour: Behaviour) -> float:
    """Seconds for which an effect is not shown yet."""
    if behaviour.do != "lag":
        return 0.0
    return _LAG if behaviour.seconds is None else behaviour.seconds


def visible(found: Sequence[Found], behaviour: Behaviour, key: str, idempotency_key: str, now: float) -> list[Found]:
    """What this look-up shows of what is there, with what is made up."""
    do = behaviour.do
    if do == "absent":
        return []
    if do == "present":
        return list(found) or [_invented(0, key, idempotency_key, now)]
    if do == "several":
        first = found[0] if found else _invented(0, key, idempotency_key, now)
        return [first, _invented(1, first.key, first.idempotency_key, now, first.body)]
    if do == "wrong":
        return [_invented(0, *_OTHER, now)]
    if do == "full_page":
        return [_invented(number, *_OTHER, now) for number in range(PAGE_MAX)]
    return list(found)


def one(found: Sequence[Found]) -> tuple[int, bytes]:
    """The answer to a question for one effect by its idempotency key."""
    live = [item for item in found if item.status in ("queued", "done")]
    if len(live) > 1:
        return 409, error("several", f"{len(live)} effects have this key")
    for item in [*live, *found]:
        return 200, json.dumps(item.shown(), ensure_ascii=False).encode("utf-8", "replace")
    return 404, error("not_found", "there is no effect with this key")


def page(found: Sequence[Found], behaviour: Behaviour, limit: int, query: dict[str, str]) -> tuple[int, bytes]:
    """A page of the list. ``found`` has one more than ``limit`` when there is a next one."""
    following = None
    if len(found) > limit and behaviour.do != "full_page":
        following = "/effects?" + urlencode({**query, "limit": limit, "cursor": found[limit - 1].number})
    document = {"items": [item.shown() for item in found[:limit]], "next": following}
    return 200, json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")


def _invented(number: int, key: str | None, idempotency_key: str | None, now: float, body: bytes = b"{}") -> Found:
    return Found(_INVENTED + number, now, key, idempotency_key, body, "done")


def limit_of(value: Any) -> int:
    """Items asked for. Raises ValueError."""
    limit = int(value)
    if not 1 <= limit <= PAGE_MAX:
        raise ValueError(f"limit must be from 1 to {PAGE_MAX}")
    return limit
