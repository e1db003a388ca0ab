"""``duly import``: many operations from a file, all or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from cli import times
from cli.errors import CommandError, usage
from cli.exit import REFUSED, USAGE
from cli.options import DryRun, Json, examples
from cli.output import print_json, say

Format = Literal["jsonl", "csv"]


def register(app: typer.Typer) -> None:
    app.command(
        "import",
        epilog=examples(
            "./duly import examples/orders.jsonl --due now --deadline +2h --dry-run",
            "./duly import examples/orders.csv --kind order.confirmation --due now --deadline +2h \\",
            "    --key-template 'order-{order_id}:confirmation:1'",
            "producer | ./duly import - --format jsonl --json",
        ),
    )(import_)


def import_(
    *,
    file: Annotated[str, typer.Argument(metavar="FILE", help=".jsonl or .csv in UTF-8; - for standard input.")],
    format_: Annotated[
        str | None, typer.Option("--format", metavar="jsonl|csv", help="Needed for -; else by the file's name.")
    ] = None,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Kind of the rows that name none.")] = None,
    due: Annotated[str | None, typer.Option(metavar="TIME", help=f"Due time likewise: {times.HELP}.")] = None,
    deadline: Annotated[str | None, typer.Option(metavar="TIME", help="Deadline likewise.")] = None,
    key_template: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Key of the rows that name none: order-{order_id}:confirmation:1."),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Schedule every row of a file in one transaction, or none. Safe to repeat.

    The whole file is checked first, and every bad row is reported with its line. A row has key, kind, due_at and
    deadline, optionally subject, version, tenant and payload (JSON); every other column or field goes into the payload.
    An empty CSV cell counts as absent.
    """
    from cli.importing import import_rows
    from cli.rows import Defaults
    from cli.session import run

    try:
        defaults = Defaults(
            kind=kind,
            due=None if due is None else times.parse(due, "--due"),
            deadline=None if deadline is None else times.parse(deadline, "--deadline"),
            key_template=key_template,
        )
    except times.TimeError as error:
        raise usage(str(error)) from None
    form = _format(file, format_)
    report = run(import_rows(_bytes(file), form, defaults, dry_run=dry_run, progress=say))
    if as_json:
        print_json({"file": file, **report.as_dict()})
    if report.bad:
        lines: dict[str, list[int]] = {}
        for bad in report.bad:
            lines.setdefault(bad.what, []).append(bad.line)
        for what, (first, *more) in lines.items():
            say(f"{file}:{first}: {what}{f' (also in line {_ranges(more)})' if more else ''}")
        conflicts = {bad.line for bad in report.bad if bad.conflict}
        rows = {bad.line for bad in report.bad}
        counts = f"{len(rows - conflicts)} bad rows, {len(conflicts)} conflicts; nothing was changed"
        raise CommandError(REFUSED if conflicts == rows else USAGE, counts)
    if not as_json:
        would = "dry run, nothing changed: would be " if dry_run else ""
        print(f"{report.rows} rows: {would}{report.created} created, {report.there} already there")
        if report.times_differ:
            print(f"{report.times_differ} of these had other times; the first ones stand (see ./duly reschedule)")


def _format(file: str, given: str | None) -> Format:
    name = given or Path(file).suffix.lower().lstrip(".")
    if name == "csv":
        return "csv"
    if name in ("jsonl", "ndjson"):
        return "jsonl"
    if given is None and file == "-":
        raise usage("--format is missing", "Say --format jsonl or --format csv")
    raise usage(f"the format {name!r} is not known", "Use a .jsonl or .csv file, or say --format jsonl or --format csv")


def _ranges(lines: list[int]) -> str:
    """``3-13, 20``."""
    ranges: list[list[int]] = []
    for line in lines:
        if ranges and line == ranges[-1][1] + 1:
            ranges[-1][1] = line
        else:
            ranges.append([line, line])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in ranges)


def _bytes(file: str) -> bytes:
    import sys

    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise usage(f"{file} cannot be read: {error.strerror}") from None
