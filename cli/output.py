"""What commands print: the result, and nothing else, on standard output; the rest on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any


def say(text: str) -> None:
    """Progress or a note, on standard error."""
    print(text, file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """One JSON document; times in UTC."""
    print(json.dumps(value, ensure_ascii=False, indent=2, default=_plain, allow_nan=False), flush=True)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return stamp(value)
    return str(value)  # UUID, Path, Enum


def stamp(at: datetime) -> str:
    """A time as JSON has it: ``2026-11-29T18:17:00.861542Z``."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def clock(at: datetime | None) -> str:
    """A time as people read it, in UTC to the second."""
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def age(seconds: float | None) -> str:
    """A length of time in its largest fitting unit: ``90s``, ``12m``, ``5h``, ``3d``."""
    if seconds is None:
        return ""
    for limit, unit, size in ((120, "s", 1), (7200, "m", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds / 86400:.0f}d"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table: drawn on a terminal, tab-separated with a header line elsewhere (for cut, awk and spreadsheets)."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell) for cell in row))  # Text: what others wrote is never read as markup
        Console().print(table)
        return
    for row in [list(columns), *cells]:
        print("\t".join(cell.replace("\t", " ").replace("\n", " ") for cell in row))
    sys.stdout.flush()
