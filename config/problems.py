"""What is wrong with the settings, where, and what to do about it. All of it at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault. ``line`` is None for an environment variable; ``field`` is the dotted name in duly.toml."""

    source: str
    """The file, or "environment"."""
    line: int | None
    field: str
    what: str
    remedy: str

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}" if self.line is not None else self.source
        return ": ".join(part for part in (place, self.field, self.what) if part) + (
            f". {self.remedy}" if self.remedy else ""
        )


class ConfigError(Exception):
    """The settings cannot be used. ``problems`` holds every fault found, one line each in the text."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class UnavailableError(Exception):
    """Something that is needed is not there; ``remedy`` says what to do."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}. {remedy}")
        self.what = what
        self.remedy = remedy
