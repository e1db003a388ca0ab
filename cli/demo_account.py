"""The demo's account: what three independent records say about the same operations. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Account:
    """``duplicates``, ``lost`` and ``late`` must be zero."""

    operations: int
    delivered: int
    unknown: int
    ended_other: int
    provider_effects: int
    duplicates: int
    lost: int
    late: int

    @property
    def good(self) -> bool:
        """Nothing went wrong that was promised not to."""
        return not (self.duplicates or self.lost or self.late)

    def as_dict(self) -> dict[str, int]:
        """For ``--json``."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Operation:
    """What the ledger says. ``visible``: its alarm is set, or it is in the list of what needs somebody."""

    state: str
    due_at: datetime
    deadline: datetime
    ended: bool
    visible: bool


def account(
    ledger: Mapping[str, Operation],
    effects: Mapping[str, Sequence[Any]],
    requests: Sequence[Mapping[str, Any]],
    workflows: Collection[str],
) -> Account:
    """Counts from the ledger, the provider's own effects and requests, and the keys that Temporal has workflows of."""
    states = Counter(operation.state for operation in ledger.values())
    return Account(
        operations=len(ledger),
        delivered=states["delivered"],
        unknown=states["unknown"],
        ended_other=sum(operation.ended and operation.state != "delivered" for operation in ledger.values()),
        provider_effects=sum(map(len, effects.values())),
        # An effect without an operation is one too many as well.
        duplicates=sum(len(done) - (key in ledger) for key, done in effects.items()),
        lost=len(set(_lost(ledger, effects, workflows))),
        late=sum(_out_of_time(request, ledger) for request in requests),
    )


def _lost(
    ledger: Mapping[str, Operation], effects: Mapping[str, Sequence[Any]], workflows: Collection[str]
) -> Iterator[str]:
    for key, operation in ledger.items():
        if not operation.ended and not operation.visible:
            yield key
        if operation.state == "delivered" and not effects.get(key):
            yield key
    yield from (key for key in workflows if key not in ledger)  # Temporal works on what the ledger never had


def _out_of_time(request: Mapping[str, Any], ledger: Mapping[str, Operation]) -> bool:
    operation = ledger.get(str(request["key"]))
    if operation is None:
        return False  # counted as a duplicate if it had an effect
    return not operation.due_at.timestamp() <= request["at"] <= operation.deadline.timestamp()
