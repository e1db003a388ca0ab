"""Texts of duly.toml with ``${NAME}`` from the environment and ``{key}`` from the operation."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

PLACEHOLDERS = ("key", "idempotency_key", "kind", "attempt")
"""What a header or the URL of a call may take from the operation, written ``{key}``."""

PAYLOAD = "payload"
"""Among the placeholders of a text: it may also take a field of the payload, ``{payload.order.email}``."""

# One pattern and one pass for both, so that a secret with braces in it is never read as a template.
_MARK = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}|\{([a-z_]+(?:\.[^{}\s]+)?)\}")


class MissingVariableError(KeyError):
    """A ``${NAME}`` without a default names nothing, or only an empty text, in the environment."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"the environment variable {self.name} is not set (or empty)"


def check_template(text: str, placeholders: Collection[str] = PLACEHOLDERS) -> str:
    """The text itself. Raises ValueError for a ``{word}`` that is no placeholder."""
    for mark in _MARK.finditer(text):
        if mark[3] is not None and not _known(mark[3], placeholders):
            known = ", ".join(f"{{{name}.FIELD}}" if name == PAYLOAD else f"{{{name}}}" for name in placeholders)
            raise ValueError(f"{mark[0]} is not known here; known are {known} and ${{NAME}} for the environment")
    return text


def placeholders_of(text: str) -> set[str]:
    """The placeholders in the text, those of the environment apart."""
    return {mark[3] for mark in _MARK.finditer(text) if mark[3] is not None}


def _known(name: str, placeholders: Collection[str]) -> bool:
    first, dot, _ = name.partition(".")
    return first in placeholders and bool(dot) is (first == PAYLOAD)


class Template:
    """One text with its variables filled in, waiting for the operation."""

    def __init__(
        self,
        text: str,
        environ: Mapping[str, str],
        used: Callable[[str, str], None] | None = None,
        placeholders: Collection[str] = PLACEHOLDERS,
    ) -> None:
        """``used`` is told name and value of each variable that came from the environment (not defaults).

        Raises MissingVariableError, which names the variable.
        """
        self._literals = [""]
        self._names: list[str] = []  # one between each two literals
        end = 0
        for mark in _MARK.finditer(text):
            self._literals[-1] += text[end : mark.start()]
            end = mark.end()
            if mark[3] is not None and _known(mark[3], placeholders):
                self._names.append(mark[3])
                self._literals.append("")
            elif mark[3] is not None:
                self._literals[-1] += mark[0]
            else:
                self._literals[-1] += _variable(mark[1], mark[2], environ, used)
        self._literals[-1] += text[end:]

    @property
    def names(self) -> frozenset[str]:
        """The placeholders in it."""
        return frozenset(self._names)

    @property
    def fixed(self) -> bool:
        """Whether it is the same for every operation."""
        return not self._names

    def fill(self, value: Callable[[str], str]) -> str:
        """The text, with ``value`` asked for each placeholder's name."""
        parts = [self._literals[0]]
        for name, literal in zip(self._names, self._literals[1:], strict=True):
            parts += (value(name), literal)
        return "".join(parts)


def expand(text: str, environ: Mapping[str, str], used: Callable[[str, str], None] | None = None) -> str:
    """The text with its variables filled in; ``{placeholders}`` stay. Raises as Template does."""
    return Template(text, environ, used, ()).fill(str)


def _variable(
    name: str, default: str | None, environ: Mapping[str, str], used: Callable[[str, str], None] | None
) -> str:
    value = environ.get(name, "")
    if value:
        if used is not None:
            used(name, value)
        return value
    if default is None:
        raise MissingVariableError(name)
    return default
