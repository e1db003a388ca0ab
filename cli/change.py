"""``duly cancel`` and ``reschedule``: a ledger fact first, a nudge second."""

from __future__ import annotations

from typing import Any

import typer

from cli import times
from cli.errors import refused, usage
from cli.options import Deadline, Due, Json, Key, Reason, examples
from cli.output import print_json, say
from ledger.states import ENDINGS


def register(app: typer.Typer) -> None:
    app.command(epilog=examples('./duly cancel order-17:confirmation:1 --reason "the customer withdrew"'))(cancel)
    app.command(
        epilog=examples("./duly reschedule order-17:confirmation:1 --due +1h --deadline +3h --reason 'shop is closed'")
    )(reschedule)


def cancel(key: Key, reason: Reason, as_json: Json = False) -> None:
    """Withdraw an operation. During a call it is kept: no further attempt starts."""
    from cli.session import run

    finish(run(_cancel(key, reason)), as_json)


async def _cancel(key: str, reason: str) -> dict[str, Any]:
    from dataclasses import asdict

    from cli.session import environment, ledger, nudge
    from ledger import transitions

    env = environment()
    async with ledger(env) as engine:
        answer = asdict(await transitions.cancel(engine, key, reason))
    if not answer["done"] and answer["state"] in ENDINGS:
        return answer
    return {**answer, "nudge": await nudge(env, key)}


def reschedule(key: Key, due: Due, deadline: Deadline, reason: Reason, as_json: Json = False) -> None:
    """Move a scheduled operation to other times."""
    from cli.session import run

    try:
        moments = times.parse(due, "--due"), times.parse(deadline, "--deadline")
    except times.TimeError as error:
        raise usage(str(error)) from None
    finish(run(_reschedule(key, moments, reason)), as_json)


async def _reschedule(key: str, moments: tuple[times.Moment, times.Moment], reason: str) -> dict[str, Any]:
    from dataclasses import asdict

    from cli.session import environment, ledger, ledger_now, nudge
    from ledger import transitions

    env = environment()
    async with ledger(env) as engine:
        async with engine.begin() as connection:
            now = await ledger_now(connection)
        try:
            due_at, deadline = (times.resolve(moment, now) for moment in moments)
        except times.TimeError as error:
            raise usage(str(error)) from None
        answer = asdict(await transitions.reschedule(engine, key, due_at, deadline, reason))
    return {**answer, "nudge": await nudge(env, key)} if answer["done"] else answer


def finish(answer: dict[str, Any], as_json: bool) -> None:
    """Prints which state won; exit code 3 when it was not the one asked for."""
    if as_json:
        print_json(answer)
    if not answer["done"]:
        raise refused(f"{answer['key']}: {answer['answer']}", answer.get("nudge", ""))
    if not as_json:
        print(f"{answer['key']}: {answer['answer']}")
        if answer.get("nudge"):
            say(answer["nudge"])
