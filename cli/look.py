"""``duly list``, ``show`` and ``explain``: what the ledger holds."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli.errors import usage
from cli.options import Json, Key, examples
from cli.output import clock, print_json, print_table
from ledger.states import State


def register(app: typer.Typer) -> None:
    app.command(
        "list",
        short_help="List operations.",
        epilog=examples("./duly list --state unknown --state blocked", "./duly list --prefix order-17: --json"),
    )(list_)
    app.command(short_help="Show one operation's record.", epilog=examples("./duly show order-17:confirmation:1"))(show)
    app.command(
        short_help="Say what happened to one operation, and why no second effect can have.",
        epilog=examples("./duly explain order-17:confirmation:1", "./duly explain order-17:confirmation:1 --json"),
    )(explain)


def list_(
    state: Annotated[list[State] | None, typer.Option(help="Only this state; may be given again.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only this kind.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Only keys that begin so.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="At most so many.")] = 100,
    as_json: Json = False,
) -> None:
    """List operations, the latest change first. Payloads are not shown."""
    from cli.session import run

    found = run(_list(state or [], kind, prefix, limit))
    if as_json:
        print_json(found)
        return
    print_table(
        ("KEY", "STATE", "SINCE", "DUE", "DEADLINE", "ATTEMPTS", "NOTE"),
        (
            (
                row["key"], row["state"], clock(row["state_since"]), clock(row["due_at"]), clock(row["deadline"]),
                row["attempts"], _note(row),
            )
            for row in found
        ),
    )  # fmt: skip
    if len(found) == limit:
        from cli.output import say

        say(f"Only the first {limit}; --limit shows more.")


def _note(row: dict[str, Any]) -> str:
    notes = [
        "CONTRADICTED by evidence" if row["contradicted"] else "",
        f"settled by {row['settled_by']}" if row["settled_by"] else "",
        row["provider_reference"] or "",
        f"waits for: {row['waiting_for']}" if row["waiting_for"] and not row["ended_at"] else "",
        f"stop requested: {row['stop_requested']}" if row["stop_requested"] else "",
        f"not started: {row['dispatch_error']}" if row["dispatch_error"] else "",
    ]
    return "; ".join(note for note in notes if note)


async def _list(states: list[State], kind: str | None, prefix: str | None, limit: int) -> list[dict[str, Any]]:
    from cli.session import environment, ledger
    from ledger import queries

    async with ledger(environment()) as engine:
        return await queries.operations(engine, states=states, kind=kind, prefix=prefix, limit=limit)


def show(key: Key, as_json: Json = False) -> None:
    """Show one operation and everything recorded about it, in order. The payload is not shown."""
    from cli.session import run

    found = run(_show(key))
    if as_json:
        print_json(found)
        return
    from cli.story import lines

    print("\n".join(lines(found)))


async def _show(key: str) -> dict[str, Any]:
    from cli.session import environment, ledger
    from ledger import queries

    async with ledger(environment()) as engine:
        found = await queries.operation(engine, key)
        if found is None:
            raise usage(f"key {key!r} is not in the ledger", "See ./duly list")
        found["now"] = (await queries.ledger(engine))["now"]
    for attempt in found["attempt"]:
        attempt.pop("token", None)  # who holds it may record: not for showing
    found["age_s"] = (found["now"] - found["state_since"]).total_seconds()
    return found


def explain(key: Key, as_json: Json = False) -> None:
    """Tell one operation's story in plain sentences, from the ledger alone.

    At its end: why no second effect can have happened, or why that cannot be excluded.
    """
    from dataclasses import asdict

    from cli.session import run
    from reconcile.effects import account
    from reconcile.explain import explain as tell

    found = run(_show(key))
    sentences = tell(found)
    if as_json:
        counted = account(found)
        print_json(
            {
                "key": key,
                "state": found["state"],
                "effects_proved": counted.proved,
                "effects_at_most": counted.at_most,  # null: no bound is known
                "rests_on_decisions": counted.on_word,
                "sentences": [asdict(sentence) for sentence in sentences],
            }
        )
        return
    from cli.story import told

    print(f"{key}\n")
    print("\n".join(told(sentences)))
