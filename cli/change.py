"""``duly cancel``, ``reschedule``, ``resolve`` and ``release``: a ledger fact first, a nudge second."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli import times
from cli.errors import CommandError, refused, usage
from cli.exit import REFUSED
from cli.options import Deadline, DryRun, Due, Json, Key, Reason, examples
from cli.output import print_json, say
from ledger.states import ENDINGS, State


def register(app: typer.Typer) -> None:
    app.command(epilog=examples('./duly cancel order-17:confirmation:1 --reason "the customer withdrew"'))(cancel)
    app.command(
        epilog=examples("./duly reschedule order-17:confirmation:1 --due +1h --deadline +3h --reason 'shop is closed'")
    )(reschedule)
    app.command(
        epilog=examples(
            "./duly resolve order-17:confirmation:1 --delivered msg_81 --reason 'seen in their outbox'",
            "./duly resolve order-17:confirmation:1 --not-delivered --reason 'their log has no such id' --dry-run",
        )
    )(resolve)
    app.command(epilog=examples('./duly release main --reason "the new key is in place"'))(release)


def cancel(key: Key, reason: Reason, as_json: Json = False) -> None:
    """Withdraw an operation. During a call it is kept: no further attempt starts."""
    from cli.session import run

    _finish(run(_cancel(key, reason)), as_json)


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
    _finish(run(_reschedule(key, moments, reason)), as_json)


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


def _finish(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(answer)
    if not answer["done"]:
        raise refused(f"{answer['key']}: {answer['answer']}", answer.get("nudge", ""))
    if not as_json:
        print(f"{answer['key']}: {answer['answer']}")
        if answer.get("nudge"):
            say(answer["nudge"])


def resolve(
    *,
    key: Key,
    reason: Reason,
    delivered: Annotated[
        str | None, typer.Option(metavar="REFERENCE", help="It happened; the provider's reference of the effect.")
    ] = None,
    not_delivered: Annotated[
        bool, typer.Option("--not-delivered", help="It did not happen; the same key may be sent again.")
    ] = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="Leave it unsettled for ever; nothing is sent.")] = False,
    evidence: Annotated[str | None, typer.Option(metavar="TEXT", help="What shows it; kept with the decision.")] = None,
    expect_state: Annotated[State | None, typer.Option(help="Refuse if it is in another state by now.")] = None,
    expect_attempt: Annotated[int | None, typer.Option(min=0, help="Refuse after another number of attempts.")] = None,
    label: Annotated[str | None, typer.Option(help="Your name, if a shared login decides. A label, no right.")] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Settle an operation whose outcome is unknown.

    Who decided is the database login. "Not delivered" takes effect when no request can still be under way; the answer
    says when.
    """
    from cli.session import run

    choices = [
        choice
        for choice, given in (
            ("delivered", delivered is not None),
            ("not delivered", not_delivered),
            ("abandon", abandon),
        )
        if given
    ]
    if len(choices) != 1:
        raise usage("give exactly one of --delivered REFERENCE, --not-delivered and --abandon")
    arguments = {
        "key": key,
        "choice": choices[0],
        "reason": reason,
        "reference": delivered,
        "evidence": None if evidence is None else {"text": evidence},
        "expected_state": expect_state and str(expect_state),
        "expected_attempt": expect_attempt,
        "label": label,
    }
    answer = run(_resolve(arguments, dry_run))
    if as_json:
        print_json(answer)
    if not answer["accepted"]:
        raise CommandError(REFUSED, f"{key}: {answer['answer']}")
    if not as_json:
        print(f"{key}: {'dry run, nothing changed; it would be ' if dry_run else ''}{answer['answer']}")
        if answer.get("nudge"):
            say(answer["nudge"])


async def _resolve(arguments: dict[str, Any], dry_run: bool) -> dict[str, Any]:
    from dataclasses import asdict

    from cli.session import environment, ledger, nudge
    from ledger import decisions

    env = environment()
    async with ledger(env) as engine:
        answer = asdict(await decisions.decide(engine, **arguments, dry_run=dry_run))
    if dry_run:
        return {**answer, "dry_run": True}
    if answer["accepted"]:
        answer["nudge"] = await nudge(env, arguments["key"])
    return answer


def release(
    name: Annotated[str, typer.Argument(metavar="CONNECTION", help="A connection of duly.toml.")],
    reason: Reason,
    as_json: Json = False,
) -> None:
    """Let a held connection work again; what waits for it goes on."""
    from cli.session import run

    _finish(run(_release(name, reason)), as_json)


async def _release(name: str, reason: str) -> dict[str, Any]:
    from dataclasses import asdict

    from cli.session import environment, ledger
    from ledger import decisions

    async with ledger(environment()) as engine:
        return asdict(await decisions.release_connection(engine, name, reason))
