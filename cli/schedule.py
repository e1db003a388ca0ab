"""``duly schedule``: one operation, for trying things and for repairs. Applications call ``duly.schedule`` in SQL."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import times
from cli.errors import usage
from cli.options import Deadline, Due, Json, examples
from cli.output import print_json


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "./duly schedule order-17:confirmation:1 --kind order.confirmation \\",
            "    --payload '{\"order_id\": 17}' --due +10m --deadline +2h",
        )
    )(schedule)


def schedule(
    *,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Its stable business identity: object:purpose:version.")],
    kind: Annotated[str, typer.Option(metavar="KIND", help="A kind of duly.toml.")],
    payload: Annotated[str, typer.Option(metavar="JSON|@FILE", help="A JSON object, or @FILE, or @- for stdin.")],
    due: Due,
    deadline: Deadline,
    subject: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What versions compete for: object:purpose.")
    ] = None,
    version: Annotated[int | None, typer.Option(metavar="N", help="Its version; a newer one supersedes.")] = None,
    tenant: Annotated[str | None, typer.Option(metavar="TEXT", help="For whom; shown and searched for.")] = None,
    as_json: Json = False,
) -> None:
    """Schedule one operation.

    The same key with the same content again changes nothing and is no error.
    """
    from cli.session import run

    try:
        moments = times.parse(due, "--due"), times.parse(deadline, "--deadline")
    except times.TimeError as error:
        raise usage(str(error)) from None
    operation = {"key": key, "kind": kind, "payload": read_payload(payload), "subject": subject, "version": version}
    answer = run(_schedule({**operation, "tenant": tenant}, moments))
    if as_json:
        print_json(answer)
        return
    verb = "scheduled" if answer["created"] else f"was there already, {answer['state']}"
    print(f"{answer['key']} {verb}: due {answer['due_utc']}, deadline {answer['deadline_utc']}")
    if answer["note"]:
        print(answer["note"], file=sys.stderr)


async def _schedule(operation: dict[str, Any], moments: tuple[times.Moment, times.Moment]) -> dict[str, Any]:
    from dataclasses import asdict

    from cli.session import environment, ledger, ledger_now
    from ledger import transitions

    async with ledger(environment()) as engine, engine.begin() as connection:
        now = await ledger_now(connection)
        try:
            due_at, deadline = (times.resolve(moment, now) for moment in moments)
        except times.TimeError as error:
            raise usage(str(error)) from None
        scheduled = await transitions.schedule(connection, due_at=due_at, deadline=deadline, **operation)
    return asdict(scheduled)


def read_payload(text: str) -> dict[str, Any]:
    """The object in JSON, @FILE or @-. Raises CommandError."""
    if text.startswith("@"):
        name = text[1:]
        try:
            text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8-sig")
        except OSError as error:
            raise usage(f"--payload: {name} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise usage(f"--payload: {name} is not UTF-8", "Save it as UTF-8") from None
    try:
        return parse_object(text)
    except ValueError as error:
        raise usage(f"--payload {error}", "Give an object such as '{\"order_id\": 17}'") from None


def parse_object(text: str) -> dict[str, Any]:
    """A JSON object as Postgres takes it. Raises ValueError: not JSON, no object, NaN, a name twice."""
    try:
        value = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"is not a JSON object: {text.strip()[:40]}")  # noqa: TRY004 - one answer for all faults
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"holds {name}, which JSON does not have")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"holds {twice!r} twice")
    return found
