"""What a provider must be able to do to an adapter, so that the suite can run: one bench per adapter.

A bench owns a provider (a real process or a server of its own) with a record of effects that the adapter cannot write.
What this sort of provider cannot do raises ``NotPossibleError``; what the descriptor declares must be possible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from provider.port import Adapter


class Do(StrEnum):
    """What the provider does with the next request of a key."""

    APPLY = "apply"
    REFUSE = "refuse"  # for good, because of what was sent
    DENY = "deny"  # because of who sent it
    THROTTLE = "throttle"
    CODE = "code"  # answer this code, without effect
    ECHO = "echo"  # refuse, and repeat payload and credential in the text
    HANG_UP = "hang up"  # after the effect, without a reply
    HANG_UP_BEFORE = "hang up before"  # without effect or reply
    CUT = "cut"  # after the effect, in the middle of the reply
    STALL = "stall"  # after the effect, say nothing
    LATE = "late"  # say nothing; the effect comes this many seconds later
    SLOW = "slow"  # reply this many seconds later; the key is in flight meanwhile
    STORED_ERROR = "stored error"  # an error without effect that is replayed under the key
    ACCEPT = "accept"  # taken; done this many seconds later
    ACCEPT_THEN_FAIL = "accept then fail"


class Say(StrEnum):
    """What the provider answers to the next look-ups of a key."""

    TRUTH = "truth"
    SEVERAL = "several"
    WRONG = "wrong"  # somebody else's
    FULL = "full"  # a full page of somebody else's, and no next one
    ERROR = "error"
    DENIED = "denied"
    STALL = "stall"
    CUT = "cut"


class NotPossibleError(Exception):
    """This sort of provider cannot do that."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect, by the provider's record."""

    idempotency_key: str | None
    body: bytes


class Bench(Protocol):
    """One adapter with its provider."""

    adapter: Adapter
    """Under test."""
    secret: str
    """The credential that ``adapter`` uses."""
    codes: tuple[int, ...]
    """Codes of this protocol's refusals to try, beside those that the descriptor names."""

    def other(self, *, secret: str | None = None, reachable: bool = True) -> Adapter:
        """Another adapter of the same settings, with another credential or another, dead address."""
        ...

    async def tell(self, key: str, do: Do, value: float = 0) -> None:
        """For the next request of this key only."""
        ...

    async def tell_look_up(self, key: str, say: Say) -> None:
        """For all look-ups of this key from now on."""
        ...

    async def effects(self, key: str) -> list[Effect]:
        """All effects of this operation, at this moment."""
        ...

    async def requests(self, key: str) -> int:
        """Requests for an effect of this operation that reached the provider."""
        ...

    async def forget(self, key: str) -> None:
        """The provider forgets the idempotency keys of this operation, as after their retention."""
        ...

    async def pass_time(self, seconds: float) -> None:
        """The provider's clock goes on."""
        ...


Wrap = Callable[[Adapter], Adapter]
"""Puts something between suite and adapter: to show that the suite sees it."""

OpenBench = Callable[[Wrap, Mapping[str, Any]], AbstractAsyncContextManager[Bench]]
"""Opens a bench; the mapping replaces settings in its provider's table."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One sort of provider that the suite runs against."""

    adapter: str
    """Name in ``registry.ADAPTERS``."""
    open: OpenBench
