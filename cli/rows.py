"""Reading a file of operations: CSV or JSON lines into rows, each with its line, and what is wrong with the others."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cli import times
from cli.schedule import parse_object

COLUMNS: Final = ("key", "kind", "due_at", "deadline", "subject", "version", "tenant", "payload")
"""What has a meaning of its own; every other column goes into the payload."""

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
# 64 KiB may be a payload; a cell that holds one is not a fault of the file (csv's own limit is 128 KiB).
_CELL_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class Defaults:
    """For rows that do not say it themselves."""

    kind: str | None = None
    due: times.Moment | None = None
    deadline: times.Moment | None = None
    key_template: str | None = None


@dataclass(frozen=True, slots=True)
class Bad:
    """A row that cannot be imported. ``conflict``: the ledger holds something else under its key."""

    line: int
    what: str
    conflict: bool = False


@dataclass(slots=True)
class Row:
    """One operation of the file."""

    line: int
    key: str
    kind: str
    due: times.Moment
    deadline: times.Moment
    payload: dict[str, Any]
    subject: str | None = None
    version: int | None = None
    tenant: str | None = None


@dataclass(slots=True)
class Read:
    """What a file holds."""

    rows: list[Row] = field(default_factory=list)
    bad: list[Bad] = field(default_factory=list)


def read(content: bytes, format_: str, defaults: Defaults) -> Read:
    """Every row and every fault; never raises for what stands in the file."""
    found = Read()
    text = decode(content, found.bad)
    records: Iterator[tuple[int, Mapping[str, Any]]]
    records = csv_records(text, found.bad) if format_ == "csv" else _jsonl(text, found.bad)
    for line, record in records:
        try:
            found.rows.append(_row(line, record, defaults))
        except _RowError as error:
            found.bad.extend(Bad(line, what) for what in error.faults)
    return found


class _RowError(Exception):
    def __init__(self, faults: list[str]) -> None:
        self.faults = faults


def decode(content: bytes, bad: list[Bad]) -> str:
    """The text of a file; empty, with a fault, when it is not UTF-8."""
    try:
        return content.decode("utf-8-sig")  # Excel puts a mark before the first column's name
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        bad.append(Bad(line, "this is not UTF-8; save the file as UTF-8"))
        return ""


def csv_records(text: str, bad: list[Bad]) -> Iterator[tuple[int, dict[str, str]]]:
    """Records with the line where each begins (a quoted cell may hold line ends). Empty cells are left out."""
    csv.field_size_limit(_CELL_LIMIT)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            bad.append(Bad(line, f"this is not CSV: {error}"))
            return
        if cells is None:
            break
        if not cells:  # an empty line
            continue
        if header is None:
            header = [cell.strip() for cell in cells]
            fault = _header_fault(header)
            if fault:
                bad.append(Bad(line, fault))
                return
        elif len(cells) != len(header):
            bad.append(Bad(line, f"has {len(cells)} cells, and the header has {len(header)}"))
        else:
            yield line, {name: cell for name, cell in zip(header, cells, strict=True) if cell != ""}
    if header is None and not bad:
        bad.append(Bad(1, "the file is empty; its first line must name the columns"))


def _header_fault(header: list[str]) -> str | None:
    if len(header) == 1 and (";" in header[0] or "\t" in header[0]):
        return "the columns are not separated by commas; save the file with commas"
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        return f"the header names {', '.join(repr(name) for name in twice)} more than once"
    return "the header has a column without a name" if "" in header else None


def _jsonl(text: str, bad: list[Bad]) -> Iterator[tuple[int, dict[str, Any]]]:
    # Not splitlines(): JSON text may hold U+2028, which is no end of line here.
    for line, record in enumerate(text.split("\n"), 1):
        if not record.strip():
            continue
        try:
            value = parse_object(record)
        except ValueError as error:
            bad.append(Bad(line, f"the line {error}"))
        else:
            yield line, {name: part for name, part in value.items() if name == "payload" or part is not None}


def _row(line: int, record: Mapping[str, Any], defaults: Defaults) -> Row:
    """Raises _RowError with every fault of the row."""
    faults: list[str] = []
    payload = {name: value for name, value in record.items() if name not in COLUMNS}
    given = record.get("payload")
    if isinstance(given, str):
        try:
            given = parse_object(given)
        except ValueError as error:
            faults.append(f"payload {error}")
            given = None
    if isinstance(given, dict):
        both = sorted(given.keys() & payload.keys())
        if both:
            faults.append(f"payload and columns both give {', '.join(both)}")
        payload.update(given)
    elif given is not None or ("payload" in record and not isinstance(record["payload"], str)):
        faults.append("payload is not a JSON object")

    texts: dict[str, str | None] = {}
    for name in ("key", "kind", "subject", "tenant"):
        value = record.get(name)
        if value is not None and not isinstance(value, str):
            faults.append(f"{name} must be text, not {value!r}")
            value = None
        texts[name] = value
    key = texts["key"] or _from_template(defaults.key_template, {**record, **payload}, faults)
    kind = texts["kind"] or defaults.kind
    if kind is None:
        faults.append("kind is missing; name it in a column or with --kind")
    due = _moment(record.get("due_at"), "due_at", defaults.due, "--due", faults)
    deadline = _moment(record.get("deadline"), "deadline", defaults.deadline, "--deadline", faults)
    version = _version(record.get("version"), faults)
    if (texts["subject"] is None) != (version is None) and not any("version" in fault for fault in faults):
        faults.append("subject and version go together: give both or neither")
    if faults or key is None or kind is None or due is None or deadline is None:
        raise _RowError(faults)
    return Row(line, key, kind, due, deadline, payload, texts["subject"], version, texts["tenant"])


def _from_template(template: str | None, values: Mapping[str, Any], faults: list[str]) -> str | None:
    if template is None:
        faults.append("key is missing; name it in a column or with --key-template")
        return None
    missing = [name for name in _PLACEHOLDER.findall(template) if not isinstance(values.get(name), str | int)]
    if missing:
        faults.append(f"key cannot be made: the row has no {', '.join(missing)}")
        return None
    return _PLACEHOLDER.sub(lambda mark: str(values[mark[1]]), template)


def _moment(value: Any, name: str, default: times.Moment | None, option: str, faults: list[str]) -> times.Moment | None:
    if value is None:
        if default is None:
            faults.append(f"{name} is missing; name it in a column or with {option}")
        return default
    try:
        if not isinstance(value, str):
            raise times.TimeError(f"{name} must be text, not {value!r}")
        return times.parse(value, name)
    except times.TimeError as error:
        faults.append(str(error))
        return None


def _version(value: Any, faults: list[str]) -> int | None:
    if value is None:
        return None
    try:
        # Not int(): that takes " 1_000 " and True.
        if isinstance(value, bool) or not re.fullmatch(r"-?\d{1,18}", str(value)):
            raise ValueError
        return int(value)
    except ValueError:
        faults.append(f"version must be a whole number, not {value!r}")
        return None
