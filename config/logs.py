"""Logs: one JSON object per line on standard error, plain text on a terminal. Never a payload, never a secret."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, MutableMapping
from typing import Any, Final, TextIO

import structlog

from provider.text import MASK, SECRET_MIN

_NEVER: Final = frozenset({"payload", "headers", "body", "authorization", "password", "secret", "database_url"})
"""Names whose values are not logged, whoever passes them."""

# At INFO httpx prints URLs, which may carry a token, and alembic a line for each step.
_QUIET: Final = ("httpx", "httpcore", "asyncio", "alembic")


def configure(level: str = "INFO", *, stream: TextIO | None = None, secrets: Iterable[str] = ()) -> None:
    """Sets up structlog and the standard library's logging for this process; both write the same lines.

    ``secrets`` are masked wherever they occur, in exceptions too.
    """
    stream = sys.stderr if stream is None else stream
    terminal = stream.isatty()
    mask = _Mask(secrets)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.format_exc_info,  # as text, so without the local variables of each frame
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=True)
        if terminal
        else structlog.processors.JSONRenderer(ensure_ascii=False, default=str)
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _drop, mask, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def _drop(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for name in _NEVER.intersection(event):
        event[name] = MASK
    return event


class _Mask:
    """Replaces secrets in every text of an event."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # The longest first, so that one that contains another goes whole.
        self._secrets = sorted({s for s in secrets if len(s) >= SECRET_MIN}, key=len, reverse=True)

    def __call__(self, _logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if self._secrets:
            for name, value in event.items():
                event[name] = self._masked(value)
        return event

    def _masked(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        text = value if isinstance(value, str) else str(value)
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text
