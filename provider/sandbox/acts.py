"""What a client gets to see of what became of its request."""

from __future__ import annotations

from provider.sandbox.behaviours import Behaviour
from provider.sandbox.effects import Committed, Wish
from provider.sandbox.wire import JSON, Wire

_WAIT = 1.0  # seconds, when none are told

_WITH_EFFECT = frozenset({"ok", "slow", "commit_then_close", "commit_then_stall", "cut_body", "ignore_keys"})


def wish_of(behaviour: Behaviour) -> Wish | None:
    """What this behaviour asks the record for; None: nothing at all."""
    match behaviour.do:
        case "accept" | "accept_then_fail":
            return Wish(202, after=seconds_of(behaviour), fails=behaviour.do == "accept_then_fail")
        case "stored_error":
            return Wish(behaviour.status, effect=behaviour.commit)
        case "ignore_keys":
            return Wish(honour_key=False)
        case do if do in _WITH_EFFECT or behaviour.commit:
            return Wish()
        case _:
            return None


def seconds_of(behaviour: Behaviour) -> float:
    """How long it takes."""
    return _WAIT if behaviour.seconds is None else behaviour.seconds


async def act(behaviour: Behaviour, done: Committed | None, wire: Wire) -> None:
    """What the client gets to see."""
    match behaviour.do:
        case "commit_then_close" | "close_before_commit":
            wire.close()
        case "commit_then_stall":
            await wire.wait_for_end(behaviour.seconds)
            wire.close()
        case "reset":
            wire.reset()
        case "throttle":
            await wire.answer_json(429, {"error": "throttled"}, [("Retry-After", behaviour.retry_after)])
        case "deny":
            await wire.answer_json(401, {"error": "denied"}, [("WWW-Authenticate", "Bearer")])
        case "in_flight_409":
            await wire.answer_json(409, {"error": "in_flight", "message": "this key is being processed"})
        case "status":
            await wire.answer(behaviour.status, behaviour.body.encode("utf-8", "replace"), behaviour.headers.items())
        case _:
            assert done is not None
            replayed = [("Idempotent-Replayed", "true")] if done.replayed else []
            cut = behaviour.do == "cut_body" and done.status < 300
            await wire.answer(done.status, done.answer, [JSON, *replayed], cut=cut)
            if cut:
                wire.close()


def answer_word(behaviour: Behaviour, done: Committed | None) -> str:
    """The answer as the record shows it."""
    fixed = {
        "commit_then_close": "closed",
        "close_before_commit": "closed",
        "commit_then_stall": "stalled",
        "reset": "reset",
        "throttle": "429",
        "deny": "401",
        "in_flight_409": "409",
        "status": str(behaviour.status),
    }
    if behaviour.do in fixed:
        return fixed[behaviour.do]
    assert done is not None
    replayed = " replayed" if done.replayed else " cut" if behaviour.do == "cut_body" and done.status < 300 else ""
    return f"{done.status}{replayed}"
