"""What exceptions tell about the world: what caused them, and in words."""

from __future__ import annotations

import asyncio
import ssl


def causes(fault: BaseException | None) -> list[BaseException]:
    """The exception and what led to it, groups opened, outermost first."""
    found: list[BaseException] = []
    waiting = [fault]
    while waiting and len(found) < 20:  # chains here are 4 long; the limit guards against a circle
        cause = waiting.pop(0)
        if cause is None or cause in found:
            continue
        found.append(cause)
        waiting += [cause.__cause__, cause.__context__]
        if isinstance(cause, BaseExceptionGroup):
            waiting += cause.exceptions
    return found


def untrusted(fault: BaseException | None) -> bool:
    """Whether the server's certificate is not trusted: configuration, not weather."""
    return any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes(fault))


class TooLateError(Exception):
    """The time for the first byte had passed."""


def describe(fault: BaseException, time_limit: float) -> str:
    """In words. What it quotes is not cleaned."""
    if isinstance(fault, TooLateError):
        return "too late: the time for the first byte had passed"
    if isinstance(fault, asyncio.CancelledError):
        return "cancelled during the call"
    if isinstance(fault, TimeoutError):
        return f"no complete answer within {time_limit:g} s"
    # The client says "All connection attempts failed"; the system underneath says why.
    system = [cause for cause in causes(fault) if isinstance(cause, OSError) and str(cause)]
    told = system[-1] if system else fault
    return f"{type(told).__name__}: {told}" if str(told) else type(told).__name__
