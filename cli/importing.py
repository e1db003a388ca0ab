"""The import itself: check everything, then one transaction."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from cli import times
from cli.errors import CommandError, explain
from cli.exit import REFUSED, USAGE
from cli.rows import Bad, Defaults, Row, read
from cli.session import environment, ledger, ledger_now
from ledger import queries, transitions

KEY_RULE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:-]{0,198}[A-Za-z0-9])?")  # 1 to 200 bytes, as in the ledger
PAYLOAD_LIMIT: Final = 65536  # bytes, as in the ledger
PROGRESS_EVERY: Final = 1000  # rows; about a second's work

Progress = Callable[[str], None]


@dataclass(slots=True)
class Report:
    """What an import did, or why it did nothing."""

    rows: int = 0
    created: int = 0
    there: int = 0
    times_differ: int = 0
    dry_run: bool = False
    bad: list[Bad] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "rows": self.rows,
            "created": self.created,
            "already_there": self.there,
            "times_differ": self.times_differ,
            "dry_run": self.dry_run,
            "bad_rows": [{"line": bad.line, "problem": bad.what} for bad in self.bad if not bad.conflict],
            "conflicts": [{"line": bad.line, "problem": bad.what} for bad in self.bad if bad.conflict],
        }


@dataclass(frozen=True, slots=True)
class Ready:
    """A row with its times."""

    row: Row
    due_at: datetime
    deadline: datetime


async def import_rows(content: bytes, format_: str, defaults: Defaults, *, dry_run: bool, progress: Progress) -> Report:
    """Nothing is changed unless every row is good."""
    found = read(content, format_, defaults)
    async with ledger(environment()) as engine:
        async with engine.begin() as connection:
            now = await ledger_now(connection)
        required = {kind["name"]: kind["required"] for kind in (await queries.configuration(engine))[0]}
        ready, bad = check(found.rows, required, now)
        report = Report(rows=len(found.rows), dry_run=dry_run, bad=sorted([*found.bad, *bad], key=lambda b: b.line))
        if report.bad:
            return report
        progress(f"{len(ready)} rows are good")
        await _schedule_all(engine, ready, report, dry_run=dry_run, progress=progress)
    return report


def check(rows: list[Row], required: Mapping[str, list[str]], now: datetime) -> tuple[list[Ready], list[Bad]]:
    """What can be seen without asking the ledger about each row. It has the last word."""
    ready: list[Ready] = []
    bad: list[Bad] = []
    seen: dict[str, Row] = {}
    for row in rows:
        first = seen.setdefault(row.key, row)
        try:
            due_at, deadline = times.resolve(row.due, now), times.resolve(row.deadline, now)
        except times.TimeError as error:
            bad.append(Bad(row.line, str(error)))
            continue
        faults = list(_faults(row, required, due_at, deadline, now))
        if first is not row and _content(first) != _content(row):
            faults.append(f"key {row.key} stands in line {first.line} with other content")
        bad.extend(Bad(row.line, fault) for fault in faults)
        if not faults:
            ready.append(Ready(row, due_at, deadline))
    return ready, bad


def _content(row: Row) -> tuple[Any, ...]:
    return row.kind, row.subject, row.version, json.dumps(row.payload, sort_keys=True)


def _faults(
    row: Row, required: Mapping[str, list[str]], due_at: datetime, deadline: datetime, now: datetime
) -> Iterator[str]:
    if not KEY_RULE.fullmatch(row.key):
        yield (
            f"key {row.key[:250]!r} breaks the key rule: 1 to 200 bytes of A-Z a-z 0-9 . _ : - with no leading or "
            "trailing separator"
        )
    if row.kind not in required:
        yield f"kind {row.kind!r} is not known; known: {', '.join(sorted(required)) or 'none (run ./duly migrate)'}"
    missing = [name for name in required.get(row.kind, []) if name not in row.payload]
    if missing:
        yield f"payload lacks {', '.join(missing)}, which kind {row.kind} requires"
    if row.subject is not None and not 1 <= len(row.subject.encode()) <= 200:
        yield f"subject has {len(row.subject.encode())} bytes; 1 to 200 are allowed"
    yield from _payload_faults(row.payload)
    if deadline <= due_at:
        yield f"deadline ({deadline.isoformat()}) is not after due_at ({due_at.isoformat()})"
    elif deadline <= now:
        yield f"deadline ({deadline.isoformat()}) is already past"
    elif due_at > now + timedelta(days=36525):
        yield f"due_at ({due_at.isoformat()}) lies more than a century ahead"


def _payload_faults(payload: Mapping[str, Any]) -> Iterator[str]:
    text = json.dumps(payload, ensure_ascii=False)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        yield "payload holds half a surrogate pair, which is no character"
        return
    if size > PAYLOAD_LIMIT:
        yield f"payload has {size} bytes; {PAYLOAD_LIMIT} are allowed"
    if "\\u0000" in text and "\x00" in "".join(_texts(payload)):
        yield "payload holds a NUL character, which Postgres cannot keep"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield name
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)


class _DryRunError(Exception):
    """Takes back what a dry run did."""


async def _schedule_all(
    engine: AsyncEngine, ready: list[Ready], report: Report, *, dry_run: bool, progress: Progress
) -> None:
    """Every row in one transaction; on the first refusal everything is taken back and every refusal is collected."""
    counts = Report()
    try:
        async with engine.begin() as connection:
            for number, row in enumerate(ready, 1):
                await _schedule(connection, row, counts)
                if number % PROGRESS_EVERY == 0:
                    progress(f"{number} of {len(ready)} rows")
            if dry_run:
                raise _DryRunError
    except _DryRunError:
        pass
    except DBAPIError as error:
        _refusal(error)  # raises for anything that is not about a row
        report.bad = await _collect(engine, ready)
        if report.bad:
            return
        raise  # it is good now: somebody else was in the way
    report.created, report.there, report.times_differ = counts.created, counts.there, counts.times_differ


async def _schedule(connection: AsyncConnection, ready: Ready, counts: Report) -> None:
    row = ready.row
    scheduled = await transitions.schedule(
        connection,
        key=row.key,
        kind=row.kind,
        payload=row.payload,
        due_at=ready.due_at,
        deadline=ready.deadline,
        subject=row.subject,
        version=row.version,
        tenant=row.tenant,
    )
    counts.created += scheduled.created
    counts.there += not scheduled.created
    counts.times_differ += bool(scheduled.note)


async def _collect(engine: AsyncEngine, ready: list[Ready]) -> list[Bad]:
    """Every row that the ledger refuses. A savepoint for each row costs two round trips, so only after a refusal."""
    bad: list[Bad] = []
    counts = Report()
    async with engine.connect() as connection, connection.begin() as transaction:
        for row in ready:
            try:
                async with connection.begin_nested():
                    await _schedule(connection, row, counts)
            except DBAPIError as error:
                refusal = _refusal(error)
                hint = f" ({refusal.remedy})" if refusal.remedy else ""
                bad.append(Bad(row.row.line, f"{refusal.what}{hint}", refusal.code == REFUSED))
        await transaction.rollback()
    return bad


def _refusal(error: DBAPIError) -> CommandError:
    """What the ledger has against one row. Raises anything else again."""
    found = explain(error)
    if found is None or found.code not in (USAGE, REFUSED) or getattr(error.orig, "sqlstate", "") == "42501":
        raise error
    return found
