"""``duly resolve``, ``approve`` and ``release``: people's choices. A ledger fact first, a nudge second."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from cli import times
from cli.change import finish
from cli.errors import CommandError, usage
from cli.exit import REFUSED
from cli.options import DryRun, Json, Key, Reason, examples
from cli.output import print_json, say
from ledger.states import State


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "./duly resolve order-17:confirmation:1 --delivered msg_81 --reason 'seen in their outbox'",
            "./duly resolve order-17:confirmation:1 --not-delivered --reason 'their log has no such id' --dry-run",
            "./duly resolve order-17:confirmation:1 --reopen --deadline +2h --reason 'address mended'",
        )
    )(resolve)
    app.command(
        epilog=examples(
            "./duly approve 12 --reason 'checked their console too'",
            "./duly approve --plan 7 --reason 'agreed with the shop' --dry-run",
        )
    )(approve)
    app.command(epilog=examples('./duly release main --reason "the new key is in place"'))(release)


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
    new_epoch: Annotated[
        bool, typer.Option("--new-epoch", help="Send it again as a new effect, with a new key. Owners only.")
    ] = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="Leave it unsettled for ever; nothing is sent.")] = False,
    release_: Annotated[bool, typer.Option("--release", help="What blocked it is mended; it goes on.")] = False,
    extend: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"A later deadline: {times.HELP}. Owners only.")
    ] = None,
    reopen: Annotated[bool, typer.Option("--reopen", help="Try a dead one again: its next generation.")] = False,
    correct: Annotated[
        State | None, typer.Option(metavar="ENDING", help="What the evidence shows of one that has ended.")
    ] = None,
    deadline: Annotated[str | None, typer.Option(metavar="TIME", help="With --reopen: a new deadline.")] = None,
    reference: Annotated[str | None, typer.Option(help="With --correct delivered: the provider's.")] = None,
    evidence: Annotated[str | None, typer.Option(metavar="TEXT", help="What shows it; kept with the decision.")] = None,
    expect_state: Annotated[State | None, typer.Option(help="Refuse if it is in another state by now.")] = None,
    expect_attempt: Annotated[int | None, typer.Option(min=0, help="Refuse after another number of attempts.")] = None,
    label: Annotated[str | None, typer.Option(help="Your name, if a shared login decides. A label, no right.")] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Decide about one operation: settle a doubt, let it go on, or open it again.

    Who decided is the database login. "Not delivered" takes effect when no request can still be under way; the answer
    says when. For kinds so marked a second person approves what may send again: ./duly approve.
    """
    from cli.session import run

    choices = {
        "delivered": delivered is not None,
        "not delivered": not_delivered,
        "new epoch": new_epoch,
        "abandon": abandon,
        "release": release_,
        "extend": extend is not None,
        "reopen": reopen,
        "correct": correct is not None,
    }
    chosen = [choice for choice, given in choices.items() if given]
    if len(chosen) != 1:
        options = ", ".join(f"--{choice.replace(' ', '-')}" for choice in choices)
        raise usage(f"give exactly one choice of {options}")
    if deadline is not None and not reopen:
        raise usage("--deadline goes with --reopen; --extend TIME moves the deadline of one that is open")
    if reference is not None and correct is None:
        raise usage("--reference goes with --correct; --delivered takes its own")
    text = extend if extend is not None else deadline
    try:
        moment = None if text is None else times.parse(text, "--deadline" if extend is None else "--extend")
    except times.TimeError as error:
        raise usage(str(error)) from None
    arguments = {
        "key": key,
        "choice": chosen[0],
        "reason": reason,
        "reference": delivered if delivered is not None else reference,
        "evidence": None if evidence is None else {"text": evidence},
        "expected_state": expect_state and str(expect_state),
        "expected_attempt": expect_attempt,
        "label": label,
        "ending": correct and str(correct),
    }
    answer = run(_resolve(arguments, moment, dry_run))
    _say(key, answer, as_json)


