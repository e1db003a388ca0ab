"""``duly replay`` and ``plan``: dead operations opened again, by a frozen list of exact keys."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from cli import times
from cli.decide import absolute
from cli.errors import CommandError, usage
from cli.exit import REFUSED
from cli.options import Json, Reason, examples
from cli.output import clock, print_json, print_table, say
from cli.story import fit
from cli.waiting import OlderThan, dead_states, parse_age
from ledger.states import State

BATCH = 25
"""Items applied in one transaction: an interrupt loses none of them and waits for no more than these."""

SHOWN = 50
"""Up to so many results are all printed; of more only those that were not done."""

INTERRUPTED = 130  # what shells report for Ctrl-C


def register(app: typer.Typer) -> None:
    app.command(
        short_help="Open dead operations again, by a plan.",
        epilog=examples(
            "./duly replay order-17:confirmation:1 --reason 'address mended' --dry-run",
            "./duly replay --state expired --kind order.confirmation --older-than 10m --limit 1000 \\",
            "    --deadline +2h --reason 'the provider was away all night' --yes",
        ),
    )(replay)
    app.command(
        short_help="List plans, show one, or go on with it.",
        epilog=examples("./duly plan", "./duly plan 7", "./duly plan 7 --apply"),
    )(plan)


def replay(
    *,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY]…", help="Exact keys; or choose with --state.")
    ] = None,
    reason: Reason,
    state: Annotated[list[State] | None, typer.Option(help="rejected, exhausted, expired or blocked.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only this kind.")] = None,
    older_than: OlderThan = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, the oldest first.")] = 100,
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"A new deadline: {times.HELP}. A later one: owners only.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan: keys, versions, evidence, consequence.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before applying.")] = False,
    as_json: Json = False,
) -> None:
    """Open dead operations again: the same key, the next generation; blocked ones are released.

    What is printed is frozen as a plan and applied item by item. What has changed since is skipped and listed, and so
    is what a rule refuses. Exit code 0: all done, or nothing to do; 3: something was refused or skipped.
    """
    from cli.session import run

    if bool(keys) == bool(state):
        raise usage("give exact keys, or --state")
    if keys and (kind or older_than):
        raise usage("--kind and --older-than go with --state")
    dead_states(state)
    if not dry_run and not yes and (as_json or not sys.stdin.isatty()):
        raise usage("nobody is here to be asked", "Look with --dry-run first, then add --yes")
    try:
        moment = None if deadline is None else times.parse(deadline, "--deadline")
    except times.TimeError as error:
        raise usage(str(error)) from None
    chosen = {
        "keys": list(dict.fromkeys(keys)) if keys else None,
        "states": [str(name) for name in state] if state else None,
        "kind": kind,
        "older_than": parse_age(older_than),
        "limit": max(limit, len(keys or [])),
    }
    items, at = run(_preview(chosen, moment))
    possible = [item for item in items if item["possible"]]
    if dry_run or not possible:
        _print_preview(items, dry_run=dry_run, as_json=as_json)
        return
    if not yes:
        _print_items(items)
        if not typer.confirm(f"Replay these {len(possible)}?", err=True):
            raise typer.Exit(REFUSED)
    number = run(_make(chosen, at, reason))
    if number is None:
        raise CommandError(REFUSED, "they have all moved on since; nothing was planned")
    say(f"plan {number}: {len(items)} operations")
    apply(number, as_json=as_json)


async def _preview(chosen: dict[str, Any], moment: times.Moment | None) -> tuple[list[dict[str, Any]], Any]:
    from dataclasses import asdict

    from cli.session import environment, ledger
    from ledger import decisions

    async with ledger(environment()) as engine:
        at = await absolute(engine, moment)
        return [asdict(item) for item in await decisions.preview_plan(engine, **chosen, deadline=at)], at


async def _make(chosen: dict[str, Any], at: Any, reason: str) -> int | None:
    from cli.session import environment, ledger
    from ledger import decisions

    async with ledger(environment()) as engine:
        items = await decisions.make_plan(engine, **chosen, deadline=at, reason=reason)
    return items[0].plan if items else None


def _print_preview(items: list[dict[str, Any]], *, dry_run: bool, as_json: bool) -> None:
    refused = [item for item in items if not item["possible"]]
    if as_json:
        print_json({"plan": None, "dry_run": dry_run, "items": items})
    else:
        _print_items(items)
        would = f"{len(items) - len(refused)} would be replayed, {len(refused)} refused; " if items else "none; "
        say(would + "nothing was written")
    if refused:
        raise CommandError(REFUSED, f"{len(refused)} of {len(items)} refused by a rule, as listed")


def _print_items(items: list[dict[str, Any]]) -> None:
    print_table(
        ("KEY", "STATE", "ATTEMPTS", "GENERATION", "EVIDENCE", "CONSEQUENCE"),
        [
            (
                item["key"],
                item["state"],
                item["attempts"],
                item["generation"],
                fit(item["evidence"]),
                item["consequence"],
            )
            for item in items
        ],
    )


def apply(number: int, *, as_json: bool) -> None:
    """Applies what is left of a plan. Ends with exit code 3 when anything of the plan was not done."""
    from cli.session import run

    try:
        run(_apply(number))
    except KeyboardInterrupt:
        say(f"\nInterrupted. What was applied stays, nothing is half done. Go on with: ./duly plan {number} --apply")
        raise typer.Exit(INTERRUPTED) from None
    _print_plan(run(_plan(number)), as_json)


async def _apply(number: int) -> None:
    from cli.session import environment, ledger
    from ledger import decisions

    async with ledger(environment()) as engine:
        found = await _found(engine, number)
        total, done, refused = found["items"], found["done"], found["refused"]
        while batch := await decisions.apply_plan(engine, number, BATCH):
            done += sum(item.done for item in batch)
            refused += sum(not item.done for item in batch)
            say(f"plan {number}: {done + refused} of {total}, {refused} refused or skipped")


async def _found(engine: Any, number: int) -> dict[str, Any]:
    from ledger import queries

    found = await queries.plan(engine, number)
    if found is None:
        raise usage(f"plan {number} is not in the ledger", "See ./duly plan")
    return found


async def _plan(number: int) -> dict[str, Any]:
    from cli.session import environment, ledger

    async with ledger(environment()) as engine:
        return await _found(engine, number)


def plan(
    number: Annotated[int | None, typer.Argument(min=1, help="A plan; without it all are listed.")] = None,
    apply_: Annotated[bool, typer.Option("--apply", help="Apply what is left of it.")] = False,
    as_json: Json = False,
) -> None:
    """List the plans; show one with what became of each operation; apply one that was interrupted."""
    from cli.session import run

    if number is None:
        if apply_:
            raise usage("--apply needs the number of a plan", "See ./duly plan")
        _print_plans(run(_plans()), as_json)
    elif apply_:
        apply(number, as_json=as_json)
    else:
        _print_plan(run(_plan(number)), as_json, whole=True)


async def _plans() -> list[dict[str, Any]]:
    from cli.session import environment, ledger
    from ledger import queries

    async with ledger(environment()) as engine:
        return await queries.plans(engine)


def _print_plans(found: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    print_table(
        ("PLAN", "AT", "BY", "ITEMS", "DONE", "REFUSED", "LEFT", "REASON"),
        [
            (row["id"], clock(row["at"]), row["made_by"], row["items"], row["done"], row["refused"],
             row["items"] - row["done"] - row["refused"], fit(row["reason"]))
            for row in found
        ],
    )  # fmt: skip


def _print_plan(found: dict[str, Any], as_json: bool, *, whole: bool = False) -> None:
    left = found["items"] - found["done"] - found["refused"]
    if as_json:
        print_json(found)
    else:
        shown = [item for item in found["item"] if whole or found["items"] <= SHOWN or item["done"] is False]
        print_table(
            ("KEY", "SEEN", "NOW", "DONE", "ANSWER"),
            [
                (
                    item["key"],
                    f"{item['state_seen']}, attempt {item['attempt_seen']}",
                    f"{item['state']}, attempt {item['attempts']}",
                    {None: "not yet", True: "yes", False: "no"}[item["done"]],
                    fit(item["answer"] or item["consequence"]),
                )
                for item in shown
            ],
        )
        say(f"plan {found['id']}: {found['done']} done, {found['refused']} refused or skipped, {left} left")
        if any("a second person must approve" in (item["answer"] or "") for item in found["item"]):
            say(f"Some wait for a second person: ./duly approve --plan {found['id']} --reason TEXT")
    if found["refused"]:
        raise CommandError(REFUSED, f"plan {found['id']}: {found['refused']} of {found['items']} refused or skipped")
