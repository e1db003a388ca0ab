"""``duly unknown`` and ``dead``: what waits for a person, the oldest first, each with the command that moves it on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from cli.errors import usage
from cli.options import Json, examples
from cli.output import age, clock, print_json, print_table, say
from cli.story import fit
from ledger.states import DEAD, State

Limit = Annotated[int, typer.Option(min=1, max=1_000_000, help="At most so many.")]
Kind = Annotated[str | None, typer.Option(help="Only this kind.")]
OlderThan = Annotated[str | None, typer.Option(metavar="DURATION", help="Only what has waited longer, such as 2h.")]


def register(app: typer.Typer) -> None:
    app.command(
        short_help="List operations whose outcome is not known.",
        epilog=examples("./duly unknown", "./duly unknown --kind order.confirmation --json | jq '.[].settle'"),
    )(unknown)
    app.command(
        short_help="List operations that ended without effect, or are blocked.",
        epilog=examples("./duly dead --state expired --older-than 1h", "./duly dead --kind order.confirmation --json"),
    )(dead)


def unknown(kind: Kind = None, limit: Limit = 100, as_json: Json = False) -> None:
    """Operations whose outcome is not known, the oldest doubt first: what was tried, what is next, how to settle it."""
    from cli.session import run

    found = run(_unknown(kind, limit))
    if as_json:
        print_json(found)
        return
    _print(
        ("KEY", "AGE", "KIND", "OWNER", "TRIED", "NEXT", "SETTLE"),
        [
            (row["key"], age(row["age_s"]), row["kind"], row["owner"], "; ".join(row["tried"]), "; ".join(row["next"]),
             " | ".join(row["settle"]))
            for row in found
        ],
    )  # fmt: skip
    _more(found, limit)


async def _unknown(kind: str | None, limit: int) -> list[dict[str, Any]]:
    from cli.session import environment, ledger
    from ledger import queries

    async with ledger(environment()) as engine:
        found = await queries.unknown(engine, kind=kind, limit=limit)
        waiting = await queries.waiting_decisions(engine, [row["key"] for row in found])
    for row in found:
        row["approvals"] = [each for each in waiting if each["key"] == row["key"]]
        row["tried"] = list(_tried(row))
        row["next"] = list(_next(row))
        row["settle"] = list(_settle(row))
    return found


def _tried(row: dict[str, Any]) -> Iterator[str]:
    """What was done about it so far."""
    status = f", status {row['last_status']}" if row["last_status"] is not None else ""
    detail = f", {fit(row['last_detail'])}" if row["last_detail"] else ""
    yield f"attempt {row['attempts']} {row['last_outcome']}{status}{detail}"
    if row["open_attempts"] > 1:
        yield f"{row['open_attempts']} of {row['attempts']} attempts are not settled"
    if row["look_ups"]:
        why = f" ({fit(row['finding_why'])})" if row["finding_why"] else ""
        yield f"{row['look_ups']} look-ups, the last at {clock(row['found_at'])}: {fit(row['finding'])}{why}"
    else:
        yield "no look-up yet" if row["look_at"] else "the provider cannot be asked"
    if row["contradicted"]:
        yield "evidence contradicts"


def _next(row: dict[str, Any]) -> Iterator[str]:
    """What happens by itself, in what order it will, and what waits for a person."""
    at: list[tuple[datetime, str]] = []
    if row["pending_decision"] is not None:
        at.append((row["pending_at"], f"decision {row['pending_decision']} takes effect"))
    if row["look_at"] is not None:
        at.append((row["look_at"], "look-up"))
    if row["repeat_at"] is not None and row["pending_decision"] is None:
        at.append((row["repeat_at"], "repeat with the same key"))
    yield from (f"{what} at {clock(when)}" for when, what in sorted(at))
    if row["waiting_for"]:
        yield f"waits for: {fit(row['waiting_for'])}"
    if row["no_repeat"]:
        yield f"not repeated: {row['no_repeat']}"
    for each in row["approvals"]:
        yield f"decision {each['id']} ({each['choice']}, {each['label'] or each['decided_by']}) waits for approval"
    if not at and not row["approvals"]:
        yield "a person"


def _settle(row: dict[str, Any]) -> Iterator[str]:
    """Commands to copy. They are refused if it has moved on since."""
    start = f"./duly resolve {row['key']} --expect-state unknown --expect-attempt {row['attempts']}"
    for each in row["approvals"]:
        yield f"./duly approve {each['id']} --reason TEXT"
    yield f"{start} --delivered REFERENCE --reason TEXT"
    yield f"{start} --not-delivered --reason TEXT"
    yield f"{start} --abandon --reason TEXT"


def dead(
    kind: Kind = None,
    state: Annotated[list[State] | None, typer.Option(help="Only rejected, exhausted, expired or blocked.")] = None,
    older_than: OlderThan = None,
    limit: Limit = 100,
    as_json: Json = False,
) -> None:
    """The dead list, the oldest first: why each got there, and the command that replays it."""
    from cli.session import run

    dead_states(state)
    found = run(_dead(state or [], kind, parse_age(older_than), limit))
    if as_json:
        print_json(found)
        return
    _print(
        ("KEY", "STATE", "AGE", "KIND", "OWNER", "WHY", "REPLAY"),
        [
            (row["key"], row["state"], age(row["age_s"]), row["kind"], row["owner"], fit(row["why"]), row["replay"])
            for row in found
        ],
    )
    _more(found, limit)


def dead_states(states: list[State] | None) -> None:
    """Raises CommandError for a state that is not on the dead list."""
    for name in states or []:
        if name not in DEAD:
            raise usage(f"{name} is not on the dead list", f"One of: {', '.join(sorted(DEAD))}")


def parse_age(text: str | None) -> timedelta | None:
    """Raises CommandError."""
    from provider.durations import parse_duration

    try:
        return None if text is None else timedelta(seconds=parse_duration(text))
    except (ValueError, OverflowError):
        raise usage(f"--older-than is {text!r}, which is no duration", 'Write for example "2h" or "1d"') from None


async def _dead(
    states: list[State], kind: str | None, older_than: timedelta | None, limit: int
) -> list[dict[str, Any]]:
    from cli.session import environment, ledger
    from ledger import queries

    async with ledger(environment()) as engine:
        found = await queries.dead(engine, states=states, kind=kind, older_than=older_than, limit=limit)
    for row in found:
        row["replay"] = _replay(row)
    return found


def _replay(row: dict[str, Any]) -> str:
    if row["contradicted"]:
        return f"./duly explain {row['key']}"  # evidence contradicts it: correct it first
    later = " --deadline +2h" if row["too_late"] and row["state"] != State.BLOCKED else ""
    return f"./duly replay {row['key']}{later} --reason TEXT --dry-run"


def _print(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    """On a terminal one block for each, with room for commands; elsewhere a table as everywhere."""
    if not sys.stdout.isatty():
        print_table(columns, rows)
        return
    for row in rows:
        print("  ".join(str(cell) for cell in row[:-3]))
        for name, cell in zip(columns[-3:], row[-3:], strict=True):
            for part in str(cell).split(" | "):
                print(f"    {name.lower():<7} {part}")
        print()


def _more(found: list[dict[str, Any]], limit: int) -> None:
    if len(found) == limit:
        say(f"Only the first {limit}; --limit shows more.")
    elif not found:
        say("none")