def _say(key: str, answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(answer)
    if not answer["accepted"]:
        raise CommandError(REFUSED, f"{key}: {answer['answer']}")
    if not as_json:
        dry_run = "dry run, nothing changed; it would be " if answer.get("dry_run") else ""
        print(f"{key}: {dry_run}{answer['answer']}")
        if answer.get("nudge"):
            say(answer["nudge"])


async def _resolve(arguments: dict[str, Any], moment: times.Moment | None, dry_run: bool) -> dict[str, Any]:
    from dataclasses import asdict

    from cli.session import environment, ledger, nudge
    from ledger import decisions

    env = environment()
    async with ledger(env) as engine:
        deadline = await absolute(engine, moment)
        answer = asdict(await decisions.decide(engine, **arguments, deadline=deadline, dry_run=dry_run))
    if dry_run:
        return {**answer, "dry_run": True}
    if answer["accepted"]:
        answer["nudge"] = await nudge(env, arguments["key"])
    return answer


async def absolute(engine: Any, moment: times.Moment | None) -> datetime | None:
    """The time that is meant, by the ledger's clock. Raises CommandError."""
    from cli.session import ledger_now

    if moment is None:
        return None
    async with engine.begin() as connection:
        now = await ledger_now(connection)
    try:
        return times.resolve(moment, now)
    except times.TimeError as error:
        raise usage(str(error)) from None


def approve(
    *,
    decision: Annotated[
        list[int] | None, typer.Argument(help="Numbers of decisions that wait; see ./duly unknown.")
    ] = None,
    plan: Annotated[int | None, typer.Option(min=1, help="All decisions of this plan that wait.")] = None,
    reason: Reason,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Approve what another person decided, or turn a proposal into a decision of your own.

    Exit code 3 if any is refused; the others are approved all the same.
    """
    from cli.session import run

    if bool(decision) == (plan is not None):
        raise usage("give numbers of decisions, or --plan NUMBER")
    answers = run(_approve(decision or [], plan, reason, dry_run))
    if as_json:
        print_json(answers)
    else:
        for answer in answers:
            verb = "would be approved" if dry_run else "approved"
            said = f"{verb}; {answer['answer']}" if answer["accepted"] else answer["answer"]
            print(f"decision {answer['approved']} ({answer['key']}): {said}")
            if answer.get("nudge"):
                say(answer["nudge"])
        if not answers:
            say(f"no decision of plan {plan} waits for approval")
    refused = [answer for answer in answers if not answer["accepted"]]
    if refused:
        raise CommandError(REFUSED, f"{len(refused)} of {len(answers)} not approved")


async def _approve(numbers: list[int], plan: int | None, reason: str, dry_run: bool) -> list[dict[str, Any]]:
    from dataclasses import asdict

    from cli.session import environment, ledger, nudge
    from ledger import decisions, queries

    env = environment()
    answers = []
    async with ledger(env) as engine:
        if plan is not None:
            found = await queries.plan(engine, plan)
            if found is None:
                raise usage(f"plan {plan} is not in the ledger", "See ./duly plan")
            waiting = {row["id"] for row in await queries.waiting_decisions(engine)}
            numbers = [row["decision"] for row in found["item"] if row["decision"] in waiting]
        for number in numbers:
            answer = asdict(await decisions.approve(engine, number, reason, dry_run=dry_run))
            answer["approved"] = number
            # A plan's operations have ended runs, or are found by the sweep; one by one their workflows are told.
            if answer["accepted"] and not dry_run and plan is None:
                answer["nudge"] = await nudge(env, answer["key"])
            answers.append(answer)
    return answers


def release(
    name: Annotated[str, typer.Argument(metavar="CONNECTION", help="A connection of duly.toml.")],
    reason: Reason,
    as_json: Json = False,
) -> None:
    """Let a held connection work again; what waits for it goes on: one first, then the rest, spread out."""
    from cli.session import run

    finish(run(_release(name, reason)), as_json)


async def _release(name: str, reason: str) -> dict[str, Any]:
    from dataclasses import asdict

    from cli.session import environment, ledger
    from ledger import decisions

    async with ledger(environment()) as engine:
        return asdict(await decisions.release_connection(engine, name, reason))
