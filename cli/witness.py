"""``duly witness``: whether this ledger may send, and an owner's word after a restore."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli.change import finish
from cli.errors import usage
from cli.options import Json, examples
from cli.output import clock, print_json, say
from cli.story import fit


def register(app: typer.Typer) -> None:
    app.command(
        short_help="Say whether this ledger is in quarantine; adopt it after a restore.",
        epilog=examples(
            "./duly witness",
            "./duly witness --adopt --reason 'restored the backup of 03:00; compared with the provider'",
        ),
    )(witness)


def witness(
    adopt: Annotated[bool, typer.Option("--adopt", help="This ledger is the one to go on with. Owners only.")] = False,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="With --adopt: why; it is kept.")] = None,
    as_json: Json = False,
) -> None:
    """Say whether anything may be sent from this ledger, and who adopted it after which restore.

    In quarantine nothing is sent. Adopting puts every operation that could have run in the gap in doubt, and lets the
    rest go on.
    """
    from cli.session import run

    if adopt != (reason is not None):
        raise usage("--adopt and --reason go together")
    if reason is not None:
        finish(run(_adopt(reason)), as_json)
        return
    found = run(_state())
    if as_json:
        print_json(found)
        return
    print(f"ledger      {found['id']}, made {clock(found['created_at'])}")
    if found["quarantine"] is None:
        print("quarantine  none: operations are sent")
    else:
        print(f"quarantine  since {clock(found['quarantined_at'])}: {fit(found['quarantine'])}")
        print("            nothing is sent. Check what was restored, then: ./duly witness --adopt --reason TEXT")
    for row in found["adoptions"]:
        print(f"adopted     {clock(row['at'])} by {row['adopted_by']}: {fit(row['reason'])}")
    if not found["adoptions"]:
        say("never restored: nobody had to adopt it")


async def _state() -> dict[str, Any]:
    from cli.session import environment, ledger
    from ledger import queries

    async with ledger(environment()) as engine:
        found = await queries.ledger(engine)
        shown = {name: found[name] for name in ("id", "created_at", "quarantine", "quarantined_at")}
        return {**shown, "adoptions": await queries.adoptions(engine)}


async def _adopt(reason: str) -> dict[str, Any]:
    from dataclasses import asdict

    from cli.session import environment, ledger
    from ledger import decisions

    async with ledger(environment()) as engine:
        return asdict(await decisions.adopt(engine, reason))
