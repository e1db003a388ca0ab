"""Line numbers in a TOML document: ``tomllib`` gives none after parsing."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

Path = tuple[str, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
# "… (at line 3, column 5)" at the end of every TOMLDecodeError, or "(at end of document)".
_PLACE = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$")


def locate(path: Sequence[str], text: str) -> int:
    """The line (from 1) of the deepest part of ``path`` that the document contains; 1 when it contains none.

    ``text`` must be valid TOML. So a missing field gets the line of the table that lacks it.
    """
    lines = _lines(text)
    for length in range(len(path), 0, -1):
        line = lines.get(tuple(path[:length]))
        if line is not None:
            return line
    return 1


def dotted(path: Sequence[str]) -> str:
    """``kinds."order.confirmation".owner``: the path as it is written in TOML."""
    return ".".join(part if _BARE.fullmatch(part) else f'"{part}"' for part in path)


def syntax_error(error: tomllib.TOMLDecodeError, text: str) -> tuple[int, str]:
    """Line and message of a document that is not TOML."""
    message = str(error)
    place = _PLACE.search(message)
    line = int(place[1]) if place and place[1] else text.count("\n") + 1
    return line, _PLACE.sub("", message)


def _lines(text: str) -> dict[Path, int]:
    """Every path of the document with the line where it first stands."""
    found: dict[Path, int] = {}
    table: Path = ()
    for number, chunk in _statements(text):
        content = tomllib.loads(chunk)
        if chunk.lstrip().startswith("["):
            (table,) = list(_paths(content))[-1:]
            found.setdefault(table, number)
        for path in _paths(content):
            prefix = () if chunk.lstrip().startswith("[") else table
            found.setdefault(prefix + path, number)
    return found


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Headers and assignments with their first line. A value over several lines ends where it becomes valid."""
    pending: list[str] = []
    start = 0
    for number, line in enumerate(text.splitlines(), 1):
        if not pending:
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            start = number
        pending.append(line)
        chunk = "\n".join(pending)
        try:
            tomllib.loads(chunk)
        except tomllib.TOMLDecodeError:
            continue
        yield start, chunk
        pending = []


def _paths(content: Any) -> Iterator[Path]:
    """The paths of the nested tables and values in a parsed statement, outermost first."""
    if isinstance(content, list):  # [[array of tables]]: the schema has none, their line is still worth saying
        for item in content:
            yield from _paths(item)
    elif isinstance(content, dict):
        for name, value in content.items():
            yield (name,)
            for path in _paths(value):
                yield (name, *path)
