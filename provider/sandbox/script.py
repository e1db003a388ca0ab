"""What the sandbox has been told to do, per key, per prefix or by rate. Pure; the store keeps it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from provider.sandbox.behaviours import BEHAVIOURS, LOOK_UPS, OK, Behaviour, parse_behaviour


@dataclass(frozen=True, slots=True)
class Rule:
    """One instruction. Either ``key`` is given or the rule holds for every key that starts with ``prefix``."""

    key: str | None
    prefix: str
    rate: float
    behaviours: tuple[Behaviour, ...]
    look_up: bool = False
    """It is about look-ups; else about requests for an effect."""

    @property
    def target(self) -> str:
        """What the rule is about; a later rule with the same target replaces it."""
        target = f"key {self.key}" if self.key is not None else f"match {self.prefix}* rate {self.rate:g}"
        return f"look_up {target}" if self.look_up else target

    def holds_for(self, key: str) -> bool:
        """Whether this key is meant. By rate: the same keys each time, chosen by their digest."""
        if self.key is not None:
            return key == self.key
        if not key.startswith(self.prefix):
            return False
        draw = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) / 2**64
        return self.rate >= 1 or draw < self.rate


def parse_rule(told: Any) -> Rule:
    """A rule from ``{"key": …}`` or ``{"match": "prefix*", "rate": 0.1}`` with ``"behaviour"`` or ``"look_up": […]``.

    Neither key nor match: every key. The behaviours are used one per request (or look-up) of a key, the last
    one for ever; none removes the rule. Raises ValueError.
    """
    if not isinstance(told, Mapping):
        raise ValueError("an instruction is an object with key or match, and behaviour")  # noqa: TRY004 - all one to who told us
    unknown = told.keys() - {"key", "match", "rate", "behaviour", "look_up"}
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: no such field of an instruction")
    look_up = "look_up" in told
    if look_up and "behaviour" in told:
        raise ValueError("give behaviour or look_up, not both")
    known, behaviours = (LOOK_UPS, told["look_up"]) if look_up else (BEHAVIOURS, told.get("behaviour"))
    key, match, rate = told.get("key"), told.get("match"), told.get("rate", 1)
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
    parsed = tuple(parse_behaviour(behaviour, known) for behaviour in behaviours)
    return Rule(key, (match or "*")[:-1], float(rate), parsed, look_up)


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
