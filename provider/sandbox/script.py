"""What the sandbox has been told to do, per key, per prefix or by rate. Pure; the store keeps it."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

BEHAVIOURS: Mapping[str, str] = {
    "ok": "commit and answer 201; a repeat of a key is answered as the first time",
    "commit_then_close": "commit, then close the connection without an answer",
    "commit_then_stall": "commit, then say nothing (:SECONDS, else until the client goes)",
    "close_before_commit": "close the connection without an effect",
    "cut_body": "commit, answer 201, close in the middle of the body",
    "status": "answer any status (:STATUS), with headers and body; an effect only if commit is true",
    "slow": "wait (:SECONDS, default 1), then as ok; the same key meanwhile is answered 409",
    "reset": "reset the connection (RST); an effect only if commit is true",
    "throttle": "answer 429 with Retry-After (:SECONDS, default 2)",
    "deny": "answer 401",
    "in_flight_409": "answer 409, as if the key were being processed",
    "ignore_keys": "take the key and ignore it: each request is a new effect",
}

# The field that the short form "name:value" fills.
_SHORT = {"commit_then_stall": "seconds", "slow": "seconds", "status": "status", "throttle": "retry_after"}
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110 5.1
_VALUE = re.compile(r"[\x20-\x7e]*")


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How one request is treated. Which fields count depends on ``do``."""

    do: str
    seconds: float | None = None
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    commit: bool = False
    retry_after: str = "2"


OK = Behaviour("ok")


def parse_behaviour(told: Any) -> Behaviour:
    """A behaviour from ``"name"``, ``"name:value"`` or an object with ``do``. Raises ValueError with the choices."""
    values: dict[str, Any]
    if isinstance(told, str):
        name, colon, value = told.partition(":")
        values = {"do": name}
        if colon:
            if name not in _SHORT:
                raise ValueError(f"{name} takes no value")
            values[_SHORT[name]] = value
    elif isinstance(told, Mapping):
        values = dict(told)
    else:
        raise ValueError(f"a behaviour is a name or an object, not {told!r}")  # noqa: TRY004 - all one to who told us
    if values.get("do") not in BEHAVIOURS:
        raise ValueError(f"{values.get('do')!r} is no behaviour; there are: {', '.join(BEHAVIOURS)}")
    unknown = values.keys() - {known.name for known in fields(Behaviour)}
    if unknown:
        raise ValueError(f"{', '.join(sorted(map(str, unknown)))}: no such field of a behaviour")
    return Behaviour(**{name: _checked(name, value) for name, value in values.items()})


def _checked(name: str, value: Any) -> Any:
    if name == "seconds":
        seconds = float(value)
        if not 0 <= seconds <= 86400:  # a day: nobody waits longer, and infinity is a slip
            raise ValueError("seconds must be from 0 to 86400")
        return seconds
    if name == "status":
        if not 200 <= int(value) <= 599:
            raise ValueError("status must be from 200 to 599")
        return int(value)
    if name == "headers":
        if not isinstance(value, Mapping) or not all(
            isinstance(text, str) and _TOKEN.fullmatch(header) and _VALUE.fullmatch(text)
            for header, text in value.items()
        ):
            raise ValueError("headers must be an object of names and printable texts")
        return dict(value)
    if name == "commit":
        if not isinstance(value, bool):
            raise ValueError("commit must be true or false")
        return value
    if name == "retry_after" and not _VALUE.fullmatch(str(value)):
        raise ValueError("retry_after must be printable")
    return str(value)


@dataclass(frozen=True, slots=True)
class Rule:
    """One instruction. Either ``key`` is given or the rule holds for every key that starts with ``prefix``."""

    key: str | None
    prefix: str
    rate: float
    behaviours: tuple[Behaviour, ...]

    @property
    def target(self) -> str:
        """What the rule is about; a later rule with the same target replaces it."""
        return f"key {self.key}" if self.key is not None else f"match {self.prefix}* rate {self.rate:g}"

    def holds_for(self, key: str) -> bool:
        """Whether this key is meant. By rate: the same keys each time, chosen by their digest."""
        if self.key is not None:
            return key == self.key
        if not key.startswith(self.prefix):
            return False
        draw = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) / 2**64
        return self.rate >= 1 or draw < self.rate


def parse_rule(told: Any) -> Rule:
    """A rule from ``{"key": …}`` or ``{"match": "prefix*", "rate": 0.1}`` with ``"behaviour": […]``.

    Neither key nor match: every key. The behaviours are used one per request of a key, the last one for
    ever; none removes the rule. Raises ValueError.
    """
    if not isinstance(told, Mapping):
        raise ValueError("an instruction is an object with key or match, and behaviour")  # noqa: TRY004 - all one to who told us
    unknown = told.keys() - {"key", "match", "rate", "behaviour"}
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: no such field of an instruction")
    key, match, rate, behaviours = told.get("key"), told.get("match"), told.get("rate", 1), told.get("behaviour")
    if key is not None and (match is not None or "rate" in told):
        raise ValueError("give key, or match and rate, not both")
    for name, text in (("key", key), ("match", match)):
        if text is not None and not isinstance(text, str):
            raise ValueError(f"{name} must be a text")
    if match is not None and not match.endswith("*"):
        raise ValueError('match must end with "*"; for one key give key')
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1:
        raise ValueError("rate must be above 0 and at most 1")
    if isinstance(behaviours, str | Mapping):
        behaviours = [behaviours]
    if not isinstance(behaviours, list):
        raise ValueError("behaviour must be a list")  # noqa: TRY004 - all one to who told us
    return Rule(key, (match or "*")[:-1], float(rate), tuple(map(parse_behaviour, behaviours)))


class Script:
    """The rules in force, and how far each key has come in its rule."""

    def __init__(self, rules: Iterable[tuple[int, Rule]] = (), used: Mapping[tuple[int, str], int] | None = None):
        """Rules by their number, and the requests already counted by (rule number, key)."""
        self._used = Counter(dict(used or {}))
        self._by_key: dict[str, tuple[int, Rule]] = {}
        self._by_prefix: list[tuple[int, Rule]] = []
        for number, rule in rules:
            if rule.key is not None:
                self._by_key[rule.key] = (number, rule)
            else:
                self._by_prefix.append((number, rule))
        # The longest prefix speaks first; of equals, the rarer one.
        self._by_prefix.sort(key=lambda item: (-len(item[1].prefix), item[1].rate))

    def next(self, key: str) -> tuple[int | None, Behaviour]:
        """The rule's number and what to do with the next request of this key."""
        found = self._by_key.get(key)
        if found is None:
            found = next((item for item in self._by_prefix if item[1].holds_for(key)), None)
        if found is None:
            return None, OK
        number, rule = found
        position = self._used[number, key]
        self._used[number, key] += 1
        return number, rule.behaviours[min(position, len(rule.behaviours) - 1)]
